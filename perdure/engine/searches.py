"""Stop conditions on texts, for activities: they have the whole text, and may take their time."""

from collections.abc import Callable

import regex

from perdure.contracts.stops import AnyCondition, Output, ToolOutput, text_conditions
from perdure.engine.stops import title

SEARCH_SECONDS = 1.0
"""A regular expression that has not been found or ruled out in a text by then is given up."""


class SearchError(Exception):
    """A stop condition's expression took too long on a text, and the condition does not catch that."""


def in_output(conditions: tuple[AnyCondition, ...], text: str) -> tuple[int, ...]:
    """The places of the text conditions that hold for an answer's text; for activities, which have all of it.

    Raises:
        SearchError: An expression took too long on the text, and its condition does not catch that.
    """
    return _places(conditions, text, lambda condition: isinstance(condition, Output))


def in_tool_output(conditions: tuple[AnyCondition, ...], tool: str, text: str) -> tuple[int, ...]:
    """The places of the text conditions that hold for the whole result of a call; for activities.

    Raises:
        SearchError: An expression took too long on the text, and its condition does not catch that.
    """
    return _places(
        conditions, text, lambda condition: isinstance(condition, ToolOutput) and condition.tool in {None, tool}
    )


def _places(
    conditions: tuple[AnyCondition, ...], text: str, concerned: Callable[[Output | ToolOutput], bool]
) -> tuple[int, ...]:
    texts = text_conditions(conditions)
    return tuple(place for place, one in enumerate(texts) if concerned(one) and _found(one, text))


def _found(condition: Output | ToolOutput, text: str) -> bool:
    if condition.regex:
        return _searched(condition, text)
    pattern = condition.pattern
    if not condition.case_sensitive:
        pattern, text = pattern.casefold(), text.casefold()
    return text == pattern if condition.exact else pattern in text


def _searched(condition: Output | ToolOutput, text: str) -> bool:
    flags = 0 if condition.case_sensitive else regex.IGNORECASE
    try:
        return regex.search(condition.pattern, text, flags, timeout=SEARCH_SECONDS) is not None
    except TimeoutError as error:
        if condition.catch:
            return condition.default
        msg = f"the stop condition {title(condition)} took longer than {SEARCH_SECONDS:g} s on a text"
        raise SearchError(msg) from error
