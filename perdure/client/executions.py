"""The Temporal side of a session: which run is current, what it was asked, how it closed. No store here."""

import asyncio
import contextlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import temporalio.client
from pydantic import ValidationError
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest, GetWorkflowExecutionHistoryRequest
from temporalio.client import (
    WorkflowContinuedAsNewError,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowQueryFailedError,
    WorkflowQueryRejectedError,
)
from temporalio.common import QueryRejectCondition
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    CancelledError,
    ChildWorkflowError,
    FailureError,
    TerminatedError,
)
from temporalio.exceptions import TimeoutError as WorkflowTimeoutError
from temporalio.service import RPCError, RPCStatusCode

from perdure.client.connect import is_away, is_missing, pollers_of, rpc_errors, unless_missing
from perdure.client.errors import (
    NoWorkerError,
    RequestRefusedError,
    ServerRefusedError,
    ServerUnreachableError,
    SessionBusyError,
    WrongTurnError,
)
from perdure.client.patience import PAUSE, call_patiently
from perdure.client.unopened import is_failing
from perdure.client.updates import NotTakenError, UpdateRefusedError, send_again, send_update
from perdure.client.versions import POLLER_AGE
from perdure.contracts.errors import ReasonCode
from perdure.contracts.names import AGENT_TURN, Query, Signal, Update
from perdure.contracts.turns import BudgetStatus, CancelReceipt, CancelRequest, Continuation, TurnResult, TurnStatus

_Told = TypeVar("_Told")

CANCEL_TIMEOUT = 5.0
"""Seconds that a worker may take to say which turn runs, before a cancel is left to it as a signal."""

