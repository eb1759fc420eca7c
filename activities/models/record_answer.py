"""Turns a model's answer into a step, rows of the ledger, events, and the workflow's ``Generation``."""

import json
import re
from collections.abc import Callable, Collection
from decimal import Decimal

from perdure import schema_checks
from perdure.activities.models.model_call import Answer
from perdure.activities.models.step_log import NOTHING_PAID, event_of
from perdure.agents.schemas import GivenUpError
from perdure.contracts.agents import OUTPUT_SCHEMA, AgentDefinition
from perdure.contracts.budgets import Paid
from perdure.contracts.errors import ErrorDetail, ReasonCode
from perdure.contracts.events import (
    CONTENT_CHARACTERS,
    GenerationContent,
    GenerationEnd,
    GenerationError,
    GenerationStart,
    GenerationStep,
    NewEvent,
    ToolError,
    UserMessageReceived,
    to_events,
)
from perdure.contracts.generations import CUT_OFF, Generate, Generation
from perdure.contracts.messages import AssistantMessage, Message, ToolCall, UserMessage
from perdure.contracts.tools import MaskedCall, PlannedCall
from perdure.contracts.turns import MAX_OUTPUT_CHARACTERS
from perdure.contracts.values import JsonValue, json_object, replace, replace_surrogates
from perdure.engine import calls, delegates
from perdure.llm.structured_output import AnswerError, check_answer, value_in
from perdure.llm.tool_output import head_and_tail
from perdure.security.approvals import apply_policy, reject_oversized
from perdure.security.credentials import MASK
from perdure.security.redaction import mask_arguments, redact_text, without_known
from perdure.store import LedgerCall, StepRecord

OutputCheck = Callable[[JsonValue], str | None]
"""Says what is wrong with an answer that fits its schema; None if nothing is."""

PREVIEW_CHARACTERS = 1_000
"""Longest text of an answer in the history. The store has the whole text."""

ARGUMENTS_CHARACTERS = 400
"""Longest arguments of a call in the history and in events."""

BROKEN_CHARACTERS = 30_000
"""Longest arguments that are not JSON in the conversation. The call's error tells the model what is wrong with them."""

KNOWN_CHARACTERS = 1_000
"""Longest list of the agent's tools in the error of a call to an unknown tool."""

_UNSAFE = re.compile(r"[^a-zA-Z0-9_-]")


def start_events(request: Generate, definition: AgentDefinition, known: int) -> list[NewEvent]:
    """The events written before the call: for each steered message one, and the start of the generation."""
    said = len(request.said) + len(request.steered)
    count = known + len(request.call_ids) + said + bool(definition.instructions)
    start = GenerationStart(model=definition.model, messages=count)
    own = replace(request, fallback=0)  # steered messages are of the step, whichever model reads them
    notices = [UserMessageReceived(content=text, is_notice=True) for text in request.said]
    return [
        *to_events(request.turn, request.decided),
        *(event_of(own, f"said/{place}", notice) for place, notice in enumerate(notices)),
        *(
            event_of(
                own,
                f"user_message/{message.request_id}",
                UserMessageReceived(content=message.prompt, parts=message.parts),
            )
            for message in request.steered
        ),
        event_of(request, "start", start),
    ]


