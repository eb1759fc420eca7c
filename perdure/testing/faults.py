"""The faults by name: ``say("hello").after(faults.status(429, headers={"retry-after": "2"}), faults.hang())``."""

from collections.abc import Mapping

from perdure.contracts.values import JsonValue
from perdure.testing.script import Fault


def status(code: int, *, headers: Mapping[str, str] | None = None, body: JsonValue = None) -> Fault:
    """An error reply; a text body is sent as it is, any other as JSON."""
    return Fault(kind="status", status=code, headers=headers or {}, body=body)


def error(code: int, message: str, kind: str = "invalid_request_error", name: str | None = None) -> Fault:
    """An error reply with a body as OpenAI writes it: message, type and code."""
    return status(code, body={"error": {"message": message, "type": kind, "param": None, "code": name}})


def hang() -> Fault:
    """No reply until the client closes the connection."""
    return Fault(kind="hang")


def close_before_reply() -> Fault:
    """The connection is closed in good order, without a reply."""
    return Fault(kind="close")


def reset_before_reply() -> Fault:
    """The connection is reset, without a reply."""
    return Fault(kind="reset")


def cut_body() -> Fault:
    """The connection is closed half-way through the body."""
    return Fault(kind="cut")


def garbage() -> Fault:
    """A reply of status 200 that is no JSON."""
    return Fault(kind="garbage")


def empty_choices() -> Fault:
    """A reply of status 200 without choices."""
    return Fault(kind="empty_choices")


def drip(seconds: float = 0.05) -> Fault:
    """The whole reply, a byte at a time, with so many seconds between two bytes."""
    return Fault(kind="drip", seconds=seconds)


def delay(seconds: float) -> Fault:
    """The whole reply, so many seconds late."""
    return Fault(kind="delay", seconds=seconds)
