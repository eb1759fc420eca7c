"""The faults by name: ``say("hello").after(faults.rate_limited(), faults.hang())``.

Each fits the wire it is met on: OpenAI's and Anthropic's errors have their own status, form and words.
"""

from collections.abc import Mapping

from perdure.contracts.values import JsonValue, replace
from perdure.testing.script import ErrorText, Fault, KnownError, Reply


def status(code: int, *, headers: Mapping[str, str] | None = None, body: JsonValue = None) -> Fault:
    """An error reply; a text body is sent as it is, any other as JSON, and without one the wire writes its own."""
    return Fault(kind="status", status=code, headers=headers or {}, body=body)


def error(code: int, message: str, kind: str = "invalid_request_error", name: str | None = None) -> Fault:
    """An error reply with these words. ``kind`` and ``name`` are OpenAI's type and code; Anthropic has neither."""
    return Fault(kind="status", status=code, error=ErrorText(message=message, type=kind, code=name))


def rate_limited(*, headers: Mapping[str, str] | None = None) -> Fault:
    """Too many requests at the moment: 429. ``headers={"retry-after": "2"}`` asks for a wait."""
    return _known_fault_of("rate_limited", headers)


def overloaded(*, headers: Mapping[str, str] | None = None) -> Fault:
    """The provider has no capacity: 503 of OpenAI, 529 of Anthropic."""
    return _known_fault_of("overloaded", headers)


def quota_exhausted() -> Fault:
    """The account is used up: OpenAI's 429 ``insufficient_quota``, Anthropic's 400 about the credit balance."""
    return _known_fault_of("quota_exhausted")


def context_overflow() -> Fault:
    """The prompt is longer than the model's context window: 400. See also the provider's ``window``."""
    return _known_fault_of("context_overflow")


def too_many_tools() -> Fault:
    """The provider does not take so many tools: 400. See also the provider's ``max_tools``."""
    return _known_fault_of("too_many_tools")


def policy_violation() -> Fault:
    """The request is refused by the content policy: 400."""
    return _known_fault_of("policy_violation")


def bad_key() -> Fault:
    """The key is refused: 401. OpenAI repeats a part of it."""
    return _known_fault_of("bad_key")


def unknown_model() -> Fault:
    """There is no such model: 404."""
    return _known_fault_of("unknown_model")


def in_a_200(fault: Fault) -> Fault:
    """The same error reply with status 200, as some gateways send it."""
    return replace(fault, sent_as=200)


def page(code: int = 502) -> Fault:
    """The HTML page of a gateway in front of the provider, with status 200 too."""
    return status(code, headers={"content-type": "text/html"}, body=f"<html><body><h1>{code}</h1></body></html>")


def hang() -> Fault:
    """No reply until the client closes the connection."""
    return Fault(kind="hang")


def hang_in_body() -> Fault:
    """Half of the reply, then silence until the client closes the connection."""
    return Fault(kind="hang_in_body")


def close_before_reply() -> Fault:
    """The connection is closed in good order, without a reply."""
    return Fault(kind="close")


def reset_before_reply() -> Fault:
    """The connection is reset, without a reply."""
    return Fault(kind="reset")


def reset_in_body() -> Fault:
    """The connection is reset half-way through the body."""
    return Fault(kind="reset_in_body")


def cut_body() -> Fault:
    """The connection is closed half-way through the body."""
    return Fault(kind="cut")


def garbage() -> Fault:
    """A reply of status 200 that is not JSON."""
    return Fault(kind="garbage")


def empty_choices() -> Fault:
    """A reply of status 200 without choices; Anthropic's without content."""
    return Fault(kind="empty_choices")


def drip(seconds: float = 0.05) -> Fault:
    """The whole reply, a byte at a time, with ``seconds`` between two bytes."""
    return Fault(kind="drip", seconds=seconds)


def delay(seconds: float) -> Fault:
    """The whole reply, ``seconds`` late."""
    return Fault(kind="delay", seconds=seconds)


def stream_cut(after: int = 0) -> Fault:
    """The stream breaks off after ``after`` pieces of the answer; 0 is before the first."""
    return Fault(kind="stream_cut", after=after)


def stream_stall(after: int = 0) -> Fault:
    """The stream goes silent after ``after`` pieces of the answer, until the client closes the connection."""
    return Fault(kind="stream_stall", after=after)


def stream_without_usage() -> Fault:
    """A stream of the whole answer that ends in good order, and never says what was counted."""
    return Fault(kind="stream_without_usage")


def stream_without_end() -> Fault:
    """A stream of the whole answer that ends in good order, and never says why the answer ends."""
    return Fault(kind="stream_without_end")


def empty_answer() -> Fault:
    """An answer with neither text nor a tool call."""
    return instead(Reply())


def truncated(text: str | None = None, *calls: tuple[str, JsonValue]) -> Fault:
    """An answer that was cut off at its longest allowed length."""
    return instead(Reply(text=text, calls=calls, finish_reason="length"))


def filtered(text: str = "") -> Fault:
    """An answer that the content policy cut off after this text."""
    return instead(Reply(text=text, finish_reason="content_filter"))


def refusal(text: str) -> Fault:
    """An answer in which the model refuses: OpenAI's ``refusal``, Anthropic's stop reason of that name."""
    return instead(Reply(message={"refusal": text}))


def instead(reply: Reply) -> Fault:
    """Another answer in place of the script's."""
    return Fault(kind="answer", reply=reply)


def _known_fault_of(name: KnownError, headers: Mapping[str, str] | None = None) -> Fault:
    return Fault(kind="status", known=name, headers=headers or {})
