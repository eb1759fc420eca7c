"""The recipes of CONTRIBUTING.md: each budget and each hook event stands wherever one does; what lacks it is named."""

import re
from inspect import getdoc

import pytest

from perdure.cli.run import extend_command
from perdure.client import Client
from perdure.contracts.budgets import LIMITS, BudgetLimits, Budgets, Dimensions, Limits
from perdure.contracts.hooks import EVENTS_AT, HOOK_EVENTS
from perdure.contracts.values import SYNONYMS
from perdure.engine.limits import CODES
from perdure.gateway.routes.turns import ExtendBody
from tests.contract.repository import ROOT

DIMENSIONS = tuple(Dimensions.model_fields)
VIEWS = ROOT / "perdure" / "gateway" / "ui" / "views.js"
"""It shows what is used of each dimension; of ``depth``, which bounds each call alone, nothing is used."""

NOT_IN_THE_LOG = {"step_end"}


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", DIMENSIONS)
def test_a_budget_stands_wherever_people_set_and_see_it(name: str) -> None:
    places = {
        "Budgets": name in Budgets.model_fields,
        "BudgetLimits": name in BudgetLimits.__annotations__,
        "CODES": name in CODES,
        "a synonym": f"max_{name}" in SYNONYMS["Agent"],
        "docs/budgets.md": f"`{name}`" in page("budgets.md"),
        "the page": name == "depth" or re.search(rf"\b{name}\b", VIEWS.read_text(encoding="utf-8")) is not None,
    }
    assert [place for place, there in places.items() if not there] == []


@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_of_a_running_turn_is_set_through_every_door(name: str) -> None:
    places = {
        "Limits": name in Limits.__annotations__,
        "Client.extend": f"``{name}``" in (getdoc(Client.extend) or ""),
        "perdure extend": name in {option.name for option in extend_command.params},
        "POST …/extend": name in ExtendBody.model_fields,
    }
    assert [place for place, there in places.items() if not there] == []


@pytest.mark.parametrize("event", HOOK_EVENTS)
def test_a_hook_event_has_a_place_in_a_turn_and_on_every_page(event: str) -> None:
    places = {
        "EVENTS_AT": any(event in events for events in EVENTS_AT.values()),
        "docs/hooks.md": f"`{event}`" in page("hooks.md"),
        "docs/trajectory.md": f"`{event}`" in page("trajectory.md") or event in NOT_IN_THE_LOG,
    }
    assert [place for place, there in places.items() if not there] == []
