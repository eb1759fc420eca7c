"""Arguments of a model call that say where it goes, and what of them the worker's environment holds."""

import re
from collections.abc import Callable, Iterator, Mapping

from perdure.contracts.values import JsonValue

REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
"""A variable of the worker's environment, in place of its value."""

SHORTEST_SECRET = 8
"""A shorter value is taken for no secret, such as the ``EMPTY`` that local servers want for a key."""

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
_WORD = re.compile(rf"[^\s:]{{{SHORTEST_SECRET}}}")


def says_where(name: str) -> bool:
    """Whether the argument says where a call goes: it holds for every model of a provider, and for no other."""
    return _WHERE.match(name) is not None or is_credential(name)


def texts_that_say_where(params: Mapping[str, JsonValue]) -> Iterator[tuple[str, str, bool]]:
    """The texts in the arguments that say where a call goes.

    Returns:
        Of each the name of its argument or header, the text, and whether it is secret: credentials, all headers, and
        addresses that may hold some.
    """
    for name, value in params.items():
        if says_where(name):
            yield from _texts(name, value, "headers" in name)


def place_of_calls(params: Mapping[str, JsonValue]) -> list[tuple[str, str]]:
    """Address and credentials in the arguments: calls with the same ones share the limits of their provider.

    Headers belong to it only where they hold a credential.
    """
    texts = texts_that_say_where(params)
    return [(name, text) for name, text, _ in texts if name in params or is_credential(name)]


def with_where(params: Mapping[str, JsonValue], change: Callable[[str], str]) -> dict[str, JsonValue]:
    """The arguments with other texts in those that say where a call goes."""
    return {name: _changed(value, change) if says_where(name) else value for name, value in params.items()}


def check_credentials(params: Mapping[str, JsonValue]) -> None:
    """Refuse a credential that is written out: definitions are stored.

    Raises:
        ValueError: There is one; the message does not show it.
    """
    for name, text, _ in texts_that_say_where(params):
        rest = REFERENCE.sub("", text)
        written = is_credential(name) and _WORD.search(rest) and not _FILE.fullmatch(text)
        if written or _IN_ADDRESS.search(rest):
            msg = f"{name} would be stored as it stands; write '${{NAME}}' and set NAME in the worker's environment"
            raise ValueError(msg)


def is_credential(name: str) -> bool:
    """Whether a name says that its value is a credential."""
    return _CREDENTIAL.search(name) is not None and _NO_CREDENTIAL.search(name) is None


def _texts(name: str, value: JsonValue, secret: bool) -> Iterator[tuple[str, str, bool]]:
    if isinstance(value, str):
        yield name, value, secret or is_credential(name) or "@" in value or "?" in value
    elif isinstance(value, dict):
        for inner, part in value.items():
            yield from _texts(inner, part, secret)
    elif isinstance(value, list):
        for part in value:
            yield from _texts(name, part, secret)


def _changed(value: JsonValue, change: Callable[[str], str]) -> JsonValue:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {name: _changed(part, change) for name, part in value.items()}
    return [_changed(part, change) for part in value] if isinstance(value, list) else value
