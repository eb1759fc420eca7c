"""Addresses and signatures of Amazon Bedrock, for calls whose keys are at hand.

botocore signs, as boto3 does. A key that has to be fetched, such as that of a profile, a role or a machine, would hold
the event loop up; a call with one goes through litellm.
"""

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from botocore.auth import SigV4Auth  # type: ignore[import-untyped]  # pyright: ignore[reportMissingTypeStubs]
from botocore.awsrequest import AWSRequest  # type: ignore[import-untyped]  # pyright: ignore[reportMissingTypeStubs]
from botocore.credentials import Credentials  # type: ignore[import-untyped]  # pyright: ignore[reportMissingTypeStubs]

from perdure.activities.models.facts import facts_about

SETTINGS = frozenset(
    {
        *("aws_access_key_id", "aws_secret_access_key", "aws_session_token"),
        *("aws_region_name", "aws_bedrock_runtime_endpoint"),
    }
)
"""Settings of an agent that say where its calls go, and with which key."""

_KEYS = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
_REGIONS = ("AWS_REGION_NAME", "AWS_REGION", "AWS_DEFAULT_REGION")
_TOKEN = "AWS_BEARER_TOKEN_BEDROCK"  # noqa: S105 - a variable's name
_FETCHED = ("AWS_PROFILE", "AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE")

_ID = re.compile(r"[a-z0-9][\w.:-]*", re.ASCII)
"""Id of a model, or of a profile of several regions; not the ARN of one."""


def model_of(name: str) -> str:
    """The id of a model that speaks Converse; empty for any other, and for one that litellm routes by its path."""
    is_told = name.startswith("converse/")
    own = name.removeprefix("converse/")
    speaks = is_told or str(facts_about(f"bedrock/{own}").get("litellm_provider")) == "bedrock_converse"
    return own if speaks and _ID.fullmatch(own) and not own.startswith("arn:") else ""


def url_of(model: str, settings: Mapping[str, Any], *, streams: bool) -> str:
    """The URL of a call."""
    given = settings.get("aws_bedrock_runtime_endpoint") or os.environ.get("AWS_BEDROCK_RUNTIME_ENDPOINT")
    address = str(given or f"https://bedrock-runtime.{_region_of(settings)}.amazonaws.com").rstrip("/")
    return f"{address}/model/{quote(model, safe='')}/{'converse-stream' if streams else 'converse'}"


def _region_of(settings: Mapping[str, Any]) -> str:
    return str(settings.get("aws_region_name") or _first_of(_REGIONS) or "us-west-2")


def sign(url: str, body: bytes, settings: Mapping[str, Any]) -> Mapping[str, str] | None:
    """The headers of a call, signed or with a bearer token; None if its key would have to be fetched."""
    headers = {"content-type": "application/json"}
    access, secret, session = (settings.get(name) for name in _KEYS)
    if not access and (token := os.environ.get(_TOKEN)):
        return {**headers, "authorization": f"Bearer {token}"}
    if not access and _first_of(_FETCHED):
        return None
    if not access:
        access, secret, session = (os.environ.get(name.upper()) for name in _KEYS)
    if not access or not secret:
        return None
    request: Any = AWSRequest(method="POST", url=url, data=body, headers=headers)
    signer: Any = SigV4Auth(Credentials(access, secret, session), "bedrock", _region_of(settings))
    signer.add_auth(request)
    return dict(request.headers.items())


def _first_of(names: Iterable[str]) -> str:
    return next(filter(None, map(os.environ.get, names)), "")
