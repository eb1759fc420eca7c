"""One turn, top to bottom: what it asks of the world next, and what the world's answers change.

The story awaits nothing but the world and reads no clock but the world's, so it runs in a Temporal workflow and without
one. What an answer changes stands in ``after``, what is asked of activities in ``step``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from perdure.contracts.budgets import Paid
from perdure.contracts.errors import ErrorDetail
from perdure.contracts.generations import Compact, Compacted, Generate, Generation
from perdure.contracts.hooks import Boundary, React, Reacted
from perdure.contracts.input_requests import AskPeople
from perdure.contracts.recordings import RecordedDecisions
from perdure.contracts.tools import ToolOutcome
from perdure.contracts.turns import CommitTurn, StopReason
from perdure.engine import after, delegates, hooks, input_requests, step
from perdure.engine.delegates import AwaitDelegates, CallDelegates
from perdure.engine.input_requests import WaitForPeople
from perdure.engine.state import Ending, Mailbox, TurnState
from perdure.engine.step import CallTools


@dataclass
class Turn:
    """A turn that runs. Message handlers read its state, and may change its limits, while the story awaits."""

    state: TurnState


@dataclass(frozen=True)
class Failed:
    """A call that failed for good, and what it has cost."""

    error: ErrorDetail
    paid: Paid = after.NOTHING_PAID


@dataclass(frozen=True)
class ToolResults:
    """One outcome for each call, in order; ``aborted`` is the failure that ends the turn, if one does."""

    outcomes: tuple[ToolOutcome, ...]
    aborted: ErrorDetail | None = None


class World(Protocol):
    """What a turn needs of the world. An answer is None if the turn was stopped before it came."""

    mail: Mailbox
    """What came in from outside."""

    @property
    def stopped(self) -> bool:
        """Whether the turn was cancelled or its time is used up."""
        ...

    @property
    def now(self) -> datetime:
        """The time."""
        ...

    def hear_delegates(self) -> None:
        """Charge the turn for the delegates in the background that have ended."""
        ...

    async def may_rotate(self, action: Generate | WaitForPeople) -> bool:
        """Go on in a fresh history if one is due. True if the world waited for delegates instead."""
        ...

    async def generate(self, action: Generate) -> Generation | Failed | None:
        """Ask the model."""
        ...

    async def pause(self, seconds: float) -> None:
        """Wait before the model is told of its failure."""
        ...

    async def compact(self, action: Compact) -> Compacted | Failed | None:
        """Have the beginning of the conversation summarised."""
        ...

    async def run_hooks(self, action: React) -> Reacted | Failed | None:
        """Call the hooks written in Python."""
        ...

    async def call_tools(self, action: CallTools) -> ToolResults | None:
        """Run tools in parallel."""
        ...

    async def delegate(self, action: CallDelegates) -> Sequence[delegates.End]:
        """Have delegates work in parallel; what those that a stop has ended used is charged all the same."""
        ...

    async def await_delegates(self, action: AwaitDelegates) -> ToolOutcome | None:
        """Wait for delegates in the background. The outcome is that of the model's call, if one waits for them."""
        ...

    async def ask(self, action: AskPeople) -> RecordedDecisions | Failed | None:
        """Tell people what the turn waits for, or readers what was decided. A recording answers in people's place."""
        ...

    async def wait_for_people(self, action: WaitForPeople) -> timedelta:
        """Wait for a reply; the time that the turn waited."""
        ...


class Stopped(Exception):  # noqa: N818 - a stop is no error
    """The turn was cancelled, or its time is used up."""


async def run_turn(turn: Turn, world: World) -> CommitTurn:
    """Run a turn, from its opening or from where an earlier run left off, to the decision how it ends."""
    try:
        _stop_if_asked(world)
        await call_hooks(turn, world, "start")
        while (ending := await _settle_calls(turn, world)) is None:
            await _make_room_or_generate(turn, world)
    except Stopped:
        ending = _ending_of_a_stop(turn, world)
    await _end_background(turn, world, ending)
    return step.commit(turn.state, world.mail, turn.state.ending or ending)


async def _settle_calls(turn: Turn, world: World) -> Ending | None:
    """Have every call of the last answer get its result, then look whether that ends the turn."""
    while True:
        await _catch_up(turn, world)
        state = turn.state
        if state.pending:
            await _run_calls(turn, world)
        elif state.asking and state.ending is None:
            if state.asked and state.policy.interactive == "stop":
                return Ending(stop_reason=StopReason.WAITING_FOR_INPUT)
            await _ask_people(turn, world)
        elif (ending := step.ending_of(state)) is None and step.waits_for_grants(state):
            await world.await_delegates(step.await_one(state))
            _take_stock(turn, world)
        elif state.hooks.boundary == "step":
            await call_hooks(turn, world, "step")
            await call_hooks(turn, world, "stalled")
        else:
            return ending


async def _run_calls(turn: Turn, world: World) -> None:
    """Run the pending calls that are next: tools, then delegates, then the calls that wait for delegates."""
    action = step.next_calls(turn.state)
    if isinstance(action, CallTools):
        results = await world.call_tools(action)
        if results is not None:
            turn.state = after.tools(turn.state, results.outcomes, results.aborted)
    elif isinstance(action, CallDelegates):
        ended = await world.delegate(action)
        turn.state = after.charged(turn.state, action, ended)
        _stop_if_asked(world)
        turn.state = after.delegated(turn.state, action, ended)
    else:
        outcome = action.refused or await world.await_delegates(action)
        if outcome is not None:
            turn.state = after.awaited(turn.state, action, outcome)
    _take_stock(turn, world)


