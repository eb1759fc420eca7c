"""Runs of schedules that the Temporal server refused to start: nothing lists them, and no workflow has failed.

The server's own workflow of a schedule notes each refusal in its history, as the failure of a local activity. A server
that keeps its schedules in another form than a workflow tells of none.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import temporalio.client
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryReverseRequest
from temporalio.client import ScheduleActionStartWorkflow, ScheduleListDescription
from temporalio.service import RPCError

from perdure.client.connect import is_missing
from perdure.contracts.ids import SCHEDULE_PREFIX, TEMPORAL_SCHEDULES

EVENTS_READ = 1_000
"""Events of a schedule's history that are read at most, the newest: some 90 runs."""

MOST_READ = 100
"""Schedules whose histories are read for one figure; the others have their turn at the next."""

AT_ONCE = 10
"""Histories that are read at the same time."""

_STARTS = "StartWorkflow"
_TAKEN = re.compile(r"already (?:running|started|finished).*?WorkflowId: (?P<workflow>[^,]+)", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Unstarted:
    """A run that the server refused to start.

    Attributes:
        workflow: Id that the run's workflow would have had; empty where the server does not say.
        why: A sentence.
    """

    at: datetime
    workflow: str
    why: str


async def list_unstarted(
    temporal: temporalio.client.Client, schedule: str, *, since: datetime | None = None
) -> tuple[Unstarted, ...]:
    """The runs of a schedule that the server refused to start, the newest first, as long as its history tells of them.

    Args:
        temporal: The client.
        schedule: The schedule's id in Temporal.
        since: Only refusals from then on.

    Raises:
        RPCError: The server does not answer.
    """
    found = tuple[Unstarted, ...]()
    async for event in _events(temporal, schedule):
        at = event.event_time.ToDatetime(UTC)
        if since is not None and at < since:
            break
        if (failure := _refusal_in(event)) is not None:
            found += (_describe(at, failure),)
    return found


async def _events(temporal: temporalio.client.Client, schedule: str) -> AsyncIterator[HistoryEvent]:
    """The newest events of the server's workflow of a schedule, also those of the run that it has continued."""
    left, run, token = EVENTS_READ, "", b""
    while left > 0:
        request = GetWorkflowExecutionHistoryReverseRequest(
            namespace=temporal.namespace,
            execution=WorkflowExecution(workflow_id=f"{TEMPORAL_SCHEDULES}{schedule}", run_id=run),
            maximum_page_size=left,
            next_page_token=token,
        )
        try:
            page = await temporal.workflow_service.get_workflow_execution_history_reverse(request, retry=True)
        except RPCError as error:
            if is_missing(error):
                return
            raise
        for event in page.history.events:
            yield event
            left -= 1
        token = page.next_page_token
        if token:
            continue
        first = page.history.events[-1].workflow_execution_started_event_attributes if page.history.events else None
        if first is None or not first.continued_execution_run_id:
            return
        run = first.continued_execution_run_id


def _refusal_in(event: HistoryEvent) -> Failure | None:
    """The failure of a start that the server does not try again."""
    if event.event_type != EventType.EVENT_TYPE_MARKER_RECORDED:
        return None
    marker = event.marker_recorded_event_attributes
    if marker.marker_name != "LocalActivity" or not marker.HasField("failure"):
        return None
    with suppress(KeyError, IndexError, ValueError, AttributeError):
        told = json.loads(marker.details["data"].payloads[0].data)
        if told.get("ActivityType") == _STARTS and int(told.get("Backoff", 0)) <= 0:
            return marker.failure
    return None


def _describe(at: datetime, failure: Failure) -> Unstarted:
    said = failure.cause.message or failure.message
    taken = _TAKEN.search(said)
    if taken is None:
        return Unstarted(at=at, workflow="", why=f"the Temporal server refused to start it: {said[:500]}")
    workflow = taken["workflow"]
    why = (
        f"nothing was started: another workflow had the id {workflow!r}, "
        "which this run needs; two triggers within one second need the same"
    )
    return Unstarted(at=at, workflow=workflow, why=why)


class UnstartedRuns:
    """Counts the unstarted runs of all schedules of a task queue.

    It reads the histories of schedules that have moved since the last figure, or shortly before: a trigger that the
    server refused moves nothing, and counts with the schedule's next run if nothing else did.
    """

    def __init__(self, temporal: temporalio.client.Client, task_queue: str) -> None:
        self._temporal = temporal
        self._queue = task_queue
        self._read = dict[str, tuple[object, tuple[Unstarted, ...]]]()
        self._moved = frozenset[str]()

    async def count(self, age: timedelta) -> int:
        """The runs that were refused within the last ``age``.

        Raises:
            RPCError: The server does not answer.
        """
        since = datetime.now(UTC) - age
        listed = {
            found.id: _state_of(found)
            async for found in await self._temporal.list_schedules()
            if found.id.startswith(SCHEDULE_PREFIX)
        }
        self._read = {schedule: known for schedule, known in self._read.items() if schedule in listed}
        moved = [name for name, state in listed.items() if name not in self._read or self._read[name][0] != state]
        again = [name for name in listed if name in self._moved and name not in moved]
        gate = asyncio.Semaphore(AT_ONCE)

        async def read(schedule: str) -> None:
            async with gate:
                found = await list_unstarted(self._temporal, schedule, since=since)
                if found and not await self._is_ours(schedule):
                    found = ()
                self._read[schedule] = listed[schedule], found

        await asyncio.gather(*map(read, [*moved, *again][:MOST_READ]))
        self._moved = frozenset(moved)
        return sum(run.at >= since for _, found in self._read.values() for run in found)

    async def _is_ours(self, schedule: str) -> bool:
        """Whether the schedule's runs go to the queue; others may share the namespace."""
        try:
            described = await self._temporal.get_schedule_handle(schedule).describe()
        except RPCError as error:
            if is_missing(error):
                return False
            raise
        action = described.schedule.action
        return isinstance(action, ScheduleActionStartWorkflow) and action.task_queue == self._queue


def _state_of(found: ScheduleListDescription) -> object:
    """State that changes at each of the schedule's own times: what it has started, and what comes next."""
    info = found.info
    if info is None:
        return None
    last = info.recent_actions[-1].started_at if info.recent_actions else None
    return last, tuple(info.next_action_times)
