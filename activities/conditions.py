"""Searches of texts for stop conditions. Activities search, since they have the whole text; the engine decides."""

import asyncio
import time
from collections.abc import Callable

import regex

from perdure.activities.errors import runtime_error
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.conditions import AnyCondition, Output, ToolOutput, text_conditions
from perdure.contracts.errors import ErrorDetail, ReasonCode
from perdure.engine.conditions import title_of

SEARCH_SECONDS = 1.0
"""Timeout of one search with a regular expression."""

SEARCHES_SECONDS = 5.0
"""Timeout of all searches of one text together."""


class SearchError(Exception):
    """A stop condition's search took too long or failed, and the condition does not catch that."""


async def matches(
    definition: AgentDefinition, tool: str | None, text: str
) -> tuple[tuple[int, ...], ErrorDetail | None]:
    """Find the conditions that hold for a tool's whole result, or for an answer's text if ``tool`` is None.

    Returns:
        Their places among the agent's conditions on texts, and the error that ends the turn if a search failed.
    """
    conditions = definition.conditions
    if not text_conditions(conditions):
        return (), None

    def look() -> tuple[int, ...]:
        return find_in_output(conditions, text) if tool is None else find_in_tool_output(conditions, tool, text)

    try:
        return await asyncio.to_thread(look), None
    except SearchError as error:
        return (), runtime_error(ReasonCode.RUNTIME_HOOK_FAILED, str(error))


def find_in_output(conditions: tuple[AnyCondition, ...], text: str) -> tuple[int, ...]:
    """The places of the text conditions that hold for an answer's text.

    Raises:
        SearchError: A search took too long or failed, and its condition does not catch that.
    """
    return _find_places(conditions, text, lambda condition: isinstance(condition, Output))


def find_in_tool_output(conditions: tuple[AnyCondition, ...], tool: str, text: str) -> tuple[int, ...]:
    """The places of the text conditions that hold for the whole result of a call.

    Raises:
        SearchError: A search took too long or failed, and its condition does not catch that.
    """
    return _find_places(
        conditions, text, lambda condition: isinstance(condition, ToolOutput) and condition.tool in {None, tool}
    )


def _find_places(
    conditions: tuple[AnyCondition, ...], text: str, concerned: Callable[[Output | ToolOutput], bool]
) -> tuple[int, ...]:
    texts, until = text_conditions(conditions), time.monotonic() + SEARCHES_SECONDS
    return tuple(
        place for place, condition in enumerate(texts) if concerned(condition) and _is_met(condition, text, until)
    )


def _is_met(condition: Output | ToolOutput, text: str, until: float) -> bool:
    if condition.regex:
        return _search(condition, text, until)
    pattern = condition.pattern
    if not condition.case_sensitive:
        pattern, text = pattern.casefold(), text.casefold()
    return text == pattern if condition.exact else pattern in text


def _search(condition: Output | ToolOutput, text: str, until: float) -> bool:
    flags = 0 if condition.case_sensitive else regex.IGNORECASE
    seconds = min(SEARCH_SECONDS, until - time.monotonic())
    try:
        if seconds <= 0:
            raise TimeoutError  # noqa: TRY301 - it counts as any search that takes too long
        # Not cached: a start request may bring any number of large expressions.
        expression = regex.compile(condition.pattern, flags, cache_pattern=False)
        return expression.search(text, timeout=seconds, concurrent=True) is not None
    except Exception as error:  # whatever goes wrong in a search is one failure
        if condition.catch:
            return condition.default
        slow = isinstance(error, TimeoutError)
        why = f"took longer than {SEARCH_SECONDS:g} s on a text" if slow else f"could not be looked for: {error}"
        msg = f"the stop condition {title_of(condition)} {why}"
        raise SearchError(msg) from error
