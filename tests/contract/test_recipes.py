"""The recipes of CONTRIBUTING.md: each budget and each hook event stands wherever one does; what lacks it is named."""

import re
from inspect import getdoc
from typing import get_args

import pytest

from perdure.agents.settings import WordsOfOthers
from perdure.cli.render import _lines_of
from perdure.cli.run import extend_command
from perdure.client import Client
from perdure.contracts.budgets import LIMITS, Budgets, BudgetSettings, Dimensions, Limits, Spent
from perdure.contracts.dimensions import DIMENSIONS, BudgetDimension
from perdure.contracts.errors import REASONS
from perdure.contracts.events import EVENT_TYPES
from perdure.contracts.hooks import EVENTS_AT, HOOK_EVENTS, DecidedEvent, RuleEvent
from perdure.engine import limits
from perdure.gateway.routes.turns import ExtendBody
from tests.contract.repository import ROOT

NOT_IN_THE_LOG = {"step_end"}
SILENT_ON_THE_TERMINAL = {"generation_start", "generation_step", "tool_step", "stop_condition_met", *NOT_IN_THE_LOG}
SILENT_ON_THE_PAGE = {"generation_step", "tool_step", *NOT_IN_THE_LOG}
SEEN_BY_THE_ENGINE = {"tool_end", "tool_error", "step_end"}
"""Events of a step that ``_see`` finds without a decision."""


def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def missing_of_dimension(row: BudgetDimension) -> list[str]:
    """The places that lack a dimension; of ``depth`` nothing is used, so that no page shows it."""
    name, views = row.name, read("perdure/gateway/ui/views.js")
    (meters,) = re.findall(r"const NAMES = \{(.*)\}", views)
    said = {str(code): reason.text for code, reason in REASONS.items()}.get(f"budget.{row.code or name}_exhausted", "")
    places = {
        "Dimensions": name in Dimensions.model_fields,
        "BudgetSettings": name in BudgetSettings.__annotations__,
        "docstring of Budgets": f"{name}:" in (getdoc(Budgets) or ""),
        "Spent": name in Spent.model_fields or not (row.counted_by or row.unit == "X"),
        "Dimension in engine/limits.py": (name in get_args(limits.Dimension)) == (row.counted_by in {"calls", "both"}),
        "ReasonCode and REASONS": f"budgets.{name}" in said,
        "WordsOfOthers": f"max_{name}" in WordsOfOthers.__annotations__,
        "docs/budgets.md": f"| `{name}` |" in read("docs/budgets.md"),
        "views.js": f"{name}:" in meters if row.counted_by else name == "depth" or f"limits.{name}" in views,
    }
    return [*(place for place, there in places.items() if not there), *missing_of_limit(name)]


def missing_of_limit(name: str) -> list[str]:
    """The doors through which a limit of a running turn cannot be set."""
    places = {
        "Limits": name in Limits.__annotations__,
        "docstring of Client.extend": f"``{name}``" in (getdoc(Client.extend) or ""),
        "perdure extend": name in {option.name for option in extend_command.params},
        "ExtendBody": name in ExtendBody.model_fields,
    }
    return [place for place, there in places.items() if not there]


def missing_of_event(event: str) -> list[str]:
    """The places that lack a hook event."""
    kind = EVENT_TYPES.get(event)
    decided = {kind.model_fields["type"].default for kind in get_args(DecidedEvent)}
    seen = event not in get_args(RuleEvent) or event not in EVENTS_AT["step"] or event in SEEN_BY_THE_ENGINE | decided
    shown = kind is not None and _lines_of.dispatch(kind) is not _lines_of.dispatch(object)
    places = {
        "Event": kind is not None or event in NOT_IN_THE_LOG,
        "RuleEvent or FunctionEvent": event in HOOK_EVENTS,
        "EVENTS_AT": any(event in events for events in EVENTS_AT.values()),
        "arrive in engine/hooks.py": seen,
        "render.py": shown or event in SILENT_ON_THE_TERMINAL,
        "fold.js": f"\n  {event}(state, line) {{" in read("perdure/gateway/ui/fold.js") or event in SILENT_ON_THE_PAGE,
        "docs/hooks.md": f"`{event}`" in read("docs/hooks.md"),
        "docs/trajectory.md": f"`{event}`" in read("docs/trajectory.md") or event in NOT_IN_THE_LOG,
    }
    return [place for place, there in places.items() if not there]


@pytest.mark.parametrize("row", DIMENSIONS, ids=lambda row: row.name)
def test_a_budget_stands_wherever_people_set_and_see_it(row: BudgetDimension) -> None:
    assert ", ".join(missing_of_dimension(row)) == ""


def test_every_field_of_a_budget_has_its_row() -> None:
    assert [row.name for row in DIMENSIONS] == list(Dimensions.model_fields)


@pytest.mark.parametrize("row", DIMENSIONS, ids=lambda row: row.name)
def test_a_budget_ends_a_turn_as_its_row_says(row: BudgetDimension) -> None:
    """Time ends a turn by a timer, and not before a model call."""
    if row.name in Spent.model_fields:
        budgets, spent = Budgets.model_validate({row.name: 1}), Spent.model_validate({row.name: 1})
        assert (limits.forbids_generation(budgets, spent) is not None) == row.ends
    else:
        assert row.ends == (row.name == "seconds")


@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_of_a_running_turn_is_set_through_every_door(name: str) -> None:
    assert ", ".join(missing_of_limit(name)) == ""


@pytest.mark.parametrize("event", sorted({*HOOK_EVENTS, *set[str]().union(*EVENTS_AT.values())}))
def test_a_hook_event_has_a_place_in_a_turn_and_on_every_page(event: str) -> None:
    assert ", ".join(missing_of_event(event)) == ""


def test_every_event_of_the_log_is_one_for_hooks_or_of_hooks() -> None:
    assert set(EVENT_TYPES) - set(HOOK_EVENTS) == {"react_step", "hook_end"}


def test_a_row_without_places_has_each_of_them_named() -> None:
    assert missing_of_dimension(BudgetDimension("naps", "naps", "naps", counted_by="calls")) == [
        *("Dimensions", "BudgetSettings", "docstring of Budgets", "Spent", "Dimension in engine/limits.py"),
        *("ReasonCode and REASONS", "WordsOfOthers", "docs/budgets.md", "views.js"),
        *("Limits", "docstring of Client.extend", "perdure extend", "ExtendBody"),
    ]
    assert missing_of_event("nap_end") == [
        *("Event", "RuleEvent or FunctionEvent", "EVENTS_AT", "render.py", "fold.js"),
        *("docs/hooks.md", "docs/trajectory.md"),
    ]
