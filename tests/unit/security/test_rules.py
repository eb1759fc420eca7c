"""What a rule lets run: nothing that a person, reading the rule, would not expect to."""

import json
from datetime import timedelta
from decimal import Decimal
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from perdure import Agent, AgentDefinitionError, ApprovalPolicy, ApprovalRule, ToolDefinitionError, ask_user, tool
from perdure.agents.tool import Tool
from perdure.contracts.input_requests import Verdict, digest_of
from perdure.contracts.tools import PlannedCall, ToolDeclaration
from perdure.contracts.values import JsonValue
from perdure.security.approvals import MAX_ASKED_BYTES, apply_policy, decide, is_approved, is_fitting, reject_oversized

Schema = dict[str, JsonValue]

SMALL: Schema = {"properties": {"amount": {"maximum": 20}}}


@tool(requires_approval=True)
def pay(amount: int, to: str = "", password: str = "") -> str:
    """Pay."""
    return f"{amount} {to} {password}"


@tool(requires_approval=True)
def transfer(amount: Decimal) -> str:
    """Transfer; the schema takes numbers and texts."""
    return str(amount)


@tool(requires_approval=True)
def weigh(amount: Annotated[float, Field(multiple_of=0.5)]) -> str:
    """Weigh."""
    return str(amount)


@tool
def look() -> str:
    """Look."""
    return "looked"


def rule(schema: Schema, decision: Verdict = "allow", of: str = "*") -> ApprovalRule:
    return ApprovalRule(tool=of, arguments=schema, decision=decision)


def plan(of: Tool[..., Any], raw: str, *rules: ApprovalRule, shown: str | None = None) -> PlannedCall:
    agent = Agent(name="a", model="p/m", tools=[of], approvals=ApprovalPolicy(rules=rules))
    call = PlannedCall(call_id="c", tool=of.name)
    return apply_policy(agent.definition, of.declaration, call, raw=raw, shown=shown or raw)


def amounts(schema: Schema) -> Schema:
    return {"properties": {"amount": schema}}


@pytest.mark.parametrize(
    ("schema", "amount"),
    [
        ({"maximum": 20}, "999999"),
        ({"type": ["number", "string"], "maximum": 20}, "999999"),
        ({"not": {"minimum": 21}}, "999999"),
        ({"anyOf": [{"not": {"minimum": 21}}, {"maximum": 20}]}, "999999"),
        ({"pattern": "^alice$"}, "alice\n"),
        ({"pattern": "^(alice$|bob$)"}, "bob\n"),
        ({"pattern": "^a"}, 7),
        ({"format": "ipv4"}, "not an address"),
        ({"maxLength": 3}, ["long", "er"]),
        ({"items": {"maximum": 3}}, 5),
        ({"maximum": 20}, None),
        ({"maximum": 20}, True),
    ],
)
def test_a_bound_that_is_not_met_by_what_it_bounds_allows_nothing(schema: Schema, amount: JsonValue) -> None:
    """JSON schema lets a bound on numbers pass any text; somebody who allows 20 does not mean that."""
    free = ToolDeclaration(name="t", description="", parameters={"properties": {"amount": {}}}, reference="m:t")
    assert not is_fitting(rule(amounts(schema)), free, {"amount": amount})


@pytest.mark.parametrize(
    ("schema", "amount"),
    [
        ({"maximum": 20}, 20),
        ({"pattern": "^alice$"}, "alice"),
        ({"pattern": r"^\$[$]\w$"}, "$$x"),
        ({"pattern": "^[]$]x$"}, "]x"),
        ({"format": "ipv4"}, "10.0.0.1"),
        ({"anyOf": [{"type": "string", "maxLength": 3}, {"type": "number", "maximum": 3}]}, "abc"),
        ({"enum": ["a", 1]}, "a"),
        ({"items": {"maximum": 3}}, [1, 2]),
    ],
)
def test_what_a_bound_is_about_and_keeps_to_is_allowed(schema: Schema, amount: JsonValue) -> None:
    free = ToolDeclaration(name="t", description="", parameters={"properties": {"amount": {}}}, reference="m:t")
    assert is_fitting(rule(amounts(schema)), free, {"amount": amount})


