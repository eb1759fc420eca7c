"""The world of a turn without a server: activities are called, waits are virtual, delegates are turns beside it."""

import contextlib
import uuid
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Unpack

from temporalio.common import RawValue
from temporalio.exceptions import ActivityError

from perdure.client.connect import DATA_CONVERTER
from perdure.contracts.budgets import ExtendRequest, Limits
from perdure.contracts.errors import ErrorDetail, ReasonCode
from perdure.contracts.events import Event
from perdure.contracts.generations import Compact, Compacted, Generate, Generation
from perdure.contracts.hooks import HookResults, RunHooks
from perdure.contracts.input_requests import AskPeople, InputRequest, Reply
from perdure.contracts.names import Activity
from perdure.contracts.recordings import RecordedDecisions
from perdure.contracts.tools import CallTool, ToolOutcome, ToolPolicy
from perdure.contracts.turns import (
    CancelRequest,
    CommitTurn,
    Continuation,
    OpenTurn,
    QueuedMessage,
    TurnResult,
    WhenBusy,
)
from perdure.contracts.values import replace
from perdure.contracts.waits import Pause
from perdure.engine import delegates, hooks, input_requests, limits, messages
from perdure.engine.calls import CallTools, ToolResults
from perdure.engine.delegates import AwaitDelegates, CallDelegates, StartDelegate
from perdure.engine.generation import Failed
from perdure.engine.input_requests import WaitForPeople
from perdure.engine.limits import extend, waits_for_grants
from perdure.engine.state import Mailbox, TurnState
from perdure.engine.turn import Turn, note_end, run_turn, state_of
from perdure.engine.world import WaitForUnpause, World
from perdure.store.records import Written
from perdure.testing.calls import Call
from perdure.testing.clock import Clock
from perdure.worker.app import Activities
from perdure.workflows import failures, options
from perdure.workflows.delegates import read_outcome
from perdure.workflows.options import ActivityOptions

Ask = Callable[[InputRequest], tuple[Reply, float] | None]
"""What somebody says to a request, and after how many seconds; None is nothing."""


@dataclass(frozen=True)
class Around:
    """What the turns of one run share."""

    activities: Activities
    clock: Clock
    ask: Ask
    on_event: Callable[[Event, "RunningTurn"], None]
    turns: list["MemoryTurn"] = field(default_factory=list["MemoryTurn"])


class RunningTurn:
    """A turn that runs in memory, for what is to happen meanwhile."""

    def __init__(self, turn: "MemoryTurn") -> None:
        self._turn = turn

    @property
    def session(self) -> str:
        """The session's id; that of a delegate is its own."""
        return self._turn.session

    def cancel(self, reason: str = "") -> None:
        """Cancel the turn."""
        self._turn.cancel(reason)

    def send(self, prompt: str, *, when_busy: WhenBusy = "queue") -> None:
        """Send a message: for the session's next turn, or with ``steer`` into this one, as a client would.

        Raises:
            MessageRefusedError: The turn does not take the message.
        """
        self._turn.send(QueuedMessage(prompt=prompt, when_busy=when_busy, request_id=uuid.uuid4().hex))

    def pause(self, reason: str = "", *, seconds: float) -> None:
        """Pause the session, and take that back after so many seconds of virtual time."""
        self._turn.pause(reason, seconds)

    def extend(self, *, end: bool = False, **limits: Unpack[Limits]) -> None:
        """Set limits; the others stay."""
        self._turn.extend(ExtendRequest.model_validate({**limits, "end": end}))


_around: ContextVar[Around | None] = ContextVar("perdure_memory", default=None)


def tell(written: Sequence[Written]) -> None:
    """Tell whoever listens to the run that writes events of them, with the turns that they are of."""
    around = _around.get()
    if around is None:
        return
    turns = {turn.session: turn for turn in around.turns}
    for line in written:
        if line.session in turns:
            around.on_event(line.event, RunningTurn(turns[line.session]))


