"""Arguments of a model call that say where it goes, and what of them the worker's environment holds."""

import re
from collections.abc import Callable, Mapping

from perdure.contracts.values import JsonValue

REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
"""A variable of the worker's environment, in place of its value."""

SHORTEST_CREDENTIAL = 8
"""A shorter word is no credential: local servers want some ``EMPTY`` for a key."""

_WHERE = re.compile(
    r"(api_(base|key|type|version)|base_url|organization|project|(extra_|default_)?headers|timeout|deployment_(id|url)"
    r"|region_name|custom_llm_provider|ssl_verify|client_id|tenant_id"
    r"|(aws|azure|vertex|watsonx|gcs|oci|sagemaker|databricks|gigachat)_\w+)\Z"
)
_CREDENTIAL = re.compile(
    r"(key|token|secret|password|passwd|credentials?|auth|authorization|jwt|cookies?)$", re.IGNORECASE
)
_NO_CREDENTIAL = re.compile(
    r"((idempotency|cache|partition|routing|sort)[-_]?key|(stop|bos|eos|pad)[-_]token)$", re.IGNORECASE
)
_IN_ADDRESS = re.compile(r"://[^/?#]*[^/?#:]@|[?&][\w-]*(?:key|token|secret|sig)=[^&#]{8}", re.IGNORECASE)
_FILE = re.compile(r"[^{}]*\.json|(~|\.)?/[^{}]*")
_WORD = re.compile(rf"[^\s:]{{{SHORTEST_CREDENTIAL}}}")

Change = Callable[[str, str, bool], str]
"""Takes an argument's or a header's name, its text, and whether that is to be kept secret; gives another text."""


def says_where(name: str) -> bool:
    """Whether the argument says where a call goes: it holds for every model of a provider, and for no other."""
    return _WHERE.match(name) is not None or _is_credential(name)


def with_where(params: Mapping[str, JsonValue], change: Change) -> dict[str, JsonValue]:
    """The arguments with other texts in those that say where a call goes.

    Secret are credentials, all headers, and addresses that may hold some.
    """
    return {
        name: _changed(name, value, change, "headers" in name) if says_where(name) else value
        for name, value in params.items()
    }


def check_credentials(params: Mapping[str, JsonValue]) -> None:
    """Refuse a credential that is written out: definitions are stored.

    Raises:
        ValueError: There is one; the message does not show it.
    """

    def refuse(name: str, text: str, _secret: bool) -> str:
        rest = REFERENCE.sub("", text)
        written = _is_credential(name) and _WORD.search(rest) and not _FILE.fullmatch(text)
        if written or _IN_ADDRESS.search(rest):
            msg = f"{name} would be stored as it stands; write '${{NAME}}' and set NAME in the worker's environment"
            raise ValueError(msg)
        return text

    with_where(params, refuse)


def _is_credential(name: str) -> bool:
    return _CREDENTIAL.search(name) is not None and _NO_CREDENTIAL.search(name) is None


def _changed(name: str, value: JsonValue, change: Change, secret: bool) -> JsonValue:
    """Each text in the value, with the name that it stands under."""
    if isinstance(value, str):
        return change(name, value, secret or _is_credential(name) or "@" in value or "?" in value)
    if isinstance(value, dict):
        return {inner: _changed(inner, part, change, secret) for inner, part in value.items()}
    return [_changed(name, part, change, secret) for part in value] if isinstance(value, list) else value