@given(st.one_of(st.integers(), st.floats(allow_nan=False), st.text(), st.none(), st.lists(st.integers())))
def test_only_a_number_below_a_maximum_passes_it(amount: Any) -> None:
    free = ToolDeclaration(name="t", description="", parameters={"properties": {"amount": {}}}, reference="m:t")
    small = isinstance(amount, int | float) and amount <= 20
    assert is_fitting(rule(SMALL), free, {"amount": amount}) is small
    # What forbids, and what asks, goes for whatever it might be about.
    assert is_fitting(rule({"properties": {"amount": {"minimum": 20}}}, "deny"), free, {"amount": "999"})


def test_a_text_where_the_tool_takes_numbers_and_texts_waits_for_somebody() -> None:
    assert plan(transfer, '{"amount": 7}', rule(SMALL)).needs is None
    assert plan(transfer, '{"amount": "7"}', rule(SMALL)).needs == "approval"


@pytest.mark.parametrize("raw", ['{"amount": NaN}', '{"amount": Infinity}', '{"amount": 1e999}'])
def test_what_is_no_number_of_json_is_refused(raw: str) -> None:
    """It is no JSON for the tool's activity either, which says so."""
    assert plan(weigh, raw, rule(SMALL)) == PlannedCall(call_id="c", tool="weigh")
    agent = Agent(name="a", model="p/m", tools=[weigh])
    assert is_approved(agent.definition, weigh.declaration, raw, None)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"amount": {"maximum": 20}}, "'amount' was unexpected"),
        ({"properties": {"amount": {"maxium": 20}}}, "'maxium' was unexpected"),
        ({"allOf": [{"propertees": {}}]}, "'propertees' was unexpected"),
        ({"properties": {"to": {"format": "uri"}}}, "'uri' is not one of"),
        ({"properties": {"amuont": {"maximum": 20}}}, "names amuont, which is no argument of it"),
        ({"required": ["amuont"]}, "names amuont, which is no argument of it"),
    ],
)
def test_a_rule_that_checks_nothing_is_refused_where_the_agent_is_defined(schema: Schema, said: str) -> None:
    """JSON schema passes over words that it does not know: such a rule would allow every call."""
    for decision in ("allow", "deny", "ask"):
        rules = (ApprovalRule.model_validate({"tool": "pay", "arguments": schema, "decision": decision}),)
        with pytest.raises(AgentDefinitionError, match=said):
            Agent(name="a", model="p/m", tools=[pay, look], approvals=ApprovalPolicy(rules=rules))


def test_a_rule_for_many_tools_may_name_what_one_of_them_has_and_allows_no_other() -> None:
    policy = ApprovalPolicy(rules=(rule(SMALL),))
    agent = Agent(name="a", model="p/m", tools=[pay, look], approvals=policy)
    guarded = look.declaration.model_copy(
        update={"requires_approval": True, "parameters": {"properties": {"at": {"type": "string"}}}}
    )
    assert decide(agent.definition.approvals, pay.declaration, {"amount": 7}) == "allow"
    assert decide(agent.definition.approvals, guarded, {"at": "it"}) == "ask"


@pytest.mark.parametrize(
    "raw",
    [
        '{"amount": 7, "to": "bob"' + " " * 400 + ', "amount": 999999}',
        '{"amount": 7, "to": "", "\\u0061mount": 999999}',
    ],
)
def test_arguments_that_can_be_read_in_two_ways_are_refused(raw: str) -> None:
    """A person sees the one and the tool takes the other."""
    call = plan(pay, raw)
    assert (call.needs, call.rejected and call.rejected.code) == (None, "tool.invalid_input")
    assert call.rejected is not None
    assert "name 'amount' twice" in call.rejected.message
    agent = Agent(name="a", model="p/m", tools=[pay]).definition
    assert not is_approved(agent, pay.declaration, raw, digest_of("pay", json.loads(raw)))


def test_an_approval_shows_all_of_the_call_or_says_what_it_leaves_out() -> None:
    """White space hides nothing, nor does a character that nobody sees; of a long text the end is shown too."""
    padded = plan(pay, "{" + " \n" * 300 + '"amount": 999999, "to": "b\\u202eob"}')
    assert padded.arguments == r'{"amount": 999999, "to": "b\u202eob"}'
    long = plan(pay, json.dumps({"to": "x" * 2_000, "amount": 999999})).arguments
    assert " … 1,628 more characters, see perdure show … " in long
    assert long.endswith('xxx", "amount": 999999}')
    assert len(long) <= 500


