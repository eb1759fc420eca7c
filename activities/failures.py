"""Vendor exceptions as plain facts: status, headers, class, cause chain, text. The decision is the engine's.

Works by names and attributes: no vendor library is imported, and none of their objects leaves this module. Request
objects down the chain hold the key, so only texts are read, and those are redacted.
"""

import ast
import re
from collections.abc import Collection, Iterator, Mapping
from datetime import datetime

from pydantic import ValidationError

from perdure.contracts.errors import CUSTOM_CODE
from perdure.contracts.values import JsonValue, Value
from perdure.engine.failures import FailureFacts
from perdure.engine.outputs import head_and_tail, whole_characters
from perdure.engine.redaction import redact_text
from perdure.engine.retries import parse_retry_after

MAX_TEXT = 1_500
"""Longest text of a failure; its head and its tail are kept, as what to do often stands at the end."""

LONGEST_RAW_TEXT = 50_000
"""More of a failure's text is not even looked at."""

MAX_CAUSES = 12
"""Longest cause chain that is followed."""

_PREFIX = re.compile(
    r"\A(?:(?:litellm\.)?(?:\w*(?:Error|Timeout|Exception)|Timeout Error): |\w+(?:Error|Exception)(?: \w+)? - )+"
)

_SUFFIX = re.compile(r"\. Handle with `litellm\.\w+`\.\Z")

_NO_REPLY = frozenset({"TransportError", "ClientConnectionError", "ClientPayloadError", "InvalidURL"})
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
    chain = tuple(_causes(error))
    causes = tuple(name for cause in chain for name in names(cause))
    carrier = next((link for link in (error, *chain) if _own_code(link) is not None), None)
    no_reply = not headers and (carrier is not None or _NO_REPLY.intersection(causes))
    said = carrier or error
    return FailureFacts(
        status=None if no_reply else _status(error),
        retry_after_seconds=parse_retry_after(headers, now),
        class_name=type(said).__name__,
        classes=names(error),
        causes=causes,
        text=head_and_tail(redact(_text(said), secrets), MAX_TEXT),
        own_code=_own_code(said),
        own_transient=getattr(said, "transient", False) is True,
    )


def redact(text: str, secrets: Collection[str] = (), longest: int = LONGEST_RAW_TEXT) -> str:
    """The text without secrets, and without what lies behind its first 50,000 characters, or so many."""
    return redact_text(whole_characters(text[:longest]), secrets)


def _status(error: BaseException) -> int | None:
    """The reply's status. Without a reply litellm makes one up: a refused connection wears 500.

    An error that came in a 200 has the provider's name for it in place of a status, or the 200 further down the chain.
    """
    status = getattr(error, "status_code", None)
    if isinstance(status, str) or any(getattr(cause, "status_code", None) == 200 for cause in _causes(error)):
        return 200
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


def _own_code(error: BaseException) -> str | None:
    """The code that an agent's own provider gave its exception; litellm wraps that in one of its own."""
    code = getattr(error, "reason_code", None)
    return str(code) if isinstance(code, str) and CUSTOM_CODE.fullmatch(code) else None


def names(error: BaseException) -> tuple[str, ...]:
    """The class and its bases, the most derived first; those that say nothing are left out."""
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
    text = _SUFFIX.sub("", _PREFIX.sub("", text)).strip()
    said = _error_object(text).words
    if not said:
        name = _code(getattr(error, "body", None)) or _code({"code": getattr(error, "status_code", None)})
        said = f"{text} {name}".strip()
    return said or type(error).__name__


def _error_object(text: str) -> _ProviderError:
    """The error object that is the whole text: a reply's body, or one out of a 200 as Python writes it."""
    try:
        return _ErrorReply.model_validate_json(text).error
    except ValidationError:
        pass
    try:
        return _ProviderError.model_validate(ast.literal_eval(text) if text.startswith("{'") else None)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return _ProviderError()


def _code(body: object) -> str:
    try:
        return _ProviderError.model_validate(body).label
    except ValidationError:
        return ""
