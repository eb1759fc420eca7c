"""Decides which calls of an answer need a person, by the agent's approval rules. Rules that allow are read strictly."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

from jsonschema import Draft202012Validator, ValidationError
from jsonschema.protocols import Validator
from referencing.jsonschema import EMPTY_REGISTRY

from perdure.agents.schemas import Keyword, Watched, unknown_arguments, with_keywords
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.errors import ErrorDetail, ReasonCode
from perdure.contracts.input_requests import (
    MAX_OPTION_CHARACTERS,
    MAX_OPTIONS,
    ApprovalPolicy,
    ApprovalRule,
    Verdict,
    digest_of,
)
from perdure.contracts.tools import PlannedCall, ToolDeclaration
from perdure.contracts.values import JsonValue, json_object, replace
from perdure.security.redaction import mask_arguments

_ABOUT = {
    "number": "maximum minimum exclusiveMaximum exclusiveMinimum multipleOf",
    "string": "maxLength minLength pattern format",
    "array": "maxItems minItems uniqueItems contains items prefixItems unevaluatedItems",
    "object": "properties required additionalProperties patternProperties propertyNames maxProperties minProperties "
    "dependentRequired dependentSchemas unevaluatedProperties",
}
"""JSON schema's keywords by the kind of values that they bound; values of other kinds pass them."""

_IN_PATTERN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\$", re.DOTALL)


class _SaysNothingError(Exception):
    """A keyword met a value of a kind that it does not bound, such as a text in place of a number."""


def is_fitting(rule: ApprovalRule, tool: ToolDeclaration, arguments: JsonValue) -> bool:
    """Whether the rule holds for the arguments.

    A rule that allows must be certain: it holds only if the tool has the arguments that it names, and each of its
    keywords met a value of the kind that it bounds. If its schema cannot be evaluated, a rule that allows does not
    hold, and any other rule does.
    """
    schema, allows = rule.arguments, rule.decision == "allow"
    if schema is None:
        return True
    if allows and unknown_arguments(schema, tool):
        return False
    # With an empty registry, so that nothing is fetched.
    kind: type[Validator] = _Strict if allows else Watched
    try:
        return kind(schema, registry=EMPTY_REGISTRY, format_checker=Draft202012Validator.FORMAT_CHECKER).is_valid(
            arguments
        )
    except Exception:  # noqa: BLE001 - whatever a schema makes of arguments that nobody foresaw
        return not allows


def _require_kind(kind: str, keyword: str) -> Keyword:
    """The keyword, which refuses values of another kind, unless a ``type`` beside it does so."""
    plain = cast("Keyword", Watched.VALIDATORS[keyword])

    def check(
        validator: Validator,
        value: Any,  # noqa: ANN401 - any JSON
        instance: Any,  # noqa: ANN401 - any JSON
        schema: Mapping[str, Any],
    ) -> Iterator[ValidationError]:
        if not validator.is_type(instance, kind):
            types = schema.get("type", [])
            allowed = [types] if isinstance(types, str) else types
            if not allowed or any(validator.is_type(instance, type_name) for type_name in allowed):
                raise _SaysNothingError
            return
        if keyword == "pattern":  # with JSON schema's meaning of ``$``: Python's also matches before a last line break
            value = _IN_PATTERN.sub(lambda part: r"\Z" if part[0] == "$" else part[0], value)
        yield from plain(validator, value, instance, schema) or ()

    return check


_KEYWORDS = {keyword: _require_kind(kind, keyword) for kind, keywords in _ABOUT.items() for keyword in keywords.split()}
_Strict = with_keywords(Watched, _KEYWORDS)


MAX_QUESTION = 2_000
"""Longest question, in characters."""

MAX_PROBLEM = 500
"""Longest description of what is wrong with arguments, in characters."""

MAX_SHOWN = 400
"""Longest shown arguments of a call that waits for approval, in characters, without the note on the cut."""

_NOTE_ON_CUT = re.compile(r" … [\d,]+ more characters, see perdure show … ")

MAX_CALLER_BYTES = 32 * 1024
"""Largest masked arguments of a call that the caller runs, as JSON in UTF-8; they travel in payloads."""

MAX_ASKED_BYTES = 256 * 1024
"""Largest size of all questions of one answer in bytes, as JSON in UTF-8: one payload holds them and the state."""


