"""Arguments of a model call that say where it goes, and what of them the worker's environment holds."""

import re
from collections.abc import Callable, Mapping

from perdure.contracts.values import JsonValue

WHERE = frozenset(
    {
        "api_base",
        "api_key",
        "api_version",
        "aws_access_key_id",
        "aws_region_name",
        "aws_secret_access_key",
        "aws_session_token",
        "azure_ad_token",
        "base_url",
        "client_secret",
        "custom_llm_provider",
        "extra_headers",
        "headers",
        "organization",
        "timeout",
        "vertex_credentials",
        "vertex_location",
        "vertex_project",
    }
)
"""Arguments of a model call that say where it goes: they hold for every model of a provider, and for no other."""

REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
"""A variable of the worker's environment, in place of its value."""

_CREDENTIAL = re.compile(r"(key|token|secret|password|credential|authorization|cookie)s?$", re.IGNORECASE)
_FILE = re.compile(r"[^{}]*\.json")


def with_where(params: Mapping[str, JsonValue], change: Callable[[str, str], str]) -> dict[str, JsonValue]:
    """The arguments with other texts in those that say where a call goes; ``change`` takes the name and the text."""
    return {name: _changed(name, value, change) if name in WHERE else value for name, value in params.items()}


def check_credentials(params: Mapping[str, JsonValue]) -> None:
    """Refuse a credential that is written out: definitions are stored, and stand in recordings.

    Raises:
        ValueError: There is one; the message does not show it.
    """

    def refuse(name: str, text: str) -> str:
        if _CREDENTIAL.search(name) and not REFERENCE.search(text) and not _FILE.fullmatch(text):
            msg = f"{name} would be stored as it stands; write '${{NAME}}' and set NAME in the worker's environment"
            raise ValueError(msg)
        return text

    with_where(params, refuse)


def _changed(name: str, value: JsonValue, change: Callable[[str, str], str]) -> JsonValue:
    """Each text in the value, with the name that it stands under."""
    if isinstance(value, str):
        return change(name, value)
    if isinstance(value, dict):
        return {inner: _changed(inner, part, change) for inner, part in value.items()}
    return [_changed(name, part, change) for part in value] if isinstance(value, list) else value