async def _ask_people(turn: Turn, world: World) -> None:
    """Tell people once what they are asked, then wait for a reply."""
    action = input_requests.ask_or_wait(turn.state)
    if isinstance(action, WaitForPeople):
        if not await world.may_rotate(action):
            waited = await world.wait_for_people(action)
            turn.state = after.waiting(turn.state, waited)
        _take_stock(turn, world)
    else:
        await _tell(turn, world, action)


async def _tell(turn: Turn, world: World, action: AskPeople) -> None:
    """Tell people what the turn waits for, or readers what was decided."""
    recorded = await world.ask(action)
    if isinstance(recorded, Failed):  # of a replay that parts from its recording, or of a store that refuses
        turn.state = after.failure(turn.state, recorded.error)
    elif action.requests:
        turn.state = input_requests.told(turn.state, recorded)
    _take_stock(turn, world)


async def _make_room_or_generate(turn: Turn, world: World) -> None:
    trigger = step.compaction_due(turn.state)
    if trigger is not None:
        await _compact(turn, world, step.compact(turn.state, trigger))
    elif not await world.may_rotate(action := step.generate(turn.state, world.mail)):
        await _generate(turn, world, action)
    else:
        _take_stock(turn, world)


async def _generate(turn: Turn, world: World, action: Generate) -> None:
    """Ask the model, and let hooks look at its answer or its failure."""
    outcome = await world.generate(action)
    if isinstance(outcome, Generation):
        written = turn.state.with_written(len(action.decided))
        turn.state = hooks.generated(after.generation(written, outcome), action, outcome)
        world.mail = world.mail.read(len(action.steered))
        if outcome.retry_seconds:
            await world.pause(outcome.retry_seconds)
    elif isinstance(outcome, Failed):
        turn.state = hooks.generation_failed(after.failure(turn.state, outcome.error, outcome.paid))
    else:
        turn.state = after.aborted_generation(turn.state)
    _take_stock(turn, world)
    await call_hooks(turn, world, "generation")
    await call_hooks(turn, world, "error")


async def _compact(turn: Turn, world: World, action: Compact) -> None:
    """Have the conversation shortened; hooks may look at a failure that ends the turn."""
    outcome = await world.compact(action)
    if isinstance(outcome, Compacted):
        turn.state = after.compaction(turn.state, outcome)
    elif isinstance(outcome, Failed):
        turn.state = after.compaction(turn.state, outcome.error, outcome.paid)
    else:
        turn.state = after.aborted_generation(turn.state)
    turn.state = hooks.generation_failed(turn.state)
    _take_stock(turn, world)
    await call_hooks(turn, world, "error")


async def call_hooks(turn: Turn, world: World, at: Boundary) -> None:
    """Go by the rules for what has happened, and call the hooks written in Python, if the turn is at this boundary."""
    await _catch_up(turn, world)
    if not hooks.is_due(turn.state, at):
        return
    turn.state = hooks.chosen(turn.state, world.now)
    while True:
        reacted: Reacted | Failed | None = Reacted()
        if turn.state.hooks.calling:
            reacted = await world.run_hooks(step.react(turn.state, at))
        if isinstance(reacted, Reacted):
            turn.state = hooks.reacted(turn.state, reacted, world.now)
        elif reacted is not None:
            turn.state = hooks.failed(turn.state, reacted.error)
        _take_stock(turn, world)
        if not turn.state.hooks.calling:
            return
        while turn.state.short and turn.state.running:
            await world.await_delegates(step.await_one(turn.state))
            _take_stock(turn, world)


async def _end_background(turn: Turn, world: World, ending: Ending) -> None:
    """End the delegates in the background with the turn.

    The ending is decided before: a reply, another limit or a stop that comes while they end is too late.
    """
    if not turn.state.running:
        return
    turn.state = hooks.ending(turn.state, ending)
    action = delegates.at_the_end(turn.state)
    turn.state = after.background_cancelled(turn.state)
    await world.await_delegates(action)
    await _catch_up(turn, world)


async def _catch_up(turn: Turn, world: World) -> None:
    """Hear of the delegates that have ended and of what people have said. The log has decisions before calls run."""
    while True:
        world.hear_delegates()
        before = turn.state
        turn.state, world.mail = input_requests.hear(before, world.mail, world.now)
        decided = input_requests.tell_decided(before, turn.state)
        if decided is None:
            turn.state = after.step_ended(turn.state, world.mail, world.now)
            return
        await _tell(turn, world, decided)


def _take_stock(turn: Turn, world: World) -> None:
    """See what follows from what has just come.

    Raises:
        Stopped: The turn was stopped meanwhile.
    """
    turn.state = after.step_ended(turn.state, world.mail, world.now)
    _stop_if_asked(world)


def _stop_if_asked(world: World) -> None:
    if world.stopped:
        raise Stopped


def _ending_of_a_stop(turn: Turn, world: World) -> Ending:
    """The end of a turn that was stopped; an end that hooks might have taken back gives way, an error stays."""
    world.hear_delegates()
    state = hooks.interrupted(turn.state)
    if state.ending is None:
        state = after.cancel(state, world.mail) if world.mail.cancel is not None else after.deadline(state)
    turn.state = after.step_ended(state, world.mail, world.now)
    assert turn.state.ending is not None, "a stopped turn ends"  # noqa: S101 - narrows the type
    return turn.state.ending


def close_turn(turn: Turn, world: World, action: CommitTurn) -> None:
    """Note that the turn is about to be recorded as ended: from here on a message is for the next one."""
    # Also when a limit ends this one, of which the state does not know yet.
    turn.state = hooks.ending(turn.state, Ending(stop_reason=action.stop_reason, error=action.error))
    mail = world.mail.read(len(action.steered))
    world.mail = mail.with_all_queued() if action.stop_reason is StopReason.WAITING_FOR_INPUT else mail
