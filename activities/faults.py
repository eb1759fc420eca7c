"""Faults of code: failures that neither a provider's answer nor a connection explains, and their traceback in the log.

A provider library wraps whatever it meets in one of its own classes, so a fault is looked for in the cause chain. An
exception that a library raises while it reads a reply is not a fault of code: then the reply is odd. One that perdure's
own code raises is a fault at any time.
"""

import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import PackageNotFoundError, version

from temporalio import activity
from temporalio.exceptions import ApplicationError

from perdure.activities.errors import permanent, runtime_error, with_more
from perdure.activities.heartbeat import is_stop
from perdure.contracts.budgets import Paid
from perdure.contracts.errors import REASONS, ReasonCode, code_of_kind
from perdure.contracts.exceptions import kind_of, module_of, modules_of, print_error, print_traceback, text_of
from perdure.contracts.values import replace, replace_surrogates
from perdure.llm.failures import FAULTS, TRANSPORT, WRAPPERS
from perdure.security.redaction import redact_text

LONGEST_TRACEBACK = 20_000
"""Characters of a traceback in the log; its end is kept."""

MISTAKES = (TypeError, AttributeError, NameError, ImportError, AssertionError, NotImplementedError, RecursionError)
"""Exceptions that are a fault of code whatever was given to it."""

_OF_READING = frozenset({"LookupError", "JSONDecodeError", "UnicodeDecodeError", "ValidationError"})
"""Exceptions that a library raises at something that came and is odd, and hardly ever at anything else."""

_LIBRARIES = frozenset({"litellm", "openai", "anthropic"})
"""Packages that read providers' replies."""

_INSTALLED_BY = {
    "boto3": "perdure[s3]",
    "botocore": "perdure[s3]",
    "google": "litellm[google]",
    "vertexai": "litellm[google]",
    "anthropic": "anthropic",
    "azure": "azure-identity",
    "databricks": "databricks-sdk",
    "mcp": "perdure[worker]",
}
"""Package to install for a missing module whose name does not say it."""


def mark_answered(error: BaseException) -> None:
    """Note that the provider had replied before this exception was raised."""
    with contextlib.suppress(AttributeError):  # a class with slots
        error.perdure_answered = True  # type: ignore[attr-defined]


def find_fault(chain: Sequence[BaseException]) -> BaseException | None:
    """The fault of code that a failure is, out of its cause chain; None for any other failure."""
    if any(_names_of(link) & TRANSPORT for link in chain):
        return None
    fault = next((link for link in chain if not _is_wrapper(link)), None)
    if fault is None or not _names_of(fault) & FAULTS:
        return None
    answered = any(getattr(link, "perdure_answered", False) for link in chain)
    reads_reply = answered or _names_of(chain[0]) & {"StreamCutError"}
    package = _package_of(fault)
    if (reads_reply and package != "perdure") or (package in _LIBRARIES and _names_of(fault) & _OF_READING):
        return None
    return fault


def is_fault(error: BaseException) -> bool:
    """Whether an exception outside a provider's library is a fault that each further attempt would meet."""
    return isinstance(error, (*MISTAKES, LookupError, ValueError))


def words_of_fault(fault: BaseException, text: str) -> str:
    """The text of a fault; of a module that is missing, with what to install."""
    if isinstance(fault, ImportError) and fault.name:
        name = fault.name.partition(".")[0]
        return f"{text} (pip install '{_INSTALLED_BY.get(name, name)}' where the worker runs)"
    return text or "without a message"


def place_of_fault(fault: BaseException) -> str:
    """The module of a fault, and the release of litellm, whose names and arguments change."""
    return f"{module_of(fault)} ({litellm_release()})"


def perdures_module(error: BaseException) -> str:
    """The module of perdure that is nearest to where an exception was raised; empty if none is."""
    return next((name for name in modules_of(error) if name.partition(".")[0] == "perdure"), "")


@functools.cache
def litellm_release() -> str:
    """The name of litellm with its release."""
    with contextlib.suppress(PackageNotFoundError):
        return f"litellm {version('litellm')}"
    return "litellm is not installed"


def log_fault(error: BaseException, secrets: Collection[str], place: str) -> None:
    """Write a fault's traceback to the worker's log, without secrets."""
    trace = replace_surrogates(print_traceback(error)[-LONGEST_TRACEBACK:])
    activity.logger.error("a fault in %s", place, extra={"exception": redact_text(trace, secrets)})


@asynccontextmanager
async def faults_are_final(secrets: Collection[str], untold: Callable[[], Paid] | None = None) -> AsyncIterator[None]:
    """End an activity at a fault of code: another attempt would meet it again, each second.

    ``untold`` says what was paid for and is stored: each error brings it along, as it may be the last of the activity.
    """

    def paid() -> list[Paid]:
        return [told for told in (untold() if untold is not None else Paid(),) if told != Paid()]

    try:
        yield
    except ApplicationError as error:
        if len(error.details) == 1 and (more := paid()):
            raise with_more(error, *more) from error.__cause__
        raise
    except BaseException as error:
        kind = kind_of(error)
        if is_fault(error) and isinstance(error, Exception):
            name = activity.info().activity_type
            log_fault(error, secrets, name)
            reason = REASONS[ReasonCode.RUNTIME_INTERNAL]
            words = redact_text(words_of_fault(error, replace_surrogates(text_of(error))[:1_000]), secrets)
            message = f"{name}: {reason.cause}: {kind} in {place_of_fault(error)}: {words}; {reason.advice}"
            detail = runtime_error(ReasonCode.RUNTIME_INTERNAL, message)
            raise permanent(replace(detail, type=kind, exception=code_of_kind(kind)), *paid()) from None
        if is_stop(error) or not (more := paid()):
            raise
        words = redact_text(replace_surrogates(print_error(error))[:1_000], secrets)
        detail = runtime_error(ReasonCode.RUNTIME_WORKER_LOST, words)
        raise ApplicationError(words, replace(detail, code=code_of_kind(kind), type=kind), *more, type=kind) from None


def _names_of(error: BaseException) -> frozenset[str]:
    return frozenset(base.__name__ for base in type(error).__mro__)


def _is_wrapper(error: BaseException) -> bool:
    """Whether the class says nothing of what happened: what the exception was raised from does."""
    return type(error) is Exception or bool(_names_of(error) & WRAPPERS)


def _package_of(error: BaseException) -> str:
    """The package that raised an exception, of perdure and the libraries that read replies; empty if none did."""
    packages = (name.partition(".")[0] for name in modules_of(error))
    return next((name for name in packages if name == "perdure" or name in _LIBRARIES), "")
