"""Spans of a turn. They are made in activities, so that replayed workflow code makes none.

A span's id is derived from what it stands for. A model call has a span for each attempt. A tool call has one span,
however many workers it takes. The turn's own span is emitted when the turn is committed, with its true start and end,
and with it the spans of waits for people and, for a delegate, of the caller's call. No span holds a prompt, an argument
or a result.

Long, because a turn, its calls, tools and waits are told in one place.
"""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError
from temporalio.worker import (
    ActivityInboundInterceptor,
    ExecuteActivityInput,
    Interceptor,
)

from perdure.contracts.agents import AgentDefinition
from perdure.contracts.budgets import Usage
from perdure.contracts.errors import ReasonCode
from perdure.contracts.events import AgentStart, Envelope, UserInputReceived, UserInputRequired
from perdure.contracts.generations import Compact, StepRequest
from perdure.contracts.tools import CallSite, CallTool, Delegated, ToolDeclaration
from perdure.contracts.traces import (
    PROVIDERS,
    Operation,
    OurSpan,
    SpanAttribute,
    TurnTrace,
    span_below,
    tool_span_of,
    trace_turn,
    with_flags,
)
from perdure.contracts.turns import OpenTurn, StopReason, TurnResult
from perdure.contracts.values import replace
from perdure.store import NotFoundError, Store
from perdure.store.errors import StoreError
from perdure.store.records import TurnRecord
from perdure.tracing import NewSpan, OpenSpan, Tracing

WORTH_TELLING = 0.1
"""Shortest wait at a provider's gate that gets a span, in seconds."""

LONGEST_DESCRIPTION = 1_000
"""Characters of a tool's description that its spans have."""

logger = logging.getLogger("perdure.worker")

_NOTHING = OpenSpan()

Attributes = dict[str, Any]


