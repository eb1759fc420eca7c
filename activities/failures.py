"""Vendor exceptions as plain facts: status, headers, class, cause chain, text. The decision is the engine's.

Works by names and attributes: no vendor library is imported, and none of their objects leaves this module. Request
objects down the chain hold the key, so only texts are read, and those are redacted.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from datetime import datetime

from perdure.engine.redaction import redact_text
from perdure.engine.retries import FailureFacts, parse_retry_after

MAX_TEXT = 1_500
"""Longest text of a failure."""

_PREFIX = re.compile(r"^((litellm\.)?[A-Z]\w*(Error|Timeout|Exception): |[A-Z]\w*Exception - )+")

MAX_CAUSES = 12
"""Longest cause chain that is followed."""


def facts_of(error: BaseException, now: datetime, secrets: Collection[str] = ()) -> FailureFacts:
    """What is known about a failed model call; ``now`` is what an HTTP date in retry-after is compared with."""
    return FailureFacts(
        status=_status(error),
        retry_after_seconds=parse_retry_after(_headers(error), now),
        class_name=type(error).__name__,
        classes=_names(error),
        causes=tuple(name for cause in _causes(error) for name in _names(cause)),
        text=redact_text(_text(error), secrets)[:MAX_TEXT],
    )


def _status(error: BaseException) -> int | None:
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
    """The provider's words: without the classes litellm puts before them and the traceback it may put behind."""
    text = str(error).partition("\nTraceback (most recent call last)")[0]
    return _PREFIX.sub("", text).strip() or type(error).__name__
