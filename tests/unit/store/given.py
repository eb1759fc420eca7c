"""What the tests of the store start from: small turns, answers and calls."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from sqlalchemy import Connection, create_engine

from perdure.contracts.agents import AgentDefinition
from perdure.contracts.budgets import Spent, Usage
from perdure.contracts.errors import ErrorDetail, ReasonCode
from perdure.contracts.events import (
    Event,
    GenerationStart,
    NewEvent,
    ToolEnd,
    ToolRecovery,
    ToolStart,
    UserMessageReceived,
)
from perdure.contracts.generations import Generate
from perdure.contracts.ids import DELEGATED, delegate_session
from perdure.contracts.messages import AssistantMessage, ToolCall, ToolMessage
from perdure.contracts.sends import SendRequest
from perdure.contracts.tools import Delegated, PlannedCall, ToolOutcome
from perdure.contracts.turns import CommitTurn, Continuation, OpenTurn, StopReason
from perdure.store import RERUN, Claim, ClaimedTurn, LedgerCall, StepRecord, Store
from perdure.store.database import Address

SESSION = "s"
STARTED = datetime(2026, 1, 1, tzinfo=UTC)
LATER = STARTED + timedelta(seconds=1)
HELPER = AgentDefinition(name="helper", model="test/model")
ERROR = ErrorDetail(code=ReasonCode.TOOL_EXECUTION_ERROR, title="search", message="it broke")


@contextmanager
def database(url: str) -> Iterator[Connection]:
    """A transaction in the database of a store, past the store."""
    engine = create_engine(Address(url).url)
    with engine.begin() as connection:
        yield connection
    engine.dispose()


def opening(
    prompt: str = "hello",
    *,
    session: str = SESSION,
    request_id: str = "r1",
    turn: int | None = None,
    run_started_at: datetime = STARTED,
) -> OpenTurn:
    request = Continuation(prompt=prompt, turn=turn)
    return OpenTurn(session=session, request=request, request_id=request_id, run_started_at=run_started_at)


async def open_turn(
    store: Store, prompt: str = "hello", *, session: str = SESSION, request_id: str = "r1"
) -> ClaimedTurn:
    return await store.open_turn(opening(prompt, session=session, request_id=request_id), HELPER)


def delegate_opening(caller: ClaimedTurn, call_id: str, *, session: str = SESSION) -> OpenTurn:
    """The opening of the delegate ``helper`` that carries out a call of a turn."""
    delegate = delegate_session(session, "helper", session, call_id, caller.seed)
    delegated = Delegated(
        session=session,
        turn=caller.turn,
        step=1,
        call_id=call_id,
        definition=HELPER.digest(),
        tool="helper",
        root=session,
        delegate=delegate,
    )
    request = Continuation(prompt="look", delegated=delegated)
    return OpenTurn(session=delegate, request=request, request_id=f"{DELEGATED}{call_id}", run_started_at=STARTED)


def generate(
    parent: str,
    *,
    turn: int = 1,
    step: int = 1,
    call_ids: Sequence[str] = (),
    failed: Sequence[ToolOutcome] = (),
    steered: Sequence[SendRequest] = (),
) -> Generate:
    return Generate(
        session=SESSION,
        turn=turn,
        step=step,
        parent=parent,
        definition=HELPER.digest(),
        call_ids=tuple(call_ids),
        failed=tuple(failed),
        steered=tuple(steered),
    )


async def answer(
    store: Store, request: Generate, text: str = "", calls: Sequence[LedgerCall] = (), cost: str | None = None
) -> StepRecord:
    """One whole generation: what ``generate`` does around the model call."""
    begun = await store.begin_generation(request, [])
    assert begun.answer is None
    wished = tuple(ToolCall(id=call.call_id, name=call.tool, arguments=call.arguments) for call in calls)
    planned = tuple(PlannedCall(call_id=call.call_id, tool=call.tool, rejected=call.rejected) for call in calls)
    step = StepRecord(
        id=request.step_id(),
        session=request.session,
        turn=request.turn,
        step=request.step,
        parent=request.parent,
        messages=(*begun.results, AssistantMessage(content=text, tool_calls=wished)),
        calls=planned,
        usage=Usage(input_tokens=10, output_tokens=5),
        cost_usd=None if cost is None else Decimal(cost),
    )
    return await store.finish_generation(step, calls, [])


def wish(call_id: str = "c1", *, masked: bool = False, rejected: ErrorDetail | None = None) -> LedgerCall:
    arguments = '{"password": "hunter2"}' if masked else '{"query": "x"}'
    return LedgerCall(call_id=call_id, tool="search", arguments=arguments, masked=masked, rejected=rejected)


def result(content: str = "found", *, call_id: str = "c1", error: ErrorDetail | None = None) -> ToolMessage:
    return ToolMessage(call_id=call_id, name="search", content=content, error=error)


def new_event(key: str, event: Event | None = None, *, turn: int = 1, step: int = 1) -> NewEvent:
    return NewEvent(key=key, turn=turn, step=step, event=event or UserMessageReceived(content=key))


async def claim(
    store: Store, claimant: str, *, call_id: str = "c1", lost: str | None = None, rerun: int | None = None
) -> Claim:
    """Ask for the call; with ``lost`` in place of that attempt, and with ``rerun`` to begin its body once more."""
    events = [new_event(f"1/{call_id}/tool_start", ToolStart(call_id=call_id, tool="search", arguments="{}"))]
    if rerun is not None:
        again = ToolRecovery(call_id=call_id, tool="search", decision="run_again", reason="idempotent")
        events.append(new_event(f"1/{call_id}/{RERUN}{rerun}", again))
    return await store.claim_call(session=SESSION, turn=1, call_id=call_id, claimant=claimant, lost=lost, events=events)


async def finish(store: Store, claimant: str, content: str = "found", *, call_id: str = "c1") -> bool:
    ended = ToolEnd(call_id=call_id, tool="search", result=content, seconds=1)
    return await store.finish_call(
        session=SESSION,
        turn=1,
        call_id=call_id,
        claimant=claimant,
        message=result(content, call_id=call_id),
        events=[new_event(f"1/{call_id}/tool_end", ended)],
    )


def commit(  # noqa: PLR0913 - each field is a test's subject
    tip: str,
    *,
    turn: int = 1,
    stop_reason: StopReason = StopReason.FINISHED,
    error: ErrorDetail | None = None,
    call_ids: Sequence[str] = (),
    steered: Sequence[SendRequest] = (),
    aborted_step: int | None = None,
) -> CommitTurn:
    return CommitTurn(
        session=SESSION,
        turn=turn,
        tip=tip,
        stop_reason=stop_reason,
        error=error,
        steps=1,
        spent=Spent(usage=Usage(input_tokens=10, output_tokens=5), cost_usd=Decimal("0.10")),
        call_ids=tuple(call_ids),
        steered=tuple(steered),
        aborted_step=aborted_step,
    )


async def types(store: Store, session: str = SESSION) -> list[str]:
    """The types of a session's events, in order."""
    return [envelope.event.type for envelope in await store.events(session)]


def generation_start() -> Event:
    return GenerationStart(model="test/model", messages=1)
