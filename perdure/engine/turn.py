"""One turn, top to bottom: what it asks of the world next, and what the world's answers change.

The story awaits nothing but the world and reads no clock but the world's, so it runs in a Temporal workflow and without
one. What an answer changes is decided by pure functions, one module for each subject.
"""

from datetime import datetime

from perdure.contracts.generations import Generate, Generation
from perdure.contracts.hooks import Boundary, HookResults
from perdure.contracts.input_requests import AskPeople
from perdure.contracts.openings import OpenedTurn
from perdure.contracts.tools import ToolOutcome
from perdure.contracts.turns import CommitTurn, OpenTurn, StopReason
from perdure.contracts.values import replace
from perdure.engine import calls, conditions, delegates, generation, hooks, input_requests, limits, stops
from perdure.engine.calls import CallTools
from perdure.engine.delegates import AwaitDelegates, CallDelegates
from perdure.engine.generation import Failed
from perdure.engine.state import Calls, Ending, HookState, Mailbox, Origin, Place, TurnState
from perdure.engine.world import Stopped, WaitForUnpause, World


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
        seed=opened.seed,
    )
    return TurnState(
        origin=origin,
        policy=opened.policy,
        tip=opened.tip,
        calls=Calls(ids=opened.call_ids, asking=opened.asking, expires_at=opened.expires_at),
        hooks=HookState(said=opened.said, tools={call.call_id: call.tool for call in opened.asking}),
        spent=opened.earlier,
        todos=opened.todos,
        context=generation.context_at_start(opened.tokens, opened.tokens_left),
        tool_choice=opening.request.tool_choice,
    )


