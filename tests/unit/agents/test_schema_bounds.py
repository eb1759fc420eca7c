"""JSON schemas that would take for ever: refused where an agent is read, before any worker holds a value to them."""

import json
from typing import Any

import pytest
from pydantic import BaseModel

from perdure import Agent, ApprovalPolicy, ApprovalRule
from perdure.agents.agent import AgentDefinitionError
from perdure.agents.data import InlineAgents, Registered
from perdure.agents.schemas import MAX_PARTS, MAX_REFERENCES, check_schema

HEAD: dict[str, Any] = {"name": "tester", "model": "openai/scripted"}


def doubling(levels: int, keyword: str = "allOf") -> dict[str, Any]:
    """Each part names the next one twice: a value is held to the last one 2^levels times."""
    defs: dict[str, Any] = {
        f"l{level}": {keyword: [{"$ref": f"#/$defs/l{level + 1}"}, {"$ref": f"#/$defs/l{level + 1}"}]}
        for level in range(levels)
    }
    return {"$defs": {**defs, f"l{levels}": {"type": "object"}}, "$ref": "#/$defs/l0"}


BOMB = doubling(30)

DEPENDENT: dict[str, Any] = {
    "$defs": {
        **{
            f"l{level}": {"dependentSchemas": {name: {"$ref": f"#/$defs/l{level + 1}"} for name in ("a", "b")}}
            for level in range(30)
        },
        "l30": {},
    },
    "items": {"$ref": "#/$defs/l0"},
}


@pytest.mark.parametrize(
    "schema",
    [BOMB, doubling(30, "anyOf"), doubling(30, "oneOf"), DEPENDENT, {"properties": {"a": BOMB["$defs"]["l0"]}, **BOMB}],
    ids=["all", "any", "one", "dependent", "inside"],
)
def test_two_kilobytes_that_double_thirty_times_are_refused_with_one_line(schema: dict[str, Any]) -> None:
    """Of an output schema and of a rule, of an author and of a request."""
    assert len(json.dumps(schema)) < 4_000
    refused = r"its \$refs come to more than 5,000 for one value, with what each leads to written out"
    with pytest.raises(AgentDefinitionError, match=f"agent 'tester': output_schema: {refused}") as refusal:
        Agent(**HEAD, output_schema=schema)
    assert "\n" not in str(refusal.value)
    rules = ApprovalPolicy(rules=(ApprovalRule(tool="*", decision="ask", arguments=schema),))
    with pytest.raises(AgentDefinitionError, match=f"agent 'tester': approvals: {refused}"):
        Agent(**HEAD, approvals=rules)
    with pytest.raises(AgentDefinitionError, match=refused):
        InlineAgents(Registered([]), []).agent({**HEAD, "output_schema": schema})


def test_as_many_references_as_are_allowed_are_taken() -> None:
    """What is in a value is another value, whose references count for themselves; and so does a part named once."""
    check_schema({"$defs": {"a": {}}, "allOf": [{"$ref": "#/$defs/a"}] * MAX_REFERENCES})
    with pytest.raises(ValueError, match="written out"):
        check_schema({"$defs": {"a": {}}, "allOf": [{"$ref": "#/$defs/a"}] * (MAX_REFERENCES + 1)})
    chain: dict[str, Any] = {
        f"l{level}": {"properties": {name: {"$ref": f"#/$defs/l{level + 1}"} for name in "abcdefgh"}}
        for level in range(40)
    }
    check_schema({"$defs": {**chain, "l40": {}}, "$ref": "#/$defs/l0"})


class Sum(BaseModel):
    """A sum of whatever an expression may be."""

    left: "Sum | Product | float"
    right: "Sum | Product | float"


class Product(BaseModel):
    """A product of the same."""

    factors: list[Sum | float]


def test_schemas_that_lead_back_to_themselves_stay_possible() -> None:
    """Of trees and expressions, for example; a circle through one and the same value is for the check of the value."""
    assert Agent(**HEAD, output_schema=Sum).output_schema == Sum.model_json_schema()
    check_schema({"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"})


def test_a_schema_that_is_nested_too_deeply_is_refused_with_one_line() -> None:
    schema: dict[str, Any] = {}
    for _ in range(200):
        schema = {"not": schema}
    with pytest.raises(AgentDefinitionError, match="output_schema: this JSON schema is nested too deeply"):
        Agent(**HEAD, output_schema=schema)
    for _ in range(5_000):
        schema = {"not": schema}
    with pytest.raises(AgentDefinitionError, match="agent 'tester': output_schema: it is nested too deeply; use fewer"):
        Agent(**HEAD, output_schema=schema)


def test_a_request_may_have_schemas_of_some_size_only() -> None:
    """A look at a schema takes time too, and a request has room for a hundred thousand parts."""
    agents = InlineAgents(Registered([]), [])
    fits: dict[str, Any] = {"anyOf": [{"type": "string"}] * (MAX_PARTS - 1)}
    assert agents.agent({**HEAD, "output_schema": fits}).output_schema == fits
    refused = "agent 'tester': output_schema: a request may have schemas of 1,000 parts at most"
    larger: list[dict[str, Any]] = [{"anyOf": [{"type": "string"}] * MAX_PARTS}, {"anyOf": [True] * MAX_PARTS}]
    for large in larger:
        with pytest.raises(AgentDefinitionError, match=refused):
            agents.agent({**HEAD, "output_schema": large})
    rule: dict[str, Any] = {"tool": "*", "decision": "ask", "arguments": {"anyOf": [{"type": "object"}] * MAX_PARTS}}
    with pytest.raises(AgentDefinitionError, match="agent 'tester': approvals: a request may have schemas"):
        agents.agent({**HEAD, "approvals": {"rules": [rule]}})