QUERY_TIMEOUT = timedelta(seconds=5)
"""Longest time for a worker to answer a query; a turn that no worker holds cannot answer."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """The newest run of a session's workflow id.

    Attributes:
        request_id: The id of the request whose turn the run carries out.
        priority: From 1, the most urgent, to 5; None if none was set.
    """

    run_id: str
    running: bool
    request_id: str
    priority: int | None = None


@dataclass(frozen=True, kw_only=True)
class Close:
    """Close of a run: it went on as another run, it gave a result, or it failed."""

    next_run: str | None = None
    result: TurnResult | None = None
    failure: str = ""


class Runs:
    """Calls to Temporal, by session id."""

    def __init__(self, temporal: temporalio.client.Client) -> None:
        self.temporal = temporal

    async def find_newest(self, session: str) -> Run | None:
        """The newest run, or None if Temporal has none (or no longer)."""
        return await unless_missing(self._newest(session))

    async def _newest(self, session: str) -> Run:
        description = await self.temporal.get_workflow_handle(session).describe()
        run_id, running = description.run_id, description.status == WorkflowExecutionStatus.RUNNING
        priority = description.raw_description.workflow_execution_info.priority.priority_key or None
        request_id = await self._request_id(session, run_id)
        return Run(run_id=run_id, running=running, request_id=request_id, priority=priority)

    async def describe(self, session: str) -> WorkflowExecutionDescription | None:
        """The newest run as Temporal describes it; None if it has none."""
        return await unless_missing(self.temporal.get_workflow_handle(session).describe())

    async def fails(self, session: str) -> bool:
        """Whether a turn of the session runs whose own code fails, so that it takes no cancel."""
        described = await self.describe(session)
        if described is None or described.status != WorkflowExecutionStatus.RUNNING:
            return False
        return is_failing(described.raw_description)

    async def terminate(self, session: str, run_id: str, reason: str) -> bool:
        """End a run whatever it does; False if it has ended."""
        handle = self.temporal.get_workflow_handle(session, run_id=run_id)
        with rpc_errors():
            try:
                await handle.terminate(reason=reason or None)
            except RPCError as error:
                if is_missing(error):
                    return False
                raise
        return True

    async def delete_histories(self, session: str) -> int:
        """Have the server delete the closed runs of a session; how many.

        Not those of others under the same id, nor under one that the server's database takes for the same.
        """
        closed = f'WorkflowId = "{session}" AND WorkflowType = "{AGENT_TURN}" AND ExecutionStatus != "Running"'
        runs = 0
        with rpc_errors():
            async for run in self.temporal.list_workflows(closed):
                if run.id != session or run.workflow_type != AGENT_TURN:
                    continue
                await self.delete_history(run.id, run.run_id)
                runs += 1
        return runs

    async def delete_history(self, workflow: str, run: str) -> None:
        """Have the server delete one run, and end it first if it is open."""
        execution = WorkflowExecution(workflow_id=workflow, run_id=run)
        request = DeleteWorkflowExecutionRequest(namespace=self.temporal.namespace, workflow_execution=execution)
        await unless_missing(self.temporal.workflow_service.delete_workflow_execution(request, retry=True))

    async def is_running(self, session: str, run_id: str | None = None) -> bool:
        """Whether the run is open, by default the newest; False also when Temporal no longer has it."""
        description = await unless_missing(self.temporal.get_workflow_handle(session, run_id=run_id).describe())
        return description is not None and description.status == WorkflowExecutionStatus.RUNNING

    async def _request_id(self, session: str, run_id: str) -> str:
        """The request id in the run's input; a request without one goes by the id of its first run."""
        response = await self.temporal.workflow_service.get_workflow_execution_history(
            GetWorkflowExecutionHistoryRequest(
                namespace=self.temporal.namespace,
                execution=WorkflowExecution(workflow_id=session, run_id=run_id),
                maximum_page_size=1,
            ),
            retry=True,
        )
        started = response.history.events[0].workflow_execution_started_event_attributes
        try:
            values = await self.temporal.data_converter.decode_wrapper(started.input, [Continuation])
        except (ValidationError, ValueError, RuntimeError):  # not a request of ours: the workflow refuses it
            return run_id
        request = values[0] if values else None
        return (request.request_id if isinstance(request, Continuation) else "") or run_id

    async def close(self, session: str, run_id: str) -> Close:
        """Wait until the run closes, and say how. A server that restarts meanwhile is waited for."""
        while True:
            try:
                with rpc_errors():
                    return await self._close(session, run_id)
            except ServerUnreachableError:
                # A short call says when the server answers again; one that waits for the end stays silent then.
                await asyncio.sleep(PAUSE.total_seconds())
                await self.is_running_patiently(session, run_id)

    async def _close(self, session: str, run_id: str) -> Close:
        handle = self.temporal.get_workflow_handle(session, run_id=run_id, result_type=TurnResult)
        try:
            return Close(result=await handle.result(follow_runs=False))
        except WorkflowContinuedAsNewError as error:
            return Close(next_run=error.new_execution_run_id)
        except WorkflowFailureError as error:
            reset_to = await self._reset_to(session, run_id)
            return Close(next_run=reset_to) if reset_to else _close_of_failure(session, error.cause)
        except ValidationError:
            return Close(failure=f"the workflow {session!r} ended with a result that is none of perdure's")
        except RPCError as error:
            if is_missing(error):
                return Close(failure=f"Temporal no longer has the run of session {session!r}")
            raise

    async def _reset_to(self, session: str, run_id: str) -> str:
        """The run that took over when an operator reset this one."""
        description = await self.temporal.get_workflow_handle(session, run_id=run_id).describe()
        return description.raw_description.workflow_extended_info.reset_run_id

    async def cancel(self, session: str, request: CancelRequest) -> bool:
        """Have a turn of the session stopped; False if none runs, or the one that is meant is ending already.

        The signal needs no worker, the update can be refused: so a request that can be wrong is sent as an update, and
        as a signal if no worker answers. Each is for the other's limits too.

        Raises:
            WrongTurnError: It names a turn that neither runs nor waits.
            RequestRefusedError: The request is not valid.
            ServerRefusedError: The run takes neither any more.
        """
        if request.turn is None and request.request_id is None and not request.drop_queue:
            try:
                return await self._signal_cancel(session, request)
            except ServerRefusedError:  # it has taken as many signals as a run may
                try:
                    receipt = await self._update_cancel(session, request)
                except TimeoutError:
                    msg = f"no worker took the cancel for session {session!r}, and its run takes no more signals"
                    raise NoWorkerError(f"{msg}; start a worker") from None
                return receipt is not None and receipt.stops
        try:
            async with asyncio.timeout(CANCEL_TIMEOUT):
                receipt = await self._update_cancel(session, request)
        except (TimeoutError, ServerRefusedError):
            return await self._signal_cancel(session, request)
        return receipt is not None and receipt.stops

    async def _signal_cancel(self, session: str, request: CancelRequest) -> bool:
        with rpc_errors():
            try:
                await self.temporal.get_workflow_handle(session).signal(Signal.CANCEL, request)
            except RPCError as error:
                if is_missing(error):
                    return False
                raise
        return True

    async def _update_cancel(self, session: str, request: CancelRequest) -> CancelReceipt | None:
        """The receipt; None if no turn runs. Asked again when the run closes under it: the next turn may be meant."""
        try:
            return await send_again(
                lambda: send_update(self.temporal, session, Update.CANCEL, request, CancelReceipt),
                again=frozenset({"closed", "lost"}),
            )
        except UpdateRefusedError as error:
            message = f"session {session!r} refused to cancel: {error}"
            if error.code == ReasonCode.REQUEST_TURN_MISMATCH:
                raise WrongTurnError(message) from error
            raise RequestRefusedError(message) from error
        except NotTakenError as error:
            if error.why == "idle":
                return None
            msg = f"session {session!r} did not take the cancel: its turns end as fast as it is sent; try again"
            raise SessionBusyError(msg) from error

    async def status(self, session: str) -> TurnStatus | None:
        """Status of the running turn; None if it has not been opened or no worker answers in time."""
        return await self._query(session, Query.STATUS, TurnStatus)

    async def budget(self, session: str) -> BudgetStatus | None:
        """The limits of the running turn and what counts against them; None likewise."""
        return await self._query(session, Query.BUDGET, BudgetStatus)

    async def _query(self, session: str, query: Query, kind: type[_Told]) -> _Told | None:
        handle = self.temporal.get_workflow_handle(session)
        with rpc_errors():
            try:
                told: _Told = await handle.query(
                    query,
                    result_type=kind,
                    rpc_timeout=QUERY_TIMEOUT,
                    reject_condition=QueryRejectCondition.NOT_OPEN,  # a worker would answer for one that was terminated
                )
            except (WorkflowQueryFailedError, WorkflowQueryRejectedError):
                return None
            except RPCError as error:
                if error.status is RPCStatusCode.FAILED_PRECONDITION or is_missing(error) or is_away(error):
                    return None
                raise
        return told

    async def has_worker(self, task_queue: str) -> bool:
        """Whether a worker asked the task queue for work in the last minute."""
        pollers = await pollers_of(self.temporal, task_queue, TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW)
        oldest = datetime.now(UTC) - POLLER_AGE
        return any(poller.last_access_time.ToDatetime(UTC) > oldest for poller in pollers)

    async def is_running_patiently(self, session: str, run_id: str | None = None) -> bool:
        """As :meth:`is_running`, sitting out a server that does not answer for up to a minute."""
        return await call_patiently(
            "the Temporal server", ServerUnreachableError, lambda: self.is_running(session, run_id)
        )


def _close_of_failure(session: str, cause: BaseException) -> Close:
    """Close of a failed run: with the result of a turn that did fail, or before its turn could end."""
    with contextlib.suppress(IndexError, ValidationError):
        if isinstance(cause, ApplicationError):
            return Close(result=TurnResult.model_validate(cause.details[0]))
    return Close(failure=_cause(session, cause))


def _cause(session: str, cause: BaseException) -> str:
    while isinstance(cause, ActivityError | ChildWorkflowError) and cause.cause is not None:  # which say only that
        cause = cause.cause
    message = cause.message if isinstance(cause, FailureError) else str(cause)
    if isinstance(cause, TerminatedError):
        return f"the workflow of session {session!r} was terminated: {message}"
    if isinstance(cause, WorkflowTimeoutError):
        return f"the workflow of session {session!r} timed out before the turn could end"
    if isinstance(cause, CancelledError):
        return f"the workflow of session {session!r} was cancelled before the turn could end"
    return f"the workflow of session {session!r} failed: {message}"
