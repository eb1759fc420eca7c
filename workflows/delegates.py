"""Delegates as child workflows: each is a turn in its own session, started, awaited and cancelled by its caller.

If the child workflow closes without a result, the result is read from the store.
"""

import asyncio
import contextlib
from collections.abc import Generator
from datetime import timedelta
from typing import Any

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
from perdure.contracts.tools import Delegated
from perdure.contracts.turns import CancelRequest, CommitTurn, StopReason, TurnResult
from perdure.engine.delegates import StartDelegate
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


class ChildTurn:
    """The child workflow of a delegate.

    If its caller is terminated, Temporal cancels it (its parent close policy). If its caller is stopped, it is
    signalled: it then ends with a result, and the caller is charged for what it spent.
    """

    def __init__(self, start: StartDelegate) -> None:
        self._start = start
        self._handle: Handle | None = None
        self._reason: str | None = None
        self._signals: list[asyncio.Task[None]] = []
        self.begun = False
        self._running = asyncio.create_task(self._carry_out())

    def __await__(self) -> Generator[Any, None, TurnResult | ErrorDetail]:
        """Wait until the delegate has ended and has been sent what it was to be sent."""
        return self._end().__await__()

    def done(self) -> bool:
        """Whether the delegate has ended."""
        return self._running.done()

    @property
    def outcome(self) -> TurnResult | ErrorDetail:
        """The result of the delegate that has ended, or why it has none."""
        return self._running.result()

    def cancel_turn(self, reason: str) -> None:
        """Signal the delegate to end as cancelled, as soon as it has started."""
        self._reason = reason
        if self._handle is not None:
            self._signals.append(asyncio.create_task(self._send_cancel(self._handle)))

    async def _end(self) -> TurnResult | ErrorDetail:
        outcome = await self._running
        await asyncio.gather(*self._signals)
        return outcome

    async def _carry_out(self) -> TurnResult | ErrorDetail:
        handle = await self._start_child()
        self.begun = True
        if handle is None:
            return _lost("did not start: its session's id is taken by a workflow that this call has not started")
        self._handle = handle
        if self._reason is not None:
            await self._send_cancel(handle)
        try:
            return await handle
        except ChildWorkflowError as error:
            return failures.result_in(error.cause) or await account_for(self._start) or _lost(_why(error))

    async def _start_child(self) -> Handle | None:
        """Start the child workflow; None if a stranger has its id.

        After a reset of the caller the delegate of the reset run may still work. Then wait until that one has ended:
        a start with the same request finds its result.
        """
        start, wait = self._start, ASKED_AGAIN
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
                if workflow.patched("strange-delegate") and await _is_strange(start):
                    return None
                wait = await self._wait_to_start_again(wait)

    async def _wait_to_start_again(self, wait: timedelta) -> timedelta:
        """Wait before the delegate is started again, and say how long to wait the next time."""
        self.begun = True
        stopped = self._reason is not None
        if stopped:
            await self._send_cancel(workflow.get_external_workflow_handle(self._start.session))
        with contextlib.suppress(TimeoutError):
            await workflow.wait_condition(lambda: self._reason is not None and not stopped, timeout=wait)
        return ASKED_AGAIN if self._reason is not None else min(2 * wait, LONGEST_WAIT)

    async def _send_cancel(self, handle: Handle | workflow.ExternalWorkflowHandle[object]) -> None:
        with contextlib.suppress(FailureError):  # it has ended meanwhile
            await handle.signal(Signal.CANCEL, CancelRequest(reason=self._reason or ""))


async def _is_strange(start: StartDelegate) -> bool:
    """Whether the open workflow of a delegate's id is not a child of the delegate's caller."""
    parent = await workflow.execute_activity(
        stubs.find_parent, start.session, summary=start.call.tool, **options.bookkeeping()
    )
    return parent is not None and parent != workflow.info().workflow_id


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
