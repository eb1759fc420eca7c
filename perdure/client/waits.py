"""Why a running turn stands still, read from what Temporal says of its workflow.

One description is enough for a turn that goes on. For one that stands still the server is asked for the end of its
history, for the pollers of a task queue, or the worker for the turn's status, whichever tells more.

Long, because every cause has its own sentence and its own advice, and one place decides which of them counts.
"""

import asyncio
import contextlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from google.protobuf.timestamp_pb2 import Timestamp
from pydantic import BaseModel, ValidationError
from temporalio.api.common.v1 import Payloads, WorkflowExecution
from temporalio.api.enums.v1 import (
    EventType,
    PendingActivityState,
    PendingWorkflowTaskState,
    TaskQueueType,
    WorkflowExecutionStatus,
)
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.api.workflowservice.v1 import (
    DescribeTaskQueueResponse,
    DescribeWorkflowExecutionRequest,
    DescribeWorkflowExecutionResponse,
    GetWorkflowExecutionHistoryReverseRequest,
)

from perdure.client.connect import describe_queue, rpc_errors, unless_missing
from perdure.client.encryption import reveal_failure, reveal_pending
from perdure.client.errors import ClientError
from perdure.client.executions import POLLER_AGE, Runs
from perdure.contracts.errors import ReasonCode
from perdure.contracts.input_requests import InputRequest
from perdure.contracts.names import Activity, SearchAttribute
from perdure.contracts.queues import Role, limited_key, role_of_queue
from perdure.contracts.turns import RunState, TurnStatus
from perdure.contracts.values import replace
from perdure.contracts.waits import (
    WAITS_FOR_A_SHARE,
    WAITS_FOR_ITS_TURN,
    WAITS_FOR_SERVERS,
    Cause,
    MissingVersion,
    ProviderRetry,
    TurnWait,
)

UNTAKEN = timedelta(seconds=5)
"""A task that no worker has taken for so long has none that could."""

SILENT = timedelta(seconds=6)
"""A worker beats every second, and every five when it has much to do; after eight the server gives the call away."""

OPENING = timedelta(seconds=5)
"""The store's part of the opening of a turn is done by then."""

LOOKING = timedelta(seconds=2)
"""A worker knows by then that it lacks a tool: an attempt that runs longer has found it."""

LATEST_EVENTS = 100
"""Events of the history, from its end, among which the beginning of the wait is looked for."""

AT_ONCE = 5
"""Turns that are described at the same time."""

DEEPEST = 3
"""Levels of delegates that are looked into."""

MOST_DELEGATES = 3
"""Delegates of one turn that are looked into."""

MOST_SAID = 600
"""Characters of a failure's message that are shown."""

NEEDS_A_WORKER = "a person's reply, which needs a worker to take it"
"""What a turn waits for that asks a person while no worker can say what."""

ENDS = "perdure cancel {} ends the turn"
_A_DELEGATE = "delegate "
_ANOTHER = "another worker goes on by itself; look at why this one died"
_ORDER = {cause: place for place, cause in enumerate(Cause)}
_RUNNING = WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_RUNNING
_ENDS_OF_TASKS = frozenset(
    {
        EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED,
        EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED,
        EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT,
    }
)

