"""Checks of values against JSON schemas that do not block the worker: on a thread, and with a time limit.

A regular expression can take for ever on a short text, and so can references that each lead to two others. A check that
takes too long is given up. With a schema of an MCP server the value then counts as unchecked: the server may check it.
"""

import asyncio
import functools
import time
from collections.abc import Callable
from typing import TypeVar

import regex
from jsonschema import ValidationError
from referencing.jsonschema import EMPTY_REGISTRY

from perdure.agents.schemas import GivenUpError, Watch, draft_of, watch, with_watch
from perdure.contracts.conditions import check_expression, check_length
from perdure.contracts.values import JsonValue, json_objects
from perdure.security.approvals import describe_error

T = TypeVar("T")

CHECK_SECONDS = 1.0
"""Processor time that the checks of one answer or of one call may take."""

UNBOUNDED = frozenset({"unevaluatedProperties", "unevaluatedItems", "$dynamicRef"})
"""Keywords whose work in jsonschema the clock cannot interrupt; a foreign schema with one of them is not checked."""


DOUBTFUL = frozenset({"not", "oneOf", "if", "maxContains", "patternProperties"})
"""Keywords that may find an error because a part of theirs fits."""

MOST_EXPRESSIONS = 32
"""Most compiled expressions that a clock keeps: a large one takes two megabytes."""


class Clock(Watch):
    """A time limit for the checks of one thread."""

    def __init__(self) -> None:
        self._began = time.thread_time()
        self._compiled: dict[str, regex.Pattern[str]] = {}

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
            return self._compile(pattern).search(text, timeout=self._time_left_of(), concurrent=True) is not None
        except TimeoutError:
            raise GivenUpError(_describe_timeout()) from None

    def _compile(self, pattern: str) -> regex.Pattern[str]:
        if (compiled := self._compiled.get(pattern)) is None:
            if len(self._compiled) >= MOST_EXPRESSIONS:
                self._compiled.clear()
            compiled = self._compiled[pattern] = regex.compile(pattern, cache_pattern=False)
        return compiled

    def _time_left_of(self) -> float:
        left = CHECK_SECONDS - (time.thread_time() - self._began)
        if left <= 0:
            raise GivenUpError(_describe_timeout())
        return left


class Foreign(Watch):
    """A watch for a schema of a stranger, under the clock: an expression that cannot be searched for counts as found.

    Such are JavaScript's own, and those that would take much memory to read.
    """

    def __init__(self, clock: Clock) -> None:
        self.passed_over = False
        self._clock = clock

    def look(self) -> None:
        """Stop the checks if their time is over."""
        self._clock.look()

    def is_found(self, pattern: str, text: str) -> bool:
        """Whether the expression is found in the text, or cannot be searched for."""
        if _can_be_searched(pattern):
            return self._clock.is_found(pattern, text)
        self.passed_over = True
        return True


@functools.lru_cache(maxsize=512)
def _can_be_searched(pattern: str) -> bool:
    try:
        check_length(pattern)
        check_expression(pattern)
    except ValueError:
        return False
    return True


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
    """Problem of a value with a foreign schema, in one phrase without the value; None if there is none.

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
    keywords = {name for part in json_objects(schema) for name in part}
    if keywords & UNBOUNDED:
        msg = "the schema has keywords whose work cannot be bounded"
        raise GivenUpError(msg)

    def check() -> ValidationError | None:
        clock = watch.get()
        foreign = Foreign(clock if isinstance(clock, Clock) else Clock())
        token = watch.set(foreign)
        try:
            # With an empty registry, so that nothing is fetched.
            kind = with_watch(draft_of(schema))
            found = next(iter(kind(schema, registry=EMPTY_REGISTRY).iter_errors(value)), None)
        finally:
            watch.reset(token)
        if found is not None and foreign.passed_over and keywords & DOUBTFUL:
            msg = "the schema has expressions that cannot be searched for"
            raise GivenUpError(msg)
        return found

    try:
        return run_with_clock(check)
    except GivenUpError:
        raise
    except Exception as error:  # a foreign schema may fail in any way
        raise GivenUpError(str(error)) from error


def _describe_timeout() -> str:
    return f"the schema takes more than {CHECK_SECONDS:g} s to check"
