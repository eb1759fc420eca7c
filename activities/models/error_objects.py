"""Error objects in providers' replies: the message, the provider's names for the failure, and its status.

Most providers wrap the object in ``error``. Gateways and frameworks have forms of their own, which are read here too.
"""

import ast
import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import cast

from perdure.contracts.values import JsonValue
from perdure.llm.waits import headers_in_body, limits_in, wait_in_words

LONGEST_BODY = 200_000
"""A longer body is not read as JSON."""

MOST_DETAILS = 10
"""Details of a validation error that are read."""

_CUT_MESSAGE = re.compile(r'"message"\s*:\s*("(?:[^"\\]|\\.){1,5000}")')
"""The message in the JSON of an error object that was cut off, so that it cannot be parsed."""

_MESSAGES = (
    *("message", "detail", "msg", "error_msg", "errorMessage", "error_message", "error_description", "Message"),
    *("faultstring", "text", "title", "reason"),
)
"""Fields with a message: FastAPI's and Django's ``detail``, Baidu's ``error_msg``, AWS's ``Message`` and so on."""

_LISTS = ("message", "detail", "errors", "error", "non_field_errors")
"""Fields with a list of what is wrong, or with a list for each field of the request: frameworks that check schemas."""

_PLACES = ("error", "Error", "fault", "detail", "message", "response")
"""Fields with an object that holds the error."""

_DEEPEST_PLACE = 4
"""Levels at which an error object is looked for."""

_NAMES = ("code", "type", "status", "error_type", "error_code", "errorCode", "__type")
_STATUSES = ("code", "status", "status_code", "statusCode", "http_status_code", "error_code")
_STATUSES_OF_NAMES: dict[str, int] = {
    **dict.fromkeys(("invalid_request_error", "invalid_argument", "failed_precondition", "validation"), 400),
    **dict.fromkeys(("authentication_error", "unauthenticated"), 401),
    **dict.fromkeys(("billing_error",), 402),
    **dict.fromkeys(("permission_error", "permission_denied", "accessdenied"), 403),
    **dict.fromkeys(("not_found_error", "not_found", "resourcenotfound"), 404),
    **dict.fromkeys(("request_too_large",), 413),
    **dict.fromkeys(("rate_limit_error", "rate_limit_exceeded", "rate_limit_reached_error"), 429),
    **dict.fromkeys(("too_many_requests", "throttling", "modelnotready", "resource_exhausted"), 429),
    **dict.fromkeys(("unavailable", "serviceunavailable"), 503),
    **dict.fromkeys(("timeout_error", "deadline_exceeded", "modeltimeout"), 504),
    **dict.fromkeys(("overloaded_error",), 529),
}
"""Statuses that Anthropic, Google, AWS, Moonshot and OpenAI document for the types of their errors, in lower case."""

_INVALID = 422
"""The status of a request that does not fit the schema of a server, whose list of details says where."""


@dataclass(frozen=True)
class ErrorObject:
    """A provider's error object.

    Attributes:
        message: The provider's message.
        names: The provider's codes and types for the failure, the most precise first.
        status: The HTTP status, if the object has one.
        headers: The wait that it tells in its fields, as the headers that would say the same.
    """

    message: str = ""
    names: tuple[str, ...] = ()
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    def words(self) -> str:
        """The message with the wait that stands beside it, and the most precise name; empty without a message."""
        if not self.message:
            return ""
        told = self.headers.get("retry-after")
        wait = f" (retry in {told}s)" if told and wait_in_words(self.message) is None else ""
        name = next((f" [{name}]" for name in self.names if " " not in name), "")
        return f"{self.message}{wait}{name}".strip()


NOTHING_SAID = ErrorObject()


def error_object(text: str) -> ErrorObject:
    """The error object in a text: the body of a reply, or an error inside a reply of status 200 as Python prints it."""
    if not text.startswith(("{", "[")):
        return NOTHING_SAID
    value = _value_of(text)
    if isinstance(value, list) and value:  # Gemini's, on OpenAI's path
        value = value[0]
    if isinstance(value, dict):
        return read_error(value)
    cut = _CUT_MESSAGE.search(text)
    return ErrorObject(message=_text(json.loads(cut[1]))) if cut else NOTHING_SAID


