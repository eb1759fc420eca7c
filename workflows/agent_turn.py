"""The workflow of a turn: it opens the turn, runs :func:`perdure.engine.turn.run_turn`, and commits its end.

It is the engine's ``World`` on Temporal: whatever the engine asks for is an activity, a timer or a child workflow here.
What it may import is in the architecture page; it reads no clock but Temporal's and draws no random number.

Long, because a turn's beginning, its world and its close share what came in and how far the turn is.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, NoReturn, TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, CancelledError, is_cancelled_exception

from perdure.contracts.generations import Compact, Compacted, Generate, Generation
from perdure.contracts.hooks import HookResults, RunHooks
from perdure.contracts.input_requests import AskPeople
from perdure.contracts.names import AGENT_TURN, RESULT_MEMO, TURN_CANCELLED
from perdure.contracts.recordings import RecordedDecisions
from perdure.contracts.tools import CallTool, ToolOutcome, ToolPolicy
from perdure.contracts.turns import (
    CancelRequest,
    CommitTurn,
    Continuation,
    OpenedTurn,
    OpenTurn,
    QueuedMessage,
    StopReason,
    TurnResult,
)
from perdure.contracts.values import JsonValue, replace
from perdure.engine import delegates, hooks, input_requests, limits, messages
from perdure.engine.calls import CallTools, ToolResults
from perdure.engine.delegates import AwaitDelegates, CallDelegates
from perdure.engine.generation import Failed
from perdure.engine.input_requests import WaitForPeople
from perdure.engine.state import Carried, Place, TurnState
from perdure.engine.turn import Turn, note_end, run_turn, state_of
from perdure.engine.world import WaitForUnpause
from perdure.workflows import failures, options, stubs, versions, visibility
from perdure.workflows.delegates import Background, Children, collect, read_outcome
from perdure.workflows.handlers import Handlers, Opened, Refused, read_input, unreadable

GROWTH = 8
"""A history is long once it has grown by this factor since the server first suggested continue-as-new."""

LONGEST_HISTORY = (40_000, 40_000_000)
"""Events and bytes at which a history is long in any case: a fifth below the server's limits."""

Running = workflow.ActivityHandle[Any]

Result = TypeVar("Result")