def decide(policy: ApprovalPolicy, tool: ToolDeclaration, arguments: JsonValue) -> Verdict:
    """The decision of the first rule that fits; without one, of the tool's own ``requires_approval``."""
    for rule in policy.rules:
        if rule.matches(tool.name) and is_fitting(rule, tool, arguments):
            return rule.decision
    return "ask" if tool.requires_approval else "allow"


def is_governed(policy: ApprovalPolicy, tool: ToolDeclaration) -> bool:
    """Whether a person or a rule decides about the tool's calls."""
    return tool.interactive or tool.requires_approval or any(rule.matches(tool.name) for rule in policy.rules)


def apply_policy(
    definition: AgentDefinition,
    tool: ToolDeclaration,
    call: PlannedCall,
    *,
    raw: str,
    shown: str,
    problem_with: Callable[[dict[str, JsonValue], JsonValue], str | None] | None = None,
) -> PlannedCall:
    """The call as planned, rejected, or marked as needing a person.

    For a governed tool, arguments that do not fit its schema are refused here, and arguments with a duplicate name.
    Arguments that are not JSON go on to the tool's activity, which refuses them.

    Args:
        definition: The agent's definition.
        tool: The tool.
        call: The call.
        raw: The arguments as the model wrote them, to which the rules apply.
        shown: The arguments with secrets masked, as people may see them.
        problem_with: Says what is wrong with arguments by an untrusted schema; if it raises, they count as fitting.
    """
    if tool.delegate is None and not is_governed(definition.approvals, tool):
        return call
    try:
        arguments: JsonValue = cast("JsonValue", json_object(raw or "{}"))
    except ValueError as broken:
        checked_here = tool.interactive or tool.delegate is not None
        return _refuse(call, f"the arguments are no JSON object: {broken}") if checked_here else call
    twice = _find_duplicate(raw)
    if twice is not None:
        return _refuse(call, f"the arguments name {twice!r} twice; name each once")
    try:
        problem = (problem_with or _problem)(tool.parameters, arguments)
    except Exception:  # noqa: BLE001 - a schema of an MCP server, which checks the arguments itself
        problem = None
    if problem is not None:
        return _refuse(call, f"the arguments do not fit the schema: {problem}")
    decided = decide(definition.approvals, tool, arguments)
    if decided == "deny":
        return replace(call, rejected=_error_of_denial(tool, f"a rule denies this call of {tool.name}"))
    if (tool.interactive or decided == "ask") and definition.interactive == "refuse":
        what = "run this" if tool.runs == "caller" else "answer this" if tool.interactive else "approve this call"
        message = f"nobody can be asked to {what}: the agent runs without people; go on without {tool.name}"
        return replace(call, rejected=_error_of_denial(tool, message))
    if tool.runs == "caller":
        return _ask_caller(call, shown, digest_of(tool.name, _approvable(tool, arguments)))
    if tool.interactive:
        return _ask(call, tool, shown)
    if decided == "ask":
        digest = digest_of(tool.name, _approvable(tool, arguments))
        return replace(call, needs="approval", digest=digest, arguments=_format_for_people(shown))
    return call


def reject_oversized(calls: Sequence[PlannedCall]) -> list[PlannedCall]:
    """The calls of one answer. Questions that do not fit into one payload with those before them are rejected."""
    left = MAX_ASKED_BYTES
    kept: list[PlannedCall] = []
    for call in calls:
        is_large = (call.needs is not None or call.builtin is not None) and call.rejected is None
        left -= len(call.model_dump_json().encode()) if is_large else 0
        if is_large and left < 0:
            refused = _refuse(call, "too much is asked at once; ask the rest when these are answered")
            shown = refused.arguments[:MAX_PROBLEM]
            kept.append(replace(refused, needs=None, question="", options=(), digest="", builtin=None, arguments=shown))
        else:
            kept.append(call)
    return kept


def _error_of_denial(tool: ToolDeclaration, message: str) -> ErrorDetail:
    return ErrorDetail(code=ReasonCode.TOOL_DENIED, title=tool.name, message=message)