def read_error(body: Mapping[str, JsonValue]) -> ErrorObject:
    """The error object in a body, wherever it stands."""
    said = _find_place(body)
    message = next((text for name in _MESSAGES if (text := _text(said.get(name)))), "")
    details = "; ".join(text for name in _LISTS if (text := _join_details(said.get(name))))
    if details and (not message or message == _text(said.get("title"))):
        message = f"{message} {details}".strip()
    metadata = said.get("metadata")
    raw = _text(metadata.get("raw")) if isinstance(metadata, dict) else ""  # OpenRouter: the upstream provider's
    behind = error_object(raw or message)  # a proxy may hand the provider's whole body on as its message
    message = f"{message}: {behind.message or raw}" if raw else behind.message or message
    names = tuple(str(name) for name in _names_in(said))
    if not message and is_silent(said):
        return NOTHING_SAID
    statuses = (_status(said.get(name)) for name in _STATUSES)
    status = next(filter(None, (*statuses, behind.status, *map(_status_of_name, names))), _INVALID if details else None)
    headers = headers_in_body(said) or headers_in_body(body) or behind.headers
    return ErrorObject(message, (*names, *behind.names), status, headers)


def is_silent(error: Mapping[str, JsonValue]) -> bool:
    """Whether an error object says nothing: it has neither a word nor a code beside 0."""
    return not any(error.get(name) for name in (*_NAMES, *_STATUSES))


def _find_place(body: Mapping[str, JsonValue], levels: int = _DEEPEST_PLACE) -> Mapping[str, JsonValue]:
    """Find the object with a body's error: under ``error`` and the like, first in ``errors``, or the body itself."""
    several = body.get("errors")
    first = several[0] if body.get("error") is None and isinstance(several, list) and several else None
    has_words = any(_text(body.get(name)) for name in _MESSAGES)
    places = (body.get("error"), first, *(() if has_words else map(body.get, _PLACES)))
    inner = next((place for place in places if isinstance(place, dict)), None)
    if inner is not None and levels > 0:
        return _find_place(inner, levels - 1)
    if isinstance(word := body.get("error", first), str):  # xAI, Ollama, LM Studio: the message alone
        if has_words or any(_join_details(body.get(name)) for name in _MESSAGES):
            return {**body, "type": word}  # or a name, or a title, beside it
        return body if isinstance(several, list) else {**body, "message": word}
    base = body.get("base_resp")
    return {"message": base.get("status_msg"), "code": base.get("status_code")} if isinstance(base, dict) else body


def _value_of(text: str) -> JsonValue:
    """The value that the text holds as JSON or as a Python literal; None if it is neither, or too long."""
    if len(text) > LONGEST_BODY:
        return None
    with contextlib.suppress(ValueError, RecursionError):
        return cast("JsonValue", json.loads(text))
    with contextlib.suppress(ValueError, SyntaxError, MemoryError, RecursionError):
        return cast("JsonValue", ast.literal_eval(text) if text.startswith("{'") else None)
    return None


def _join_details(details: JsonValue) -> str:
    """The details of a request that does not fit a schema, as frameworks list them: where, and what is wrong."""
    if isinstance(details, dict):
        of_fields = ((name, _join_details(part)) for name, part in list(details.items())[:MOST_DETAILS])
        return "; ".join(f"{name}: {text}" for name, text in of_fields if text)
    if not isinstance(details, list):
        return ""
    lines: list[str] = []
    for detail in details[:MOST_DETAILS]:
        if isinstance(detail, dict) and (text := _text(detail.get("msg")) or _text(detail.get("message"))):
            place = detail.get("loc")
            where = ".".join(map(str, place)) if isinstance(place, list) else ""
            lines.append(f"{where}: {text}" if where else text)
        elif isinstance(detail, str):
            lines.append(detail)
    return "; ".join(lines)


def _names_in(said: Mapping[str, JsonValue]) -> Iterator[str | int]:
    yield from limits_in(said)
    for field_name in _NAMES:
        name = said.get(field_name)
        if (isinstance(name, str) and name not in {"", "error"}) or (
            isinstance(name, int) and name > 999
        ):  # else it is a status
            yield name
    metadata = said.get("metadata")
    if isinstance(metadata, dict) and isinstance(kind := metadata.get("error_type"), str):  # OpenRouter's
        yield kind
    details = said.get("details")
    for detail in details if isinstance(details, list) else ():
        reason = detail.get("reason") if isinstance(detail, dict) else None  # Google's
        if isinstance(reason, str):
            yield reason


def _status_of_name(name: str) -> int | None:
    return _STATUSES_OF_NAMES.get(name.rpartition("#")[2].lower().removesuffix("exception"))


def _status(code: JsonValue) -> int | None:
    if isinstance(code, str) and len(code) == 3 and code.isdecimal():
        code = int(code)
    return code if isinstance(code, int) and 400 <= code <= 599 else None


def _text(value: JsonValue) -> str:
    return value if isinstance(value, str) else ""
