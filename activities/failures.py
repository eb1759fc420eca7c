"""Vendor exceptions as plain facts: status, headers, class, cause chain, text. The decision is the engine's.

Works by names and attributes: no vendor library is imported, and none of their objects leaves this module. Request
objects down the chain hold the key, so only texts are read, and those are redacted.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from datetime import datetime

from pydantic import ValidationError

from perdure.contracts.values import JsonValue, Value
from perdure.engine.outputs import whole_characters
from perdure.engine.redaction import redact_text
from perdure.engine.retries import FailureFacts, parse_retry_after

MAX_TEXT = 1_500
"""Longest text of a failure."""

LONGEST_RAW_TEXT = 50_000
"""More of a failure's text is not even looked at."""

MAX_CAUSES = 12
"""Longest cause chain that is followed."""

_PREFIX = re.compile(
    r"\A(?:(?:litellm\.)?(?:\w*(?:Error|Timeout|Exception)|Timeout Error): |\w+(?:Error|Exception) - )+"
)

_NO_REPLY = frozenset({"TransportError", "ClientConnectionError", "ClientPayloadError"})
"""Classes of httpx and aiohttp in the cause chain of a call that got no whole reply."""


class _ProviderError(Value):
    """An error as OpenAI and Anthropic write it."""

    message: str = ""
    code: JsonValue = None
    type: JsonValue = None

    @property
    def label(self) -> str:
        """The most precise name the provider has for the failure, in brackets."""
        name = self.code or self.type
        return f"[{name}]" if isinstance(name, str) else ""

    @property
    def words(self) -> str:
        """Message and name."""
        return f"{self.message} {self.label}".strip()


class _ErrorReply(Value):
    """The body of an error reply."""

    error: _ProviderError


def facts_of(error: BaseException, now: datetime, secrets: Collection[str] = ()) -> FailureFacts:
    """What is known about a failed model call; ``now`` is what an HTTP date in retry-after is compared with."""
    headers = _headers(error)
    causes = tuple(name for cause in _causes(error) for name in _names(cause))
    return FailureFacts(
        status=None if not headers and _NO_REPLY.intersection(causes) else _status(error),
        retry_after_seconds=parse_retry_after(headers, now),
        class_name=type(error).__name__,
        classes=_names(error),
        causes=causes,
        text=redact(_text(error), secrets)[:MAX_TEXT],
    )


def redact(text: str, secrets: Collection[str] = ()) -> str:
    """The text without secrets, and without what lies behind its first 50,000 characters."""
    return redact_text(whole_characters(text[:LONGEST_RAW_TEXT]), secrets)


def _status(error: BaseException) -> int | None:
    """The reply's status. Without a reply litellm makes one up: a refused connection wears 500."""
    status = getattr(error, "status_code", None)
    return status if isinstance(status, int) else None


def _headers(error: BaseException) -> Mapping[str, str]:
    """Litellm keeps the provider's headers beside the response it makes up; later releases in the response too."""
    for headers in (
        getattr(error, "litellm_response_headers", None),
        getattr(getattr(error, "response", None), "headers", None),
    ):
        if headers:
            return {str(name): str(value) for name, value in dict(headers).items()}
    return {}


def _names(error: BaseException) -> tuple[str, ...]:
    return tuple(base.__name__ for base in type(error).__mro__ if base not in {object, BaseException, Exception})


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen = {id(error)}
    cause = error.__cause__ or error.__context__
    while cause is not None and id(cause) not in seen and len(seen) < MAX_CAUSES:
        yield cause
        seen.add(id(cause))
        cause = cause.__cause__ or cause.__context__


def _text(error: BaseException) -> str:
    """The provider's words, with its own code for the failure behind them.

    litellm puts classes before them and sometimes a traceback behind, or gives the whole body of the reply.
    """
    text = str(error).partition("\nTraceback (most recent call last)")[0]
    text = _PREFIX.sub("", text).strip()
    try:
        said = _ErrorReply.model_validate_json(text).error.words
    except ValidationError:
        said = f"{text} {_code(getattr(error, 'body', None))}".strip()
    return said or text or type(error).__name__


def _code(body: object) -> str:
    try:
        return _ProviderError.model_validate(body).label
    except ValidationError:
        return ""
