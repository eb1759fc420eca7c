"""Waits of running turns, asked of Temporal; :mod:`perdure.client.causes` says why.

One description is enough for a turn that goes on. For one that stands still the server is asked for the end of its
history, for the pollers of a task queue, or the worker for the turn's status, whichever tells more.
"""

import asyncio
import contextlib
from collections.abc import Collection
from datetime import UTC, datetime

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType, TaskQueueType, WorkflowExecutionStatus
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import (
    DescribeTaskQueueResponse,
    DescribeWorkflowExecutionRequest,
    DescribeWorkflowExecutionResponse,
    GetWorkflowExecutionHistoryReverseRequest,
)

from perdure.client.causes import Queue, Seen, explain, find_untaken_queues
from perdure.client.connect import describe_queue, rpc_errors, unless_missing
from perdure.client.encryption import reveal_failure, reveal_pending
from perdure.client.errors import ClientError
from perdure.client.executions import Runs
from perdure.client.unopened import Reported, UnopenedTurn, find_unopened, is_meant, list_reported_turns
from perdure.client.versions import QueueVersions
from perdure.client.worker_stores import worker_stores
from perdure.contracts.queues import limited_key
from perdure.contracts.turns import RunState, TurnStatus
from perdure.contracts.values import replace
from perdure.contracts.waits import Cause, TurnWait
from perdure.store import Store
from perdure.store.records import SessionFilter

LATEST_EVENTS = 100
"""Events of the history, from its end, among which the beginning of the wait is looked for."""

AT_ONCE = 5
"""Turns that are described at the same time."""

LISTED = 50
"""Turns that a list asks Temporal about beyond what the store says."""

DEEPEST = 3
"""Levels of delegates that are looked into."""

MOST_DELEGATES = 3
"""Delegates of one turn that are looked into."""


