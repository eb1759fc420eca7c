"""One turn, top to bottom: what it asks of the world next, and what the world's answers change.

The story awaits nothing but the world and reads no clock but the world's, so it runs in a Temporal workflow and without
one. What an answer changes is decided by pure functions, one module for each subject.
"""

from dataclasses import dataclass
from datetime import datetime

from perdure.contracts.generations import Compact, Generate, Generation
from perdure.contracts.hooks import Boundary, HookResults
from perdure.contracts.input_requests import AskPeople
from perdure.contracts.turns import CommitTurn, OpenedTurn, OpenTurn, StopReason
from perdure.contracts.values import replace
from perdure.engine import calls, conditions, delegates, generation, hooks, input_requests, limits
from perdure.engine.calls import CallTools
from perdure.engine.delegates import CallDelegates
from perdure.engine.generation import Failed
from perdure.engine.state import Calls, Ending, HookState, Mailbox, Origin, Place, TurnState
from perdure.engine.world import Stopped, WaitForUnpause, World


@dataclass
class Turn:
    """A turn that runs. Message handlers read its state, and may change its limits, while the story awaits."""

    state: TurnState
    place: Place = "start"


def state_of(opening: OpenTurn, opened: OpenedTurn, now: datetime) -> TurnState:
    """The state of a turn that was just opened."""
    origin = Origin(
        session=opening.session,
        turn=opened.turn,
        definition=opened.definition,
        started_at=now,
        store=opened.store,
        tenant=opening.request.tenant or opened.tenant,
        request_id=opening.request_id,
        search_attributes=opened.search_attributes,
        fails_workflow=opened.fails_workflow,
        moves=opened.moves,
        delegated=opening.request.delegated,
        guidance=opening.request.prompt if opening.request.compact else None,
        earlier=opened.earlier,
        trace=opened.trace,
    )
    return TurnState(
        origin=origin,
        policy=opened.policy,
        tip=opened.tip,
        calls=Calls(ids=opened.call_ids, asking=opened.asking, expires_at=opened.expires_at),
        hooks=HookState(said=opened.said, tools={call.call_id: call.tool for call in opened.asking}),
        spent=opened.earlier,
        todos=opened.todos,
    )


async def run_turn(turn: Turn, world: World) -> CommitTurn:
    """Run a turn from its start, or from where the run before a rotation left off; return the commit that ends it."""
    aborted_step: int | None = None
    try:
        _stop_if_asked(world)
        await _start_turn(turn, world)
        while (ending := await _look_for_ending(turn, world)) is None:
            await _take_step(turn, world)
    except Stopped as stop:
        ending, aborted_step = _ending_of_a_stop(turn, world), stop.aborted_step
    await _end_background(turn, world, ending)
    return commit(turn.state, world.mail, ending, aborted_step)


async def _start_turn(turn: Turn, world: World) -> None:
    """Call the ``start`` hooks, then finish the step of an answer whose calls are still open."""
    if turn.place == "start" and turn.state.has_hooks and not await call_hooks(turn, world, "start"):
        return
    if turn.place != "model" and turn.state.calls.ids:
        await _finish_step(turn, world)


async def _look_for_ending(turn: Turn, world: World) -> Ending | None:
    """Settle open calls, wait for grants, and return what ends the turn before another generation, if anything does.

    A call is open here only if an ending was taken back before people were asked about the call.
    """
    await _settle_calls(turn, world)
    await _wait_for_grants(turn, world)
    return ending_of(turn.state)


def ending_of(state: TurnState) -> Ending | None:
    """What ends the turn before another generation, if anything does: a decision, a failed delegate, a limit.

    ``state.ending`` is decided by the model's answer or failure (``generation``), results of calls (``calls``),
    reactions (``hooks``), stop conditions (``conditions``), and in ``_ask_people``. A stop does not come here: see
    ``_ending_of_a_stop``.
    """
    if state.ending is not None:
        return state.ending
    failed = delegates.error_to_propagate(state)
    if failed is not None:
        return Ending(stop_reason=StopReason.ERROR, error=failed)
    return limits.limit_reached(state)