Queue = tuple[str, "TaskQueueType.ValueType"]
"""A task queue, and which of its kinds of tasks."""

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What is known beside the description of a workflow; only of one that stands still is it asked for.

    Attributes:
        status: What the turn says of itself; None if no worker says so, or nobody was asked.
        events: The end of the history, the last event first.
        polled: When a worker last asked each queue for work; None if none has.
        limited: Each queue with a rate limit: its calls a second, and how many wait.
        below: What the delegates that the turn waits for wait for.
    """

    now: datetime
    status: TurnStatus | None = None
    events: tuple[HistoryEvent, ...] = ()
    polled: Mapping[Queue, datetime | None] | None = None
    limited: Mapping[Queue, tuple[float, int]] = field(default_factory=dict["Queue", "tuple[float, int]"])
    below: tuple[TurnWait, ...] = ()


class Waits:
    """What turns wait for, asked of the server."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._temporal = runs.temporal

    async def wait_of(self, session: str, status: TurnStatus | None = None, levels: int = DEEPEST) -> TurnWait | None:
        """What the session's running turn waits for; None if it goes on, or none runs.

        Args:
            session: The session.
            status: What the turn has just said of itself; otherwise it is asked if that matters.
            levels: Levels of delegates that are looked into.

        Raises:
            ServerUnreachableError: The server does not answer.
        """
        described = await self._describe(session)
        now = datetime.now(UTC)
        if described is None or described.workflow_execution_info.status != _RUNNING:
            return None
        seen = Seen(now=now, status=status)
        is_idle = _is_idle(described)
        if not is_idle and explain(described, seen) is None:
            return None
        run = described.workflow_execution_info.execution
        queues = list(dict.fromkeys(find_untaken_queues(described, now)))
        asked = is_idle and status is None
        events, known, told = await asyncio.gather(
            self._events(run),
            asyncio.gather(*(describe_queue(self._temporal, name, kind) for name, kind in queues)),
            self._runs.status(session) if asked else _without_wait(status),
        )
        polled = {queue: _last_poll(each) for queue, each in zip(queues, known, strict=True)}
        limited = {
            queue: (each.effective_rate_limit.requests_per_second, each.stats.approximate_backlog_count)
            for queue, each in zip(queues, known, strict=True)
            if limited_key(described.execution_config.task_queue.name, queue[0]) is not None
        }
        seen = replace(seen, events=events, polled=polled, limited=limited, status=told)
        if is_idle and levels and not (told is not None and told.requests):
            delegates = [pending.workflow_id for pending in described.pending_children][:MOST_DELEGATES]
            below = await asyncio.gather(*(self.wait_of(delegate, levels=levels - 1) for delegate in delegates))
            seen = replace(seen, below=tuple(wait for wait in below if wait is not None))
        return explain(described, seen)

    async def with_wait(self, status: TurnStatus) -> TurnStatus:
        """What the turn says of itself, with what it waits for as far as that can be known."""
        with contextlib.suppress(ClientError):
            return replace(status, waits_for=await self.wait_of(status.session, status))
        return status

    async def waits_of(self, sessions: Collection[str]) -> dict[str, TurnWait]:
        """What the running turns of these sessions wait for, a few at a time; what cannot be known is left out."""
        gate = asyncio.Semaphore(AT_ONCE)

        async def look(session: str) -> TurnWait | None:
            async with gate:
                with contextlib.suppress(ClientError):
                    return await self.wait_of(session)
            return None

        waits = await asyncio.gather(*map(look, sessions))
        return {session: wait for session, wait in zip(sessions, waits, strict=True) if wait is not None}

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

    async def _events(self, run: WorkflowExecution) -> tuple[HistoryEvent, ...]:
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


def _last_poll(described: DescribeTaskQueueResponse) -> datetime | None:
    """When a worker last asked the queue for work, if one has of late."""
    return max((_time(poller.last_access_time) for poller in described.pollers), default=None)


async def _without_wait(status: TurnStatus | None) -> TurnStatus | None:
    return status


def find_untaken_queues(described: DescribeWorkflowExecutionResponse, now: datetime) -> Iterator[Queue]:
    """The queues in which a task of the turn waits for a worker."""
    if _is_untaken(described, now):
        yield described.execution_config.task_queue.name, TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW
    for pending in described.pending_activities:
        if _waits_for_worker(pending, now):
            yield _queue_of(described, pending), TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY


def explain(described: DescribeWorkflowExecutionResponse, seen: Seen) -> TurnWait | None:
    """Why the turn stands still, the worst cause if it has several; None if it goes on."""
    if _is_idle(described):
        return _wait_of_idle(described, seen)
    found = [
        _wait_of_workflow_task(described, seen),
        *(_wait_of_activity(described, pending, seen) for pending in described.pending_activities),
    ]
    return min((wait for wait in found if wait is not None), key=lambda wait: _ORDER[wait.cause], default=None)


def _wait_of_workflow_task(described: DescribeWorkflowExecutionResponse, seen: Seen) -> TurnWait | None:
    """The turn's own code waits for a worker, or fails in every worker that takes it."""
    task = described.pending_workflow_task
    session = _session(described)
    failed = next((event for event in seen.events if event.event_type in _ENDS_OF_TASKS), None)
    if failed is not None and failed.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED and task.attempt > 1:
        said = " ".join(failed.workflow_task_failed_event_attributes.failure.message.split())[:MOST_SAID]
        return TurnWait(
            session=session,
            cause=Cause.WORKFLOW_TASK,
            text=f"the turn's own code fails in every worker: {said}",
            advice="start the version of perdure that the turn began with; or end the workflow with 'temporal workflow "
            f"terminate --workflow-id {session}', and 'perdure send {session} ...' goes on from its last step",
            since=_time(failed.event_time),
            attempt=task.attempt,
        )
    if not _is_untaken(described, seen.now):
        return None
    queue = described.execution_config.task_queue.name, TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW
    return _wait_of_queue(session, queue, Role.TURNS, _time(task.scheduled_time), seen)


