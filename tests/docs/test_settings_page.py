"""The page on settings has every variable with its default and its choices, and the limits of the code."""

import re
from datetime import timedelta
from typing import Any, Literal, get_args, get_origin

import pytest
from pydantic.fields import FieldInfo

from perdure.activities.models.attempt import MAX_CALLS
from perdure.contracts.agents import DEFAULT_GENERATION_TIMEOUT, DEFAULT_IDLE_TIMEOUT, DEFAULT_MAX_STEPS
from perdure.contracts.budgets import Dimensions
from perdure.contracts.input_requests import MAX_WAITING_BYTES
from perdure.contracts.sends import MAX_PROMPT_BYTES, MAX_WAITING_MESSAGES
from perdure.contracts.tools import DEFAULT_TOOL_TIMEOUT
from perdure.contracts.turns import MAX_OUTPUT_CHARACTERS
from perdure.llm.tool_output import OFFLOAD_CHARACTERS
from perdure.settings import PREFIX, Settings
from perdure.store.database import OLDEST_SQLITE
from perdure.store.postgresql import ANSWER_TIMEOUT, IDLE_TIMEOUT
from tests.docs.sections import DOCS, section

PAGE = (DOCS / "settings.md").read_text(encoding="utf-8")

LIMITS_OF_THE_CODE = {
    "model calls of a turn": f"{DEFAULT_MAX_STEPS:,}",
    "time of a model call": f"{DEFAULT_GENERATION_TIMEOUT.total_seconds():g} s",
    "silence in a model call": f"{DEFAULT_IDLE_TIMEOUT.total_seconds():g} s",
    "time of a tool call": f"{DEFAULT_TOOL_TIMEOUT.total_seconds():g} s",
    "cost, model calls, tool calls, seconds of a turn": "none",
    "tool calls of one answer": f"{MAX_CALLS}",
    "a prompt or message": f"{MAX_PROMPT_BYTES // 1024} KiB",
    "messages waiting at a running turn": f"{MAX_WAITING_MESSAGES}, and {MAX_WAITING_BYTES // 1024} KiB in all",
    "a tool's output in the conversation": f"{OFFLOAD_CHARACTERS:,} characters",
    "`output` of a result": f"{MAX_OUTPUT_CHARACTERS:,} characters",
}


def problems_of(page: str) -> dict[str, str]:
    """What is wrong with the rows of variables, by the variable: missing, unknown, twice, or another default."""
    rows = re.findall(rf"^\| `({PREFIX}\w+)` \| ([^|]*?) ?\| (.*) \|$", page, re.MULTILINE)
    names = [name for name, *_ in rows]
    known = {f"{PREFIX}{field}".upper(): info for field, info in Settings.model_fields.items()}
    problems = {name: "is in the table twice" for name in names if names.count(name) > 1}
    problems |= dict.fromkeys(known.keys() - set(names), "has no row")
    for name, default, meaning in rows:
        if name not in known:
            problems[name] = "is no setting"
        elif default != told(known[name].default):
            problems[name] = f"is {told(known[name].default) or 'empty'} by default"
        elif lacking := choices_of(known[name]) - set(re.findall(r"`([^`]+)`", f"{default} {meaning}")):
            problems[name] = f"has no {', '.join(sorted(lacking))}"
    return problems


def choices_of(field: FieldInfo) -> set[str]:
    """The words that a variable takes, if it takes no others."""
    return set(get_args(field.annotation)) if get_origin(field.annotation) is Literal else set()


def told(default: Any) -> str:
    """A default as the page writes it: a switch that is off, and what nobody has set, are empty."""
    match default:
        case None | "" | () | False:
            return ""
        case dict() if not default:
            return ""
        case timedelta():
            return f"`{default.total_seconds():g}`"
        case tuple():
            return f"`{','.join(default)}`"
        case _:
            return f"`{default}`"


def test_each_variable_has_one_row_with_its_default_and_its_choices() -> None:
    assert problems_of(PAGE) == {}


@pytest.mark.parametrize(
    ("right", "wrong", "problem"),
    [
        (
            "| `PERDURE_TOOL_THREADS` | `64`",
            "| `PERDURE_TOOL_THREADS` | `32`",
            {"PERDURE_TOOL_THREADS": "is `64` by default"},
        ),
        ("| `PERDURE_UI_URL` |", "| `PERDURE_UI` |", {"PERDURE_UI": "is no setting", "PERDURE_UI_URL": "has no row"}),
        ("`off` for a fleet", "not for a fleet", {"PERDURE_MIGRATE": "has no off"}),
    ],
)
def test_a_row_that_is_wrong_is_noticed(right: str, wrong: str, problem: dict[str, str]) -> None:
    assert right in PAGE
    assert problems_of(PAGE.replace(right, wrong)) == problem


def test_the_limits_are_those_of_the_code() -> None:
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| [^|]+ \|$", section("settings", "Limits"), re.MULTILINE)
    assert dict(rows[1:]) == LIMITS_OF_THE_CODE


def test_the_page_counts_the_budgets() -> None:
    found = re.search(r"`Agent\(budgets=Budgets\(([^)]*)\)\)` and (\w+) more", PAGE)
    assert found is not None
    named = re.findall(r"(\w+)=", found[1])
    assert set(named) < Dimensions.model_fields.keys()
    assert ["no", "one", "two", "three", "four", "five"].index(found[2]) == len(Dimensions.model_fields) - len(named)


def test_the_store_needs_and_bounds_what_the_page_says() -> None:
    assert f"a file of SQLite {OLDEST_SQLITE[0]}.{OLDEST_SQLITE[1]} or newer" in PAGE
    bounds = re.search(
        r"(\d+) s for a process that\nfalls silent in the middle of it, and (\d+) s for a statement", PAGE
    )
    assert bounds is not None
    assert tuple(map(float, bounds.groups())) == (IDLE_TIMEOUT.total_seconds(), ANSWER_TIMEOUT.total_seconds())