@workflow.defn(name=AGENT_TURN)
class AgentTurn(Handlers):
    """One turn of an agent in the session that the workflow id names.

    Its input is a :class:`TurnRequest`, its result a :class:`TurnResult`. Input that is no request fails the
    workflow. Everything after that, refused agents and failed models included, completes it with a result, unless
    ``PERDURE_FAIL_WORKFLOWS`` has errors close it as Failed and cancels as Canceled. Temporal's own cancel closes it as
    Canceled in any case.
    """

    @workflow.init
    def __init__(self, *_: JsonValue) -> None:
        super().__init__()
        self._cancelled_by_temporal = False
        self._fails_workflow = False
        self._background = Background()
        self._suggested_at: tuple[int, int] | None = None
        self._moved_from = ""

    @workflow.run
    async def run(self, *given: JsonValue) -> TurnResult:
        """Run the turn, or the rest of one that rotated, and then the next if messages wait."""
        try:
            self._request = asked = _parse(given)
        except ApplicationError as error:
            self.opened = Refused(error.details[0])
            await self._finish_handlers()
            raise
        if asked.carried is None:
            opened = await self._open(asked)
            if isinstance(opened, TurnResult):
                return await self._go_on_with_queue(opened)
            self.turn = Turn(opened)
            if asked.reply is not None:
                self.mail = input_requests.accept_first_reply(opened, self.mail, asked.reply, workflow.now())
        else:
            carried = Carried.model_validate(asked.carried)
            self.turn = Turn(carried.turn, carried.place)
            self._moved_from = carried.moved_from
            origin = carried.turn.origin
            self.opened = Opened(turn=origin.turn, request_id=origin.request_id, last_turn=origin.turn)
            self._fails_workflow = origin.fails_workflow
            self.shown_state = visibility.state_shown()
            # Handlers may have run before this line: what they put into the mailbox is newer than what was carried.
            self.mail = carried.mail.followed_by(self.mail)
        if self.mail.paused is not None:
            self._deadline.hold("pause")
        self._deadline.watch(self._state)
        try:
            result = await self._commit(await run_turn(self._turn, self))
        finally:
            self._deadline.stop()
        return await self._go_on_with_queue(result)

    @property
    def stopped(self) -> bool:
        """Whether the turn was cancelled or its time is used up."""
        return self.mail.cancel is not None or self._deadline.past

    @property
    def now(self) -> datetime:
        """Temporal's clock."""
        return workflow.now()

    @property
    def _turn(self) -> Turn:
        assert self.turn is not None, "the turn is open"  # noqa: S101 - narrows the type
        return self.turn

    @property
    def _state(self) -> TurnState:
        return self._turn.state

    async def _open(self, request: Continuation) -> TurnState | TurnResult:
        """Open the turn; a result instead of a state if the request is refused, or was carried out before."""
        info = workflow.info()
        self.opened = None
        self.mail = replace(self.mail, queued=(*request.queued, *self.mail.queued), paused=request.paused)
        if request.cancelled is not None:
            self.mail = limits.stop(self.mail, CancelRequest(reason=request.cancelled), workflow.now())
        opening = OpenTurn(
            session=info.workflow_id,
            request=replace(request, queued=(), cancelled=None, paused=None),
            request_id=request.request_id or info.run_id,
            run_started_at=info.start_time,
        )
        self.request_id = opening.request_id
        try:
            opened = await self._await_opened(opening)
        except ActivityError as error:
            self.opened = Refused(failures.detail(error, "runtime"))
            self._fails_workflow = failures.fails_workflow(error)
            refused = failures.result_of_refusal(opening, self.opened.error)
            visibility.show_refusal(refused)
            return refused
        self._fails_workflow = opened.fails_workflow
        last_turn = max(opened.turn, opened.last_turn)
        self.opened = Opened(turn=opened.turn, request_id=opening.request_id, last_turn=last_turn)
        if opened.ended is not None:
            return opened.ended
        state = state_of(opening, opened, workflow.now())
        visibility.show_start(state)
        return state

    async def _await_opened(self, opening: OpenTurn) -> OpenedTurn:
        """Wait until the turn is open, also while it waits for a slot. A turn stopped meanwhile opens without one."""
        opening = replace(opening, stopped=self.stopped)
        running = workflow.start_activity(stubs.open_turn, opening, **options.opening())
        await self._until(running.done)
        if not running.done() and not opening.stopped and workflow.patched("stop-before-opening"):
            running.cancel()
            await self._await_fully(asyncio.gather(running, return_exceptions=True))
            # If the cancelled attempt did open the turn, this one finds it.
            stopped = replace(opening, stopped=True)
            running = workflow.start_activity(stubs.open_turn, stopped, **options.opening())
        return await self._await_fully(running)

    def hear_delegates(self) -> None:
        """Charge the turn for the background delegates that have ended."""
        self._turn.state = self._background.charge(self._state)

    async def generate(self, action: Generate) -> Generation | Failed | None:
        """Ask the model, in an activity."""
        visibility.show_action(self, action)
        running = workflow.start_activity(
            stubs.generate,
            action,
            summary=visibility.generation_summary(self._state, action),
            task_queue=self._state.policy.queue,
            **options.generation(self._state.policy),
        )
        (outcome,) = await self._settle([running])
        return outcome if isinstance(outcome, Generation) else self._failed_model(outcome)

    async def compact(self, action: Compact) -> Compacted | Failed | None:
        """Have the beginning of the conversation summarised, in an activity."""
        visibility.show_action(self, action)
        running = workflow.start_activity(
            stubs.compact,
            action,
            summary=visibility.compaction_summary(action),
            task_queue=self._state.policy.compaction_queue,
            **options.generation(self._state.policy),
        )
        (outcome,) = await self._settle([running])
        return outcome if isinstance(outcome, Compacted) else self._failed_model(outcome)

    def _failed_model(self, outcome: ActivityError) -> Failed | None:
        return None if self.stopped else failures.of_model(outcome)

    async def run_hooks(self, action: RunHooks) -> HookResults | Failed | None:
        """Call hooks written in Python, in an activity."""
        visibility.show_action(self, action)
        (outcome,) = await self._settle([self._start_hooks(action)])
        return None if self.stopped else failures.of_hooks(outcome)

    def _start_hooks(self, action: RunHooks) -> workflow.ActivityHandle[HookResults]:
        return workflow.start_activity(
            stubs.run_hooks,
            action,
            summary=visibility.hooks_summary(action),
            **options.run_hooks(self._state.policy, action),
        )

    async def ask(self, action: AskPeople) -> RecordedDecisions | Failed | None:
        """Write what the turn waits for, or what was decided, into the event log. A stop does not interrupt this."""
        visibility.show_action(self, action)
        asking = workflow.start_activity(
            stubs.ask, action, summary=visibility.asking_summary(action), **options.bookkeeping()
        )
        try:
            return await self._await_fully(asking)
        except ActivityError as error:  # a replay differs from its recording, or the store refuses
            return Failed(failures.detail(error, "people"))

    async def wait_for_people(self, action: WaitForPeople) -> timedelta:
        """Wait for a reply without an activity. The time budget does not count this wait."""
        visibility.show_action(self, action)
        self._deadline.hold("people")
        left = None if action.until is None else max(action.until - workflow.now(), timedelta(0))
        await self._until(lambda: bool(self.mail.replies) or self._may_rotate, left)
        return self._deadline.release("people", self._state)

    async def wait_for_unpause(self, action: WaitForUnpause) -> None:
        """Wait for the end of the pause without an activity. The time budget does not count this wait."""
        visibility.show_action(self, action)
        await self._until(lambda: self.mail.paused is None)

    async def wait(self, seconds: float) -> None:
        """Wait, in seconds, before the model reads that its last call failed. A stop ends the wait."""
        await self._until(lambda: False, timedelta(seconds=seconds))

    async def call_tools(self, action: CallTools) -> ToolResults | None:
        """Run the calls in parallel; the finished ones keep their results whatever happens to the others."""
        visibility.show_action(self, action)
        called, _ = delegates.next_batch(self._state)
        running = [self._start(planned.tool, call) for planned, call in zip(called, action.calls, strict=True)]
        settled = await self._settle(running)
        return None if self.stopped else failures.of_tools(called, settled)

    async def delegate(self, action: CallDelegates) -> list[delegates.End]:
        """Run the delegates in parallel, and wait until those of the foreground have ended.

        A stop cancels them. Their ends are returned all the same, so that the turn is charged for what they spent.
        """
        visibility.show_action(self, action)
        children = Children([start for start in action.starts if not start.call.background])
        self._background.start(beside := [start for start in action.starts if start.call.background])
        await self._until(lambda: children.ended and self._background.have_begun(beside))
        if self.stopped and not children.ended:
            children.cancel(self._why_stopped)
        waited = iter(await self._await_fully(asyncio.ensure_future(children.results())))
        return [None if start.call.background else next(waited) for start in action.starts]

    async def await_delegates(self, action: AwaitDelegates) -> ToolOutcome | None:
        """Wait for background delegates. A stop ends the wait, not the delegates: the turn's end cancels them."""
        visibility.show_action(self, action)
        if action.ends:
            ends = self._background.cancel(action, self._why_stopped)
            await self._await_fully(asyncio.ensure_future(ends))
        else:
            await self._until(lambda: self._background.has_come(self._state, action))
        self.hear_delegates()
        if action.call is None or self.stopped:
            return None
        (outcome,) = await self._settle([collect(self._state, action)])
        return read_outcome(action.call, outcome)

    async def _until(self, condition: Callable[[], bool], at_most: timedelta | None = None) -> None:
        """Wait until the condition holds, the turn is stopped, or the time ``at_most`` is over."""
        with contextlib.suppress(TimeoutError):
            try:
                await workflow.wait_condition(lambda: self.stopped or condition(), timeout=at_most)
            except asyncio.CancelledError:
                self._note_temporal_cancel()

    def _start(self, tool: str, call: CallTool) -> Running:
        policy = self._state.policy.tools.get(tool, ToolPolicy())
        return workflow.start_activity(
            tool,
            call,
            result_type=ToolOutcome,
            task_queue=policy.task_queue or self._state.policy.tool_queue,
            summary=visibility.tool_summary(call),
            **options.tool_call(policy, self._state.lost_queues),
        )

    @property
    def _why_stopped(self) -> str:
        """The reason that delegates are given when they are cancelled with the turn."""
        if self.mail.cancel is not None:
            return self.mail.cancel.reason
        return "its caller's time is used up" if self._deadline.past else "its caller has ended"

    async def _settle(self, running: list[Running]) -> list[Any]:
        """Wait for activities, and return the result or the failure of each. A stop cancels them.

        A signal or the deadline only sets a value, which the wait reads. A result in the same activation as the cancel
        gets lost behind asyncio's own ``CancelledError``; the commit finds it in the store.
        """
        await self._until(lambda: all(handle.done() for handle in running))
        if self.stopped:
            for handle in running:
                handle.cancel()
        settled = await self._await_fully(asyncio.gather(*running, return_exceptions=True))
        for outcome in settled:
            expected = isinstance(outcome, ActivityError) or is_cancelled_exception(outcome)
            if isinstance(outcome, BaseException) and not expected:
                raise outcome
        return list(settled)

    async def _await_fully(self, future: "asyncio.Future[Result]") -> "Result":
        """Await a future to its end. A cancel by Temporal meanwhile is noted like the cancel signal, not raised."""
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            self._note_temporal_cancel()
            return await future

    def _note_temporal_cancel(self) -> None:
        if workflow.cancellation_reason() == TURN_CANCELLED:  # this run requested it itself, to close as Canceled
            return
        self._cancelled_by_temporal = True
        self.mail = limits.stop(self.mail, CancelRequest(reason="cancelled through Temporal"), workflow.now())

    @property
    def _may_rotate(self) -> bool:
        """Whether a fresh history is due and no background delegate runs: a new run would not hear its end."""
        due = workflow.info().is_continue_as_new_suggested() or self._may_move
        return due and self._background.have_all_ended(self._state)

    @property
    def _may_move(self) -> bool:
        """Whether the turn is to rotate because another version of the workers has become its target."""
        return self._state.origin.moves and versions.is_another_target(self._moved_from)

    def _has_grown_long(self) -> bool:
        """Whether the history nears the limit at which the server terminates the workflow.

        By default a server suggests continue-as-new at 4,096 events or 4 MB, and terminates at 51,200 events or 50 MB.
        """
        info = workflow.info()
        now = info.get_current_history_length(), info.get_current_history_size()
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
        suggested = workflow.info().is_continue_as_new_suggested()
        if not (suggested or self._may_move):
            return False
        if not self._background.have_all_ended(self._state):
            if isinstance(action, WaitForPeople) or not suggested or not self._has_grown_long():
                return False
            visibility.show_action(self, delegates.await_one(self._state))
            await self._until(lambda: self._background.have_all_ended(self._state))
            return True
        await self._finish_handlers()
        if not self.stopped:
            self._rotate("model" if isinstance(action, Generate) else "calls")
        return True

    def _rotate(self, place: Place) -> NoReturn:
        state = self._background.charge(self._state)
        state = replace(state, waited=state.waited + self._deadline.settle())
        moves = state.origin.moves
        moved_from = versions.own_version() if moves else ""
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
        workflow.continue_as_new(request, initial_versioning_behavior=versions.newest() if moves else None)

    async def _commit(self, action: CommitTurn) -> TurnResult:
        """Record the end. A cancel that comes now is too late to change it."""
        note_end(self._turn, self, action)
        visibility.show_action(self, action)
        action = replace(action, history_bytes=workflow.info().get_current_history_size())
        committing = workflow.start_activity(
            stubs.commit_turn, action, summary=visibility.commit_summary(action), **options.bookkeeping()
        )
        try:
            result = await self._await_fully(committing)
        except ActivityError as error:  # the store lost the turn, or cannot hold its end: only Temporal has this result
            result = failures.result_of_lost_commit(self._state, action, failures.detail(error, "runtime"))
        visibility.show_end(self._state, result)
        last_hooks = hooks.at_the_end(self._state, action, result, workflow.now())
        if last_hooks is not None:
            with contextlib.suppress(ActivityError):  # they change nothing, not even by a failure
                await self._await_fully(self._start_hooks(last_hooks))
        return result

    async def _go_on_with_queue(self, result: TurnResult) -> TurnResult:
        """End the run with the result, or go on with the next turn when messages wait.

        No await stands between the last look at the queue and the end, so no message can slip between them.
        """
        await self._finish_handlers()
        if self._fails_workflow and result.stop_reason is StopReason.CANCELLED and not self.mail.queued:
            await self._request_cancel()
        if self._cancelled_by_temporal:
            await self._drop_the_queue()
        elif self.mail.queued:
            self._next_turn(self.mail.queued)
        return self._close(result)

    async def _request_cancel(self) -> None:
        """Request Temporal's cancel of this run, or it could not close as Canceled. Messages may come meanwhile."""
        if self._cancelled_by_temporal:
            return
        asking = workflow.start_activity(stubs.close_as_canceled, **options.bookkeeping())
        with contextlib.suppress(ActivityError):  # refused by the server: the run then closes as Failed
            await self._await_fully(asking)
        await self._finish_handlers()

    def _close(self, result: TurnResult) -> TurnResult:
        """The result, if the run closes as Completed.

        Raises:
            CancelledError: It closes as Canceled.
            ApplicationError: It closes as Failed, with the result among the failure's details.
        """
        fails = self._fails_workflow and result.stop_reason in {StopReason.ERROR, StopReason.CANCELLED}
        requested = workflow.cancellation_reason() is not None and result.stop_reason is StopReason.CANCELLED
        if self._cancelled_by_temporal or (fails and requested):
            if self._fails_workflow:
                workflow.upsert_memo({RESULT_MEMO: failures.for_memo(result)})
            raise CancelledError(result.error or "Operation aborted")
        if fails:
            raise failures.of_turn(result)
        return result

    async def _finish_handlers(self) -> None:
        """Wait until all handlers have finished. They wait for nothing but the turn's number."""
        if not workflow.all_handlers_finished():
            finished = workflow.wait_condition(workflow.all_handlers_finished)
            await self._await_fully(asyncio.ensure_future(finished))

    def _next_turn(self, queued: tuple[QueuedMessage, ...]) -> NoReturn:
        first, *rest = queued
        origin = self.state.origin if self.state else None
        request = messages.request_of(
            first, store=origin.store if origin else "", tenant=origin.tenant if origin else ""
        )
        asked = replace(request, queued=tuple(rest), paused=self.mail.paused)
        workflow.continue_as_new(asked, initial_versioning_behavior=versions.newest())

    async def _drop_the_queue(self) -> None:
        """Temporal's cancel ends the execution: give each waiting message its own turn, ended as cancelled."""
        while self.mail.queued:
            message, *rest = self.mail.queued
            self.mail = replace(self.mail, queued=tuple(rest))
            store = self.state.origin.store if self.state else ""
            opened = await self._open(
                Continuation(prompt=message.prompt, request_id=message.request_id, store=store, parts=message.parts)
            )
            if isinstance(opened, TurnState):
                self.turn = Turn(opened)
                await self._commit(await run_turn(self.turn, self))
            await self._finish_handlers()


def _parse(given: Sequence[JsonValue]) -> Continuation:
    """Read the input. Fields that only perdure sends are taken from the run before this one, or a delegate's caller."""
    what, send = "turn request", '{"agent": "name", "prompt": "text"}'
    asked = read_input(given, Continuation, what=what, send=send)
    info, delegated = workflow.info(), asked.delegated
    caller = info.parent.workflow_id if info.parent is not None else None
    ours = info.continued_run_id is not None or (delegated is not None and delegated.session == caller)
    if asked.own_fields and not ours:
        raise unreadable(f"{asked.own_fields[0]}: only perdure itself sends it", what=what, send=send)
    return asked
