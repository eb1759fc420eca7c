"""Stop conditions on texts: what holds, and what becomes of a search that takes too long."""

from typing import Any

import pytest
import regex

from perdure import stop
from perdure.activities import conditions
from perdure.activities.conditions import SearchError, find_in_output, find_in_tool_output
from perdure.contracts.conditions import AnyCondition

OUTPUTS: list[tuple[AnyCondition, str, bool]] = [
    (stop.output("done"), "All DONE.", True),
    (stop.output("done", case_sensitive=True), "All DONE.", False),
    (stop.output("done", exact=True), "Done", True),
    (stop.output("done", exact=True), "Done.", False),
    (stop.output(r"^done\b", regex=True), "Done.", True),
    (stop.output(r"^done\b", regex=True), "undone", False),
    (stop.output(r"DONE", regex=True, case_sensitive=True), "done", False),
    (stop.output("a.c"), "abc", False),
]


@pytest.mark.parametrize(("condition", "text", "expected"), OUTPUTS)
def test_a_text_condition_looks_at_the_whole_text(condition: AnyCondition, text: str, *, expected: bool) -> None:
    """S-34."""
    assert bool(find_in_output((condition,), text)) is expected


def test_a_condition_on_results_looks_at_its_tool_only() -> None:
    """S-34."""
    conditions = (stop.output("42"), stop.tool_output("42"), stop.tool_output("42", "count"))
    assert find_in_tool_output(conditions, "count", "it is 42") == (1, 2)
    assert find_in_tool_output(conditions, "other", "it is 42") == (1,)
    assert find_in_output(conditions, "it is 42") == (0,)


def test_a_search_that_takes_too_long_is_an_error_unless_it_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """S-35: a raising condition with catch returns its default."""
    monkeypatch.setattr(conditions, "SEARCH_SECONDS", 0.05)
    slow, text = r"^(a|a)*$", "a" * 60 + "b"
    with pytest.raises(SearchError, match="took longer"):
        find_in_output((stop.output(slow, regex=True),), text)
    assert find_in_output((stop.output(slow, regex=True, catch=True),), text) == ()
    assert find_in_output((stop.output(slow, regex=True, catch=True, default=True),), text) == (0,)


def test_an_expression_that_cannot_be_searched_for_is_an_error_unless_it_is_caught() -> None:
    """S-35: whatever goes wrong; a definition may be from before such an expression was refused."""
    unchecked = {"pattern": "a{i<=}", "regex": True}
    with pytest.raises(SearchError, match="bad fuzzy cost limit"):
        find_in_output((stop.output("a").model_copy(update=unchecked),), "a")
    caught = stop.tool_output("a", catch=True).model_copy(update=unchecked)
    assert find_in_tool_output((caught,), "look", "a") == ()
    assert find_in_tool_output((caught.model_copy(update={"default": True}),), "look", "a") == (0,)


def test_many_slow_searches_of_one_text_have_their_time_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fifty hooks may have fifty conditions each: the later ones are given up without a search."""
    monkeypatch.setattr(conditions, "SEARCH_SECONDS", 0.05)
    monkeypatch.setattr(conditions, "SEARCHES_SECONDS", 0.1)
    searched: list[float] = []
    compiled = regex.compile

    def counted(*args: Any, **settings: Any) -> object:
        searched.append(1)
        return compiled(*args, **settings)

    monkeypatch.setattr(regex, "compile", counted)
    slow = stop.output(r"^(a|a)*$", regex=True, catch=True, default=True)
    assert find_in_output((slow,) * 50, "a" * 60 + "b") == tuple(range(50))
    assert len(searched) <= 3