def _wait_of_activity(
    described: DescribeWorkflowExecutionResponse, pending: PendingActivityInfo, seen: Seen
) -> TurnWait | None:
    session = _session(described)
    if pending.paused:
        begun = pending.pause_info.pause_time
        return TurnWait(
            session=session,
            cause=Cause.PAUSED,
            text=f"somebody has paused its activity {pending.activity_type.name!r}",
            advice=f"'temporal activity unpause --workflow-id {session} --activity-id {pending.activity_id}' goes on",
            since=_time(begun) if pending.pause_info.HasField("pause_time") else None,
        )
    since = _scheduled_time_of(pending, seen.events)
    if pending.state != PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED:
        return _wait_of_running(session, pending, since, seen.now)
    if _waits_for_worker(pending, seen.now):
        scheduled = _time(pending.scheduled_time)
        if _is_pinned(pending):
            return TurnWait(
                session=session,
                cause=Cause.MCP_STATE,
                text=f"the worker that holds the state of the MCP server of {pending.activity_type.name!r} is away",
                advice="it goes on by itself: after a minute the model is told that the state is lost",
                since=scheduled,
            )
        queue = _queue_of(described, pending), TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY
        own = described.execution_config.task_queue.name
        if (wait := _wait_of_limit(session, queue, limited_key(own, queue[0]), scheduled, seen)) is not None:
            return wait
        wait = _wait_of_queue(session, queue, role_of_queue(own, queue[0]), scheduled, seen)
        return replace(wait, text=f"{_describe_lost(pending)}; {wait.text}") if _is_lost(pending) else wait
    return _wait_of_failure(session, pending, since)


def _is_polled(queue: Queue, seen: Seen) -> bool:
    last = (seen.polled or {}).get(queue)
    return last is not None and seen.now - last <= POLLER_AGE


def _wait_of_limit(session: str, queue: Queue, key: str | None, since: datetime, seen: Seen) -> TurnWait | None:
    """A call in the queue of a limited key, of which the server gives out so many a second."""
    if key is None or not _is_polled(queue, seen):
        return None
    rate, waiting = seen.limited.get(queue, (0.0, 0))
    pace = f"the fleet makes {rate:.3g} calls a second with the key {key}" if rate else f"the key {key} is limited"
    text = f"{WAITS_FOR_ITS_TURN}: {pace}, and {waiting or 'other'} calls wait for it"
    advice = f"it goes on by itself; PERDURE_RATE_LIMITS has the limit; {ENDS.format(session)}"
    return TurnWait(session=session, cause=Cause.PACE, text=text, advice=advice, since=since)


def _wait_of_queue(session: str, queue: Queue, role: Role, since: datetime, seen: Seen) -> TurnWait:
    """No worker takes what the queue holds for the turn."""
    name = queue[0]
    if not _is_polled(queue, seen) and role is not Role.TURNS:
        text = f"no worker with the role {role} polls the task queue {name!r}"
        advice = f"start one with 'perdure worker --roles {role} --agents MODULE', its PERDURE_RATE_LIMITS as elsewhere"
    elif not _is_polled(queue, seen):
        text = f"no worker polls the task queue {name!r}"
        advice = "start one with 'perdure worker --agents MODULE', or set PERDURE_TASK_QUEUE to your workers' queue"
    else:
        text = f"no worker takes its next task from the task queue {name!r}: the workers are gone, or busy"
        advice = "start a worker; if all of them are busy, raising PERDURE_MAX_ACTIVITIES helps, too"
    return TurnWait(session=session, cause=Cause.WORKER, text=text, advice=advice, since=since)


