"""NaN and the infinities, where authors and servers write them: JSON has none, so each is spelled as a text.

Seen in public trackers: a default of NaN in a schema, or one in a result, and every request with it is refused.
"""

import json
import math
from typing import Any

import pytest
from mcp import MCPError
from mcp_types import INTERNAL_ERROR, CallToolResult
from pydantic import BaseModel

from perdure import Agent, AgentDefinitionError, Fallback, tool
from perdure.activities.mcp.failures import McpError, call_failures
from perdure.activities.mcp.reading import mend_answer, read_body
from perdure.activities.mcp.results import read_result
from perdure.contracts.values import JsonValue
from perdure.testing import call, say
from tests.memory import Run

NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def strictly(text: str) -> Any:
    """The value of a text that is JSON, as the standard has it."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


def body(result: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "result": result}).encode()


@pytest.mark.parametrize("name", NUMBERS)
def test_a_servers_structured_content_is_json(name: str) -> None:
    """S-77."""
    found = {"mean": NUMBERS[name], "all": [1.5, NUMBERS[name]]}
    read = read_result(CallToolResult(content=[], structured_content=found), "c1")
    assert strictly(read.text) == {"mean": name, "all": [1.5, name]}


@pytest.mark.parametrize("name", NUMBERS)
def test_structured_content_that_is_no_object_is_json_too(name: str) -> None:
    """S-77: as it comes over the wire."""
    message = read_body(body({"content": [], "structuredContent": [NUMBERS[name]]}))
    answer: Any = mend_answer(message, "tools/call", "2025-06-18")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    read = read_result(CallToolResult.model_validate(answer.result), "c1")
    assert strictly(read.text) == [name]


@pytest.mark.parametrize("name", NUMBERS)
def test_a_block_that_cannot_be_read_is_shown_as_json(name: str) -> None:
    """S-77."""
    block = {"type": "chart", "mean": NUMBERS[name]}
    answer: Any = mend_answer(read_body(body({"content": [block]})), "tools/call", "2025-06-18")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    (part,) = answer.result["content"]
    assert strictly(part["text"].partition("read: ")[2].removesuffix("]")) == {"type": "chart", "mean": name}


@pytest.mark.parametrize("name", NUMBERS)
def test_the_details_of_a_servers_error_are_json(name: str) -> None:
    """S-77."""
    with pytest.raises(McpError) as raised, call_failures("web", "pay", 1):
        raise MCPError(INTERNAL_ERROR, "no", {"mean": NUMBERS[name]})
    assert strictly(str(raised.value).partition("no (")[2].rpartition(") (code")[0]) == {"mean": name}


class Mean(BaseModel):
    of: float = math.nan
    within: list[float] = [-math.inf]


@pytest.mark.parametrize("name", NUMBERS)
async def test_a_default_stands_in_a_schema_as_json_and_the_body_gets_it(run: Run, name: str) -> None:
    """S-22: also where the definition was read from the store."""
    got: list[float] = []

    @tool
    def measure(of: float = NUMBERS[name], *, every: list[float] = [NUMBERS[name]]) -> str:  # noqa: B006 - never changed
        """Measure."""
        got.extend([of, *every])
        return "measured"

    agent = Agent(name="tester", model="openai/scripted", tools=[measure], output_schema=Mean)
    result = await run(agent, call(("measure", {})), say('{"of": 1.5}'))
    assert (result["stop_reason"], [str(number) for number in got]) == ("finished", [str(NUMBERS[name])] * 2)
    for made in run.requests:
        (shown,) = strictly(json.dumps(made.body))["tools"]
        assert shown["function"]["parameters"]["properties"]["of"]["default"] == name
        assert shown["function"]["parameters"]["properties"]["every"]["default"] == [name]


@pytest.mark.parametrize("name", NUMBERS)
def test_a_parameter_for_the_provider_that_is_none_is_refused_by_name(name: str) -> None:
    """litellm would send a body that is no JSON."""
    params: dict[str, JsonValue] = {"temperature": 0.5, "logit_bias": {"50256": [NUMBERS[name]]}}
    said = "logit_bias has a number that is NaN or infinite, which no provider takes; leave it out"
    with pytest.raises(AgentDefinitionError, match=said):
        Agent(name="tester", model="openai/scripted", generate_params=params)
    fallback = Fallback(model="openai/other", generate_params=params)
    with pytest.raises(AgentDefinitionError, match=said):
        Agent(name="tester", model="openai/scripted", fallback_models=[fallback])