def step_of(
    request: Generate,
    definition: AgentDefinition,
    new: tuple[Message, ...],
    answer: Answer,
    secrets: Collection[str],
) -> tuple[StepRecord, list[LedgerCall]]:
    """The answer as a step, and its calls as rows of the ledger. Call ids are perdure's own, unique in the session."""
    step_id = request.step_id()
    asked = [replace(call, arguments=given_arguments(call.arguments)) for call in answer.calls]
    tool_calls: list[ToolCall] = []
    planned: list[PlannedCall] = []
    masks: list[bool] = []
    for index, call in enumerate(asked):
        call_id = f"call_{step_id[:16]}_{index}"
        name = _name(call.name, definition, secrets)
        tool = definition.tool(name)
        shown, masked = to_shown_arguments(call.arguments, tool.masked if tool else (), secrets)
        rejected = _unknown(name, definition) if tool is None else _unwished(request, definition, name, planned)
        plan = PlannedCall(call_id=call_id, tool=name, arguments=shown[:ARGUMENTS_CHARACTERS], rejected=rejected)
        if tool is not None:
            # The schema of a stranger: of a server, or of a caller.
            check = schema_checks.problem if tool.remote is not None or tool.runs == "caller" else None
            plan = apply_policy(definition, tool, plan, raw=call.arguments, shown=shown, problem_with=check)
            if tool.builtin is not None:
                plan = calls.plan(tool, plan, shown)
            if tool.delegate is not None:
                plan = delegates.plan(tool, plan, call.arguments)
        tool_calls.append(ToolCall(id=call_id, name=name, arguments=shown if masked else call.arguments))
        planned.append(plan)
        masks.append(masked)
    planned = reject_oversized(planned)
    message = AssistantMessage(content=answer.text, tool_calls=tuple(tool_calls), thinking=answer.thinking)
    step = StepRecord(
        id=step_id,
        session=request.session,
        turn=request.turn,
        step=request.step,
        parent=request.parent,
        messages=(*new, message),
        calls=tuple(planned),
        finish_reason=answer.finish_reason,
        usage=answer.usage,
        cost_usd=answer.cost_usd,
        model=definition.model,
    )
    ledger = [
        LedgerCall(
            call_id=plan.call_id, tool=plan.tool, arguments=call.arguments, masked=masked, rejected=plan.rejected
        )
        for plan, call, masked in zip(planned, asked, masks, strict=True)
    ]
    return step, ledger


_NOTHING = frozenset({"", "null", "None", '""', "[]", '"null"', '"{}"'})
"""Arguments, without the spaces around them, with which models call a tool that they give none."""


def given_arguments(arguments: str) -> str:
    """The arguments as the model wrote them; ``{}`` if it wrote nothing in another way."""
    return "{}" if arguments.strip() in _NOTHING else arguments


def _name(called: str, definition: AgentDefinition, secrets: Collection[str]) -> str:
    """The name that the model called, made of characters that every provider takes, without secrets."""
    name = _UNSAFE.sub("_", called)[:64]
    if definition.tool(name) is None:  # the model may have written anything, also a secret
        name = _UNSAFE.sub("_", without_known(called, secrets))[:64]
    return name or "unnamed"


def check_output(
    request: Generate, definition: AgentDefinition, step: StepRecord, check: OutputCheck | None = None
) -> tuple[StepRecord, ErrorDetail | None]:
    """Check an answer against the agent's output schema. A step that is stored already gets the same result.

    Args:
        request: What the model was asked.
        definition: The agent, with the output schema.
        step: The step that holds the answer.
        check: The checks of that schema's type, if this worker has it.

    Returns:
        The step with the answer's JSON value, or with a message that tells the model what does not fit, and the error.
    """
    schema, answer = definition.output_schema, answer_in(step)
    if schema is None or answer.tool_calls or step.finish_reason == CUT_OFF:
        return step, None
    try:
        value = _value_of(answer.content, schema, check, is_foreign=OUTPUT_SCHEMA in definition.wished)
    except AnswerError as error:
        place = f"step {request.step}, {definition.model}: "
        detail = ErrorDetail(code=error.code, title="generation", message=(place + str(error))[:2_000])
        again = UserMessage(content=f"{error} Answer again, with JSON only that fits the schema.")
        last = request.corrections >= definition.output_corrections or step.messages[-1] is not answer
        return (step if last else replace(step, messages=(*step.messages, again))), detail
    messages = (*step.messages[:-1], replace(answer, value=value))
    return replace(step, messages=messages), None


def _value_of(text: str, schema: dict[str, JsonValue], check: OutputCheck | None, *, is_foreign: bool) -> JsonValue:
    """The value of an answer. A foreign schema that cannot be checked leaves it as it is: the caller may check it."""
    if is_foreign:
        if len(text) > MAX_OUTPUT_CHARACTERS:
            why = f"it has {len(text):,} characters, the limit is {MAX_OUTPUT_CHARACTERS:,}; write a shorter one"
            raise AnswerError(ReasonCode.LLM_SCHEMA_VIOLATION, why)
        value = value_in(text)
        try:
            problem = schema_checks.problem(schema, value)
        except GivenUpError:
            problem = None
    else:
        value = check_answer(text, schema)
        problem = None if check is None else check(value)
    if problem is not None:
        raise AnswerError(ReasonCode.LLM_SCHEMA_VIOLATION, problem)
    return value


def is_answer(step: StepRecord) -> bool:
    """Whether the step holds an answer; otherwise it holds a failure that the model is told."""
    return any(isinstance(message, AssistantMessage) for message in step.messages)


