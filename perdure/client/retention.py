"""The schedule that sweeps what is old, and a sweep by hand, which may be dry."""

import logging
import uuid
from collections.abc import Iterable
from datetime import timedelta

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
)
from temporalio.service import RPCError

from perdure.agents.agent import Agent
from perdure.client.connect import is_missing, rpc_errors
from perdure.contracts.names import RETENTION, SWEEP
from perdure.contracts.retention import SweepRequest, Swept

EVERY = timedelta(hours=1)
"""How often a sweep begins, unless somebody says otherwise."""

logger = logging.getLogger("perdure.worker")


async def ensure_sweeps(
    client: temporalio.client.Client, task_queue: str, agents: Iterable[Agent], store_id: str
) -> None:
    """Make the schedule if one of a worker's agents has a retention and nobody has made it; it is never changed."""
    if all(agent.retention is None for agent in agents):
        return
    try:
        await client.create_schedule(schedule_id_of(task_queue), _schedule(task_queue, store_id, EVERY))
    except ScheduleAlreadyRunningError:
        return
    except RPCError as error:
        logger.warning(
            "the schedule %s cannot be made, so nothing old is deleted; make it with 'perdure store retention --every"
            " 1h': %s",
            schedule_id_of(task_queue),
            error,
        )


async def schedule_sweeps(
    client: temporalio.client.Client, task_queue: str, store_id: str, every: timedelta | None
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
        made = _schedule(task_queue, store_id, every)
        try:
            await client.create_schedule(schedule_id_of(task_queue), made)
        except ScheduleAlreadyRunningError:

            async def exchange(_: ScheduleUpdateInput) -> ScheduleUpdate:
                return ScheduleUpdate(schedule=made)

            await handle.update(exchange)


async def find_interval(client: temporalio.client.Client, task_queue: str) -> timedelta | None:
    """How often a sweep begins; None if there is no schedule."""
    with rpc_errors():
        try:
            found = await client.get_schedule_handle(schedule_id_of(task_queue)).describe()
        except RPCError as error:
            if is_missing(error):
                return None
            raise
    return next((interval.every for interval in found.schedule.spec.intervals), None)


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


def _schedule(task_queue: str, store_id: str, every: timedelta) -> Schedule:
    return Schedule(
        action=ScheduleActionStartWorkflow(
            SWEEP, SweepRequest(store=store_id), id=schedule_id_of(task_queue), task_queue=task_queue
        ),
        spec=ScheduleSpec(intervals=[ScheduleIntervalSpec(every=every)], jitter=min(every / 10, timedelta(minutes=5))),
        policy=SchedulePolicy(overlap=ScheduleOverlapPolicy.SKIP, catchup_window=timedelta(minutes=10)),
    )