def is_approved(definition: AgentDefinition, tool: ToolDeclaration, raw: str, digest: str | None) -> bool:
    """Whether a call may run: decided once more by the raw arguments, just before the call runs.

    Args:
        definition: The agent's definition.
        tool: The tool.
        raw: The raw arguments from the ledger.
        digest: Digest of the arguments that a person approved; None if nobody was asked.
    """
    try:
        arguments = json_object(raw or "{}")
    except ValueError:  # the body's own check refuses them
        return True
    decided = decide(definition.approvals, tool, cast("JsonValue", arguments))
    if decided == "ask":
        return _find_duplicate(raw) is None and digest == digest_of(tool.name, _approvable(tool, arguments))
    return decided == "allow"


def _approvable(tool: ToolDeclaration, arguments: JsonValue) -> JsonValue:
    """The arguments that an approval's digest is made of: without masked ones, which a digest would let guess."""
    return cast("JsonValue", mask_arguments(arguments, tool.masked)) if isinstance(arguments, dict) else arguments


def _find_duplicate(raw: str) -> str | None:
    """A name that an object in the JSON text has twice, so that people and programs may read different values."""
    found: list[str] = []

    def look(pairs: list[tuple[str, object]]) -> None:
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                found.append(name)
            seen.add(name)

    json.loads(raw or "{}", object_pairs_hook=look)
    return found[0] if found else None


def _format_for_people(shown: str) -> str:
    """The arguments on one line, with invisible characters escaped; long ones are cut to head and tail."""
    text = _to_printable(shown)
    if len(text) <= MAX_SHOWN:
        return text
    head, tail = text[: MAX_SHOWN // 2], text[-MAX_SHOWN // 2 :]
    return f"{head} … {len(text) - MAX_SHOWN:,} more characters, see perdure show … {tail}"


def is_cut(shown: str) -> bool:
    """Whether shown arguments lack a part of what there is."""
    return _NOTE_ON_CUT.search(shown) is not None


def _to_printable(shown: str) -> str:
    """The arguments as JSON on one line, with invisible characters escaped."""
    text = json.dumps(json_object(shown or "{}"), ensure_ascii=False)
    return "".join(character if character.isprintable() else json.dumps(character)[1:-1] for character in text)


def _ask_caller(call: PlannedCall, shown: str, digest: str) -> PlannedCall:
    """The call with all of its masked arguments, as the caller needs them; too many are refused."""
    text = _to_printable(shown)
    if (size := len(text.encode())) > MAX_CALLER_BYTES:
        return _refuse(call, f"the arguments are {size:,} bytes, and the tool takes {MAX_CALLER_BYTES:,}; send less")
    return replace(call, needs="result", digest=digest, arguments=text)


def _refuse(call: PlannedCall, message: str) -> PlannedCall:
    error = ErrorDetail(code=ReasonCode.TOOL_INVALID_INPUT, title=call.tool, message=message[:MAX_PROBLEM])
    return replace(call, rejected=error)


def _ask(call: PlannedCall, tool: ToolDeclaration, shown: str) -> PlannedCall:
    """The call with its question and options for people, from the masked arguments or else from the tool."""
    try:
        arguments = json_object(shown)
    except ValueError:
        arguments = {}
    question, options = arguments.get("question"), arguments.get("options")
    if options is None and tool.answer is not None:
        options = tool.answer.get("enum")
    texts = tuple(map(str, options)) if isinstance(options, list) and all(isinstance(o, str) for o in options) else ()
    usable = len(texts) <= MAX_OPTIONS and all(len(text) <= MAX_OPTION_CHARACTERS for text in texts)
    text = (question if isinstance(question, str) else tool.description)[:MAX_QUESTION]
    return replace(call, needs="answer", question=text, options=texts if usable else ())


def _problem(schema: dict[str, JsonValue], value: JsonValue) -> str | None:
    """Problem of the value, in one phrase; None if there is none."""
    # With an empty registry, so that nothing is fetched.
    found = next(iter(Watched(schema, registry=EMPTY_REGISTRY).iter_errors(value)), None)
    return None if found is None else describe_error(found)


def describe_error(found: ValidationError) -> str:
    """Describe a wrong value without the value itself, which the error's message quotes: it may be a secret."""
    return f"at {found.json_path}: {found.validator} {json.dumps(found.validator_value)}"
