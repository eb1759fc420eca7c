"""What a request may say of its context, and what is refused before it is sent."""

from typing import Any

import pytest
from click.testing import CliRunner

from perdure import Agent
from perdure.cli.main import cli
from perdure.client import RequestRefusedError
from perdure.client.requests import turn_request
from perdure.contracts.turn_context import MAX_CONTEXT_BYTES

LARGE = {"x": "ü" * (MAX_CONTEXT_BYTES // 2)}


@pytest.mark.parametrize(
    "context",
    [
        {},
        {"customer": 7, "deep": [{"er": None}]},
        {"token": "${PERDURE_CONTEXT_T}", "password": ""},
        {"idempotency_key": "abc-defghijk", "shell": "${HOME}"},
        {"x": "x" * (MAX_CONTEXT_BYTES - 8)},
    ],
)
def test_a_context_is_an_object_of_json(context: dict[str, Any]) -> None:
    assert turn_request("s", {"agent": "a", "prompt": "p", "context": context}).context == context


@pytest.mark.parametrize(
    ("context", "said"),
    [
        (LARGE, "context: is 16,392 bytes, the limit is 16,384; give an id, and let a tool look the rest up"),
        (
            {"a": {"api_key": "sk-1"}},
            "context: a.api_key would be stored as it stands; write '${PERDURE_CONTEXT_NAME}'",
        ),
        ({"tokens": [], "token": ["t"]}, "context: token would be stored as it stands"),
        ({"token": "${OPENAI_API_KEY}"}, "context: token would be stored as it stands"),
        ([1], "context: Input should be a valid dictionary"),
        ("text", "context: Input should be a valid dictionary"),
    ],
)
def test_a_context_that_cannot_be_kept_is_refused(context: Any, said: str) -> None:
    with pytest.raises(RequestRefusedError) as refused:
        turn_request("s", {"agent": "a", "prompt": "p", "context": context})
    assert str(refused.value).startswith(said)
    assert "sk-1" not in str(refused.value)


@pytest.mark.parametrize("verb", [["run", "a", "p"], ["send", "s", "p"]])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("{", "write a JSON object, such as '{\"customer\": 7}', or @FILE"),
        ("[1]", "write a JSON object"),
        ("@nowhere.json", "nowhere.json: No such file or directory"),
    ],
)
def test_the_command_line_says_what_a_context_is(verb: list[str], given: str, said: str) -> None:
    result = CliRunner().invoke(cli, [*verb, "--context", given])
    assert (result.exit_code, said in " ".join(result.output.split())) == (2, True)


@pytest.mark.parametrize(
    ("instructions", "said"),
    [
        (lambda: "x", "<lambda> takes the turn's context alone"),
        (3, "write a text, several in a list, or a function of the turn's context (got a int)"),
        (str, "write a text, several in a list, or a function of the turn's context (got a type)"),
        (lambda context: (yield context), "<lambda> yields; return one text"),
    ],
)
def test_what_makes_no_instructions_is_refused(instructions: Any, said: str) -> None:
    with pytest.raises(ValueError, match="agent 'x': instructions: ") as refused:
        Agent(name="x", model="openai/x", instructions=instructions)
    assert said in str(refused.value)


def test_a_function_is_part_of_the_definition_by_name() -> None:
    def instruct(_: object) -> str:
        return ""

    agent = Agent(name="x", model="openai/x", instructions=instruct)
    assert agent.definition.instructions_from == f"{__name__}:{instruct.__qualname__}"
    assert agent.clone(max_steps=2).instructions is instruct
    assert agent.clone(instructions="Go.").definition.instructions == "Go."