def _wait_of_running(
    session: str, pending: PendingActivityInfo, since: datetime | None, now: datetime
) -> TurnWait | None:
    """An attempt that runs, by what its last beat says; None if it works."""
    say = partial(TurnWait, session=session, since=since)
    name, note = pending.activity_type.name, _note(pending)
    code = pending.last_failure.application_failure_info.type
    if now - max(_time(pending.last_heartbeat_time), _time(pending.last_started_time)) > SILENT:
        text = f"the worker {pending.last_worker_identity}, which runs its {name}, is silent"
        return say(cause=Cause.LOST_WORKER, text=text, advice=_ANOTHER)
    if note.startswith(f"{ReasonCode.RUNTIME_STORE_UNAVAILABLE}: "):
        return _wait_of_store(session, note.partition(": ")[2], since, None)
    if code == ReasonCode.RUNTIME_STORE_UNAVAILABLE and name != Activity.GENERATE:
        return _wait_of_store(session, pending.last_failure.message, since, pending.attempt)
    if code == ReasonCode.RUNTIME_QUEUED and now - _time(pending.last_started_time) < LOOKING:
        return _wait_for_slot(session, pending, since)
    if code == ReasonCode.RUNTIME_TOOL_MISSING and now - _time(pending.last_started_time) < LOOKING:
        wait = _wait_of_failure(session, pending, since)  # the attempt before; this one has most likely the same end
        return None if wait is None else replace(wait, next_at=None)
    if note.startswith(WAITS_FOR_ITS_TURN):
        return _wait_of_pace(session, note, since)
    if name == Activity.COMPACT:
        text = "the beginning of its conversation is being summarised"
        return say(cause=Cause.COMPACTION, text=text, advice=_describe_alone(session))
    if name == Activity.OPEN_TURN and now - _time(pending.last_started_time) > OPENING:
        if note.startswith(WAITS_FOR_SERVERS):
            text = f"it is being opened: {note}"
            advice = f"look at that server; its init_timeout ends the wait, and {ENDS.format(session)}"
        else:
            text = "it is being opened: the store, or a function of its instructions, has not answered yet"
            advice = f"look at the worker's log; {ENDS.format(session)}"
        return say(cause=Cause.OPENING, text=text, advice=advice)
    return None


def _wait_of_failure(session: str, pending: PendingActivityInfo, since: datetime | None) -> TurnWait | None:
    """The last attempt has failed, and the next one comes."""
    failure, next_at = pending.last_failure, _time(pending.scheduled_time)
    say = partial(TurnWait, session=session, since=since, next_at=next_at)
    if _is_lost(pending):
        return say(cause=Cause.LOST_WORKER, text=_describe_lost(pending), advice=_ANOTHER, attempt=pending.attempt)
    if not failure.HasField("application_failure_info"):
        return None
    code, details = failure.application_failure_info.type, failure.application_failure_info.details
    if code == ReasonCode.RUNTIME_WORKER_SHUTDOWN:
        return None
    if code == ReasonCode.RUNTIME_STORE_UNAVAILABLE:
        return _wait_of_store(session, failure.message, since, pending.attempt, next_at)
    if code == ReasonCode.RUNTIME_QUEUED:
        return _wait_for_slot(session, pending, since)
    if code == ReasonCode.RUNTIME_TOOL_MISSING and (missing := _detail(details, MissingVersion)) is not None:
        return say(
            cause=Cause.VERSION,
            text=f"no worker has {missing}",
            advice=f"start a worker of the old version, or perdure cancel {session}",
            attempt=pending.attempt,
            missing=missing,
        )
    if (retry := _detail(details, ProviderRetry)) is not None:
        why = f"HTTP {retry.status}" if retry.status else code
        text = f"retry {retry.attempt} of {retry.max_attempts} after {why} of {retry.model}"
        return say(cause=Cause.PROVIDER, text=text, advice=_describe_alone(session))
    if code == ReasonCode.LLM_RATE_LIMITED:
        return _wait_of_pace(session, failure.message, since, next_at)
    # Who reads it is not the worker that has said it.
    named = failure.message.replace("this worker", f"the worker {pending.last_worker_identity}", 1)
    said, _, advice = " ".join(named.replace("this worker", "it").split())[:MOST_SAID].partition("; ")
    is_other = code == ReasonCode.RUNTIME_STORE_MISMATCH
    return say(
        cause=Cause.OTHER_STORE if is_other else Cause.FAILURE,
        text=said if is_other else f"its {pending.activity_type.name} fails: {said}",
        advice=advice or f"look at the worker's log; {ENDS.format(session)}",
        attempt=pending.attempt,
    )


