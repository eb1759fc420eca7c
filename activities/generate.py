"""The activity ``generate``: read the conversation, call the model, store the answer as a step, return what is new.

Safe to run twice: the answer is stored under the key of its input before it is returned, and a second attempt that
finds it there neither calls the model nor pays again.
"""

import asyncio
import json
import random
import re
import time
from collections.abc import Awaitable, Callable, Collection
from datetime import datetime, timedelta
from typing import NoReturn, TypeVar

from temporalio import activity

from activities.conversations import Conversations, WireMessage, wire
from activities.definitions import Definitions
from activities.errors import permanent, store_failures, transient
from activities.failures import facts_of
from activities.heartbeat import beating
from activities.metrics import Metrics
from activities.model import Answer, complete
from activities.storing import until_stored
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.errors import REASONS, ErrorDetail, ReasonCode
from perdure.contracts.events import (
    CallSummary,
    Event,
    GenerationContent,
    GenerationEnd,
    GenerationError,
    GenerationRetry,
    GenerationStart,
    GenerationStep,
    NewEvent,
    ToolError,
    UserMessageReceived,
)
from perdure.contracts.generations import Generate, Generation
from perdure.contracts.messages import AssistantMessage, Message, ToolCall, UserMessage
from perdure.contracts.names import Activity
from perdure.contracts.tools import PlannedCall
from perdure.contracts.values import json_object
from perdure.engine.outputs import head_and_tail, whole_characters
from perdure.engine.redaction import MASK, mask_arguments, redact_text
from perdure.engine.retries import FailureFacts, classify, decide
from perdure.store import LedgerCall, StepRecord, Store

PREVIEW_CHARACTERS = 1_000
"""Longest text of an answer in the history; all of it stands in the store."""

ARGUMENTS_CHARACTERS = 400
"""Longest arguments of a call in the history and in events."""

CONTENT_CHARACTERS = 30_000
"""Longest text of an answer in an event."""

BROKEN_CHARACTERS = 30_000
"""Longest arguments that are no JSON in the conversation; the tool's error tells the model what is wrong with them."""

MAX_CALLS = 500
"""Most tool calls of one answer: a server takes 2,000 running activities of a workflow, and 2 MB from one activity."""

LARGE_ARGUMENTS = 200_000
"""Masking more than so many characters takes longer than a blink."""

T = TypeVar("T")

_UNSAFE = re.compile(r"[^a-zA-Z0-9_-]")


class DeadlineExceededError(TimeoutError):
    """The model call took longer than the agent's generation_timeout."""


class TooManyCallsError(Exception):
    """The answer asks for more tool calls than a workflow can have at once."""