async def _take_step(turn: Turn, world: World) -> None:
    """Do the one thing that is due: wait out a pause, compact, rotate, or ask the model and run its calls."""
    if await _wait_out_pause(turn, world):
        return
    trigger = generation.compaction_due(turn.state)
    if trigger is not None:
        await _compact(turn, world, generation.compact(turn.state, trigger))
        return
    action = generation.generate(turn.state, world.mail)
    if await world.rotate_if_due(action):
        _stop_if_asked(world)
        return
    answer = await _generate(turn, world, action)
    if answer is not None and await _show_answer_to_hooks(turn, world, answer):
        await _finish_step(turn, world)


async def _wait_out_pause(turn: Turn, world: World) -> bool:
    """Wait while the session is paused. True if it was: something else may be due by now."""
    if world.mail.paused is None:
        return False
    await world.wait_for_unpause(WaitForUnpause(world.mail.paused))
    _reopen_if_steered(turn, world)
    _stop_if_asked(world)
    return True


async def _compact(turn: Turn, world: World, action: Compact) -> None:
    """Have the conversation shortened. Hooks look at a failure that ends the turn."""
    outcome = await world.compact(action)
    if outcome is None:
        raise Stopped(action.step)
    turn.state = generation.with_compaction(turn.state, outcome)
    await _look_at_failure(turn, world)


async def _generate(turn: Turn, world: World, action: Generate) -> Generation | None:
    """Ask the model. None if it failed for good: hooks look at a failure that ends the turn."""
    outcome = await world.generate(action)
    if outcome is None:
        raise Stopped(action.step)
    if isinstance(outcome, Failed):
        turn.state = generation.with_failure(turn.state, outcome)
        await _look_at_failure(turn, world)
        return None
    state = generation.with_answer(turn.state.with_written(len(action.decided)), outcome)
    turn.state = hooks.with_answer(state, action, outcome)
    world.mail = world.mail.read(len(action.steered))
    if outcome.retry_seconds:
        await world.wait(outcome.retry_seconds)
    return outcome


async def _show_answer_to_hooks(turn: Turn, world: World, answer: Generation) -> bool:
    """Have hooks look at an answer before its calls run. False if the step goes no further."""
    return not turn.state.has_hooks or await call_hooks(turn, world, "generation", answer)


async def _look_at_failure(turn: Turn, world: World) -> None:
    """Let hooks take back the error that would end the turn."""
    _stop_if_asked(world)
    if turn.state.has_hooks and turn.state.stop_reason is StopReason.ERROR:
        await call_hooks(turn, world, "error")


async def _finish_step(turn: Turn, world: World) -> None:
    """Have every call of the answer get its result; then hooks and stop conditions look at the step."""
    await _settle_calls(turn, world)
    if turn.state.stop_reason is StopReason.WAITING_FOR_INPUT:
        return
    if not turn.state.has_hooks:
        _judge_step(turn, world)
        return
    await _wait_for_grants(turn, world)
    if await call_hooks(turn, world, "step"):
        _judge_step(turn, world)
    if turn.state.stop_reason is StopReason.STALLED:
        await call_hooks(turn, world, "stalled")


def _judge_step(turn: Turn, world: World) -> None:
    """Look whether a stop condition ends the turn."""
    turn.state = conditions.judge_step(turn.state, world.now)
    _reopen_if_steered(turn, world)
    _stop_if_asked(world)


async def _settle_calls(turn: Turn, world: World) -> None:
    """Have every open call get its result: tools, delegates, what waits for them, then people."""
    turn.state = calls.carry_out(turn.state)
    while turn.state.has_open_calls:
        _reopen_if_steered(turn, world)
        _stop_if_asked(world)
        await _catch_up(turn, world)
        turn.state = calls.carry_out(turn.state)
        if turn.state.calls.pending:
            if not await _wait_out_pause(turn, world):
                await _run_calls(turn, world)
        elif turn.state.has_open_calls:
            await _ask_people(turn, world)
        turn.state = calls.carry_out(turn.state)
    _reopen_if_steered(turn, world)
    _stop_if_asked(world)