def _wait_for_slot(session: str, pending: PendingActivityInfo, since: datetime | None) -> TurnWait:
    """The turn is not open yet: it asks for a slot every few seconds."""
    return TurnWait(
        session=session,
        cause=Cause.QUEUED,
        text=pending.last_failure.message,
        advice=f"it opens by itself when others end; a higher limit lets it go on; {ENDS.format(session)}",
        since=since,
    )


def _is_lost(pending: PendingActivityInfo) -> bool:
    return pending.last_failure.HasField("timeout_failure_info")


def _describe_lost(pending: PendingActivityInfo) -> str:
    return f"the worker {pending.last_worker_identity} was lost while it ran {pending.activity_type.name}"


def _wait_of_store(
    session: str, said: str, since: datetime | None, attempt: int | None, next_at: datetime | None = None
) -> TurnWait:
    text, _, fix = " ".join(said.split())[:MOST_SAID].partition("; ")
    return TurnWait(
        session=session,
        cause=Cause.STORE,
        text=text,
        advice=f"{fix or 'make the store usable for the workers'}: the turn then goes on by itself",
        since=since,
        attempt=attempt,
        next_at=next_at,
    )


def _wait_of_pace(session: str, note: str, since: datetime | None, next_at: datetime | None = None) -> TurnWait:
    text = note.removeprefix(f"{WAITS_FOR_ITS_TURN}: ")
    return TurnWait(
        session=session, cause=Cause.PACE, text=text, advice=_describe_alone(session), since=since, next_at=next_at
    )


def _wait_of_idle(described: DescribeWorkflowExecutionResponse, seen: Seen) -> TurnWait | None:
    """Nothing is under way: the turn waits for people, for delegates, or for a pause to pass."""
    session, status = _session(described), seen.status
    since = _time(seen.events[0].event_time) if seen.events else None
    if status is not None and status.state is RunState.PAUSED and status.paused is not None:
        return _wait_of_pause(session, f"the session is {status.paused}", status.paused.since)
    if status is None and _state(described) == RunState.PAUSED:
        return _wait_of_pause(session, "the session is paused", since)
    if status is not None and status.requests:
        return wait_for_person(session, status.requests, since)
    delegates = [pending.workflow_id for pending in described.pending_children]
    if delegates:
        return _wait_of_delegates(session, delegates, since, seen)
    if status is None and _state(described) == RunState.WAITING_FOR_INPUT:
        advice = f"start a worker; perdure show {session} has the request"
        return TurnWait(session=session, cause=Cause.PERSON, text=NEEDS_A_WORKER, advice=advice, since=since)
    if status is not None and status.activity.startswith(Activity.GENERATE):
        return TurnWait(
            session=session,
            cause=Cause.PROVIDER,
            text="a pause after a failed model call, which the model will be told of",
            advice=_describe_alone(session),
            since=since,
            next_at=_timer_ends(seen),
        )
    return None


def _wait_of_pause(session: str, text: str, since: datetime | None) -> TurnWait:
    advice = f"'perdure unpause {session}' goes on"
    return TurnWait(session=session, cause=Cause.PAUSED, text=text, advice=advice, since=since)


def _timer_ends(seen: Seen) -> datetime | None:
    """When the timer that was started last ends; None once it has."""
    started = next((event for event in seen.events if event.event_type == EventType.EVENT_TYPE_TIMER_STARTED), None)
    if started is None:
        return None
    lasts = started.timer_started_event_attributes.start_to_fire_timeout.ToTimedelta()
    ends = _time(started.event_time) + lasts
    return ends if ends > seen.now else None


def wait_for_person(session: str, requests: Sequence[InputRequest], since: datetime | None) -> TurnWait:
    """The wait for a reply, with the command that gives it."""
    first, more = requests[0], f" and {len(requests) - 1} more" if len(requests) > 1 else ""
    if first.needs == "answer":
        text, advice = f"an answer to {first.question!r}", f"perdure answer {session} {first.request_id} VALUE"
    else:
        text = f"an approval of {first.tool} {first.arguments}"
        advice = f"perdure approve {session} {first.request_id}, or perdure deny {session} {first.request_id}"
    return TurnWait(
        session=session, cause=Cause.PERSON, text=" ".join(f"{text}{more}".split()), advice=advice, since=since
    )