def answer_in(step: StepRecord) -> AssistantMessage:
    """The answer that the step holds."""
    return next(message for message in reversed(step.messages) if isinstance(message, AssistantMessage))


def to_shown_arguments(arguments: str, names: Collection[str], secrets: Collection[str]) -> tuple[str, bool]:
    """The arguments as anybody but the tool's body may see them, and whether anything was masked."""
    try:
        parsed = json_object(arguments)
    except ValueError:
        # Not JSON: which text is the value of a masked name cannot be told for sure.
        some = head_and_tail(arguments, BROKEN_CHARACTERS)
        shown = MASK if any(name in arguments for name in names) else redact_text(some, secrets)
        return shown, shown != arguments
    masked = mask_arguments(parsed, names, secrets)
    if masked == parsed:
        return arguments, False
    return replace_surrogates(json.dumps(masked, ensure_ascii=False)), True


def _unwished(
    request: Generate, definition: AgentDefinition, name: str, before: Collection[PlannedCall]
) -> ErrorDetail | None:
    """Error of a call that the turn's request does not allow, whatever its provider has made of that; else None."""
    if request.tool_choice == "none":
        why = "the request allows no call of a tool; answer with text"
    elif definition.wishes.get("parallel_tool_calls") is False and any(call.rejected is None for call in before):
        why = "the request allows one call at a time; make this one again behind the result of the first"
    else:
        return None
    return ErrorDetail(code=ReasonCode.TOOL_DENIED, title=name, message=f"{name} did not run: {why}")


def _unknown(name: str, definition: AgentDefinition) -> ErrorDetail:
    names = [tool.name for tool in definition.tools]
    known = ", ".join(names) or "none"
    if len(known) > KNOWN_CHARACTERS:
        first = known[:KNOWN_CHARACTERS].rpartition(", ")[0]
        known = f"{first}, and {len(names) - len(first.split(', '))} more"
    return ErrorDetail(
        code=ReasonCode.TOOL_UNKNOWN, title=name, message=f"there is no tool named {name!r}; the tools are: {known}"
    )


def end_events(
    request: Generate,
    definition: AgentDefinition,
    step: StepRecord,
    seconds: float,
    rejected: ErrorDetail | None,
    *,
    recorded: bool = False,
) -> list[NewEvent]:
    """The events written with the answer, in the same transaction."""
    summaries = tuple(MaskedCall(call_id=call.call_id, tool=call.tool, arguments=call.arguments) for call in step.calls)
    end = GenerationEnd(
        model=definition.model,
        finish_reason=step.finish_reason,
        usage=step.usage,
        cost_usd=step.cost_usd,
        seconds=round(seconds, 3),
        recorded=recorded,
    )
    content = GenerationContent(content=answer_in(step).content[:CONTENT_CHARACTERS], tool_calls=summaries)
    return [
        event_of(request, "content", content),
        event_of(request, "end", end),
        *(
            []
            if rejected is None
            else [event_of(request, "error", GenerationError(error=rejected, model=definition.model))]
        ),
        event_of(request, "step", GenerationStep(tip=step.id)),
        *(
            event_of(
                request, f"{call.call_id}/error", ToolError(call_id=call.call_id, tool=call.tool, error=call.rejected)
            )
            for call in step.calls
            if call.rejected is not None
        ),
    ]


def generation_of(
    step: StepRecord,
    rejected: ErrorDetail | None,
    *,
    matched: tuple[int, ...] = (),
    retries: int = 0,
    failed: Paid = NOTHING_PAID,
) -> Generation:
    """Generation that the workflow receives for a stored answer."""
    return Generation(
        tip=step.id,
        preview=answer_in(step).content[:PREVIEW_CHARACTERS],
        calls=step.calls,
        finish_reason=step.finish_reason,
        usage=step.usage,
        cost_usd=step.cost_usd,
        rejected=rejected,
        matched=matched,
        retries=retries,
        failed=failed,
    )


def failure_told(step: StepRecord, wait: float) -> Generation:
    """Generation that the workflow receives for a failure told to the model; ``wait`` is in seconds."""
    paid = Paid(usage=step.usage, cost_usd=step.cost_usd or Decimal(0))
    return Generation(
        tip=step.id, finish_reason=step.finish_reason, cost_usd=Decimal(0), retry_seconds=wait, failed=paid
    )
