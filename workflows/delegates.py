"""Delegates as child workflows: each is a turn in its own session, started, waited for and cancelled by its caller."""

import asyncio
import contextlib
from collections.abc import Sequence

from temporalio import workflow
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import (
    ChildWorkflowError,
    FailureError,
    TerminatedError,
    WorkflowAlreadyStartedError,
    is_cancelled_exception,
)
from temporalio.exceptions import TimeoutError as RunTimeoutError

from perdure.contracts.delegates import Delegated
from perdure.contracts.errors import ErrorDetail, ReasonCode
from perdure.contracts.names import AGENT_TURN, Signal
from perdure.contracts.turns import CancelRequest, TurnResult
from perdure.engine.delegates import StartDelegate
from workflows import visibility

Handle = workflow.ChildWorkflowHandle[object, TurnResult]


class Children:
    """Some delegates that run at the same time.

    A caller that is terminated has Temporal cancel them. One that is stopped signals them: they then end with a result,
    so that what they used is charged.
    """

    def __init__(self, starts: Sequence[StartDelegate]) -> None:
        self._handles: list[Handle] = []
        self._reason: str | None = None
        self._signals: list[asyncio.Task[None]] = []
        self.running = [asyncio.create_task(self._carried_out(start)) for start in starts]

    @property
    def ended(self) -> bool:
        """Whether all of them have."""
        return all(one.done() for one in self.running)

    def cancel(self, reason: str) -> None:
        """Ask all of them to end as cancelled, also those that are just being started."""
        self._reason = reason
        self._signals += [asyncio.create_task(self._tell(handle)) for handle in self._handles]

    async def results(self) -> list[TurnResult | ErrorDetail]:
        """What each has come to, once all have ended: its result, or why there is none."""
        ended = await asyncio.gather(*self.running)
        await asyncio.gather(*self._signals)
        return list(ended)

    async def _carried_out(self, start: StartDelegate) -> TurnResult | ErrorDetail:
        try:
            handle: Handle = await workflow.start_child_workflow(
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
            return _lost("runs already, for a caller that is gone")
        self._handles.append(handle)
        if self._reason is not None:
            await self._tell(handle)
        try:
            return await handle
        except ChildWorkflowError as error:
            return _lost(_why(error))

    async def _tell(self, handle: Handle) -> None:
        with contextlib.suppress(FailureError):  # it has ended meanwhile
            await handle.signal(Signal.CANCEL, CancelRequest(reason=self._reason or ""))


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
