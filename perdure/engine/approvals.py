"""Which tool calls need a person: the agent's rules over tool and raw arguments. Decided by activities."""

import json
import re
from functools import lru_cache
from typing import cast

from jsonschema import Draft202012Validator
from jsonschema.exceptions import UnknownType
from referencing.exceptions import Unresolvable
from referencing.jsonschema import EMPTY_REGISTRY

from perdure.contracts.agents import AgentDefinition
from perdure.contracts.errors import ErrorDetail, ReasonCode
from perdure.contracts.people import (
    MAX_OPTION_CHARACTERS,
    MAX_OPTIONS,
    ApprovalPolicy,
    ApprovalRule,
    Verdict,
    digest_of,
)
from perdure.contracts.tools import PlannedCall, ToolDeclaration
from perdure.contracts.values import JsonValue, json_object

MAX_QUESTION = 2_000
"""Longest question, in characters."""

MAX_PROBLEM = 500
"""Longest description of what is wrong with the arguments."""


_UNUSABLE = (RecursionError, re.error, UnknownType, Unresolvable)
"""What checking against a schema may raise that was not looked at where it was written."""


def matches(rule: ApprovalRule, tool: str) -> bool:
    """Whether the rule is about the tool."""
    return _pattern(rule.tool).fullmatch(tool) is not None


@lru_cache
def _pattern(text: str) -> re.Pattern[str]:
    parts = {"*": ".*", "?": "."}
    return re.compile("".join(parts.get(part) or re.escape(part) for part in text), re.DOTALL)


def verdict(policy: ApprovalPolicy, tool: ToolDeclaration, arguments: JsonValue) -> Verdict:
    """What the first rule that fits says, or else the tool itself."""
    for rule in policy.rules:
        if matches(rule, tool.name) and _fits(rule, arguments):
            return rule.decision
    return "ask" if tool.requires_approval else "allow"


def _fits(rule: ApprovalRule, arguments: JsonValue) -> bool:
    """Whether the arguments fit; a schema that cannot be used lets nothing pass that it might forbid."""
    try:
        return rule.arguments is None or _problem(rule.arguments, arguments) is None
    except _UNUSABLE:
        return rule.decision != "allow"


def is_governed(policy: ApprovalPolicy, tool: ToolDeclaration) -> bool:
    """Whether any person or rule has a say in the tool's calls."""
    return tool.interactive or tool.requires_approval or any(matches(rule, tool.name) for rule in policy.rules)


def considered(
    definition: AgentDefinition, tool: ToolDeclaration, call: PlannedCall, *, raw: str, shown: str
) -> PlannedCall:
    """The call as it was planned, or rejected, or in need of a person.

    Of a governed tool, arguments outside its schema are refused here: a rule could be passed by a text in place of a
    number. Arguments that are no JSON at all go on to the tool's activity, which refuses them.

    Args:
        definition: The agent's.
        tool: The tool.
        call: The call.
        raw: The arguments as the model wrote them; the rules are about these.
        shown: The arguments as people may see them.
    """
    if not is_governed(definition.approvals, tool):
        return call
    try:
        arguments: JsonValue = cast("JsonValue", json_object(raw or "{}"))
    except ValueError as broken:
        return _refused(call, f"the arguments are no JSON object: {broken}") if tool.interactive else call
    try:
        problem = _problem(tool.parameters, arguments)
    except _UNUSABLE:  # of an MCP server; it checks the arguments itself
        problem = None
    if problem is not None:
        return _refused(call, f"the arguments do not fit the schema: {problem}")
    decided = verdict(definition.approvals, tool, arguments)
    if decided == "deny":
        error = ErrorDetail(
            code=ReasonCode.TOOL_DENIED, title=tool.name, message=f"a rule denies this call of {tool.name}"
        )
        return call.model_copy(update={"rejected": error})
    if tool.interactive:
        return call.model_copy(update={"needs": "answer", **_question(tool, shown)})
    if decided == "ask":
        return call.model_copy(update={"needs": "approval", "digest": digest_of(tool.name, arguments)})
    return call


def is_approved(definition: AgentDefinition, tool: ToolDeclaration, raw: str, digest: str | None) -> bool:
    """Whether a call may run, decided again by the raw arguments where it is about to: what was approved is this call.

    Args:
        definition: The agent's.
        tool: The tool.
        raw: The arguments as the ledger has them.
        digest: What somebody approved; None if nobody was asked.
    """
    try:
        arguments = json_object(raw or "{}")
    except ValueError:  # the body's own check refuses them
        return True
    decided = verdict(definition.approvals, tool, cast("JsonValue", arguments))
    if decided == "ask":
        return digest == digest_of(tool.name, cast("JsonValue", arguments))
    return decided == "allow"


def _refused(call: PlannedCall, message: str) -> PlannedCall:
    error = ErrorDetail(code=ReasonCode.TOOL_INVALID_INPUT, title=call.tool, message=message[:MAX_PROBLEM])
    return call.model_copy(update={"rejected": error})


def _question(tool: ToolDeclaration, shown: str) -> dict[str, object]:
    """Question and options as people may see them: of the masked arguments, or else of the tool."""
    try:
        arguments = json_object(shown)
    except ValueError:
        arguments = {}
    question, options = arguments.get("question"), arguments.get("options")
    if options is None and tool.answer is not None:
        options = tool.answer.get("enum")
    texts = tuple(map(str, options)) if isinstance(options, list) and all(isinstance(o, str) for o in options) else ()
    usable = len(texts) <= MAX_OPTIONS and all(len(text) <= MAX_OPTION_CHARACTERS for text in texts)
    return {
        "question": (question if isinstance(question, str) else tool.description)[:MAX_QUESTION],
        "options": texts if usable else (),
    }


def _problem(schema: dict[str, JsonValue], value: JsonValue) -> str | None:
    """What is wrong with the value, in one phrase."""
    # With an empty registry, so that nothing is fetched.
    found = next(iter(Draft202012Validator(schema, registry=EMPTY_REGISTRY).iter_errors(value)), None)
    # Its own message quotes the value, which may be a secret.
    return None if found is None else f"at {found.json_path}: {found.validator} {json.dumps(found.validator_value)}"
