"""Addresses and tokens of Google's Vertex AI, for its Gemini and Claude. Source: Google's references of both.

google-auth finds the credentials and renews their token, on a thread, since that may take seconds. It is imported by
the first call.
"""

import asyncio
import functools
import importlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from perdure.activities.models.failures import NoReplyError
from perdure.activities.models.keys import MissingKeyError

CLAUDE_VERSION = "vertex-2023-10-16"
"""Version of Anthropic's API there, which each request says."""

_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_PROJECT = "PROJECT"
_LOCATIONS = ("VERTEXAI_LOCATION", "VERTEX_LOCATION")
_MULTIREGIONS = frozenset({"eu", "us"})


def url_of(model: str, settings: Mapping[str, Any], *, streams: bool) -> str:
    """The URL of a call, in which :func:`sign` puts the credentials' project unless the settings name one."""
    is_claude = model.startswith("claude-")
    if is_claude:
        method = "streamRawPredict" if streams else "rawPredict"
    else:
        method = "streamGenerateContent?alt=sse" if streams else "generateContent"
    if given := settings.get("api_base") or settings.get("base_url"):
        return f"{str(given).rstrip('/')}:{method}"
    location = str(settings.get("vertex_location") or _first_of(_LOCATIONS) or "us-central1")
    host = {"global": "aiplatform.googleapis.com"}.get(location, f"{location}-aiplatform.googleapis.com")
    if location in _MULTIREGIONS:
        host = f"aiplatform.{location}.rep.googleapis.com"
    version, publisher = ("v1", "anthropic") if is_claude else ("v1beta1", "google")
    project = str(settings.get("vertex_project") or os.environ.get("VERTEXAI_PROJECT") or _PROJECT)
    place = f"projects/{project}/locations/{location}/publishers/{publisher}/models/{quote(model, safe='@')}"
    return f"https://{host}/{version}/{place}:{method}"


async def sign(url: str, settings: Mapping[str, Any]) -> tuple[str, Mapping[str, str]]:
    """The URL with its project, and the headers with a token.

    Raises:
        MissingKeyError: There are no credentials, or nothing names the project.
        NoReplyError: Google gave no token.
    """
    told = settings.get("vertex_credentials") or os.environ.get("VERTEXAI_CREDENTIALS")
    given = told if isinstance(told, str) or told is None else json.dumps(told)
    token, project = await asyncio.to_thread(_fetch, given)
    if f"/projects/{_PROJECT}/" in url and not project:
        msg = "VERTEXAI_PROJECT"
        raise MissingKeyError(msg)
    return url.replace(f"/projects/{_PROJECT}/", f"/projects/{project}/"), {"authorization": f"Bearer {token}"}


def _fetch(given: str | None) -> tuple[str, str]:
    """A token that is good for some minutes at least, and the project of its credentials."""
    try:
        auth: Any = importlib.import_module("google.auth")
        transport: Any = importlib.import_module("google.auth.transport.requests")
    except ModuleNotFoundError as error:
        msg = f"the package {error.name} (pip install 'google-auth[requests]')"
        raise MissingKeyError(msg) from error
    try:
        credentials, project = _credentials(auth, given)
        if not credentials.valid:
            credentials.refresh(transport.Request())
    except auth.exceptions.DefaultCredentialsError as error:
        msg = f"Google's credentials ({error})"
        raise MissingKeyError(msg) from error
    except (auth.exceptions.RefreshError, auth.exceptions.TransportError) as error:
        if not error.retryable and isinstance(error, auth.exceptions.RefreshError):
            msg = f"valid credentials of Google's ({error})"
            raise MissingKeyError(msg) from error
        msg = "Google gave no token"
        raise NoReplyError(msg) from error
    return str(credentials.token), str(project or "")


_KINDS: Mapping[str, tuple[str, str]] = {
    "service_account": ("google.oauth2.service_account", "from_service_account_info"),
    "authorized_user": ("google.oauth2.credentials", "from_authorized_user_info"),
    "external_account": ("google.auth.identity_pool", "from_info"),
}
"""Makers of credentials by the type that a key says: their module, and their method of ``Credentials``."""


@functools.cache
def _credentials(auth: Any, given: str | None) -> tuple[Any, str]:  # noqa: ANN401 - google-auth's
    """The credentials of a file, of its text, or of the machine; and their project.

    Raises:
        MissingKeyError: They cannot be read, or are of another type.
    """
    if given is None:
        found, project = auth.default(scopes=[_SCOPE])
        return found, str(project or "")
    try:
        text = given if given.lstrip().startswith("{") else Path(given).read_text(encoding="utf-8")
        told: Any = json.loads(text)
        module, maker = _KINDS[told["type"]]
        found = getattr(importlib.import_module(module).Credentials, maker)(told, scopes=[_SCOPE])
    except (OSError, ValueError, LookupError, TypeError) as error:
        msg = f"vertex_credentials that can be read ({type(error).__name__}: {error})"
        raise MissingKeyError(msg) from error
    return found, str(told.get("project_id") or told.get("quota_project_id") or "")


def _first_of(names: tuple[str, ...]) -> str:
    return next(filter(None, map(os.environ.get, names)), "")