async def _run_calls(turn: Turn, world: World) -> None:
    """Run the pending calls that are next: tools, then delegates, then the calls that wait for delegates."""
    action = calls.next_calls(turn.state)
    if isinstance(action, CallTools):
        results = await world.call_tools(action)
        if results is not None:
            turn.state = calls.with_tools(turn.state, results)
    elif isinstance(action, CallDelegates):
        ended = await world.delegate(action)
        turn.state = delegates.charge(turn.state, action, ended)
        _stop_if_asked(world)
        turn.state = calls.with_delegates(turn.state, action, ended)
    else:
        outcome = action.refused or await world.await_delegates(action)
        if outcome is not None:
            turn.state = calls.with_awaited(turn.state, action, outcome)
    _stop_if_asked(world)


async def _ask_people(turn: Turn, world: World) -> None:
    """Tell people once what they are asked, then wait for a reply, or end the turn until one starts the next."""
    action = input_requests.ask_or_wait(turn.state)
    if isinstance(action, AskPeople):
        await _tell(turn, world, action)
    elif turn.state.policy.interactive == "stop":
        turn.state = replace(turn.state, ending=Ending(stop_reason=StopReason.WAITING_FOR_INPUT))
    elif not await world.rotate_if_due(action):
        waited = await world.wait_for_people(action)
        turn.state = replace(turn.state, waited=turn.state.waited + waited)
    _stop_if_asked(world)


async def _tell(turn: Turn, world: World, action: AskPeople) -> None:
    """Tell people what the turn waits for, or readers what was decided."""
    recorded = await world.ask(action)
    if isinstance(recorded, Failed):  # a replay differs from its recording, or the store refuses
        turn.state = generation.with_failure(turn.state, recorded)
    elif action.requests:
        turn.state = input_requests.with_people_told(turn.state, recorded)
    _stop_if_asked(world)


async def call_hooks(turn: Turn, world: World, at: Boundary, answer: Generation | None = None) -> bool:
    """Call the hooks for what has happened at a boundary, and apply the first reaction. False ends the step."""
    _reopen_if_steered(turn, world)
    _stop_if_asked(world)
    await _catch_up(turn, world)
    arrival = hooks.arrive(turn.state, at, answer)
    outcome = await _run_hooks(turn, world, arrival)
    if isinstance(outcome, Failed):
        turn.state = hooks.with_failure(turn.state, outcome.error)
        return False
    turn.state, chosen = hooks.choose(turn.state, arrival, outcome, world.now)
    goes_on = outcome.refused is None
    if chosen is not None:
        hook, reaction = chosen
        taken_back = hooks.takes_back(turn.state, at, reaction)
        turn.state, goes_on = hooks.apply_reaction(turn.state, at, hook, reaction)
        if not goes_on and not taken_back and at != "stalled":
            turn.state = conditions.judge_step(turn.state, world.now)
    turn.state = hooks.leave(turn.state, arrival, goes_on=goes_on)
    return goes_on


async def _run_hooks(turn: Turn, world: World, arrival: hooks.Arrival) -> HookResults | Failed:
    """Call the hooks written in Python; wait for delegates first if one needs what they may still spend."""
    names = hooks.names_to_call(turn.state, arrival, world.now)
    while names:
        outcome = await world.run_hooks(hooks.request_calls(turn.state, arrival, names))
        if outcome is None:
            raise Stopped
        if isinstance(outcome, Failed) or not hooks.is_short(turn.state, outcome):
            return outcome
        turn.state = replace(turn.state, short=True)
        while turn.state.short and turn.state.running:
            await world.await_delegates(delegates.await_one(turn.state))
            _stop_if_asked(world)
    return HookResults()


