"""Addresses and keys of models on Azure. Source: Microsoft's reference of Azure OpenAI, and its page on versions.

A deployment stands in the path, with a dated version of the API; or in the body, as OpenAI has it, where the address or
the version is of the newer API, ``v1``.
"""

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, quote

VERSION = "2025-02-01-preview"
"""Version of the API that is asked for where nobody says one, as with litellm."""

_V1 = frozenset({"v1", "latest", "preview"})
"""Versions of the API that has no dates."""

_SERIES = ("o_series/", "gpt5_series/")
"""Beginning that litellm wants before the name of a deployment that does not say which model it has."""


def deployment_of(name: str) -> str:
    """The deployment of a model's name."""
    return next((name.removeprefix(series) for series in _SERIES if name.startswith(series)), name)


def headers_of(settings: Mapping[str, Any], key: str) -> Mapping[str, str] | None:
    """The headers of a call with a key or a token; None if one would have to be fetched."""
    if key:
        return {"api-key": key}
    token = settings.get("azure_ad_token") or os.environ.get("AZURE_AD_TOKEN")
    return {"authorization": f"Bearer {token}"} if token else None


def url_of(address: str, deployment: str, settings: Mapping[str, Any], path: str) -> str:
    """The URL of a call, whatever part of it the author's address has.

    Args:
        address: Address of the resource, of its API, or of the deployment.
        deployment: Name of the deployment.
        settings: Those of the agent.
        path: ``chat/completions`` or ``responses``.
    """
    base, _, query = address.partition("?")
    base = base.rstrip("/").removesuffix(f"/{path}")
    told = parse_qs(query).get("api-version", [""])[0]
    version = str(told or settings.get("api_version") or os.environ.get("AZURE_API_VERSION") or VERSION)
    if base.endswith("/openai/v1"):
        return f"{base}/{path}{f'?{query}' if query else ''}"
    root, _, named = base.partition("/openai")
    if version in _V1 or path == "responses":
        return f"{root}/openai/v1/{path}"
    name = named.removeprefix("/deployments/") or quote(deployment, safe="")
    return f"{root}/openai/deployments/{name}/{path}?api-version={quote(version)}"
