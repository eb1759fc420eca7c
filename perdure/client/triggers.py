"""Runs of a schedule that somebody starts by hand, each with a second of its own.

Temporal names a run by the second that it is for. Of two with one name it starts the first, and of two requests that it
reads at once it takes the last; it says nothing about the others. So a trigger names a second of the last moments of
which no run is named yet, takes it in the store, where the triggers of all processes meet, and asks until its run is
there. To ask twice for one name starts it once.
"""

import asyncio
import random
import uuid
from datetime import UTC, datetime, timedelta

from temporalio.api.enums.v1 import ScheduleOverlapPolicy as PolicyOfTheApi
from temporalio.api.schedule.v1 import SchedulePatch, TriggerImmediatelyRequest
from temporalio.api.workflowservice.v1 import PatchScheduleRequest
from temporalio.client import Client, ScheduleAction, ScheduleActionStartWorkflow, ScheduleOverlapPolicy
from temporalio.service import RPCError

from perdure.client.connect import is_missing
from perdure.client.errors import RequestRefusedError
from perdure.contracts.names import AGENT_TURN
from perdure.store import Store

_SECONDS = 20
"""Number of seconds that a trigger looks back for a free one. Only seconds that are over: the schedule's own next run
has one ahead.
"""

_KEY = "trigger "
"""Beginning of the key of a taken second; with its space it is nobody's Idempotency-Key."""

_TRIES = 10
_LOOKS = range(10, 30)
_BETWEEN_LOOKS = timedelta(milliseconds=50)
"""A run is there after some 50 ms. A request that was not taken is sent again after so many looks, drawn each time:
those that came at once would come at once again.
"""


async def trigger(client: Client, store: Store, schedule: str, tenant: str, action: ScheduleAction) -> None:
    """Start a run of a tenant's schedule that has this action.

    Raises:
        RequestRefusedError: Every second of the last ones has a run, or Temporal does not start this one.
        RPCError: The server refuses, or has no such schedule.
    """
    if not isinstance(action, ScheduleActionStartWorkflow):
        raise RequestRefusedError("the schedule starts no workflow; remove it, and add it again")
    # Temporal does not look at the ends of runs that may overlap, and a knock that fails is to pause the schedule.
    policy = ScheduleOverlapPolicy.ALLOW_ALL if action.workflow == AGENT_TURN else ScheduleOverlapPolicy.BUFFER_ALL
    moment = await _take_second(client, store, tenant, action.id)
    asked = TriggerImmediatelyRequest(overlap_policy=PolicyOfTheApi.ValueType(policy))
    asked.scheduled_time.FromDatetime(moment)
    for _ in range(_TRIES):
        patch = PatchScheduleRequest(
            namespace=client.namespace,
            schedule_id=schedule,
            patch=SchedulePatch(trigger_immediately=asked),
            identity=client.identity,
            request_id=str(uuid.uuid4()),
        )
        await client.workflow_service.patch_schedule(patch, retry=True)
        for _ in range(random.choice(_LOOKS)):  # noqa: S311 - no secret
            if await _exists(client, _name(action.id, moment)) or await _is_buffered(client, schedule):
                return
            await asyncio.sleep(_BETWEEN_LOOKS.total_seconds())
    raise RequestRefusedError("Temporal has not started the run; trigger the schedule again")


async def _take_second(client: Client, store: Store, tenant: str, prefix: str) -> datetime:
    """A second of the last ones for this trigger alone: Temporal starts its run a moment later."""
    now = datetime.now(UTC).replace(microsecond=0)
    for back in range(1, _SECONDS):
        moment = now - timedelta(seconds=back)
        name = _name(prefix, moment)
        if await store.take_key(tenant, f"{_KEY}{name}", name) and not await _exists(client, name):
            return moment
    raise RequestRefusedError(
        f"the schedule was triggered {_SECONDS - 1} times in {_SECONDS} s; wait some seconds and trigger it again"
    )


def _name(prefix: str, moment: datetime) -> str:
    return f"{prefix}-{moment:%Y-%m-%dT%H:%M:%SZ}"


async def _is_buffered(client: Client, schedule: str) -> bool:
    """Whether runs wait for the end of another one."""
    described = await client.get_schedule_handle(schedule).describe()
    return described.raw_description.info.buffer_size > 0


async def _exists(client: Client, workflow: str) -> bool:
    try:
        await client.get_workflow_handle(workflow).describe()
    except RPCError as error:
        if is_missing(error):
            return False
        raise
    return True