async def _wait_for_grants(turn: Turn, world: World) -> None:
    """Wait for background delegates while the turn can only go on with what they may still spend."""
    while True:
        await _catch_up(turn, world)
        if ending_of(turn.state) is not None or not limits.waits_for_grants(turn.state):
            return
        await world.await_delegates(delegates.await_one(turn.state))
        _stop_if_asked(world)


async def _end_background(turn: Turn, world: World, ending: Ending) -> None:
    """Cancel the background delegates, and wait until they have ended.

    ``ending`` stands: a reply, a new limit or a stop that arrives during the wait comes too late to change it.
    """
    if turn.state.running:
        turn.state = replace(turn.state, ending=ending)
        action = delegates.await_all(turn.state)
        turn.state = delegates.mark_cancelled(turn.state)
        await world.await_delegates(action)


async def _catch_up(turn: Turn, world: World) -> None:
    """Take in the delegates that have ended and the replies of people.

    People's decisions are written to the event log before the approved calls run.
    """
    while True:
        world.hear_delegates()
        before = turn.state
        turn.state, world.mail = input_requests.apply_replies(before, world.mail, world.now)
        decided = input_requests.tell_decided(before, turn.state)
        if decided is None:
            return
        await _tell(turn, world, decided)


def _reopen_if_steered(turn: Turn, world: World) -> None:
    """Take back an ending by the model when messages were steered in: it has to read them first."""
    state = turn.state
    ends = state.ending is not None and state.ending.is_models_own
    if ends and world.mail.steered and limits.limit_reached(state) is None:
        turn.state = replace(state, ending=None)


def _stop_if_asked(world: World) -> None:
    if world.stopped:
        raise Stopped


def _ending_of_a_stop(turn: Turn, world: World) -> Ending:
    """The ending of a stopped turn: a finish that hooks could still take back becomes a stop, an error stays."""
    world.hear_delegates()
    state, ending = turn.state, turn.state.ending
    if ending is None or (state.has_hooks and ending.is_finish):
        ending = limits.ending_of_stop(state, world.mail)
        turn.state = replace(state, ending=ending, calls=replace(state.calls, pending=()))
    return ending


def commit(state: TurnState, mail: Mailbox, ending: Ending, aborted_step: int | None = None) -> CommitTurn:
    """Record the end of a turn; whatever has no result yet gets its error result there."""
    stops = ending.stop_reason is StopReason.WAITING_FOR_INPUT
    withdrawn = () if stops else input_requests.withdraw_requests(state, mail)
    return CommitTurn(
        session=state.origin.session,
        store=state.origin.store,
        turn=state.origin.turn,
        tip=state.tip,
        stop_reason=ending.stop_reason,
        error=ending.error,
        steps=state.step,
        spent=state.own_spent,
        call_ids=state.calls.ids,
        failed=(*state.calls.outcomes, *withdrawn, *calls.outcomes_of_unrun(state.calls)),
        # A message that the model has not read begins the next turn, in place of an answer.
        steered=() if stops else mail.steered,
        said=() if stops else state.hooks.said,
        requests=input_requests.input_requests(state) if stops else (),
        aborted_step=aborted_step,
        cancel_requested_at=mail.cancel_at,
        stopped_by=ending.stopped_by,
        decided=state.decided,
        delegated=state.origin.delegated,
        todos=state.todos,
    )


def note_end(turn: Turn, world: World, action: CommitTurn) -> None:
    """Note that the turn is about to be recorded as ended: from here on a message is for the next one."""
    # The state does not have the ending yet if a limit ends the turn.
    turn.state = replace(turn.state, ending=Ending(stop_reason=action.stop_reason, error=action.error))
    mail = world.mail.read(len(action.steered))
    world.mail = mail.with_all_queued() if action.stop_reason is StopReason.WAITING_FOR_INPUT else mail