class GenerateActivity:
    """Model calls of one worker."""

    def __init__(
        self,
        *,
        store: Store,
        definitions: Definitions,
        conversations: Conversations,
        metrics: Metrics,
        secrets: Collection[str],
    ) -> None:
        self._store = store
        self._definitions = definitions
        self._conversations = conversations
        self._metrics = metrics
        self._secrets = secrets

    @activity.defn(name=Activity.GENERATE)
    async def generate(self, request: Generate) -> Generation:
        """Call the model and store its answer as a step."""
        async with beating():
            definition = await self._definitions.get(request.definition)
            messages = await self._conversations.read(request.session, request.parent)
            async with store_failures():
                begun = await self._store.begin_generation(request, _starting(request, definition, len(messages)))
            if begun.answer is not None:
                return _generation(begun.answer)
            new: tuple[Message, ...] = (
                *begun.results,
                *(UserMessage(content=message.prompt) for message in request.steered),
            )
            return await self._call(request, definition, new)

    async def _call(self, request: Generate, definition: AgentDefinition, new: tuple[Message, ...]) -> Generation:
        messages = await self._conversations.read(request.session, request.parent)
        prompt: list[WireMessage] = (
            [{"role": "system", "content": definition.instructions}] if definition.instructions else []
        )
        began = time.monotonic()
        try:
            answer = await _within(
                definition.generation_timeout, complete(definition, [*prompt, *messages, *map(wire, new)])
            )
            _check_calls(answer)
        except Exception as error:  # noqa: BLE001 - the edge: whatever a provider library raises becomes a reason code
            failed_at = activity.info().started_time + timedelta(seconds=time.monotonic() - began)
            await self._failed(request, definition, facts_of(error, failed_at, self._secrets), failed_at)
        seconds = time.monotonic() - began
        step, ledger = await _off_the_loop_if_large(
            answer, lambda: _step(request, definition, new, answer, self._secrets)
        )
        finished = _finished(request, definition, step, answer, seconds)
        stored = await until_stored(lambda: self._store.finish_generation(step, ledger, finished))
        self._conversations.extend(request.session, request.parent, stored.id, stored.messages)
        self._count(definition, answer, seconds)
        return _generation(stored)

    async def _failed(
        self, request: Generate, definition: AgentDefinition, facts: FailureFacts, failed_at: datetime
    ) -> NoReturn:
        """Record the failure as an event, then end the attempt: to be sent again after a wait, or for good.

        The number of the try is counted from the step's recorded retries, so an attempt lost with its worker uses
        none up; time is Temporal's, the start of the attempt plus what has passed since: a worker's clock may be wrong.
        """
        async with store_failures():
            before = await self._store.retries(request.session, request.turn, request.step)
        first = next((e.event.failed_at for e in before if isinstance(e.event, GenerationRetry)), failed_at)
        code = classify(facts)
        attempt = len(before) + 1
        wait = decide(
            definition.retry,
            code,
            attempt=attempt,
            elapsed=failed_at - first,
            retry_after=facts.retry_after_seconds,
            jitter_sample=random.random(),  # noqa: S311 - jitter needs no secrecy
        )
        detail = _detail(request, definition, facts, code)
        if wait is None:
            await self._record(request, "error", GenerationError(error=detail))
            raise permanent(detail) from None  # the chain holds unredacted texts, and would stand in the history
        retry = GenerationRetry(
            attempt=attempt,
            max_attempts=definition.retry.max_retries,
            wait_seconds=wait.total_seconds(),
            code=code,
            error_type=facts.class_name,
            error_message=facts.text,
            failed_at=failed_at,
        )
        await self._record(request, f"retry/{attempt}", retry)
        self._metrics.generation_retries.labels(definition.model, code).inc()
        next_try = f"; retry {attempt} of {definition.retry.max_retries} in {wait.total_seconds():.1f} s"
        raise transient(detail.model_copy(update={"message": detail.message + next_try}), wait) from None

    async def _record(self, request: Generate, key: str, event: Event) -> None:
        async with store_failures():
            await self._store.append_events(request.session, [_event(request, key, event)])

    def _count(self, definition: AgentDefinition, answer: Answer, seconds: float) -> None:
        metrics, model, usage = self._metrics, definition.model, answer.usage
        metrics.steps.labels(definition.name).inc()
        metrics.generation_seconds.labels(model).observe(seconds)
        metrics.tokens.labels(model, "input").inc(usage.input_tokens)
        metrics.tokens.labels(model, "output").inc(usage.output_tokens)
        metrics.tokens.labels(model, "cached").inc(usage.cached_tokens)
        metrics.cost_usd.labels(model).inc(float(answer.cost_usd or 0))


async def _within(limit: timedelta, call: Awaitable[Answer]) -> Answer:
    """The answer, or :class:`DeadlineExceededError`; litellm's own time-out bounds a silence only."""
    deadline = asyncio.timeout(limit.total_seconds())
    try:
        async with deadline:
            return await call
    except TimeoutError as error:
        if not deadline.expired():
            raise
        msg = f"the model did not answer within generation_timeout ({limit.total_seconds():g} s)"
        raise DeadlineExceededError(msg) from error


def _check_calls(answer: Answer) -> None:
    if len(answer.calls) > MAX_CALLS:
        msg = f"the answer asks for {len(answer.calls):,} tool calls at once, the limit is {MAX_CALLS}"
        raise TooManyCallsError(msg)


async def _off_the_loop_if_large(answer: Answer, work: Callable[[], T]) -> T:
    """The result of the work; on a thread if the arguments are so long that masking them would hold up the beats."""
    if sum(len(call.arguments) for call in answer.calls) <= LARGE_ARGUMENTS:
        return work()
    return await asyncio.to_thread(work)


def _event(request: Generate, key: str, event: Event) -> NewEvent:
    return NewEvent(key=f"{request.turn}/{request.step}/{key}", turn=request.turn, step=request.step, event=event)


def _starting(request: Generate, definition: AgentDefinition, known: int) -> list[NewEvent]:
    """What is written before the call: the messages that were steered in, and that the generation starts."""
    count = known + len(request.call_ids) + len(request.steered) + bool(definition.instructions)
    start = GenerationStart(model=definition.model, messages=count)
    return [
        *(
            _event(request, f"user_message/{message.request_id}", UserMessageReceived(content=message.prompt))
            for message in request.steered
        ),
        _event(request, "start", start),
    ]