def _wait_of_delegates(session: str, delegates: list[str], since: datetime | None, seen: Seen) -> TurnWait:
    """The turn waits for delegates; one that stands still itself is what has to be looked at."""
    is_share = seen.status is not None and seen.status.activity.startswith(WAITS_FOR_A_SHARE)
    worst = min(seen.below, key=lambda wait: _ORDER[wait.cause], default=None)
    if worst is not None and (
        worst.is_stuck or worst.cause is Cause.PERSON or (not is_share and _stand_still(delegates, seen))
    ):
        said = worst.text if worst.text.startswith(_A_DELEGATE) else f"{_A_DELEGATE}{worst.session} waits: {worst.text}"
        return replace(worst, text=said)
    names = ", ".join(delegates[:MOST_DELEGATES]) + (", ..." if len(delegates) > MOST_DELEGATES else "")
    if is_share:
        text = f"what is left of its budget is the share of delegates that still work: {names}"
        advice = f"it goes on when one ends; a higher limit by perdure extend {session} lets it go on at once"
        return TurnWait(session=session, cause=Cause.SHARE, text=text, advice=advice, since=since)
    advice = f"perdure follow {delegates[0]} shows its work"
    return TurnWait(
        session=session, cause=Cause.DELEGATE, text=f"delegates that work: {names}", advice=advice, since=since
    )


def _stand_still(delegates: list[str], seen: Seen) -> bool:
    """Whether each of them waits for something else than delegates of its own that work."""
    still = {wait.session for wait in seen.below if wait.cause not in {Cause.DELEGATE, Cause.SHARE}}
    return len(still) == len(delegates)


def _is_idle(described: DescribeWorkflowExecutionResponse) -> bool:
    return not described.pending_activities and not described.HasField("pending_workflow_task")


def _is_untaken(described: DescribeWorkflowExecutionResponse, now: datetime) -> bool:
    task = described.pending_workflow_task
    is_scheduled = task.state == PendingWorkflowTaskState.PENDING_WORKFLOW_TASK_STATE_SCHEDULED
    return is_scheduled and now - _time(task.scheduled_time) > UNTAKEN


def _waits_for_worker(pending: PendingActivityInfo, now: datetime) -> bool:
    is_scheduled = pending.state == PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED
    return is_scheduled and not pending.paused and now - _time(pending.scheduled_time) > UNTAKEN


def _is_pinned(pending: PendingActivityInfo) -> bool:
    """Whether only one worker may take the call, which holds the state of an MCP server."""
    return pending.activity_options.schedule_to_start_timeout.ToTimedelta() > timedelta(0)


def _queue_of(described: DescribeWorkflowExecutionResponse, pending: PendingActivityInfo) -> str:
    return pending.activity_options.task_queue.name or described.execution_config.task_queue.name


def _session(described: DescribeWorkflowExecutionResponse) -> str:
    return described.workflow_execution_info.execution.workflow_id


def _scheduled_time_of(pending: PendingActivityInfo, events: tuple[HistoryEvent, ...]) -> datetime | None:
    """When the activity was first asked for; a description has that of its last attempt."""
    for event in events:
        if event.activity_task_scheduled_event_attributes.activity_id == pending.activity_id:
            return _time(event.event_time)
    return _time(pending.scheduled_time) if pending.attempt <= 1 else None


def _note(pending: PendingActivityInfo) -> str:
    """What the last beat says."""
    for payload in pending.heartbeat_details.payloads:
        with contextlib.suppress(ValueError):
            if isinstance(said := json.loads(payload.data), str):
                return said
    return ""


def _detail(details: Payloads, model: type[Model]) -> Model | None:
    """The second detail of a failure, if it is such a one."""
    for payload in list(details.payloads)[1:2]:
        with contextlib.suppress(ValidationError):
            return model.model_validate_json(payload.data)
    return None


def _state(described: DescribeWorkflowExecutionResponse) -> Any:  # noqa: ANN401 - whatever JSON it holds
    """The search attribute, if the turns of this cluster have it."""
    fields = described.workflow_execution_info.search_attributes.indexed_fields
    if SearchAttribute.STATE not in fields:
        return None
    with contextlib.suppress(ValueError):
        return json.loads(fields[SearchAttribute.STATE].data)
    return None


def _describe_alone(session: str) -> str:
    return f"it goes on by itself; {ENDS.format(session)}"


def _time(stamp: Timestamp) -> datetime:
    return stamp.ToDatetime(UTC)
