"""The world of a turn: it opens the turn, carries out what the story asks for, and commits its end.

What runs the activities, waits and keeps the history is a :class:`Runtime`: Temporal, or a test's process.

Long, because a turn's beginning, its actions and its end share what came in and how far the turn is.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, NoReturn

from temporalio.exceptions import ActivityError

from perdure.contracts.errors import ErrorDetail
from perdure.contracts.generations import Compact, Compacted, Generate, Generation
from perdure.contracts.hooks import HookResults, RunHooks
from perdure.contracts.input_requests import AskPeople
from perdure.contracts.openings import OpenedTurn
from perdure.contracts.recordings import RecordedDecisions
from perdure.contracts.sends import QueuedMessage
from perdure.contracts.tools import CallTool, ToolOutcome, ToolPolicy
from perdure.contracts.turns import CancelRequest, CommitTurn, Continuation, OpenTurn, StopReason, TurnResult
from perdure.contracts.values import replace
from perdure.engine import delegates, hooks, input_requests, messages, stops
from perdure.engine.calls import CallTools, ToolResults, failed_outcome
from perdure.engine.delegates import AwaitDelegates, CallDelegates
from perdure.engine.generation import Failed
from perdure.engine.input_requests import WaitForPeople
from perdure.engine.limits import waits_for_grants
from perdure.engine.state import Carried, Place, TurnState
from perdure.engine.turn import Story, note_end, state_of
from perdure.engine.world import Stopped, WaitForUnpause, World
from perdure.workflows import failures, options, stubs, visibility
from perdure.workflows.mail import Opened, Refused, TurnMail
from perdure.workflows.runtime import RunningActivity, RunningDelegate, Runtime

GROWTH = 8
"""A history is long once it has grown by this factor since the server first suggested continue-as-new."""

LONGEST_HISTORY = (40_000, 40_000_000)
"""Events and bytes at which a history is long in any case: a fifth below the server's limits."""