def _step(
    request: Generate,
    definition: AgentDefinition,
    new: tuple[Message, ...],
    answer: Answer,
    secrets: Collection[str],
) -> tuple[StepRecord, list[LedgerCall]]:
    """The answer as a step, and its calls as rows of the ledger; call ids are ours, unique in the session."""
    step_id = request.step_id()
    tool_calls: list[ToolCall] = []
    planned: list[PlannedCall] = []
    ledger: list[LedgerCall] = []
    for index, call in enumerate(answer.calls):
        call_id = f"call_{step_id[:16]}_{index}"
        name = _UNSAFE.sub("_", call.name)[:64] or "unnamed"
        tool = definition.tool(name)
        shown, masked = _shown(call.arguments, tool.masked if tool else (), secrets)
        rejected = None if tool else _unknown(name, definition)
        tool_calls.append(ToolCall(id=call_id, name=name, arguments=shown if masked else call.arguments))
        planned.append(
            PlannedCall(call_id=call_id, tool=name, arguments=shown[:ARGUMENTS_CHARACTERS], rejected=rejected)
        )
        ledger.append(
            LedgerCall(call_id=call_id, tool=name, arguments=call.arguments, masked=masked, rejected=rejected)
        )
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
    )
    return step, ledger


def _shown(arguments: str, names: Collection[str], secrets: Collection[str]) -> tuple[str, bool]:
    """The arguments as they may be seen outside the tool's body, and whether anything was masked."""
    try:
        parsed = json_object(arguments)
    except ValueError:
        # Broken: what belongs to a name cannot be told for sure.
        some = head_and_tail(arguments, BROKEN_CHARACTERS)
        shown = MASK if any(name in arguments for name in names) else redact_text(some, secrets)
        return shown, shown != arguments
    masked = mask_arguments(parsed, names, secrets)
    if masked == parsed:
        return arguments, False
    return whole_characters(json.dumps(masked, ensure_ascii=False)), True


def _unknown(name: str, definition: AgentDefinition) -> ErrorDetail:
    known = ", ".join(tool.name for tool in definition.tools) or "none"
    return ErrorDetail(
        code=ReasonCode.TOOL_UNKNOWN, title=name, message=f"there is no tool named {name!r}; the tools are: {known}"
    )


def _finished(
    request: Generate, definition: AgentDefinition, step: StepRecord, answer: Answer, seconds: float
) -> list[NewEvent]:
    """What is written with the answer, in the same transaction."""
    summaries = tuple(
        CallSummary(call_id=call.call_id, tool=call.tool, arguments=call.arguments) for call in step.calls
    )
    end = GenerationEnd(
        model=definition.model,
        finish_reason=answer.finish_reason,
        usage=answer.usage,
        cost_usd=answer.cost_usd,
        seconds=round(seconds, 3),
    )
    content = GenerationContent(content=answer.text[:CONTENT_CHARACTERS], tool_calls=summaries)
    return [
        _event(request, "content", content),
        _event(request, "end", end),
        _event(request, "step", GenerationStep(tip=step.id)),
        *(
            _event(request, f"{call.call_id}/error", _rejection(call, call.rejected))
            for call in step.calls
            if call.rejected is not None
        ),
    ]


def _rejection(call: PlannedCall, error: ErrorDetail) -> ToolError:
    return ToolError(call_id=call.call_id, tool=call.tool, error=error)


def _generation(step: StepRecord) -> Generation:
    """What the workflow needs to know of a stored answer."""
    answer = step.messages[-1]
    text = answer.content if isinstance(answer, AssistantMessage) else ""
    return Generation(
        tip=step.id,
        preview=text[:PREVIEW_CHARACTERS],
        calls=step.calls,
        finish_reason=step.finish_reason,
        usage=step.usage,
        cost_usd=step.cost_usd,
    ).sparse()


def _detail(request: Generate, definition: AgentDefinition, facts: FailureFacts, code: ReasonCode) -> ErrorDetail:
    """The failure as one sentence that stands alone: step, model, cause, and what the provider said."""
    status = f" (HTTP {facts.status})" if facts.status else ""
    reason, semicolon, advice = REASONS[code].text.partition("; ")
    said = facts.text.rstrip(".") if advice else facts.text
    message = f"step {request.step}, {definition.model}: {reason}{status}: {said}{semicolon}{advice}"
    return ErrorDetail(code=code, title="generation", message=message[:2_000], type=facts.class_name)