class Traces:
    """The spans of one worker's turns; without tracing it does nothing."""

    def __init__(self, tracing: Tracing | None = None) -> None:
        self._tracing = tracing

    @property
    def interceptors(self) -> list[Interceptor]:
        """The interceptors that make the turn's span current in its activities; none without tracing."""
        return [] if self._tracing is None else [_TurnInterceptor(self._tracing)]

    async def open_turn(self, store: Store, opening: OpenTurn, turn_before: int | None) -> TurnTrace | None:
        """The trace context of a turn; None if it is not traced. Every attempt at the opening gives the same."""
        if self._tracing is None:
            return None
        start = await _start_of(store, opening.session, turn_before) if turn_before else None
        previous = start.trace.span if start is not None and start.trace is not None else ""
        return _trace(self._tracing, store, opening, previous)

    @contextmanager
    def within(self, trace: TurnTrace | None) -> Iterator[None]:
        """Make the turn's span the parent of the spans that other libraries make in this block."""
        if self._tracing is None or trace is None:
            yield
            return
        with self._tracing.within(trace.span):
            yield

    def refuse_turn(self, store: Store, opening: OpenTurn, error: ApplicationError) -> None:
        """Emit the span of a turn that was refused before it began."""
        if self._tracing is None:
            return
        trace = _trace(self._tracing, store, opening)
        agent = opening.request.agent or ""
        attributes: Attributes = {
            SpanAttribute.OPERATION: Operation.INVOKE_AGENT,
            SpanAttribute.CONVERSATION: opening.session,
            **({SpanAttribute.AGENT: agent} if agent else {}),
        }
        name, began_at = f"{Operation.INVOKE_AGENT} {agent}".strip(), trace.began_at
        span = NewSpan(name, attributes, traceparent=trace.span, parent=_parent_of(trace), started_at=began_at)
        self._emit(span, datetime.now(UTC), error.type or ReasonCode.RUNTIME_ABORTED)

    @contextmanager
    def model_call(self, request: StepRequest, definition: AgentDefinition, *, streams: bool) -> Iterator[OpenSpan]:
        """The span of one attempt at a model call, current in the block."""
        if self._tracing is None or not request.trace:
            yield _NOTHING
            return
        provider, _, model = definition.model.partition("/")
        attributes: Attributes = {
            SpanAttribute.OPERATION: Operation.CHAT,
            SpanAttribute.PROVIDER: PROVIDERS.get(provider, provider),
            SpanAttribute.REQUEST_MODEL: model,
            SpanAttribute.AGENT: definition.name,
            SpanAttribute.CONVERSATION: request.session,
            SpanAttribute.TURN: request.turn,
            SpanAttribute.STEP: request.step,
            SpanAttribute.ATTEMPT: activity.info().attempt,
        }
        if streams:
            attributes[SpanAttribute.REQUEST_STREAM] = True
        if isinstance(request, Compact):
            attributes[SpanAttribute.COMPACTION] = request.trigger
        span = self._tracing.begin(
            NewSpan(
                f"{Operation.CHAT} {model}",
                traceparent=span_below(request.trace, Operation.CHAT, *_attempt()),
                parent=request.trace,
                kind="client",
                attributes=attributes,
            )
        )
        with self._tracing.hold(span) as opened:
            try:
                yield opened
            except asyncio.CancelledError:  # the turn was stopped, or this worker
                opened.fail(ReasonCode.RUNTIME_ABORTED)
                raise

    def wait_for_limit(self, request: StepRequest, provider: str, began: datetime, seconds: float, ahead: int) -> None:
        """Emit the span of a model call's wait at its provider's gate; ``ahead`` are the calls before it."""
        if self._tracing is None or not request.trace or seconds < WORTH_TELLING:
            return
        span = self._tracing.begin(
            NewSpan(
                f"{OurSpan.WAIT_FOR_LIMIT} {provider}",
                traceparent=span_below(request.trace, OurSpan.WAIT_FOR_LIMIT, *_attempt()),
                parent=request.trace,
                attributes={
                    SpanAttribute.PROVIDER: PROVIDERS.get(provider, provider),
                    SpanAttribute.TURN: request.turn,
                    SpanAttribute.STEP: request.step,
                    SpanAttribute.CALLS_AHEAD: ahead,
                },
                started_at=began,
            )
        )
        self._tracing.tell(span, datetime.now(UTC))

    @contextmanager
    def tool_call(self, call: CallTool) -> Iterator["ToolSpan"]:
        """The span of a tool call, which begins once the call is claimed."""
        span = ToolSpan(self._tracing if call.trace else None, call)
        try:
            with span.hold():
                yield span
        except BaseException as error:
            span.leave(error)
            raise
        finally:
            span.end()

    async def end_turn(self, store: Store, session: str, turn: int, delegated: Delegated | None = None) -> None:
        """Emit the spans of a turn that has ended, from the store. A failure here does not harm the turn."""
        if self._tracing is None:
            return
        try:
            start = await _start_of(store, session, turn)
            if start is None or start.trace is None:
                return
            record = await store.turn(session, turn)
            if record.result is None or record.ended_at is None:
                return
            self._tell_turn(start, start.trace, record, record.result, record.ended_at)
            if delegated is not None and delegated.trace:
                self._tell_delegate(delegated, record.result, (start.trace.began_at, record.ended_at))
            for required, received in _waits(await store.input_events(session, turn), turn):
                self._tell_wait(start.trace.span, *required, *received)
        except (StoreError, NotFoundError) as error:
            logger.warning("the span of turn %d of %s is not exported: %s", turn, session, error)

    def _tell_turn(
        self, start: AgentStart, trace: TurnTrace, record: TurnRecord, result: TurnResult, ended_at: datetime
    ) -> None:
        provider, _, model = start.model.partition("/")
        attributes: Attributes = {
            SpanAttribute.OPERATION: Operation.INVOKE_AGENT,
            SpanAttribute.AGENT: record.agent,
            SpanAttribute.AGENT_VERSION: record.definition,
            SpanAttribute.CONVERSATION: record.session,
            SpanAttribute.PROVIDER: PROVIDERS.get(provider, provider),
            SpanAttribute.REQUEST_MODEL: model,
            **_usage(result.usage),
            SpanAttribute.COST_USD: float(result.cost_usd),
            SpanAttribute.TURN: record.turn,
            SpanAttribute.STEPS: result.steps,
            SpanAttribute.STOP_REASON: result.stop_reason,
            **({SpanAttribute.TENANT: start.tenant} if start.tenant else {}),
        }
        span = NewSpan(
            f"{Operation.INVOKE_AGENT} {record.agent}",
            attributes,
            traceparent=trace.span,
            parent=_parent_of(trace),
            started_at=trace.began_at,
            links=(trace.previous,) if trace.previous else (),
        )
        self._emit(span, ended_at, result.reason_code or "", is_error=result.stop_reason is StopReason.ERROR)

    def _tell_delegate(self, call: Delegated, result: TurnResult, times: tuple[datetime, datetime]) -> None:
        attributes: Attributes = {
            **_call_attributes(call, call.tool),
            SpanAttribute.TOOL_TYPE: "function",
            SpanAttribute.DELEGATE: result.session,
            SpanAttribute.BACKGROUND: call.background,
        }
        finished = result.stop_reason is StopReason.FINISHED
        began_at, ended_at = times
        span = NewSpan(
            f"{Operation.EXECUTE_TOOL} {call.tool}",
            attributes,
            traceparent=tool_span_of(call.trace, call.call_id),
            parent=call.trace,
            started_at=began_at,
        )
        self._emit(span, ended_at, "" if finished else result.reason_code or ReasonCode.TOOL_DELEGATE_FAILED)

    def _tell_wait(
        self, turn: str, asked: UserInputRequired, asked_at: datetime, said: UserInputReceived, said_at: datetime
    ) -> None:
        attributes: Attributes = {
            SpanAttribute.TOOL: asked.tool,
            SpanAttribute.CALL_ID: asked.request_id,
            SpanAttribute.DECISION: said.decision,
        }
        context = span_below(turn, OurSpan.ASK, asked.request_id)
        name = f"{OurSpan.ASK} {asked.tool}"
        self._emit(NewSpan(name, attributes, traceparent=context, parent=turn, started_at=asked_at), said_at)

    def _emit(self, new: NewSpan, ended_at: datetime, error: str = "", *, is_error: bool = True) -> None:
        """Emit a span that has ended; never before it began, by whichever clocks."""
        assert self._tracing is not None, "there are spans"  # noqa: S101 - narrows the type
        began_at = new.started_at or ended_at
        self._tracing.tell(self._tracing.begin(new), max(began_at, ended_at), error, is_error=is_error)


