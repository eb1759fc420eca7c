"""Which calls need a person: rules as data, over the arguments as the model wrote them."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import Agent, AgentDefinitionError, ApprovalPolicy, ApprovalRule, StdioServerConfig, ask_user, tool
from perdure.contracts.hooks import Finish, HookRule
from perdure.contracts.input_requests import digest_of
from perdure.contracts.tools import PlannedCall
from perdure.security.approvals import apply_policy, decide, is_approved


@tool(requires_approval=True)
def pay(amount: int, to: str = "") -> str:
    """Pay."""
    return f"{amount} {to}"


@tool
def look() -> str:
    """Look."""
    return "looked"


def agent(*rules: ApprovalRule) -> Agent:
    return Agent(name="a", model="p/m", tools=[pay, look, ask_user], approvals=ApprovalPolicy(rules=rules))


def plan(raw: str, *rules: ApprovalRule, of: Any = pay, shown: str | None = None) -> PlannedCall:
    call = PlannedCall(call_id="c", tool=of.name)
    return apply_policy(agent(*rules).definition, of.declaration, call, raw=raw, shown=shown or raw)


def test_without_rules_only_tools_that_say_so_need_an_approval() -> None:
    """Safe when empty."""
    assert plan('{"amount": 7}').needs == "approval"
    assert plan("{}", of=look) == PlannedCall(call_id="c", tool="look")


@pytest.mark.parametrize(
    ("pattern", "name", "fits"),
    [
        ("pay", "pay", True),
        ("pay", "pay_back", False),
        ("pay*", "pay_back", True),
        ("*", "anything", True),
        ("p?y", "pay", True),
        ("p?y", "ppay", False),
        ("p.y", "pay", False),
        ("server__*", "server__tool", True),
        ("[p]ay", "pay", False),
        ("[p]*", "[p]ay", True),
        ("*a*y", "pay", True),
        # A matcher that tries again would not come back from these.
        ("*" * 98 + "Z", "a" * 64, False),
        ("*a" * 49 + "Z", "a" * 64, False),
    ],
)
def test_a_pattern_fits_whole_names_in_rules_and_hooks(pattern: str, name: str, *, fits: bool) -> None:
    assert ApprovalRule(tool=pattern, decision="allow").matches(name) is fits
    assert HookRule(name="h", on="tool_end", tool=pattern, reaction=Finish()).is_about(name) is fits


RULES = st.lists(
    st.builds(
        ApprovalRule,
        tool=st.sampled_from(["pay", "p*", "look", "*"]),
        arguments=st.sampled_from([None, {"required": ["to"]}, {"properties": {"amount": {"maximum": 10}}}]),
        decision=st.sampled_from(["allow", "deny", "ask"]),
    ),
    max_size=5,
)
ARGUMENTS = st.fixed_dictionaries({"amount": st.integers()}, optional={"to": st.text(max_size=5)})


@pytest.mark.filterwarnings("ignore::perdure.AgentWarning")  # rules that never apply are among them
@given(RULES, ARGUMENTS)
def test_the_first_rule_that_fits_decides_and_what_may_run_is_decided_the_same_way_again(
    rules: list[ApprovalRule], arguments: dict[str, Any]
) -> None:
    """The activity of the tool comes to the verdict of the generation, by the same raw arguments."""

    def fits(rule: ApprovalRule) -> bool:
        by_name = rule.tool in {"pay", "p*", "*"}
        schema: Any = rule.arguments or {}
        return (
            by_name
            and ("required" not in schema or "to" in arguments)
            and ("properties" not in schema or arguments["amount"] <= 10)
        )

    expected = next((rule.decision for rule in rules if fits(rule)), "ask")
    raw, definition = json.dumps(arguments), agent(*rules).definition
    assert decide(definition.approvals, pay.declaration, arguments) == expected
    call = plan(raw, *rules)
    assert (call.needs, call.rejected is not None) == ("approval" if expected == "ask" else None, expected == "deny")
    assert is_approved(definition, pay.declaration, raw, None) is (expected == "allow")
    assert is_approved(definition, pay.declaration, raw, digest_of("pay", arguments)) is (expected != "deny")


@given(ARGUMENTS, ARGUMENTS)
def test_changed_arguments_void_an_approval(seen: dict[str, Any], run: dict[str, Any]) -> None:
    """The digest is of the values, whatever their order."""
    digest = plan(json.dumps(seen)).digest
    raw = json.dumps(dict(reversed(run.items())))
    assert is_approved(agent().definition, pay.declaration, raw, digest) is (seen == run)


@pytest.mark.parametrize("raw", ['{"amount": "5000"}', '{"amount": 1, "extra": 1}', "{}", '{"amount": null}'])
def test_arguments_outside_the_schema_are_refused_before_any_rule(raw: str) -> None:
    """A text in place of a number would pass a rule about numbers; the refusal does not quote what may be secret."""
    call = plan(raw, ApprovalRule(tool="*", decision="allow"))
    assert call.rejected is not None
    assert call.rejected.code == "tool.invalid_input"
    assert "5000" not in call.rejected.message


def test_what_is_no_json_goes_to_the_tool_which_refuses_it_and_never_to_a_person() -> None:
    assert plan("{broken") == PlannedCall(call_id="c", tool="pay")
    asked = plan("{broken", of=ask_user)
    assert asked.rejected is not None
    assert asked.rejected.code == "tool.invalid_input"


def test_a_question_is_shown_as_people_may_see_it() -> None:
    """The text comes from the masked arguments."""
    raw = json.dumps({"question": "the key sk-123?", "options": ["a", "b"]})
    shown = json.dumps({"question": "the key ***?", "options": ["a", "b"]})
    call = plan(raw, of=ask_user, shown=shown)
    assert (call.question, call.options) == ("the key ***?", ("a", "b"))


def test_a_rule_may_forbid_questions() -> None:
    denied = plan('{"question": "?"}', ApprovalRule(tool="ask_user", decision="deny"), of=ask_user)
    assert denied.rejected is not None
    assert (denied.needs, denied.rejected.code) == (None, "tool.denied")


def test_a_rule_for_a_tool_that_the_agent_cannot_have_is_refused_where_the_agent_is_defined() -> None:
    """A misspelt rule would guard nothing. What a server offers, and what a pattern fits, is known later."""
    with pytest.raises(AgentDefinitionError) as refusal:
        agent(ApprovalRule(tool="pya", decision="deny"))
    assert str(refusal.value) == (
        "agent 'a': approvals: a rule is for the tool 'pya'; the tools are pay, look, ask_user"
    )
    server = StdioServerConfig(name="files", command="x")
    for name in ("files__write", "pa*", "nothing?"):
        policy = ApprovalPolicy(rules=(ApprovalRule(tool=name, decision="deny"),))
        Agent(name="a", model="p/m", tools=[pay], mcp_servers=[server], approvals=policy)
    policy = ApprovalPolicy(rules=(ApprovalRule(tool="file__write", decision="deny"),))
    with pytest.raises(AgentDefinitionError, match=r"'file__write'; the tools are pay, files__…"):
        Agent(name="a", model="p/m", tools=[pay], mcp_servers=[server], approvals=policy)


def test_a_rule_whose_schema_is_none_is_refused_where_the_agent_is_defined() -> None:
    schemas: list[dict[str, Any]] = [{"type": "nothing"}, {"properties": {"to": {"pattern": "("}}}]
    for schema in schemas:
        with pytest.raises(AgentDefinitionError, match="approvals: this is no JSON schema"):
            agent(ApprovalRule(tool="pay", arguments=schema, decision="allow"))


@pytest.mark.parametrize(
    "schema",
    [{"properties": {"amount": {"type": "money"}}}, {"properties": {"amount": {"$ref": "other.json"}}}],
)
def test_a_schema_that_cannot_be_used_lets_nothing_pass(schema: Any) -> None:
    """One of an MCP server is not checked, and the call waits for somebody all the same; no generation is lost."""
    odd = pay.declaration.model_copy(update={"parameters": schema})
    call = apply_policy(agent().definition, odd, PlannedCall(call_id="c", tool="pay"), raw='{"amount": 7}', shown="{}")
    assert (call.needs, call.rejected) == ("approval", None)
    for decision, expected in (("allow", "ask"), ("deny", "deny")):
        rule = ApprovalRule.model_validate({"tool": "pay", "arguments": schema, "decision": decision})
        assert decide(ApprovalPolicy(rules=(rule,)), pay.declaration, {"amount": 7}) == expected