class TurnWorld(TurnMail, World):
    """One run of a session: a turn, or the rest of one that rotated.

    Attributes:
        cancelled_by_runtime: Whether the machine cancelled the run: the messages that wait end as cancelled too.
        fails_workflow: Whether a turn that failed or was cancelled closes its workflow as Failed or Canceled.
        result: The result of the turn, once it has ended.
    """

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime)
        runtime.note_cancel = self._note_runtime_cancel
        self.cancelled_by_runtime = False
        self.fails_workflow = False
        self.result: TurnResult | None = None
        self._background: dict[str, RunningDelegate] = {}
        self._suggested_at: tuple[int, int] | None = None
        self._moved_from = ""

    async def run(self, asked: Continuation) -> TurnResult:
        """Run the turn, or the rest of one that rotated, and then the next if messages wait."""
        self._request = asked
        if asked.carried is None:
            opened = await self._open(asked)
            if isinstance(opened, TurnResult):
                return await self._go_on_with_queue(opened)
            self.story = Story(opened, self)
            if asked.replies:
                self.mail = input_requests.accept_first_replies(opened, self.mail, asked.replies, self.now)
                self.mail = messages.steer_prompt(self.mail, asked, self.request_id)
        else:
            carried = Carried.model_validate(asked.carried)
            self.story = Story(carried.turn, self, carried.place)
            self._moved_from = carried.moved_from
            origin = carried.turn.origin
            self.opened = Opened(turn=origin.turn, request_id=origin.request_id, last_turn=origin.turn)
            self.fails_workflow = origin.fails_workflow
            self.shown_state = visibility.state_shown(self.runtime)
            # Handlers may have run before this line: what they put into the mailbox is newer than what was carried.
            self.mail = carried.mail.followed_by(self.mail)
        if self.mail.paused is not None:
            self.deadline.hold("pause")
        self.deadline.watch(self._state)
        try:
            result = await self._commit(await self._open_story.run())
        finally:
            self.deadline.stop()
        return await self._go_on_with_queue(result)

    @property
    def stopped(self) -> bool:
        """Whether the turn was cancelled or its time is used up."""
        return self.mail.cancel is not None or self.deadline.past

    @property
    def now(self) -> datetime:
        """The clock of the runtime."""
        return self.runtime.now

    @property
    def _open_story(self) -> Story:
        assert self.story is not None, "the turn is open"  # noqa: S101 - narrows the type
        return self.story

    @property
    def _state(self) -> TurnState:
        return self._open_story.state

    async def _open(self, request: Continuation) -> TurnState | TurnResult:
        """Open the turn; a result instead of a state if the request is refused, or was carried out before."""
        self.opened = None
        self.mail = replace(self.mail, queued=(*request.queued, *self.mail.queued), paused=request.paused)
        if request.cancelled is not None:
            self.mail = stops.stop(self.mail, CancelRequest(reason=request.cancelled), self.now)
        opening = OpenTurn(
            session=self.runtime.session,
            request=replace(request, queued=(), cancelled=None, paused=None),
            request_id=request.request_id or self.runtime.run_id,
            run_started_at=self.runtime.started_at,
        )
        self.request_id = opening.request_id
        opened = await self._await_opened(opening)
        if not isinstance(opened, OpenedTurn):
            self.opened = Refused(failures.detail(opened, "runtime"))
            self.fails_workflow = failures.fails_workflow(opened)
            refused = failures.result_of_refusal(opening, self.opened.error)
            visibility.show_refusal(self.runtime, refused)
            return refused
        self.fails_workflow = opened.fails_workflow
        last_turn = max(opened.turn, opened.last_turn)
        self.opened = Opened(turn=opened.turn, request_id=opening.request_id, last_turn=last_turn)
        if opened.ended is not None:
            return opened.ended
        state = state_of(opening, opened, self.now)
        visibility.show_start(self.runtime, state)
        return state

    async def _await_opened(self, opening: OpenTurn) -> OpenedTurn | ActivityError:
        """Wait until the turn is open, also while it waits for a slot. A turn stopped meanwhile opens without one."""
        opening = replace(opening, stopped=self.stopped)
        running = self._start_opening(opening)
        await self._until(running.done)
        if not running.done() and not opening.stopped and self.runtime.patched("stop-before-opening"):
            running.cancel()
            await self.runtime.finish(running)
            # If the cancelled attempt did open the turn, this one finds it.
            running = self._start_opening(replace(opening, stopped=True))
        opened: OpenedTurn | ActivityError
        (opened,) = await self.runtime.finish(running)
        return opened

    def _start_opening(self, opening: OpenTurn) -> RunningActivity:
        return self.runtime.start(stubs.open_turn, opening, options.opening())

    def charge_ended(self, state: TurnState) -> TurnState:
        """The state charged for the background delegates that have ended."""
        for delegate in state.running:
            running = self._background[delegate.session]
            if running.done():
                state = delegates.mark_ended(state, delegate.session, running.outcome)
        return state

    async def generate(self, action: Generate) -> Generation | Failed:
        """Ask the model, in an activity."""
        visibility.show_action(self, action)
        summary, policy = visibility.generation_summary(self._state, action), self._state.policy
        running = self.runtime.start(stubs.generate, action, options.generation(policy), summary, policy.queue)
        (outcome,) = await self._settle([running], action.step)
        return outcome if isinstance(outcome, Generation) else failures.of_model(outcome)

    async def compact(self, action: Compact) -> Compacted | Failed:
        """Have the beginning of the conversation summarised, in an activity."""
        visibility.show_action(self, action)
        bounds, queue = options.generation(self._state.policy), self._state.policy.compaction_queue
        running = self.runtime.start(stubs.compact, action, bounds, visibility.compaction_summary(action), queue)
        (outcome,) = await self._settle([running], action.step)
        return outcome if isinstance(outcome, Compacted) else failures.of_model(outcome)

    async def run_hooks(self, action: RunHooks) -> HookResults | Failed:
        """Call hooks written in Python, in an activity."""
        visibility.show_action(self, action)
        (outcome,) = await self._settle([self._start_hooks(action)])
        return failures.of_hooks(outcome)

    def _start_hooks(self, action: RunHooks) -> RunningActivity:
        bounds = options.run_hooks(self._state.policy, action)
        return self.runtime.start(stubs.run_hooks, action, bounds, visibility.hooks_summary(action))

    async def ask(self, action: AskPeople) -> RecordedDecisions | Failed | None:
        """Write what the turn waits for, or what was decided, into the event log. A stop does not interrupt this."""
        visibility.show_action(self, action)
        asking = self.runtime.start(stubs.ask, action, options.bookkeeping(), visibility.asking_summary(action))
        outcome: RecordedDecisions | ActivityError | None
        (outcome,) = await self.runtime.finish(asking)
        if isinstance(outcome, ActivityError):  # a replay differs from its recording, or the store refuses
            return Failed(failures.detail(outcome, "people"))
        return outcome

    async def wait_for_people(self, action: WaitForPeople) -> timedelta:
        """Wait for a reply without an activity. The time budget does not count this wait."""
        visibility.show_action(self, action)
        self.deadline.hold("people")
        left = None if action.until is None else max(action.until - self.now, timedelta(0))

        def may_go_on() -> bool:
            stops = input_requests.stops(self.charge_ended(self._state), self.mail)  # once no delegate works beside it
            return bool(self.mail.replies) or self._may_rotate or stops

        await self._until(may_go_on, left)
        return self.deadline.release("people", self._state)

    async def wait_for_unpause(self, action: WaitForUnpause) -> None:
        """Wait for the end of the pause without an activity. The time budget does not count this wait."""
        visibility.show_action(self, action)
        await self._until_or_stop(lambda: self.mail.paused is None)

    async def wait(self, seconds: float) -> None:
        """Wait, in seconds, before the model reads that its last call failed."""
        await self._until_or_stop(lambda: False, timedelta(seconds=seconds))

    async def call_tools(self, action: CallTools) -> ToolResults:
        """Run the calls in parallel; the finished ones keep their results whatever happens to the others."""
        visibility.show_action(self, action)
        called, _ = delegates.next_batch(self._state)
        running = [self._start_tool(planned.tool, call) for planned, call in zip(called, action.calls, strict=True)]
        return failures.of_tools(called, await self._settle(running))

    def _start_tool(self, tool: str, call: CallTool) -> RunningActivity:
        policy = self._state.policy.tools.get(tool, ToolPolicy())
        bounds = options.tool_call(policy, self._state.lost_queues)
        queue = policy.task_queue or self._state.policy.tool_queue
        return self.runtime.start_tool(tool, call, bounds, visibility.tool_summary(call), queue)

    async def delegate(self, action: CallDelegates) -> list[delegates.End]:
        """Run the delegates in parallel, and wait until those of the foreground have ended.

        A stop cancels them. Their ends are returned all the same, so that the turn is charged for what they spent.
        """
        visibility.show_action(self, action)
        start = self.runtime.start_delegate
        waited = [start(asked) for asked in action.starts if not asked.call.background]
        beside = {asked.session: start(asked) for asked in action.starts if asked.call.background}
        self._background |= beside
        await self._until(
            lambda: _have_ended(waited) and all(running.begun or running.done() for running in beside.values())
        )
        if self.stopped and not _have_ended(waited):
            self._cancel_delegates(waited)
        ends = iter(await self.runtime.finish(*waited))
        return [None if asked.call.background else next(ends) for asked in action.starts]

    async def await_delegates(self, action: AwaitDelegates) -> ToolOutcome | None:
        """Wait for background delegates. A stop ends the wait, not the delegates: the turn's end cancels them."""
        visibility.show_action(self, action)
        awaited = [running for session in action.sessions if (running := self._background.get(session)) is not None]
        if action.ends:
            self._cancel_delegates(awaited)
            await self.runtime.finish(*awaited)
            return None
        if action.call is None:  # raised limits let the turn go on without
            await self._until_or_stop(
                lambda: any(running.done() for running in awaited) or not waits_for_grants(self._state)
            )
            return None
        await self._until_or_stop(lambda: _have_ended(awaited))
        state = self.charge_ended(self._state)
        collected, summary = delegates.collect(state, action), visibility.awaiting_summary(state, action)
        collecting = self.runtime.start(stubs.collect_delegates, collected, options.bookkeeping(), summary)
        outcome: ToolOutcome | ActivityError
        (outcome,) = await self._settle([collecting])
        if isinstance(outcome, ActivityError):
            return failed_outcome(action.call.call_id, failures.detail(outcome, action.call.tool))
        return outcome

    def _cancel_delegates(self, running: list[RunningDelegate]) -> None:
        if self.mail.cancel is not None:
            reason = self.mail.cancel.reason
        else:
            reason = "its caller's time is used up" if self.deadline.past else "its caller has ended"
        for delegate in running:
            delegate.cancel_turn(reason)

    async def _until(self, condition: Callable[[], bool], at_most: timedelta | None = None) -> None:
        """Wait until the condition holds, the turn is stopped, or the time ``at_most`` is over."""
        await self.runtime.wait(lambda: self.stopped or condition(), at_most)

    async def _until_or_stop(self, condition: Callable[[], bool], at_most: timedelta | None = None) -> None:
        """Wait as :meth:`_until` does. Raises :class:`Stopped` if the turn is stopped."""
        await self._until(condition, at_most)
        if self.stopped:
            raise Stopped

    async def _settle(self, running: list[RunningActivity], step: int | None = None) -> list[Any]:
        """Wait for activities, and return the result or the failure of each. A stop cancels them.

        A signal or the deadline only sets a value, which the wait reads.

        Raises:
            Stopped: The turn was stopped before all had a result; ``step`` is its aborted step.
        """
        await self._until(lambda: _have_ended(running))
        if self.stopped:
            for activity in running:
                activity.cancel()
        outcomes = await self.runtime.finish(*running)
        if self.stopped and any(isinstance(outcome, BaseException) for outcome in outcomes):
            raise Stopped(step)
        return outcomes

    def _note_runtime_cancel(self) -> None:
        self.cancelled_by_runtime = True
        self.mail = stops.stop(self.mail, CancelRequest(reason="cancelled through Temporal"), self.now)

    @property
    def _may_rotate(self) -> bool:
        """Whether a fresh history is due and no background delegate runs: a new run would not hear its end."""
        due = self.runtime.history.continue_as_new_suggested or self._may_move
        return due and self._have_all_ended()

    @property
    def _may_move(self) -> bool:
        """Whether the turn is to rotate because another version of the workers has become its target."""
        return self._state.origin.moves and self.runtime.has_another_target(self._moved_from)

    def _have_all_ended(self) -> bool:
        """Whether the workflow of every delegate that the state counts as running has ended."""
        return all(self._background[delegate.session].done() for delegate in self._state.running)

    def _has_grown_long(self) -> bool:
        """Whether the history nears the limit at which the server terminates the workflow."""
        now = self.runtime.history.events, self.runtime.history.size
        self._suggested_at = self._suggested_at or now
        longest = zip(now, self._suggested_at, LONGEST_HISTORY, strict=True)
        return any(reached >= min(GROWTH * first, most) for reached, first, most in longest)

    async def rotate_if_due(self, action: Generate | WaitForPeople) -> bool:
        """Go on in a fresh history if one is due, between two steps or while the turn waits for people.

        A new run would not hear the ends of background delegates. So a caller keeps its history while they run; once
        it is long, the caller waits for them first.

        Returns:
            True if the turn waited and goes on in this run, so that another action may be next.
        """
        suggested = self.runtime.history.continue_as_new_suggested
        if not (suggested or self._may_move):
            return False
        if not self._have_all_ended():
            if isinstance(action, WaitForPeople) or not suggested or not self._has_grown_long():
                return False
            visibility.show_action(self, delegates.await_one(self._state))
            await self._until_or_stop(self._have_all_ended)
            return True
        await self._until_or_stop(lambda: self.runtime.handlers_finished)
        return self._rotate("model" if isinstance(action, Generate) else "calls")

    def _rotate(self, place: Place) -> NoReturn:
        state = self.charge_ended(self._state)
        state = replace(state, waited=state.waited + self.deadline.settle())
        moves = state.origin.moves
        moved_from = self.runtime.version if moves else ""
        carried = Carried(turn=state, mail=self.mail, place=place, moved_from=moved_from)
        # The store has what is left out here. A request without an id goes by the id of its first run.
        request = replace(
            self._request,
            request_id=carried.turn.origin.request_id,
            queued=(),
            history=(),
            definition=None,
            context=None,
            files=(),
            carried=carried.model_dump(mode="json", exclude_defaults=True),
        )
        self.runtime.continue_as_new(request, on_newest=moves)

    async def _commit(self, action: CommitTurn) -> TurnResult:
        """Record the end. A cancel that comes now is too late to change it."""
        note_end(self._open_story, action)
        visibility.show_action(self, action)
        action = replace(action, history_bytes=self.runtime.history.size)
        committing = self.runtime.start(
            stubs.commit_turn, action, options.bookkeeping(), visibility.commit_summary(action)
        )
        result: TurnResult | ActivityError
        (result,) = await self.runtime.finish(committing)
        if isinstance(result, ActivityError):  # the store lost the turn, or cannot hold its end: no other place has it
            result = failures.result_of_lost_commit(self._state, action, failures.detail(result, "runtime"))
        visibility.show_end(self.runtime, self._state, result)
        last_hooks = hooks.at_the_end(self._state, action, result, self.now)
        if last_hooks is not None:  # they change nothing, not even by a failure
            await self.runtime.finish(self._start_hooks(last_hooks))
        return result

    async def _go_on_with_queue(self, result: TurnResult) -> TurnResult:
        """End the run with the result, or go on with the next turn when messages wait.

        No await stands between the last look at the queue and the end, so no message can slip between them.
        """
        self.result = result
        await self._finish_handlers()
        if self.fails_workflow and result.stop_reason is StopReason.CANCELLED and not self.mail.queued:
            await self._request_cancel()
        if self.cancelled_by_runtime:
            await self._drop_the_queue()
        elif self.mail.queued:
            self._next_turn(self.mail.queued)
        return result

    async def _request_cancel(self) -> None:
        """Request the cancel of this run, or it could not close as Canceled. Messages may come meanwhile.

        A server may refuse: the run then closes as Failed.
        """
        if not self.cancelled_by_runtime:
            await self.runtime.finish(self.runtime.start(stubs.close_as_canceled, None, options.bookkeeping()))
            await self._finish_handlers()

    async def finish_refused(self, error: ErrorDetail) -> None:
        """Refuse whatever was sent to a run whose input is not a request."""
        self.opened = Refused(error)
        await self._finish_handlers()

    async def _finish_handlers(self) -> None:
        """Wait until all handlers have finished. They wait for nothing but the turn's number."""
        while not self.runtime.handlers_finished:
            await self.runtime.wait(lambda: self.runtime.handlers_finished)

    def _next_turn(self, queued: tuple[QueuedMessage, ...]) -> NoReturn:
        first, *rest = queued
        origin = self.state.origin if self.state else None
        request = messages.request_of(
            first, store=origin.store if origin else "", tenant=origin.tenant if origin else ""
        )
        self.runtime.continue_as_new(replace(request, queued=tuple(rest), paused=self.mail.paused), on_newest=True)

    async def _drop_the_queue(self) -> None:
        """A cancel of the run ends it: give each waiting message its own turn, ended as cancelled."""
        while self.mail.queued:
            message, *rest = self.mail.queued
            self.mail = replace(self.mail, queued=tuple(rest))
            store = self.state.origin.store if self.state else ""
            opened = await self._open(
                Continuation(prompt=message.prompt, request_id=message.request_id, store=store, parts=message.parts)
            )
            if isinstance(opened, TurnState):
                self.story = Story(opened, self)
                await self._commit(await self.story.run())
            await self._finish_handlers()


def _have_ended(started: list[RunningActivity] | list[RunningDelegate]) -> bool:
    return all(running.done() for running in started)