class ToolSpan:
    """The span of one tool call, which several attempts may share: the one that records the result ends it."""

    def __init__(self, tracing: Tracing | None, call: CallTool) -> None:
        self._tracing = tracing
        self._call = call
        self._began_at = datetime.now(UTC)
        self._opened = _NOTHING
        self._claimed = False

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Make the span current in this block."""
        if self._tracing is None:
            yield
            return
        with self._tracing.within(tool_span_of(self._call.trace, self._call.call_id)):
            yield

    async def claim(self, store: Store, declaration: ToolDeclaration, recovery: str | None) -> None:
        """Begin the span: this attempt has claimed the call. After a recovery it starts with the lost attempt."""
        if self._tracing is None:
            return
        call, began_at = self._call, self._began_at
        if recovery is not None:
            began_at = await _first_start_of(store, call) or began_at
        attributes: Attributes = {
            **_call_attributes(call, declaration.name),
            SpanAttribute.TOOL_TYPE: "extension" if declaration.remote is not None else "function",
            SpanAttribute.ATTEMPT: activity.info().attempt,
        }
        if declaration.description:
            attributes[SpanAttribute.TOOL_DESCRIPTION] = declaration.description[:LONGEST_DESCRIPTION]
        if declaration.remote is not None:
            attributes[SpanAttribute.SERVER] = declaration.remote.server
        span = self._tracing.begin(
            NewSpan(
                f"{Operation.EXECUTE_TOOL} {declaration.name}",
                traceparent=tool_span_of(call.trace, call.call_id),
                parent=call.trace,
                attributes=attributes,
                started_at=began_at,
            )
        )
        self._tracing.make_current(span)  # until the end of the block that holds the call's context
        self._opened, self._claimed = OpenSpan(span), True
        if recovery is not None:
            self._opened.event(OurSpan.ATTEMPT_LOST, {SpanAttribute.RECOVERY: recovery})

    def fail(self, code: str) -> None:
        """Note the reason code of the call's error."""
        self._opened.fail(code)

    def leave(self, error: BaseException) -> None:
        """Note the end of an attempt without a result: it was cancelled with its turn, or left to another worker."""
        if self._tracing is None or not self._claimed:
            return
        if not isinstance(error, ApplicationError):
            why = activity.cancellation_details()
            if why is None or why.cancel_requested or not why.worker_shutdown:
                self._opened.fail(ReasonCode.TOOL_CANCELLED)
                return
        elif error.non_retryable:
            self._opened.fail(error.type or ReasonCode.RUNTIME_ABORTED)
            return
        self._opened.drop()
        code = error.type if isinstance(error, ApplicationError) else ReasonCode.RUNTIME_WORKER_SHUTDOWN
        attempt = self._tracing.begin(
            NewSpan(
                OurSpan.ATTEMPT,
                traceparent=span_below(self._call.trace, OurSpan.ATTEMPT, *_attempt()),
                parent=tool_span_of(self._call.trace, self._call.call_id),
                attributes={SpanAttribute.ATTEMPT: activity.info().attempt, SpanAttribute.CALL_ID: self._call.call_id},
                started_at=self._began_at,
            )
        )
        self._tracing.tell(attempt, datetime.now(UTC), code or ReasonCode.RUNTIME_ABORTED)

    def end(self) -> None:
        """End the span."""
        self._opened.end()