def test_a_masked_value_cannot_be_guessed_from_the_digest() -> None:
    """S-52: the digest is for what people see of the call, and none for the raw arguments counts."""
    raw, shown = '{"amount": 7, "password": "4711"}', '{"amount": 7, "password": "***"}'
    call = plan(pay, raw, shown=shown)
    guesses = [digest_of("pay", {"amount": 7, "password": f"{pin:04}"}) for pin in range(10_000)]
    assert call.digest not in guesses
    agent = Agent(name="a", model="p/m", tools=[pay]).definition
    assert is_approved(agent, pay.declaration, raw, call.digest)
    assert not is_approved(agent, pay.declaration, raw, guesses[4711])
    assert not is_approved(agent, pay.declaration, raw.replace("7", "8", 1), call.digest)


MALFORMED: list[Any] = [
    {"properties": {"amount": {"minimum": "0"}}},
    {"required": 5},
    {"properties": []},
    {"properties": {"amount": {"enum": 5}}},
    {"properties": {"amount": {"multipleOf": 0}}},
    {"properties": {"amount": {"$ref": 5}}},
    {"properties": {"amount": {"pattern": 5}}},
    {"properties": {"amount": None}},
    {"properties": {"amount": {"anyOf": 3}}},
    {"minProperties": "1"},
    {"dependentRequired": 3},
]


@pytest.mark.parametrize("schema", MALFORMED)
@pytest.mark.parametrize("raw", ['{"amount": 5}', '{"amount": "x"}'])
def test_no_schema_of_a_server_loses_an_answer_that_is_paid(schema: Any, raw: str) -> None:
    """The generation would be tried again, and paid again, without end."""
    odd = pay.declaration.model_copy(update={"parameters": schema})
    agent = Agent(name="a", model="p/m", tools=[pay]).definition
    call = apply_policy(agent, odd, PlannedCall(call_id="c", tool="pay"), raw=raw, shown=raw)
    assert call.needs == "approval" or call.rejected is not None


def test_a_number_that_no_arithmetic_takes_loses_no_answer() -> None:
    call = plan(weigh, '{"amount": 1' + "0" * 400 + "}", rule(SMALL))
    assert call.needs == "approval"


def test_questions_that_fit_no_payload_together_are_refused_in_part() -> None:
    """S-06: those before them are asked; the model is told to ask the rest later."""
    raw = json.dumps({"question": "€" * 2_000, "options": [f"{number}" + "€" * 195 for number in range(20)]})
    calls = reject_oversized([plan(ask_user, raw) for _ in range(140)])
    asked = [call for call in calls if call.needs is not None]
    assert 10 < len(asked) < 30
    assert calls[: len(asked)] == asked
    assert sum(len(call.model_dump_json().encode()) for call in calls) < 2 * MAX_ASKED_BYTES
    assert {call.rejected and call.rejected.code for call in calls[len(asked) :]} == {"tool.invalid_input"}


def test_a_question_that_would_end_the_work_is_refused_where_the_agent_is_defined() -> None:
    """It never ended any: an answer is no end of the work."""
    with pytest.raises(AgentDefinitionError, match="finish_tool: ask_user is a question, and an answer ends no work"):
        Agent(name="a", model="p/m", tools=[ask_user], finish_tool="ask_user")
    Agent(name="a", model="p/m", tools=[pay], finish_tool="pay")


def test_a_question_whose_answer_nobody_could_check_is_refused_where_it_is_written() -> None:
    """Pydantic's patterns are not those of Python: no answer would ever fit."""

    def name() -> Annotated[str, Field(pattern=r"^\p{L}+$")]:
        """Who?"""
        raise NotImplementedError

    with pytest.raises(ToolDefinitionError, match=r"what it returns has no JSON schema .*\\p\{L\}"):
        tool(interactive=True)(name)


@pytest.mark.parametrize("days", [0, 40_000, 4_000_000])
def test_an_approval_is_waited_for_within_a_lifetime(days: int) -> None:
    """Beyond the calendar no timer could be set, and the turn would never go on."""
    with pytest.raises(ValueError, match="ApprovalPolicy: expires: Input should be"):
        ApprovalPolicy(expires=timedelta(days=days))
