"""How an agent finishes is checked where it is defined: what contradicts itself is refused in one line."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import Agent, AgentDefinitionError, File, ToolContext, finish, read_output, todo, tool
from perdure.agents.builtin_tools import READ_CHARACTERS
from perdure.agents.context import InvalidInputError
from perdure.llm.tool_output import OFFLOAD_CHARACTERS


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
    assert (definition.finish_tool, [declaration.name for declaration in definition.tools]) == (finish_tool, tools)
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


class Call(ToolContext):
    """A context with one artifact."""

    def __init__(self, text: str = "0123456789", media_type: str = "text/plain") -> None:
        self.file = File("art_1", text, media_type)

    @property
    def cancelled(self) -> bool:
        return False

    def wait(self, seconds: float) -> bool:
        return False

    def read_artifact(self, handle: str) -> File:
        return self.file if handle == "art_1" else super().read_artifact(handle)


def read(context: Call, **arguments: object) -> str:
    return str(read_output.function(context=context, **read_output.check_arguments({"handle": "art_1", **arguments})))  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "[characters 0 to 10 of 10 of art_1; this is its end]\n0123456789"),
        ({"start": 3, "length": 4}, "[characters 3 to 7 of 10 of art_1; read on with start=7]\n3456"),
        ({"start": 7, "length": 100}, "[characters 7 to 10 of 10 of art_1; this is its end]\n789"),
        ({"start": 9}, "[characters 9 to 10 of 10 of art_1; this is its end]\n9"),
    ],
)
def test_a_part_says_where_it_stands_and_how_to_read_on(arguments: dict[str, object], text: str) -> None:
    """S-26."""
    assert read(Call(), **arguments) == text


def test_an_empty_artifact_is_read() -> None:
    assert read(Call("")) == "[characters 0 to 0 of 0 of art_1; this is its end]\n"


@pytest.mark.parametrize(
    ("context", "arguments", "said"),
    [
        (Call(), {"handle": "art_2"}, "there is no artifact 'art_2' here"),
        (Call(), {"start": 10}, "start 10 is past the end: art_1 has 10 characters"),
        (Call(), {"start": -1}, "start: Input should be greater than or equal to 0"),
        (Call(), {"length": 0}, "length: Input should be greater than or equal to 1"),
        (Call(media_type="image/png"), {}, "it cannot be read as characters: art_1 is no text but image/png, 10 bytes"),
    ],
)
def test_what_cannot_be_read_is_said_with_its_cause(context: Call, arguments: dict[str, object], said: str) -> None:
    """S-22: tool.invalid_input, which the model reads whatever the agent's on_tool_error is."""
    with pytest.raises(InvalidInputError, match=said):
        read(context, **arguments)


@given(st.integers(0, 10**7), st.integers(1, 10**7))
def test_a_part_is_never_long_enough_to_be_offloaded_itself(start: int, length: int) -> None:
    """S-26."""
    part = read(CALL_WITH_MUCH, start=start, length=length)
    assert len(part) <= OFFLOAD_CHARACTERS
    assert len(part.partition("\n")[2]) == min(length, READ_CHARACTERS, 10**7 + 1 - start)


CALL_WITH_MUCH = Call("x" * (10**7 + 1))
