"""The reply that refused a model call: its status, its headers, and the error object in it, in each form seen.

litellm wraps a reply in exceptions of its own choice and gives them a status by the words of the message. The reply
itself lies at the bottom of their chain.
"""

import ast
import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

from perdure.contracts.values import JsonValue

LONGEST_BODY = 200_000
"""A longer body is not read as JSON."""

_CUT_MESSAGE = re.compile(r'"message"\s*:\s*("(?:[^"\\]|\\.){1,5000}")')
"""The message in an error object that was cut off."""

_EMPTY = frozenset({"", "{}", "[]", "null", '""'})


@dataclass(frozen=True)
class ErrorReply:
    """A reply with an error status."""

    status: int
    headers: Mapping[str, str]
    body: str
    address: str

    def text(self) -> str:
        """The provider's words, or what the body is where it has none."""
        body = self.body.strip()
        if body in _EMPTY:
            return f"the reply has an empty body, from {self.address}"
        return error_object(body).words() or body


@dataclass(frozen=True)
class ErrorObject:
    """What an error object says.

    Attributes:
        message: The provider's words.
        names: Its codes and types for the failure, the most precise first.
        status: A status that it gives as its code.
    """

    message: str = ""
    names: tuple[str, ...] = ()
    status: int | None = None

    def words(self) -> str:
        """The message, with the most precise name behind it."""
        name = next((f" [{name}]" for name in self.names if " " not in name), "")
        return f"{self.message}{name}".strip()


NOTHING_SAID = ErrorObject()


def reply_of(chain: Sequence[BaseException]) -> ErrorReply | None:
    """The reply at the bottom of the chain; the exceptions above it wear one that litellm made up."""
    for link in reversed(chain):
        response = cast("Any", getattr(link, "response", None))
        if response is None or "HTTPStatusError" not in {base.__name__ for base in type(link).__mro__}:
            continue
        address = urlsplit(str(response.request.url))
        return ErrorReply(
            status=int(response.status_code),
            headers=dict(response.headers),
            body=bytes(response.content).decode("utf-8", "replace"),
            address=f"{address.scheme}://{address.hostname}{f':{address.port}' if address.port else ''}",
        )
    return None


def error_object(text: str) -> ErrorObject:
    """The error object that is the whole text: a reply's body, or one out of a 200 as Python writes it."""
    if not text.startswith(("{", "[")):
        return NOTHING_SAID
    value = _value_of(text)
    if isinstance(value, list) and value:  # Gemini's, on OpenAI's path
        value = value[0]
    if isinstance(value, dict):
        return _read(value)
    cut = _CUT_MESSAGE.search(text)
    return ErrorObject(message=_text(json.loads(cut[1]))) if cut else NOTHING_SAID


def _value_of(text: str) -> JsonValue:
    """The value that the text writes in JSON or in Python; None if it is too long, or none."""
    if len(text) > LONGEST_BODY:
        return None
    with contextlib.suppress(ValueError, RecursionError):
        return cast("JsonValue", json.loads(text))
    with contextlib.suppress(ValueError, SyntaxError, MemoryError, RecursionError):
        return cast("JsonValue", ast.literal_eval(text) if text.startswith("{'") else None)
    return None


def _read(body: Mapping[str, JsonValue]) -> ErrorObject:
    """The error object in a body: under ``error`` or the first of ``errors``, or the body itself."""
    inner, several = body.get("error"), body.get("errors")
    if inner is None and isinstance(several, list) and several:
        inner = several[0]
    said: Mapping[str, JsonValue]
    if isinstance(inner, dict):
        said = inner
    elif isinstance(inner, str):  # xAI, Ollama, LM Studio: the message alone, with the code beside it
        said = {**body, "message": inner}
    else:
        said = body
    message = _text(said.get("message")) or _text(said.get("detail"))
    metadata = said.get("metadata")
    raw = _text(metadata.get("raw")) if isinstance(metadata, dict) else ""  # OpenRouter: the words of the one behind it
    behind = error_object(raw)
    message = f"{message}: {behind.message or raw}" if raw else message
    names = (*(str(name) for name in _names(said)), *behind.names)
    return ErrorObject(message=message, names=names, status=_status(said.get("code"))) if message else NOTHING_SAID


def _names(said: Mapping[str, JsonValue]) -> Iterator[str | int]:
    for field in ("code", "type", "status"):
        name = said.get(field)
        if (isinstance(name, str) and name) or (isinstance(name, int) and name > 999):  # else it is a status
            yield name
    details = said.get("details")
    for detail in details if isinstance(details, list) else ():
        reason = detail.get("reason") if isinstance(detail, dict) else None  # Google's
        if isinstance(reason, str):
            yield reason


def _status(code: JsonValue) -> int | None:
    return code if isinstance(code, int) and 400 <= code <= 599 else None


def _text(value: JsonValue) -> str:
    return value if isinstance(value, str) else ""