class Story:
    """A turn that runs.

    Message handlers read its state, and may change its limits, while the story awaits the world. Every answer of the
    world is taken in by :meth:`_take`, which ends the story once the turn is stopped.

    Attributes:
        state: Where the turn stands.
        world: The world around it.
        place: Where it begins, or goes on after a rotation.
    """

    def __init__(self, state: TurnState, world: World, place: Place = "start") -> None:
        self.state = state
        self.world = world
        self.place = place

    async def run(self) -> CommitTurn:
        """Run the turn from its place to its end; return the commit that ends it."""
        aborted_step: int | None = None
        try:
            self._stop_if_asked()
            await self._start()
            while (ending := await self._look_for_ending()) is None:
                await self._take_step()
        except Stopped as stop:
            ending, aborted_step = self._ending_of_a_stop(), stop.aborted_step
        await self._end_background(ending)
        return commit(self.state, self.world.mail, ending, aborted_step)

    def _take(self, state: TurnState) -> None:
        """Take in what an answer has changed, and look at what came meanwhile: steered messages, or a stop.

        An ending by the model does not stand while steered messages wait: the model has to read them first.

        Raises:
            Stopped: The turn was stopped.
        """
        is_models_own = state.ending is not None and state.ending.is_models_own
        if is_models_own and self.world.mail.steered and limits.limit_reached(state) is None:
            state = replace(state, ending=None)
        self.state = state
        self._stop_if_asked()

    def _stop_if_asked(self) -> None:
        if self.world.stopped:
            raise Stopped

    async def _start(self) -> None:
        """Call the ``start`` hooks, then finish the step of an answer whose calls are still open."""
        if self.place == "start" and self.state.has_hooks and not await self._call_hooks("start"):
            return
        if self.place != "model" and self.state.calls.ids:
            await self._finish_step()

    async def _look_for_ending(self) -> Ending | None:
        """Settle open calls, wait for grants, and return what ends the turn before another generation, if anything.

        A call is open here only if an ending was taken back before people were asked about the call.
        """
        await self._settle_calls()
        await self._wait_for_grants()
        return ending_of(self.state)

    async def _take_step(self) -> None:
        """Do the one thing that is due: wait out a pause, compact, rotate, or ask the model and run its calls."""
        if await self._wait_out_pause():
            return
        trigger = generation.compaction_due(self.state)
        if trigger is not None:
            shortened = await self.world.compact(generation.compact(self.state, trigger))
            self._take(generation.with_compaction(self.state, shortened))
            await self._show_failure_to_hooks()
            return
        action = generation.generate(self.state, self.world.mail)
        if await self.world.rotate_if_due(action):
            return
        answer = await self._generate(action)
        if answer is not None and (not self.state.has_hooks or await self._call_hooks("generation", answer)):
            await self._finish_step()

    async def _wait_out_pause(self) -> bool:
        """Wait while the session is paused. True if it was: something else may be due by now."""
        if self.world.mail.paused is None:
            return False
        await self.world.wait_for_unpause(WaitForUnpause(self.world.mail.paused))
        return True

    async def _generate(self, action: Generate) -> Generation | None:
        """Ask the model. None if it failed for good: hooks look at a failure that ends the turn."""
        outcome = await self.world.generate(action)
        if isinstance(outcome, Failed):
            self._take(generation.with_failure(self.state, outcome))
            await self._show_failure_to_hooks()
            return None
        self.world.mail = self.world.mail.read(len(action.steered))
        state = generation.with_answer(self.state.with_written(len(action.decided)), outcome)
        state = hooks.with_answer(state, action, outcome)
        # The workflow's own calls need nothing but the answer, unless hooks are to look at that first.
        self._take(state if state.has_hooks else calls.carry_out(state))
        if outcome.retry_seconds:
            await self.world.wait(outcome.retry_seconds)
        return outcome

    async def _show_failure_to_hooks(self) -> None:
        """Let hooks take back the error that would end the turn."""
        if self.state.has_hooks and self.state.stop_reason is StopReason.ERROR:
            await self._call_hooks("error")

    async def _finish_step(self) -> None:
        """Have every call of the answer get its result; then hooks and stop conditions look at the step."""
        await self._settle_calls()
        if self.state.stop_reason is StopReason.WAITING_FOR_INPUT:
            return
        if not self.state.has_hooks:
            self._judge_step()
            return
        await self._wait_for_grants()
        if await self._call_hooks("step"):
            self._judge_step()
        if self.state.stop_reason is StopReason.STALLED:
            await self._call_hooks("stalled")

    def _judge_step(self) -> None:
        """Look whether a stop condition ends the turn."""
        self.state = conditions.judge_step(self.state, self.world.now)

    async def _settle_calls(self) -> None:
        """Have every open call get its result: tools, delegates, what waits for them, then people."""
        self._take(calls.carry_out(self.state))
        while self.state.has_open_calls:
            await self._catch_up()
            self._take(calls.carry_out(self.state))
            if self.state.calls.pending:
                if not await self._wait_out_pause():
                    await self._run_calls()
            elif self.state.has_open_calls:
                await self._ask_people()
            self._take(calls.carry_out(self.state))

    async def _run_calls(self) -> None:
        """Run the pending calls that are next: tools, then delegates, then the calls that wait for delegates."""
        action = calls.next_calls(self.state)
        if isinstance(action, CallTools):
            results = await self.world.call_tools(action)
            self._take(calls.with_tools(self.state, results))
        elif isinstance(action, CallDelegates):
            ended = await self.world.delegate(action)
            self._take(delegates.charge(self.state, action, ended))
            self._take(calls.with_delegates(self.state, action, ended))
        else:
            outcome = action.refused or await self._await_delegates(action)
            if outcome is not None:
                self._take(calls.with_awaited(self.state, action, outcome))

    async def _await_delegates(self, action: AwaitDelegates) -> ToolOutcome | None:
        """Wait for background delegates, and charge the turn for those that have ended."""
        outcome = await self.world.await_delegates(action)
        self._take(self.world.charge_ended(self.state))
        return outcome

    async def _ask_people(self) -> None:
        """Tell people once what they are asked, then wait for a reply, or end the turn until one starts the next."""
        action = input_requests.ask_or_wait(self.state, self.world.mail)
        if isinstance(action, AskPeople):
            await self._tell(action)
            if action.stops and self.state.has_open_calls:  # as readers were told, whatever has come meanwhile
                self.state = replace(self.state, ending=Ending(stop_reason=StopReason.WAITING_FOR_INPUT))
        elif input_requests.stops(self.state, self.world.mail):
            self.state = replace(self.state, ending=Ending(stop_reason=StopReason.WAITING_FOR_INPUT))
        elif not await self.world.rotate_if_due(action):
            waited = await self.world.wait_for_people(action)
            self._take(replace(self.state, waited=self.state.waited + waited))

    async def _tell(self, action: AskPeople) -> None:
        """Tell people what the turn waits for, or readers what was decided."""
        recorded = await self.world.ask(action)
        if isinstance(recorded, Failed):  # a replay differs from its recording, or the store refuses
            self._take(generation.with_failure(self.state, recorded))
        elif action.requests:
            self._take(input_requests.with_people_told(self.state, recorded))
        else:
            self._take(self.state)

    async def _call_hooks(self, at: Boundary, answer: Generation | None = None) -> bool:
        """Call the hooks for what has happened at a boundary, and apply the first reaction. False ends the step."""
        await self._catch_up()
        arrival = hooks.arrive(self.state, at, answer)
        outcome = await self._run_hooks(arrival)
        if isinstance(outcome, Failed):
            self.state = hooks.with_failure(self.state, outcome.error)
            return False
        state, chosen = hooks.choose(self.state, arrival, outcome, self.world.now)
        goes_on = outcome.refused is None
        if chosen is not None:
            hook, reaction = chosen
            taken_back = hooks.takes_back(state, at, reaction)
            state, goes_on = hooks.apply_reaction(state, at, hook, reaction)
            if not goes_on and not taken_back and at != "stalled":
                state = conditions.judge_step(state, self.world.now)
        self.state = hooks.leave(state, arrival, goes_on=goes_on)
        return goes_on

    async def _run_hooks(self, arrival: hooks.Arrival) -> HookResults | Failed:
        """Call the hooks written in Python; wait for delegates first if one needs what they may still spend."""
        names = hooks.names_to_call(self.state, arrival, self.world.now)
        while names:
            outcome = await self.world.run_hooks(hooks.request_calls(self.state, arrival, names))
            if isinstance(outcome, Failed) or not hooks.is_short(self.state, outcome):
                return outcome
            self.state = replace(self.state, short=True)
            while self.state.short and self.state.running:
                await self._await_delegates(delegates.await_one(self.state))
        return HookResults()

    async def _wait_for_grants(self) -> None:
        """Wait for background delegates while the turn can only go on with what they may still spend."""
        while True:
            await self._catch_up()
            if ending_of(self.state) is not None or not limits.waits_for_grants(self.state):
                return
            await self._await_delegates(delegates.await_one(self.state))

    async def _end_background(self, ending: Ending) -> None:
        """Cancel the background delegates, and wait until they have ended.

        ``ending`` stands: a reply, a new limit or a stop that arrives during the wait comes too late to change it.
        """
        if self.state.running:
            action = delegates.await_all(replace(self.state, ending=ending))
            self.state = delegates.mark_cancelled(replace(self.state, ending=ending))
            await self.world.await_delegates(action)
            self.state = self.world.charge_ended(self.state)

    async def _catch_up(self) -> None:
        """Take in the delegates that have ended and the replies of people.

        People's decisions are written to the event log before the approved calls run.
        """
        while True:
            before = self.world.charge_ended(self.state)
            self.state, self.world.mail = input_requests.apply_replies(before, self.world.mail, self.world.now)
            decided = input_requests.tell_decided(before, self.state)
            if decided is None:
                return
            await self._tell(decided)

    def _ending_of_a_stop(self) -> Ending:
        """The ending of a stopped turn: a finish that hooks could still take back becomes a stop, an error stays."""
        state = self.world.charge_ended(self.state)
        ending = state.ending
        if ending is None or (state.has_hooks and ending.is_finish):
            ending = stops.ending_of_stop(state, self.world.mail)
            state = replace(state, ending=ending, calls=replace(state.calls, pending=()))
        self.state = state
        return ending


def ending_of(state: TurnState) -> Ending | None:
    """Ending of the turn before another generation, if anything ends it: a decision, a failed delegate, a limit.

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
        fallback=state.fallback,
        cancel_requested_at=mail.cancel_at,
        stopped_by=ending.stopped_by,
        decided=state.decided,
        delegated=state.origin.delegated,
        todos=state.todos,
    )


def note_end(story: Story, action: CommitTurn) -> None:
    """Note that the turn is about to be recorded as ended: from here on a message is for the next one."""
    # The state does not have the ending yet if a limit ends the turn.
    story.state = replace(story.state, ending=Ending(stop_reason=action.stop_reason, error=action.error))
    mail = story.world.mail.read(len(action.steered))
    story.world.mail = mail.with_all_queued() if action.stop_reason is StopReason.WAITING_FOR_INPUT else mail
