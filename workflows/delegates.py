"""Delegates as child workflows: each is a turn in its own session, started, awaited and cancelled by its caller.

If the child workflow closes without a result, the result is read from the store.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from datetime import timedelta

from temporalio import workflow
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import (
    ActivityError,
    ChildWorkflowError,
    FailureError,
    TerminatedError,
    WorkflowAlreadyStartedError,
    is_cancelled_exception,
)
from temporalio.exceptions import TimeoutError as RunTimeoutError

from perdure.contracts.budgets import Spent
from perdure.contracts.errors import ErrorDetail, ReasonCode
from perdure.contracts.names import AGENT_TURN, Signal
from perdure.contracts.tools import Delegated, PlannedCall, ToolOutcome
from perdure.contracts.turns import CancelRequest, CommitTurn, StopReason, TurnResult
from perdure.engine import delegates
from perdure.engine.calls import failed_outcome
from perdure.engine.delegates import AwaitDelegates, StartDelegate
from perdure.engine.limits import waits_for_grants
from perdure.engine.state import TurnState
from perdure.workflows import failures, options, stubs, visibility

ASKED_AGAIN = timedelta(seconds=1)
"""Wait before a delegate whose session is still busy is started again; it doubles each time."""

LONGEST_WAIT = timedelta(minutes=5)
"""Upper bound of that wait. It may last days, and each start adds events to the caller's history."""


async def account_for(start: StartDelegate) -> TurnResult | None:
    """Commit the turn of a delegate whose workflow Temporal ended, and return its result; None if it never began.

    A turn that is committed already keeps its result. The turn is number 1: a delegate's session has no other.
    """
    commit = CommitTurn(
        session=start.session,
        store=start.request.store,
        turn=1,
        tip="",
        stop_reason=StopReason.ERROR,
        steps=0,
        spent=Spent(),
        delegated=start.request.delegated,
        abandoned=True,
    )
    try:
        return await workflow.execute_activity(
            stubs.commit_turn, commit, summary=f"{start.call.tool}: ended by Temporal", **options.bookkeeping()
        )
    except ActivityError:
        return None


Handle = workflow.ChildWorkflowHandle[object, TurnResult]


class Children:
    """Child workflows of delegates that run at the same time.

    If their caller is terminated, Temporal cancels them (its parent close policy). If it is stopped, it signals them:
    they then end with a result, and the caller is charged for what they spent.
    """

    def __init__(self, starts: Sequence[StartDelegate]) -> None:
        self._handles: list[Handle] = []
        self._reason: str | None = None
        self._signals: list[asyncio.Task[None]] = []
        self.begun = not starts
        self.running = [asyncio.create_task(self._carry_out(start)) for start in starts]

    @property
    def ended(self) -> bool:
        """Whether all of the delegates have ended."""
        return all(task.done() for task in self.running)

    def cancel(self, reason: str) -> None:
        """Signal every delegate to end as cancelled, as soon as it has started."""
        self._reason = reason
        self._signals += [asyncio.create_task(self._send_cancel(handle)) for handle in self._handles]

    async def results(self) -> list[TurnResult | ErrorDetail]:
        """Wait until all delegates have ended; the result of each, or why it has none, in the order of the starts."""
        ended = await asyncio.gather(*self.running)
        await asyncio.gather(*self._signals)
        return list(ended)

    async def _carry_out(self, start: StartDelegate) -> TurnResult | ErrorDetail:
        handle = await self._start(start)
        self.begun = True
        self._handles.append(handle)
        if self._reason is not None:
            await self._send_cancel(handle)
        try:
            return await handle
        except ChildWorkflowError as error:
            return failures.result_in(error.cause) or await account_for(start) or _lost(_why(error))

    async def _start(self, start: StartDelegate) -> Handle:
        """Start a delegate.

        After a reset of the caller the delegate of the reset run may still work. Then wait until that one has ended:
        a start with the same request finds its result.
        """
        wait = ASKED_AGAIN
        while True:
            try:
                return await workflow.start_child_workflow(
                    AGENT_TURN,
                    start.request,
                    id=start.session,
                    result_type=TurnResult,
                    parent_close_policy=workflow.ParentClosePolicy.REQUEST_CANCEL,
                    id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
                    static_summary=visibility.delegate_summary(start.call),
                    memo=_memo(start.request.delegated),
                )
            except WorkflowAlreadyStartedError:
                wait = await self._wait_to_start_again(start, wait)

    async def _wait_to_start_again(self, start: StartDelegate, wait: timedelta) -> timedelta:
        """Wait before the delegate is started again, and say how long to wait the next time."""
        self.begun = True
        stopped = self._reason is not None
        if stopped:
            await self._send_cancel(workflow.get_external_workflow_handle(start.session))
        with contextlib.suppress(TimeoutError):
            await workflow.wait_condition(lambda: self._reason is not None and not stopped, timeout=wait)
        return ASKED_AGAIN if self._reason is not None else min(2 * wait, LONGEST_WAIT)

    async def _send_cancel(self, handle: Handle | workflow.ExternalWorkflowHandle[object]) -> None:
        with contextlib.suppress(FailureError):  # it has ended meanwhile
            await handle.signal(Signal.CANCEL, CancelRequest(reason=self._reason or ""))


