"""Outcome of a run of a schedule: by the store, by the workflow that it started, or by the server's own word."""

import contextlib
from collections.abc import Mapping
from typing import Any

from temporalio.client import WorkflowExecution, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.exceptions import FailureError

from perdure.client.executions import Runs
from perdure.client.unstarted import Unstarted
from perdure.contracts.names import KNOCK, SCHEDULE_MEMO
from perdure.contracts.schedules import Knocked, ScheduleRun
from perdure.store import Store, TurnRecord
from perdure.store.errors import NotFoundError


async def describe_run(runs: Runs, store: Store, tenant: str, schedule: str, run: WorkflowExecution) -> ScheduleRun:
    """A run as it stands, of a schedule of the tenant.

    Raises:
        ClientError: The server does not answer.
    """
    if run.workflow_type == KNOCK:
        return await _describe_knock(runs, store, schedule, run)
    told = ScheduleRun(schedule=schedule, session=run.id, state="running", started_at=run.start_time)
    begun = await store.turn_by_request(run.id, run.run_id)
    if begun is not None:
        return told.model_copy(update=_end_of(begun))
    failed: dict[str, object] = {}
    if run.status != WorkflowExecutionStatus.RUNNING:
        closed = await runs.close(run.id, run.run_id)
        failed = {"state": "failed", "ended_at": run.close_time, "error": closed.failure or None}
        refused = closed.result
        if refused is not None:
            failed |= {"reason_code": refused.reason_code, "error": refused.error}
            if refused.turn is None:  # a turn that the session already had is another's
                return told.model_copy(update=failed)
    if await store.tenant_of(run.id) == tenant:  # the run has gone on as another one
        with contextlib.suppress(NotFoundError):
            return told.model_copy(update=_end_of(await store.turn(run.id, 1)))
    return told.model_copy(update=failed)


def lost_run(schedule: str, session: str | None, run: Unstarted) -> ScheduleRun:
    """A run that the server refused to start; ``session`` is the one that the schedule sends to."""
    return ScheduleRun(
        schedule=schedule,
        session=run.workflow if session is None else session,
        state="failed",
        started_at=run.at,
        ended_at=run.at,
        error=run.why,
    )


async def _describe_knock(runs: Runs, store: Store, schedule: str, run: WorkflowExecution) -> ScheduleRun:
    handle = runs.temporal.get_workflow_handle(run.id, run_id=run.run_id, result_type=Knocked)
    asked: Mapping[str, Any] = await run.memo_value(SCHEDULE_MEMO, {})
    session = str(asked.get("session", ""))
    told = ScheduleRun(schedule=schedule, session=session, state="running", started_at=run.start_time)
    if run.status == WorkflowExecutionStatus.RUNNING:
        return told
    try:
        knocked = await handle.result()
    except WorkflowFailureError as error:
        said = error.cause.message if isinstance(error.cause, FailureError) else str(error.cause)
        return told.model_copy(update={"state": "failed", "error": said, "ended_at": run.close_time})
    turn = await store.turn_by_request(session, run.id)
    if turn is None and knocked.turn is None:
        return told.model_copy(update={"state": "rejected", "ended_at": run.close_time})
    if turn is None and knocked.turn is not None:  # which reads the message, or is not open yet
        told = told.model_copy(update={"turn": knocked.turn})
        with contextlib.suppress(NotFoundError):
            turn = await store.turn(session, knocked.turn)
    return told.model_copy(update=_end_of(turn))


def _end_of(turn: TurnRecord | None) -> dict[str, object]:
    if turn is None:
        return {}
    if turn.result is None:
        return {"turn": turn.turn}
    ended = turn.result
    return {
        "turn": turn.turn,
        "state": "ended",
        "ended_at": turn.ended_at,
        "stop_reason": ended.stop_reason.value,
        "reason_code": ended.reason_code,
        "error": ended.error,
    }
