"""What type checkers are told of a class is what the class takes: neither may gain a field without the other."""

import ast
from pathlib import Path
from typing import get_type_hints

import pytest

from perdure import Agent, Budgets, Retention
from perdure.agents.settings import AgentChanges, AgentSettings, WordsOfOthers
from perdure.contracts.budgets import BudgetSettings
from perdure.contracts.retention import RetentionSettings
from perdure.contracts.values import SYNONYMS

ACCEPTED = Path(__file__).with_name("accepted.py").read_text(encoding="utf-8")


def names_in(settings: type) -> set[str]:
    return set(get_type_hints(settings))


@pytest.mark.parametrize("settings", [AgentSettings, AgentChanges])
def test_the_settings_of_an_agent_are_its_fields_and_the_words_of_others(settings: type) -> None:
    assert names_in(settings) == {*Agent.model_fields, *SYNONYMS["Agent"]}
    assert names_in(WordsOfOthers) == set(SYNONYMS["Agent"])


def test_an_agent_needs_what_pydantic_needs() -> None:
    needed = {name for name, field in Agent.model_fields.items() if field.is_required()}
    assert AgentSettings.__required_keys__ == needed
    assert AgentChanges.__required_keys__ == set()


def test_the_settings_of_budgets_are_their_fields() -> None:
    assert names_in(BudgetSettings) == set(Budgets.model_fields)


def test_the_settings_of_retention_are_its_fields() -> None:
    assert names_in(RetentionSettings) == set(Retention.model_fields)


def test_every_setting_of_an_agent_is_given_to_another_one_before_both_checkers() -> None:
    """So that the type of each setting takes what pydantic makes of it."""
    calls = (node for node in ast.walk(ast.parse(ACCEPTED)) if isinstance(node, ast.Call))
    given = [{str(keyword.arg): ast.unparse(keyword.value) for keyword in call.keywords} for call in calls]
    assert {name: f"agent.{name}" for name in Agent.model_fields} in given
