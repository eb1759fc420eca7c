"""Errors of activities: one application error whose type is the reason code and whose detail is for machines."""

import traceback
from collections.abc import Collection
from datetime import timedelta

from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from perdure.contracts.errors import ErrorDetail, ReasonCode
from perdure.contracts.values import replace_surrogates
from perdure.contracts.waits import MissingVersion
from perdure.security.redaction import redact_text

MAX_MESSAGE = 2_000
"""Longest failure message: people read it in one row of the Temporal UI."""

LONGEST_RAW_TEXT = 50_000
"""Characters of a failure's text that are read at all."""

FIRST_MISSING_RETRY, LONGEST_MISSING_RETRY = timedelta(milliseconds=500), timedelta(seconds=10)
"""Bounds of the wait before another worker is offered what this one lacks: it may be there already."""

PASSING, SOON, MOST_QUICK = timedelta(seconds=30), timedelta(seconds=2), 150
"""While a worker that polls has the part, a call is offered each half second for so long, then each two seconds up to
this attempt. Chance decides who is asked; the worker may be full for hours, and one that has ended counts for a while.
"""

RAREST_MISSING_RETRY, GROWTH = timedelta(minutes=6), 30
"""Longest wait at all, for a worker that is days away; until then a thirtieth of the time so far. A thousand attempts
last for three days."""


def permanent(detail: ErrorDetail, *more: object) -> ApplicationError:
    """A non-retryable failure; ``more`` are further details for the workflow."""
    return ApplicationError(detail.message[:MAX_MESSAGE], detail, *more, type=detail.code, non_retryable=True)


def with_more(error: ApplicationError, *more: object) -> ApplicationError:
    """The same failure with further details for the workflow."""
    return ApplicationError(
        error.message,
        *error.details,
        *more,
        type=error.type,
        non_retryable=error.non_retryable,
        next_retry_delay=error.next_retry_delay,
        category=error.category,
    )


def transient(detail: ErrorDetail, delay: timedelta, *more: object, benign: bool = False) -> ApplicationError:
    """A failure after which Temporal runs the activity again, after ``delay``; ``more`` are further details."""
    return ApplicationError(
        detail.message[:MAX_MESSAGE],
        detail,
        *more,
        type=detail.code,
        next_retry_delay=delay,
        category=ApplicationErrorCategory.BENIGN if benign else ApplicationErrorCategory.UNSPECIFIED,
    )


def cause_of(detail: ErrorDetail, error: BaseException) -> ApplicationError:
    """The cause of a failure as history and log may show it: class, redacted text, and where it was raised.

    The exception itself would bring its raw text, and that of its whole cause chain. Its stack trace shows lines of
    source, and is left out if one of them holds a key.
    """
    shown = "".join(traceback.format_tb(error.__traceback__))
    trace = error.__traceback__ if redact_text(shown) == shown else None
    return ApplicationError(detail.message, type=detail.type).with_traceback(trace)


def runtime_error(code: ReasonCode, message: str) -> ErrorDetail:
    """The detail of a failure that is neither the model's nor a tool's."""
    return ErrorDetail(code=code, title="runtime", message=message[:MAX_MESSAGE])


def error_of_missing_version(
    missing: MissingVersion, attempt: int, waited: timedelta, longest: timedelta = LONGEST_MISSING_RETRY
) -> ApplicationError:
    """The failure that leaves an activity to another worker, because this one lacks a part of the turn's version.

    Args:
        missing: The part.
        attempt: Number of the attempt, from 1.
        waited: Time since the activity was first asked for: the longer it is, the longer is the wait before it is
            offered again.
        longest: Bound of that wait; the usual one grows after five minutes.
    """
    fix = "that has it" if missing.is_whole else "of the version the turn began with until its turns have ended"
    message = f"this worker has no {missing}; start a worker {fix}"
    delay = min(max(waited, FIRST_MISSING_RETRY), longest)
    if longest == LONGEST_MISSING_RETRY:
        delay = max(delay, min(waited / GROWTH, RAREST_MISSING_RETRY))
        if missing.elsewhere and attempt <= MOST_QUICK:
            delay = min(delay, FIRST_MISSING_RETRY if waited < PASSING else SOON)
    return transient(runtime_error(ReasonCode.RUNTIME_TOOL_MISSING, message), delay, missing)


def error_of_shutdown() -> ApplicationError:
    """The failure of a call that a worker could not finish before its shutdown: another worker takes it at once."""
    detail = runtime_error(
        ReasonCode.RUNTIME_WORKER_SHUTDOWN, "the worker shut down and handed this call over to another worker"
    )
    return transient(detail, timedelta(milliseconds=100), benign=True)


def redact_and_cut(text: str, secrets: Collection[str] = (), longest: int = LONGEST_RAW_TEXT) -> str:
    """The text without secrets, cut after ``longest`` characters."""
    return redact_text(replace_surrogates(text[:longest]), secrets)
