"""The schedule that sweeps what is old, and a sweep by hand, which may be dry."""

import logging
import math
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

import temporalio.client
from temporalio.client import (
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleIntervalSpec,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleSpec,
    ScheduleUpdate,
    ScheduleUpdateInput,
    WorkflowExecutionStatus,
)
from temporalio.service import RPCError

from perdure.agents.agent import Agent
from perdure.client.connect import is_missing, rpc_errors
from perdure.contracts.ids import RETENTION, TEMPORAL_PREFIX, TEMPORAL_SCHEDULES, Signed
from perdure.contracts.names import SWEEP
from perdure.contracts.retention import SweepRequest, Swept
from perdure.store import Store

EVERY = timedelta(hours=1)
"""Default interval of sweeps."""

MISSING = 3
"""Intervals without a sweep after which sweeps count as missing."""

logger = logging.getLogger("perdure.worker")


async def ensure_sweeps(
    client: temporalio.client.Client, task_queue: str, agents: Iterable[Agent], store: Store
) -> None:
    """Make the schedule if one of a worker's agents has a retention and nobody has made it; it is never changed."""
    if all(agent.retention is None for agent in agents):
        return
    try:
        await client.create_schedule(schedule_id_of(task_queue), await _schedule(task_queue, store, EVERY))
    except ScheduleAlreadyRunningError:
        if await _is_taken(client, schedule_id_of(task_queue)):
            logger.warning(
                "the schedule %s cannot be made, so nothing old is deleted: another workflow has its id, %s%s; end that"
                " one, and start this worker anew",
                *(schedule_id_of(task_queue), TEMPORAL_SCHEDULES, schedule_id_of(task_queue)),
            )
    except RPCError as error:
        logger.warning(
            "the schedule %s cannot be made, so nothing old is deleted; make it with 'perdure store retention --every"
            " 1h': %s",
            schedule_id_of(task_queue),
            error,
        )


async def schedule_sweeps(
    client: temporalio.client.Client, task_queue: str, store: Store, every: timedelta | None
) -> None:
    """Sweep that often from now on; None removes the schedule."""
    handle = client.get_schedule_handle(schedule_id_of(task_queue))
    with rpc_errors():
        if every is None:
            try:
                await handle.delete()
            except RPCError as error:
                if not is_missing(error):
                    raise
            return
        made = await _schedule(task_queue, store, every)
        try:
            await client.create_schedule(schedule_id_of(task_queue), made)
        except ScheduleAlreadyRunningError:

            async def exchange(_: ScheduleUpdateInput) -> ScheduleUpdate:
                return ScheduleUpdate(schedule=made)

            await handle.update(exchange)


@dataclass(frozen=True, kw_only=True)
class Sweeps:
    """The sweeps of a fleet.

    Attributes:
        every: How often one is due; None if no schedule sweeps.
        since: When the schedule was made or changed.
        last: When the last one had swept everything; None if none has.
    """

    every: timedelta | None = None
    since: datetime | None = None
    last: datetime | None = None

    def is_late(self, now: datetime) -> bool:
        """Whether several sweeps are missing."""
        return self.count_missing(now) > MISSING

    def count_missing(self, now: datetime) -> float:
        """The intervals since the last sweep, or since the schedule was made; infinite if none sweeps."""
        known = max((moment for moment in (self.since, self.last) if moment is not None), default=None)
        return math.inf if self.every is None or known is None else (now - known) / self.every


async def read_sweeps(client: temporalio.client.Client, task_queue: str) -> Sweeps:
    """Read what Temporal knows of the sweeps.

    Raises:
        ServerUnreachableError: The server does not answer.
    """
    schedule = schedule_id_of(task_queue)
    if await _is_taken(client, schedule):
        return Sweeps()
    with rpc_errors():
        try:
            found = await client.get_schedule_handle(schedule).describe()
        except RPCError as error:
            if is_missing(error):
                return Sweeps()
            raise
        done = f'TemporalScheduledById = "{schedule}" AND ExecutionStatus = "Completed"'
        last = [run.close_time async for run in client.list_workflows(done, limit=1)]
    every = next((interval.every for interval in found.schedule.spec.intervals), None)
    since = found.info.last_updated_at or found.info.created_at
    return Sweeps(every=every, since=since, last=last[0] if last else None)


async def _is_taken(client: temporalio.client.Client, schedule: str) -> bool:
    """Whether another workflow has the id of this schedule. Temporal cannot describe that as a schedule."""
    try:
        found = await client.get_workflow_handle(f"{TEMPORAL_SCHEDULES}{schedule}").describe()
    except RPCError:
        return False
    return found.status is WorkflowExecutionStatus.RUNNING and not found.workflow_type.startswith(TEMPORAL_PREFIX)


async def find_interval(client: temporalio.client.Client, task_queue: str) -> timedelta | None:
    """Interval of the sweeps; None without a schedule."""
    return (await read_sweeps(client, task_queue)).every


async def sweep_now(client: temporalio.client.Client, task_queue: str, store_id: str, *, dry_run: bool) -> Swept:
    """Sweep once, on the workers, and wait for what came of it."""
    with rpc_errors():
        result: Swept = await client.execute_workflow(
            SWEEP,
            SweepRequest(dry_run=dry_run, store=store_id),
            id=f"{schedule_id_of(task_queue)}-{uuid.uuid4().hex[:8]}",
            task_queue=task_queue,
            result_type=Swept,
        )
        return result


def schedule_id_of(task_queue: str) -> str:
    """The id of the schedule: fleets of one namespace have one each."""
    return RETENTION if task_queue == "perdure" else f"{RETENTION}-{task_queue}"


async def _schedule(task_queue: str, store: Store, every: timedelta) -> Schedule:
    prefix = await store.sign_id(Signed.SWEEP, "", schedule_id_of(task_queue))
    return Schedule(
        action=ScheduleActionStartWorkflow(SWEEP, SweepRequest(store=store.id), id=prefix, task_queue=task_queue),
        spec=ScheduleSpec(intervals=[ScheduleIntervalSpec(every=every)], jitter=min(every / 10, timedelta(minutes=5))),
        policy=SchedulePolicy(overlap=ScheduleOverlapPolicy.SKIP, catchup_window=timedelta(minutes=10)),
    )
