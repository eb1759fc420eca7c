"""Checks of values against JSON schemas that do not block the worker: on a thread, and with a time limit.

A regular expression can take for ever on a short text, and so can references that each lead to two others. A check that
takes too long is given up. With a schema of an MCP server the value then counts as unchecked: the server may check it.
"""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

import regex
from jsonschema import Draft202012Validator, ValidationError, validators
from referencing.jsonschema import EMPTY_REGISTRY

from perdure.agents.schemas import GivenUpError, Watch, watch, with_watch
from perdure.contracts.values import JsonValue, json_objects
from perdure.security.approvals import describe_error

T = TypeVar("T")

CHECK_SECONDS = 1.0
"""Processor time that the checks of one answer or of one call may take."""

UNBOUNDED = frozenset({"patternProperties", "unevaluatedProperties", "unevaluatedItems", "$dynamicRef"})
"""Keywords whose work in jsonschema the clock cannot interrupt; a foreign schema with one of them is not checked."""


class Clock(Watch):
    """A time limit for the checks of one thread."""

    def __init__(self) -> None:
        self._began = time.thread_time()

    def look(self) -> None:
        """Stop the checks if their time is over.

        Raises:
            GivenUpError: The time is over.
        """
        self._time_left_of()

    def is_found(self, pattern: str, text: str) -> bool:
        """Whether a regular expression matches anywhere in a text, within the time that is left.

        Raises:
            GivenUpError: The search took longer.
        """
        try:
            return regex.search(pattern, text, timeout=self._time_left_of(), concurrent=True) is not None
        except TimeoutError:
            raise GivenUpError(_describe_timeout()) from None

    def _time_left_of(self) -> float:
        left = CHECK_SECONDS - (time.thread_time() - self._began)
        if left <= 0:
            raise GivenUpError(_describe_timeout())
        return left


async def run_off_the_loop(work: Callable[[], T]) -> T:
    """The result of work that checks values against schemas, run on a thread with a clock."""
    return await asyncio.to_thread(run_with_clock, work)


def run_with_clock(work: Callable[[], T]) -> T:
    """The result of the work; all its checks together have ``CHECK_SECONDS`` of processor time."""
    if isinstance(watch.get(), Clock):
        return work()
    token = watch.set(Clock())
    try:
        return work()
    finally:
        watch.reset(token)


def problem(schema: dict[str, JsonValue], value: JsonValue) -> str | None:
    """What is wrong with a value by a foreign schema, in one phrase without the value; None if nothing is.

    Raises:
        GivenUpError: The schema could not be checked.
    """
    found = find_first_error(schema, value)
    return None if found is None else describe_error(found)


def find_first_error(schema: dict[str, JsonValue], value: JsonValue) -> ValidationError | None:
    """The first error of a value by a foreign schema; None if it fits.

    Raises:
        GivenUpError: The schema could not be checked.
    """
    if any(not UNBOUNDED.isdisjoint(part) for part in json_objects(schema)):
        msg = "the schema has keywords whose work cannot be bounded"
        raise GivenUpError(msg)

    def check() -> ValidationError | None:
        kind = with_watch(validators.validator_for(schema, default=Draft202012Validator))
        # With an empty registry, so that nothing is fetched.
        return next(iter(kind(schema, registry=EMPTY_REGISTRY).iter_errors(value)), None)

    try:
        return run_with_clock(check)
    except GivenUpError:
        raise
    except Exception as error:  # a foreign schema may fail in any way
        raise GivenUpError(str(error)) from error


def _describe_timeout() -> str:
    return f"the schema takes more than {CHECK_SECONDS:g} s to check"