class Background:
    """The background delegates of a turn, by session."""

    def __init__(self) -> None:
        self._children: dict[str, Children] = {}

    def start(self, starts: Sequence[StartDelegate]) -> None:
        """Start delegates in the background."""
        self._children |= {start.session: Children((start,)) for start in starts}

    def have_begun(self, starts: Sequence[StartDelegate]) -> bool:
        """Whether each delegate's workflow has started, or failed to start."""
        children = [self._children[start.session] for start in starts]
        return all(child.begun or child.ended for child in children)

    def has_come(self, state: TurnState, action: AwaitDelegates) -> bool:
        """Whether the wait is over.

        A call of the model waits until all its delegates have ended. Without one the turn waits until any has ended,
        or until raised limits let it go on without.
        """
        ends = [child.ended for session in action.sessions if (child := self._children.get(session)) is not None]
        return all(ends) if action.call is not None else any(ends) or not waits_for_grants(state)

    def have_all_ended(self, state: TurnState) -> bool:
        """Whether the workflow of every delegate that the state counts as running has ended."""
        return all(self._children[delegate.session].ended for delegate in state.running)

    async def cancel(self, action: AwaitDelegates, reason: str) -> None:
        """Signal delegates to end as cancelled, and wait until they have ended."""
        for session in action.sessions:
            self._children[session].cancel(reason)
        for session in action.sessions:
            await self._children[session].results()

    def charge(self, state: TurnState) -> TurnState:
        """The state charged for the delegates that have ended since the last call."""
        for delegate in state.running:
            child = self._children[delegate.session]
            if child.ended:
                state = delegates.mark_ended(state, delegate.session, child.running[0].result())
        return state


def collect(state: TurnState, action: AwaitDelegates) -> workflow.ActivityHandle[ToolOutcome]:
    """Start the activity that writes the delegates' results as the result of the call that waited for them."""
    return workflow.start_activity(
        stubs.collect_delegates,
        delegates.collect(state, action),
        summary=visibility.awaiting_summary(state, action),
        **options.bookkeeping(),
    )


def read_outcome(call: PlannedCall, outcome: ToolOutcome | BaseException) -> ToolOutcome | None:
    """The outcome of that call, or an error if it could not be written; None if the activity was cancelled."""
    if isinstance(outcome, ActivityError) and not is_cancelled_exception(outcome):
        return failed_outcome(call.call_id, failures.detail(outcome, call.tool))
    return outcome if isinstance(outcome, ToolOutcome) else None


def _memo(delegated: Delegated | None) -> dict[str, str] | None:
    if delegated is None:
        return None
    return {"perdure_parent": delegated.session, "perdure_call": delegated.call_id, "perdure_root": delegated.root}


def _lost(what: str) -> ErrorDetail:
    return ErrorDetail(code=ReasonCode.TOOL_DELEGATE_FAILED, title="delegate", message=what)


def _why(error: ChildWorkflowError) -> str:
    cause = error.cause
    if cause is not None and is_cancelled_exception(cause):
        return "was cancelled through Temporal"
    if isinstance(cause, TerminatedError):
        return "was terminated; what it did is in its session"
    if isinstance(cause, RunTimeoutError):
        return "timed out; what it did is in its session"
    return f"failed: {cause or error}"[:1_000]
