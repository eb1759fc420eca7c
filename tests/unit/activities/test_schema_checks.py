"""Schemas of servers that nobody here has written: they cannot hold up the worker."""

import asyncio
import json
from typing import Any

import pytest
from mcp_types import CallToolResult, Tool

from perdure import schema_checks
from perdure.activities.mcp.results import mark_unstructured
from perdure.activities.models.model_call import Answer
from perdure.activities.models.record_answer import step_of
from perdure.agents.schemas import GivenUpError
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.budgets import Usage
from perdure.contracts.generations import Generate
from perdure.contracts.input_requests import ApprovalPolicy, ApprovalRule
from perdure.contracts.tools import RawCall, ToolDeclaration
from perdure.schema_checks import problem, run_off_the_loop, run_with_clock
from perdure.security.approvals import is_fitting

LEVELS = 60
DOUBLING: dict[str, Any] = {
    "$defs": {
        **{
            f"level{level}": {"allOf": [{"$ref": f"#/$defs/level{level + 1}"}, {"$ref": f"#/$defs/level{level + 1}"}]}
            for level in range(LEVELS)
        },
        f"level{LEVELS}": {"type": "object"},
    },
    "$ref": "#/$defs/level0",
}
"""Takes 2^60 steps."""

ENDLESS: dict[str, Any] = {"properties": {"name": {"pattern": "^(a|a)*$"}}}
"""Takes 2^60 steps on sixty letters and another one."""

ITSELF: dict[str, Any] = {"allOf": [{"$ref": "#"}]}

OUT_OF_SIGHT: dict[str, Any] = {"patternProperties": {"^(a|a)*$": {}}, "additionalProperties": False}

VALUE: dict[str, Any] = {"name": "a" * 60 + "!", "a" * 60 + "!": 1}


@pytest.mark.deep
@pytest.mark.parametrize("schema", [DOUBLING, ENDLESS, ITSELF, OUT_OF_SIGHT], ids=["refs", "text", "itself", "names"])
async def test_a_schema_that_takes_for_ever_is_given_up(schema: dict[str, Any]) -> None:
    """What it is about counts as unchecked."""
    with pytest.raises(GivenUpError):
        problem(schema, VALUE)
    tool = Tool(name="evil", input_schema={"type": "object"}, output_schema=schema)
    result = CallToolResult(content=[], structured_content=VALUE)
    assert await mark_unstructured(tool, result) == result


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        ({"properties": {"day": {"pattern": r"^\d+$"}}}, {"day": "7"}, None),
        ({"properties": {"day": {"pattern": r"^\d+$"}}}, {"day": "x"}, r'at $.day: pattern "^\\d+$"'),
        ({"$defs": {"n": {"type": "integer"}}, "properties": {"n": {"$ref": "#/$defs/n"}}}, {"n": "1"}, "at $.n: type"),
        ({"$schema": "http://json-schema.org/draft-04/schema#", "required": ["a"]}, {}, "at $: required"),
    ],
)
def test_other_schemas_are_held_to(
    monkeypatch: pytest.MonkeyPatch, schema: dict[str, Any], value: dict[str, Any], expected: str | None
) -> None:
    """The problem is said without the value."""
    monkeypatch.setattr(schema_checks, "CHECK_SECONDS", 60)
    found = problem(schema, value)
    assert found is None if expected is None else str(found).startswith(expected)


def test_a_call_that_a_person_approves_does_not_wait_for_the_schema_of_its_tool() -> None:
    """Nobody has to trust it; who approves sees the arguments."""
    tool = ToolDeclaration(name="evil__put", description="", parameters=ENDLESS, reference="mcp:evil/put")
    rules = ApprovalPolicy(rules=(ApprovalRule(tool="evil__*", decision="ask"),))
    definition = AgentDefinition(name="tester", model="openai/scripted", tools=(tool,), approvals=rules)
    calls = (RawCall(name="evil__put", arguments=json.dumps(VALUE)),)
    answer = Answer(text="", calls=calls, thinking=(), finish_reason="tool_calls", usage=Usage(), cost_usd=None)
    request = Generate(session="s", turn=1, step=1, parent="p", definition=definition.digest())
    step, _ = step_of(request, definition, (), answer, ())
    assert [call.needs for call in step.calls] == ["approval"]


def test_a_part_with_a_dialect_of_its_own_has_a_clock_too() -> None:
    """Its ``$schema`` would have jsonschema go on with a validator of that draft, which nothing stops."""
    dialect = "https://json-schema.org/draft/2020-12/schema"
    schema = {**DOUBLING, "$defs": {name: {"$schema": dialect, **part} for name, part in DOUBLING["$defs"].items()}}
    with pytest.raises(GivenUpError, match="the schema takes more than"):
        problem(schema, VALUE)


@pytest.mark.parametrize("schema", [DOUBLING, ENDLESS, ITSELF], ids=["refs", "text", "itself"])
def test_a_rule_that_takes_for_ever_allows_nothing_and_forbids_what_it_might(schema: dict[str, Any]) -> None:
    """Under the clock of the answer: the rules of all its calls have their time together."""
    tool = ToolDeclaration(name="put", description="", parameters={}, reference="tools:put")
    rules = {word: ApprovalRule(tool="put", decision=word, arguments=schema) for word in ("allow", "deny", "ask")}
    held = run_with_clock(lambda: {word: is_fitting(rule, tool, VALUE) for word, rule in rules.items()})
    assert held == {"allow": False, "deny": True, "ask": True}


async def test_the_event_loop_turns_while_a_schema_is_checked() -> None:
    """On a thread of its own, which gives the loop its turns."""
    turns = 0
    checks = asyncio.ensure_future(run_off_the_loop(lambda: problem(DOUBLING, VALUE)))
    while not checks.done():
        turns += 1
        await asyncio.sleep(0)
    assert isinstance(checks.exception(), GivenUpError)
    assert turns > 10