def _trace(tracing: Tracing, store: Store, opening: OpenTurn, previous: str = "") -> TurnTrace:
    delegated, caller = opening.request.delegated, opening.request.traceparent
    if delegated is not None:
        caller = tool_span_of(delegated.trace, delegated.call_id)
    identity, began_at = (store.id, opening.session, opening.request_id), opening.run_started_at
    made = trace_turn(caller, *identity, began_at=began_at, previous=previous)
    keeps = tracing.keeps(made.span, caller, Operation.INVOKE_AGENT)
    return replace(made, span=with_flags(made.span, sampled=keeps))


def note_answer(span: OpenSpan, usage: Usage, cost_usd: object, finish_reason: str, *, recorded: bool) -> None:
    """Note usage, cost and finish reason of a model call."""
    attributes: Attributes = {**_usage(usage), SpanAttribute.FINISH_REASONS: [finish_reason]}
    if cost_usd is not None:
        attributes[SpanAttribute.COST_USD] = float(str(cost_usd))
    if recorded:
        attributes[SpanAttribute.RECORDED] = True
    span.note(attributes)


def note_source(span: OpenSpan, answer: str, model: str, server: str) -> None:
    """Note which answer of which model came from which host, as far as the provider says."""
    told = {
        SpanAttribute.RESPONSE_ID: answer,
        SpanAttribute.RESPONSE_MODEL: model,
        SpanAttribute.SERVER_ADDRESS: server,
    }
    span.note({name: value for name, value in told.items() if value})


def _usage(usage: Usage) -> Attributes:
    return {
        SpanAttribute.INPUT_TOKENS: usage.input_tokens,
        SpanAttribute.OUTPUT_TOKENS: usage.output_tokens,
        **({SpanAttribute.CACHE_READ_TOKENS: usage.cached_tokens} if usage.cached_tokens else {}),
        **({SpanAttribute.USAGE_ESTIMATED: True} if usage.estimated else {}),
    }


def _call_attributes(call: CallSite, tool: str) -> Attributes:
    return {
        SpanAttribute.OPERATION: Operation.EXECUTE_TOOL,
        SpanAttribute.TOOL: tool,
        SpanAttribute.CALL_ID: call.call_id,
        SpanAttribute.CONVERSATION: call.session,
        SpanAttribute.TURN: call.turn,
        SpanAttribute.STEP: call.step,
    }


def _parent_of(trace: TurnTrace) -> str:
    return f"{trace.span[:36]}{trace.parent}{trace.span[52:]}" if trace.parent else ""


def _attempt() -> tuple[str, ...]:
    """The parts of an id of this attempt, unique even if an operator has reset the number of attempts."""
    info = activity.info()
    return info.workflow_run_id or "", info.activity_id, f"{info.started_time.timestamp():020.6f}"


async def _start_of(store: Store, session: str, turn: int) -> AgentStart | None:
    found = await store.events_by_key(session, (f"{turn}/agent_start",))
    event = found[0].event if found else None
    return event if isinstance(event, AgentStart) else None


async def _first_start_of(store: Store, call: CallTool) -> datetime | None:
    """When the first attempt at a call began; None if the store cannot say."""
    try:
        found = await store.events_by_key(call.session, (f"{call.turn}/{call.call_id}/tool_start",))
    except StoreError:
        return None
    return found[0].at if found else None


Asked = tuple[UserInputRequired, datetime]
Said = tuple[UserInputReceived, datetime]


def _waits(events: Sequence[Envelope], turn: int) -> Iterator[tuple[Asked, Said]]:
    """The input requests decided in a turn, with their decisions and times. The turn before may have asked."""
    asked: dict[str, Asked] = {}
    for line in events:
        event = line.event
        if isinstance(event, UserInputRequired):
            asked[event.request_id] = (event, line.at)
        elif isinstance(event, UserInputReceived) and line.turn == turn and event.request_id in asked:
            yield asked[event.request_id], (event, event.at)


class _TurnInterceptor(Interceptor):
    """Makes the turn's span current in each activity of a traced turn."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002 - the SDK's name
        """Put ours before the next one."""
        return _Inbound(next, self._tracing)


class _Inbound(ActivityInboundInterceptor):
    def __init__(self, following: ActivityInboundInterceptor, tracing: Tracing) -> None:
        super().__init__(following)
        self._tracing = tracing

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002, ANN401 - the SDK's names
        """Carry the activity out."""
        trace = getattr(input.args[0], "trace", "") if input.args else ""
        if not trace:
            return await self.next.execute_activity(input)
        with self._tracing.within(trace):
            return await self.next.execute_activity(input)