class Waits:
    """Waits of turns, asked of the server."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._temporal = runs.temporal

    async def with_wait(self, status: TurnStatus) -> TurnStatus:
        """Add what the turn waits for to its status, as far as that can be known."""
        with contextlib.suppress(ClientError):
            return replace(status, waits_for=await self.wait_of(status.session, status))
        return status

    async def waits_of(self, sessions: Collection[str]) -> dict[str, TurnWait]:
        """Waits of the running turns of these sessions, asked a few at a time; what cannot be known is left out."""
        gate = asyncio.Semaphore(AT_ONCE)

        async def look(session: str) -> TurnWait | None:
            async with gate:
                with contextlib.suppress(ClientError):
                    return await self.wait_of(session)
            return None

        waits = await asyncio.gather(*map(look, sessions))
        return {session: wait for session, wait in zip(sessions, waits, strict=True) if wait is not None}

    async def wait_of(self, session: str, status: TurnStatus | None = None, levels: int = DEEPEST) -> TurnWait | None:
        """Wait of the session's running turn; None if it goes on, or none runs.

        Args:
            session: The session.
            status: What the turn has just said of itself; otherwise it is asked if that matters.
            levels: Levels of delegates that are looked into.

        Raises:
            ServerUnreachableError: The server does not answer.
        """
        described = await self._describe(session)
        if (
            described is None
            or described.workflow_execution_info.status != WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_RUNNING
        ):
            return None
        seen = Seen(described=described, now=datetime.now(UTC), status=status)
        if not (seen.is_idle or seen.is_tried_again) and explain(seen) is None:
            return None
        events, queues, status, builds = await asyncio.gather(
            self._latest_events(described.workflow_execution_info.execution),
            self._describe_queues(seen),
            self._ask_status(seen),
            self._ask_builds(seen),
        )
        polled = {queue: _last_poll(queues[queue]) for queue in queues}
        limited = {
            queue: (each.effective_rate_limit.requests_per_second, each.stats.approximate_backlog_count)
            for queue, each in queues.items()
            if limited_key(seen.own_queue, queue[0]) is not None
        }
        own = next((each for queue, each in queues.items() if queue[0] == seen.own_queue), None)
        if own is None and (seen.is_refused_for_its_version or (seen.is_idle and status is None)):
            own = await describe_queue(self._temporal, seen.own_queue, TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW)
        versions = None if own is None else QueueVersions.of(own, seen.now)
        seen = replace(seen, events=events, polled=polled, limited=limited, status=status, builds=builds)
        seen = replace(seen, versions=versions)
        if seen.is_idle and levels and not (status is not None and status.requests):
            delegates = seen.delegates[:MOST_DELEGATES]
            below = await asyncio.gather(*(self.wait_of(delegate, levels=levels - 1) for delegate in delegates))
            seen = replace(seen, below=tuple(wait for wait in below if wait is not None))
        return explain(seen)

    async def reported(self, queue: str) -> Reported:
        """The turns of a queue whose own code fails, as the server says."""
        return await list_reported_turns(self._temporal, queue)

    async def list_unopened(
        self, store: Store, queue: str, wanted: SessionFilter, reported: Reported
    ) -> list[tuple[UnopenedTurn, TurnWait]]:
        """The turns that a filter means, that no worker has opened, and that stand still."""
        if wanted.get("state") not in {None, RunState.RUNNING}:
            return []
        found = await find_unopened(self._temporal, store, queue, limit=LISTED, reported=reported)
        turns = [turn for turn in found if is_meant(turn, wanted, states={RunState.RUNNING})]
        waits = await self.waits_of([turn.session for turn in turns])
        return [(turn, waits[turn.session]) for turn in turns if turn.session in waits]

    async def failing_of(self, sessions: Collection[str], reported: Reported) -> dict[str, TurnWait]:
        """Those of these open turns whose own code fails, with what failed."""
        names = list(sessions)[:LISTED] if reported is None else {run.id for run in reported}.intersection(sessions)
        waits = await self.waits_of(names)
        return {name: wait for name, wait in waits.items() if wait.cause is Cause.WORKFLOW_TASK}

    async def _describe(self, session: str) -> DescribeWorkflowExecutionResponse | None:
        request = DescribeWorkflowExecutionRequest(
            namespace=self._temporal.namespace, execution=WorkflowExecution(workflow_id=session)
        )
        described = await unless_missing(
            self._temporal.workflow_service.describe_workflow_execution(request, retry=True)
        )
        if described is not None:
            await reveal_pending(self._temporal.data_converter, described.pending_activities)
        return described

    async def _latest_events(self, run: WorkflowExecution) -> tuple[HistoryEvent, ...]:
        request = GetWorkflowExecutionHistoryReverseRequest(
            namespace=self._temporal.namespace, execution=run, maximum_page_size=LATEST_EVENTS
        )
        with rpc_errors():
            page = await self._temporal.workflow_service.get_workflow_execution_history_reverse(request, retry=True)
        for event in page.history.events:
            if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED:
                failure = event.workflow_task_failed_event_attributes.failure
                await reveal_failure(self._temporal.data_converter, failure)
        return tuple(page.history.events)

    async def _describe_queues(self, seen: Seen) -> dict[Queue, DescribeTaskQueueResponse]:
        """The queues in which a task of the turn waits for a worker."""
        queues = list(dict.fromkeys(find_untaken_queues(seen)))
        described = await asyncio.gather(*(describe_queue(self._temporal, name, kind) for name, kind in queues))
        return dict(zip(queues, described, strict=True))

    async def _ask_status(self, seen: Seen) -> TurnStatus | None:
        """Ask an idle turn for its status; the description says little of such a turn, and enough of any other."""
        return await self._runs.status(seen.session) if seen.is_idle and seen.status is None else seen.status

    async def _ask_builds(self, seen: Seen) -> tuple[str, ...]:
        """Ask the workers for their builds, if one of them has refused the turn for its version."""
        if not seen.is_refused_for_its_version:
            return ()
        return tuple(worker.build for worker in await worker_stores(self._temporal, seen.own_queue))


def _last_poll(described: DescribeTaskQueueResponse) -> datetime | None:
    """When a worker last asked the queue for work, if one has of late."""
    return max((poller.last_access_time.ToDatetime(UTC) for poller in described.pollers), default=None)