class MemoryTurn(World):
    """One turn, and those that messages for its session begin."""

    def __init__(self, around: Around, session: str, request: Continuation) -> None:
        self.around = around
        self.session = session
        self.mail: Mailbox = Mailbox()
        self.turn: Turn | None = None
        self._clock = around.clock
        self._request = request
        self._background: dict[str, _Delegate] = {}
        self._asked: set[str] = set()
        self._past = False
        self._holds = limits.Holds()
        self._changes = 0
        around.turns.append(self)

    async def run(self) -> list[TurnResult]:
        """Carry out the turn, and those of messages that were sent for later; their results."""
        _around.set(self.around)
        results = [await self._carry_out(self._request)]
        while self.mail.queued:
            message, *rest = self.mail.queued
            self.mail = Mailbox(queued=tuple(rest), paused=self.mail.paused)
            results.append(await self._carry_out(messages.request_of(message, store=self._state.origin.store)))
        return results

    async def _carry_out(self, request: Continuation) -> TurnResult:
        opened = await self._open(request)
        if isinstance(opened, TurnResult):
            return opened
        self.turn = Turn(opened)
        self._past, self._holds = False, limits.Holds()
        if self.mail.paused is not None:
            self._holds.hold("pause", self.now)
        if request.reply is not None:
            self.mail = input_requests.accept_first_reply(opened, self.mail, request.reply, self.now)
        return await self._commit(await run_turn(self._turn, self))

    async def _open(self, request: Continuation) -> TurnState | TurnResult:
        request_id = request.request_id or uuid.uuid4().hex
        if request.cancelled is not None:
            self.mail = limits.stop(self.mail, CancelRequest(reason=request.cancelled), self.now)
        request = replace(request, cancelled=None)
        opening = OpenTurn(session=self.session, request=request, request_id=request_id, run_started_at=self.now)
        opened = await self._await_fully(
            self._call(Activity.OPEN_TURN, self.around.activities.open_turn, opening, options.opening())
        )
        if isinstance(opened, ActivityError):
            return failures.result_of_refusal(opening, failures.detail(opened, "runtime"))
        return opened.ended or state_of(opening, opened, self.now)

    # What happens meanwhile.

    def cancel(self, reason: str) -> None:
        """Ask the turn to stop; the first request counts."""
        self.mail = limits.stop(self.mail, CancelRequest(reason=reason), self.now)
        self._clock.look()

    def send(self, message: QueuedMessage) -> None:
        """Take a message into the running turn, or for the next one."""
        state, turn = self._state, self._state.origin.turn
        running = limits.RunningTurn(
            turn=turn,
            request_id=state.origin.request_id,
            last_turn=turn,
            ending=state.ending is not None,
            takes_steering=state.takes_steering,
            delegated=state.origin.delegated is not None,
        )
        self.mail, _ = messages.take_message(self.mail, message, running, self.now)
        self._clock.look()

    def pause(self, reason: str, seconds: float) -> None:
        """Let nothing begin for so long."""
        self.mail = replace(self.mail, paused=Pause(since=self.now, reason=reason))
        self._holds.hold("pause", self.now)
        self._clock.start(self._unpause(seconds))

    async def _unpause(self, seconds: float) -> None:
        await self._clock.sleep(seconds)
        self.mail = replace(self.mail, paused=None)
        state = self._state
        self._turn.state = replace(state, waited=state.waited + self._holds.release("pause", self.now))
        self._changes += 1

    def extend(self, asked: ExtendRequest) -> None:
        """Change the limits of the turn."""
        self._turn.state = extend(self._state, asked, self.now)
        self._changes += 1
        self._clock.look()

    @property
    def requests(self) -> tuple[InputRequest, ...]:
        """What the turn waits for people for."""
        return () if self.turn is None else input_requests.input_requests(self.turn.state)

    # The world.

    @property
    def now(self) -> datetime:
        """Virtual time."""
        return self._clock.now

    @property
    def stopped(self) -> bool:
        """Whether the turn was cancelled or its time is used up."""
        due = self._due
        self._past = self._past or (due is not None and self.now >= due)
        return self.mail.cancel is not None or self._past

    @property
    def _due(self) -> datetime | None:
        """When the time budget is used up; none while the time stands still."""
        if self.turn is None or self._holds.any or (limit := self._state.policy.budgets.seconds) is None:
            return None
        return self._state.origin.started_at + self._state.waited + limit

    @property
    def _turn(self) -> Turn:
        assert self.turn is not None, "the turn is open"  # noqa: S101 - narrows the type
        return self.turn

    @property
    def _state(self) -> TurnState:
        return self._turn.state

    def hear_delegates(self) -> None:
        """Charge the turn for the delegates in the background that have ended."""
        for running in self._state.running:
            delegate = self._background[running.session]
            if delegate.ended:
                self._turn.state = delegates.mark_ended(self._state, running.session, delegate.result)

    async def rotate_if_due(self, action: Generate | WaitForPeople) -> bool:
        """There is no history that could grow."""
        del action
        return False

    async def generate(self, action: Generate) -> Generation | Failed | None:
        """Ask the model."""
        call = self._call(
            Activity.GENERATE, self.around.activities.generate, action, options.generation(self._state.policy)
        )
        (outcome,) = await self._settle([call])
        return outcome if isinstance(outcome, Generation) else self._failed_model(outcome)

    async def compact(self, action: Compact) -> Compacted | Failed | None:
        """Have the beginning of the conversation summarised."""
        call = self._call(
            Activity.COMPACT, self.around.activities.compact, action, options.generation(self._state.policy)
        )
        (outcome,) = await self._settle([call])
        return outcome if isinstance(outcome, Compacted) else self._failed_model(outcome)

    def _failed_model(self, outcome: ActivityError) -> Failed | None:
        return None if self.stopped else failures.of_model(outcome)

    async def run_hooks(self, action: RunHooks) -> HookResults | Failed | None:
        """Call hooks written in Python."""
        (outcome,) = await self._settle([self._hooks(action)])
        return None if self.stopped else failures.of_hooks(outcome)

    def _hooks(self, action: RunHooks) -> Call:
        bounds = options.run_hooks(self._state.policy, action)
        return self._call(Activity.RUN_HOOKS, self.around.activities.run_hooks, action, bounds)

    async def ask(self, action: AskPeople) -> RecordedDecisions | Failed | None:
        """Tell people what the turn waits for, or readers what was decided."""
        outcome = await self._await_fully(
            self._call(Activity.ASK, self.around.activities.ask, action, options.bookkeeping())
        )
        return Failed(failures.detail(outcome, "people")) if isinstance(outcome, ActivityError) else outcome

    async def wait_for_people(self, action: WaitForPeople) -> timedelta:
        """Have the requests replied to."""
        self._holds.hold("people", self.now)
        for request in self.requests:
            if request.request_id not in self._asked and (said := self.around.ask(request)) is not None:
                self._asked.add(request.request_id)
                self._clock.start(self._reply(*said))
        left = None if action.until is None else action.until - self.now
        await self._until(lambda: bool(self.mail.replies), left)
        return self._holds.release("people", self.now)

    async def wait_for_unpause(self, action: WaitForUnpause) -> None:
        """Wait for the end of the pause."""
        del action
        await self._until(lambda: self.mail.paused is None)

    async def _reply(self, reply: Reply, seconds: float) -> None:
        await self._clock.sleep(seconds)
        with contextlib.suppress(input_requests.TooEarlyError):
            self.mail, _ = input_requests.accept_reply(self._state, self.mail, reply, self.now)

    async def wait(self, seconds: float) -> None:
        """Wait before the model is told of its failure."""
        await self._until(lambda: False, timedelta(seconds=seconds))

    async def call_tools(self, action: CallTools) -> ToolResults | None:
        """Run tools in parallel."""
        called, _ = delegates.next_batch(self._state)
        running = [self._tool(planned.tool, call) for planned, call in zip(called, action.calls, strict=True)]
        settled = await self._settle(running)
        return None if self.stopped else failures.of_tools(called, settled)

    def _tool(self, tool: str, call: CallTool) -> Call:
        policy = self._state.policy.tools.get(tool, ToolPolicy())
        given = [RawValue(DATA_CONVERTER.payload_converter.to_payload(call))]
        return self._call(tool, self.around.activities.call_tool, given, options.tool_call(policy, ()))

    async def delegate(self, action: CallDelegates) -> list[delegates.End]:
        """Have delegates work in parallel."""
        started = [_Delegate(self.around, start) for start in action.starts]
        waited = [delegate for delegate in started if not delegate.start.call.background]
        self._background |= {delegate.start.session: delegate for delegate in started if delegate.start.call.background}
        await self._until(lambda: all(delegate.ended for delegate in waited))
        if self.stopped:
            await self._end(waited)
        return [None if delegate.start.call.background else delegate.result for delegate in started]

    async def await_delegates(self, action: AwaitDelegates) -> ToolOutcome | None:
        """Wait for delegates in the background."""
        awaited = [self._background[session] for session in action.sessions if session in self._background]
        if action.ends:
            await self._end(awaited)
        else:
            await self._until(lambda: self._have_ended(awaited, action))
        self.hear_delegates()
        if action.call is None or self.stopped:
            return None
        collecting = delegates.collect(self._state, action)
        call = self._call(
            Activity.COLLECT_DELEGATES, self.around.activities.collect_delegates, collecting, options.bookkeeping()
        )
        (outcome,) = await self._settle([call])
        return read_outcome(action.call, outcome)

    def _have_ended(self, awaited: Sequence["_Delegate"], action: AwaitDelegates) -> bool:
        ends = [delegate.ended for delegate in awaited]
        return all(ends) if action.call is not None else any(ends) or not waits_for_grants(self._state)

    async def _end(self, started: Sequence["_Delegate"]) -> None:
        """Have delegates end as cancelled, and wait until they have."""
        for delegate in started:
            delegate.turn.cancel(self._why_stopped)
        await self._clock.wait(lambda: all(delegate.ended for delegate in started))

    @property
    def _why_stopped(self) -> str:
        if self.mail.cancel is not None:
            return self.mail.cancel.reason
        return "its caller's time is used up" if self._past else "its caller has ended"

    async def _commit(self, action: CommitTurn) -> TurnResult:
        note_end(self._turn, self, action)
        result: TurnResult | ActivityError = await self._await_fully(
            self._call(Activity.COMMIT_TURN, self.around.activities.commit_turn, action, options.bookkeeping())
        )
        if isinstance(result, ActivityError):
            result = failures.result_of_lost_commit(self._state, action, failures.detail(result, "runtime"))
        last = hooks.at_the_end(self._state, action, result, self.now)
        if last is not None:
            await self._await_fully(self._hooks(last))
        return result

    # Calls and waits.

    def _call(self, name: str, activity: Callable[..., Any], argument: object, bounds: ActivityOptions) -> Call:
        return Call(self._clock, activity, argument, name=name, session=self.session, options=bounds)

    async def _await_fully(self, call: Call) -> Any:  # noqa: ANN401 - as an activity handle's
        await self._clock.wait(lambda: call.done)
        return call.outcome

    async def _settle(self, calls: Sequence[Call]) -> list[Any]:
        """What each has come to; when the turn is stopped first, they are cancelled."""
        await self._until(lambda: all(call.done for call in calls))
        if self.stopped:
            for call in calls:
                call.cancel()
        return [await self._await_fully(call) for call in calls]

    async def _until(self, condition: Callable[[], bool], at_most: timedelta | None = None) -> None:
        """Wait for a condition, and no longer than until the turn is stopped."""
        end = None if at_most is None else self.now + at_most
        while not (self.stopped or condition() or (end is not None and self.now >= end)):
            changes = self._changes
            moments = [moment for moment in (end, self._due) if moment is not None]
            await self._clock.wait(
                lambda: self.stopped or condition() or self._changes != changes,  # noqa: B023 - awaited in this round
                min(moments, default=None),
            )


class _Delegate:
    """A delegate's turn beside its caller's."""

    def __init__(self, around: Around, start: StartDelegate) -> None:
        self.start = start
        self.turn = MemoryTurn(around, start.session, start.request)
        self._task = around.clock.start(self.turn.run())

    @property
    def ended(self) -> bool:
        """Whether it has."""
        return self._task.done()

    @property
    def result(self) -> TurnResult | ErrorDetail:
        """What it came to."""
        error = self._task.exception()
        if error is None:
            return self._task.result()[0]
        message = f"failed: {error}"[:1_000]
        return ErrorDetail(code=ReasonCode.TOOL_DELEGATE_FAILED, title="delegate", message=message)
