"""How an agent finishes is checked where it is defined: what contradicts itself is refused in one line."""

from typing import Any

import pytest

from perdure import Agent, AgentDefinitionError, finish, todo, tool


@tool
def submit() -> str:
    """Hand it in."""
    return "done"


def agent(**settings: Any) -> Agent:
    return Agent(**{"name": "a", "model": "openai/gpt-5-mini", **settings})


MADE: dict[str, tuple[dict[str, Any], str | None, list[str]]] = {
    "text": ({}, None, []),
    "named": ({"tools": [submit], "finish_tool": "submit"}, "submit", ["submit"]),
    "built in": ({"completion": "finish_tool"}, "finish", ["finish"]),
    "renamed": (
        {"completion": "finish_tool", "tools": [finish.with_(name="hand_in")]},
        "hand_in",
        ["hand_in"],
    ),
    "todos": ({"completion": "attempt_completion"}, None, ["todo", "clear_todo", "attempt_completion"]),
    "own todo": (
        {"completion": "attempt_completion", "tools": [todo.with_(name="plan")]},
        None,
        ["plan", "clear_todo", "attempt_completion"],
    ),
}


@pytest.mark.parametrize("name", MADE)
def test_what_finishes_a_turn_is_among_the_tools(name: str) -> None:
    settings, finish_tool, tools = MADE[name]
    definition = agent(**settings).definition
    assert (definition.finish_tool, [one.name for one in definition.tools]) == (finish_tool, tools)
    assert agent(**settings).clone().definition == definition


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "text and a tool": ({"completion": "text", "tools": [submit], "finish_tool": "submit"}, "is for completion="),
    "todos and a tool": (
        {"completion": "attempt_completion", "tools": [submit], "finish_tool": "submit"},
        "is for completion=",
    ),
    "todos and a schema": ({"completion": "attempt_completion", "output_schema": {"type": "object"}}, "output_schema"),
    "a tool and a schema": ({"completion": "finish_tool", "output_schema": {"type": "object"}}, "output_schema"),
    "another finish": ({"completion": "finish_tool", "tools": [submit.with_(name="finish")]}, "finish_tool='finish'"),
    "another todo": (
        {"completion": "attempt_completion", "tools": [submit.with_(name="todo")]},
        "adds the tool 'todo', and there is one of that name",
    ),
    "no such way": ({"completion": "never"}, "completion: Input should be 'text', 'finish_tool' or"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_settings_that_contradict_each_other_are_refused(name: str) -> None:
    settings, told = REFUSED[name]
    with pytest.raises(AgentDefinitionError) as caught:
        agent(**settings)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)
