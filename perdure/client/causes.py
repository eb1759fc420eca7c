"""Causes of a wait: why a running turn stands still, in a sentence with advice, from what was seen of its workflow.

Asks nobody: :mod:`perdure.client.waits` fills in ``Seen``, and :func:`explain` decides which cause counts.

Long, because every cause has its own sentence and its own advice.
"""

import contextlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from google.protobuf.timestamp_pb2 import Timestamp
from pydantic import BaseModel, ValidationError
from temporalio.api.common.v1 import Payloads
from temporalio.api.enums.v1 import EventType, PendingActivityState, PendingWorkflowTaskState, TaskQueueType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionResponse

from perdure.client.unopened import FAILING
from perdure.client.versions import (
    POLLER_AGE,
    Bound,
    QueueVersions,
    bound_of,
    current_command,
    move_command,
    name_versions,
    worker_of,
)
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

PASSED_ON = 20
"""Attempts, ten seconds of them, for which a call that a worker which polls could take is on its way to that one."""

LOOKING = timedelta(seconds=2)
"""A worker knows by then that it lacks a tool: an attempt that runs longer has found it."""

NAMED_DELEGATES = 3
"""Delegates that the sentence about a wait for delegates names."""

MOST_SAID = 600
"""Characters of a failure's message that are shown."""

NEEDS_A_WORKER = "a person's reply, which needs a worker to take it"
"""Wait of a turn that asks a person while no worker can say what it asks."""

_A_DELEGATE = "delegate "
_ANOTHER = "another worker goes on by itself; look at why this one died"
_ORDER = {cause: place for place, cause in enumerate(Cause)}
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
    """Facts about a running turn. The description is enough for one that goes on; the rest is asked for others.

    Attributes:
        described: What Temporal says of the workflow.
        status: What the turn says of itself; None if no worker says so, or nobody was asked.
        events: The end of the history, the last event first.
        polled: When a worker last asked each queue for work; None if none has.
        limited: Each queue with a rate limit: its calls a second, and how many wait.
        below: What the delegates that the turn waits for wait for.
        builds: The build of each worker that polls for the queue of the turn's own code, as far as they tell.
        versions: The deployment versions of that queue; None if it was not looked at.
    """

    described: DescribeWorkflowExecutionResponse
    now: datetime
    status: TurnStatus | None = None
    events: tuple[HistoryEvent, ...] = ()
    polled: Mapping[Queue, datetime | None] = field(default_factory=dict["Queue", "datetime | None"])
    limited: Mapping[Queue, tuple[float, int]] = field(default_factory=dict["Queue", "tuple[float, int]"])
    below: tuple[TurnWait, ...] = ()
    builds: tuple[str, ...] = ()
    versions: QueueVersions | None = None

    @property
    def session(self) -> str:
        """The turn's session."""
        return self.described.workflow_execution_info.execution.workflow_id

    @property
    def own_queue(self) -> str:
        """The name of the task queue of the turn's own code."""
        return self.described.execution_config.task_queue.name

    @property
    def bound(self) -> Bound | None:
        """The deployment version that the turn's tasks go to; None if its queue has none, or was not looked at."""
        if self.versions is None or self.versions.polling <= {None}:
            return None
        return bound_of(self.described.workflow_execution_info.versioning_info, self.versions)

    @property
    def delegates(self) -> list[str]:
        """The sessions of the delegates that the turn waits for."""
        return [pending.workflow_id for pending in self.described.pending_children]

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        return not self.described.pending_activities and not self.described.HasField("pending_workflow_task")

    @property
    def is_refused_for_its_version(self) -> bool:
        """Whether a worker has refused something of the turn because it lacks a part of its version."""
        return any(
            pending.last_failure.application_failure_info.type == ReasonCode.RUNTIME_TOOL_MISSING
            for pending in self.described.pending_activities
        )

    @property
    def is_tried_again(self) -> bool:
        """Whether a task of the turn's own code has failed, or was lost, and is given out again."""
        return self.described.pending_workflow_task.attempt > 1

    def wait(
        self,
        cause: Cause,
        text: str,
        advice: str,
        since: datetime | None,
        *,
        attempt: int | None = None,
        next_at: datetime | None = None,
    ) -> TurnWait:
        """A wait of this turn."""
        session = self.session
        return TurnWait(
            session=session, cause=cause, text=text, advice=advice, since=since, attempt=attempt, next_at=next_at
        )

    @property
    def ends(self) -> str:
        """Advice on ending the turn."""
        return f"perdure cancel {self.session} ends the turn"

    @property
    def alone(self) -> str:
        """The advice where nothing has to be done."""
        return f"it goes on by itself; {self.ends}"


def find_untaken_queues(seen: Seen) -> Iterator[Queue]:
    """The queues in which a task of the turn waits for a worker."""
    if _is_untaken(seen):
        yield seen.own_queue, TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW
    for pending in seen.described.pending_activities:
        if _waits_for_worker(pending, seen.now):
            yield _queue_of(seen, pending)


def explain(seen: Seen) -> TurnWait | None:
    """Explain why the turn stands still, by the worst cause if it has several; None if it goes on."""
    if seen.is_idle:
        return _wait_of_idle(seen)
    found = [
        _wait_of_workflow_task(seen),
        *(_wait_of_activity(seen, pending) for pending in seen.described.pending_activities),
    ]
    return min((wait for wait in found if wait is not None), key=lambda wait: _ORDER[wait.cause], default=None)


def _wait_of_workflow_task(seen: Seen) -> TurnWait | None:
    """The turn's own code waits for a worker, or fails in every worker that takes it."""
    task, session = seen.described.pending_workflow_task, seen.session
    last = next((event for event in seen.events if event.event_type in _ENDS_OF_TASKS), None)
    failed = last if last is not None and last.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED else None
    is_lost = last is not None and last.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT
    if seen.is_tried_again and (failed is not None or (is_lost and task.attempt >= FAILING)):
        said = "" if failed is None else failed.workflow_task_failed_event_attributes.failure.message
        return seen.wait(
            Cause.WORKFLOW_TASK,
            f"the turn's own code fails in every worker: {_shorten(said) or 'none answers for it'}",
            f"start the version of perdure that the turn began with; or 'perdure cancel {session} --force' ends the "
            f"turn, and 'perdure send {session} ...' goes on from its last step",
            _time(last.event_time) if last is not None else None,
            attempt=task.attempt,
        )
    if not _is_untaken(seen):
        return None
    queue = seen.own_queue, TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW
    return _wait_of_queue(seen, queue, Role.TURNS, _time(task.scheduled_time))


def _wait_of_activity(seen: Seen, pending: PendingActivityInfo) -> TurnWait | None:
    """An activity is paused, runs, waits for a worker, or has failed and runs again."""
    if pending.paused:
        begun = pending.pause_info.pause_time
        return seen.wait(
            Cause.PAUSED,
            f"somebody has paused its activity {pending.activity_type.name!r}",
            f"'temporal activity unpause --workflow-id {seen.session} --activity-id {pending.activity_id}' goes on",
            _time(begun) if pending.pause_info.HasField("pause_time") else None,
        )
    since = _scheduled_time_of(seen, pending)
    if pending.state != PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED:
        return _wait_of_running(seen, pending, since)
    if _waits_for_worker(pending, seen.now):
        return _wait_for_worker(seen, pending)
    return _wait_of_failure(seen, pending, since)


def _wait_for_worker(seen: Seen, pending: PendingActivityInfo) -> TurnWait:
    """No worker has taken the activity."""
    since = _time(pending.scheduled_time)
    if _is_pinned(pending):
        text = f"the worker that holds the state of the MCP server of {pending.activity_type.name!r} is away"
        advice = "it goes on by itself: after a minute the model is told that the state is lost"
        return seen.wait(Cause.MCP_STATE, text, advice, since)
    queue = _queue_of(seen, pending)
    key = limited_key(seen.own_queue, queue[0])
    if key is not None and _is_polled(seen, queue):  # the server gives out so many calls a second
        rate, waiting = seen.limited.get(queue, (0.0, 0))
        pace = f"the fleet makes {rate:.3g} calls a second with the key {key}" if rate else f"the key {key} is limited"
        text = f"{WAITS_FOR_ITS_TURN}: {pace}, and {waiting or 'other'} calls wait for it"
        return seen.wait(
            Cause.PACE, text, f"it goes on by itself; PERDURE_RATE_LIMITS has the limit; {seen.ends}", since
        )
    wait = _wait_of_queue(seen, queue, role_of_queue(seen.own_queue, queue[0]), since)
    return replace(wait, text=f"{_describe_lost(pending)}; {wait.text}") if _is_lost(pending) else wait


def _wait_of_queue(seen: Seen, queue: Queue, role: Role, since: datetime) -> TurnWait:
    """No worker takes what the queue holds for the turn."""
    name = queue[0]
    if (stranded := _wait_of_version(seen, name, since)) is not None:
        return stranded
    if _is_polled(seen, queue):
        text = f"no worker takes its next task from the task queue {name!r}: the workers are gone, or busy"
        advice = "start a worker; if all of them are busy, raising PERDURE_MAX_ACTIVITIES helps, too"
    elif role is Role.TURNS:
        text = f"no worker polls the task queue {name!r}"
        advice = "start one with 'perdure worker --agents MODULE', or set PERDURE_TASK_QUEUE to your workers' queue"
    else:
        text = f"no worker with the role {role} polls the task queue {name!r}"
        advice = f"start one with 'perdure worker --roles {role} --agents MODULE', its PERDURE_RATE_LIMITS as elsewhere"
    return seen.wait(Cause.WORKER, text, advice, since)


def _wait_of_version(seen: Seen, queue: str, since: datetime | None) -> TurnWait | None:
    """Workers poll the queue, and none of the deployment version to which the server sends the turn's tasks."""
    bound, versions = seen.bound, seen.versions
    if bound is None or versions is None or queue != seen.own_queue or bound.version in versions.polling:
        return None
    there = name_versions(sorted(versions.polling, key=str))
    pinned = "is pinned to" if bound.is_pinned else "goes to"
    text = f"the turn {pinned} {bound.name}, and no worker of it polls the task queue {queue!r}, where {there} polls"
    return seen.wait(Cause.WORKER, text, _advise_on_version(seen, bound, versions), since)


def _advise_on_version(seen: Seen, bound: Bound, versions: QueueVersions) -> str:
    """Advice for a turn whose version has no worker, or whose workers lack something."""
    start = f"start a worker {worker_of(bound.version)}"
    others = versions.others(bound.version)
    if bound.is_pinned or not others:
        return f"{start}, or move the turn: {move_command(seen.session, others[-1] if others else None)}"
    return f"{start}, or make another version current: {current_command(others[-1])}"


def _wait_of_running(seen: Seen, pending: PendingActivityInfo, since: datetime | None) -> TurnWait | None:
    """An attempt that runs, by what its last beat says; None if it works."""
    name, note = pending.activity_type.name, _note(pending)
    code, runs_for = pending.last_failure.application_failure_info.type, seen.now - _time(pending.last_started_time)
    if min(seen.now - _time(pending.last_heartbeat_time), runs_for) > SILENT:
        text = f"the worker {pending.last_worker_identity}, which runs its {name}, is silent"
        return seen.wait(Cause.LOST_WORKER, text, _ANOTHER, since)
    if note.startswith(f"{ReasonCode.RUNTIME_STORE_UNAVAILABLE}: "):
        return _wait_of_store(seen, note.partition(": ")[2], since)
    if code == ReasonCode.RUNTIME_STORE_UNAVAILABLE and name != Activity.GENERATE:
        return _wait_of_store(seen, pending.last_failure.message, since, pending.attempt)
    if code == ReasonCode.RUNTIME_QUEUED and runs_for < LOOKING:
        return _wait_for_slot(seen, pending, since)
    if code == ReasonCode.RUNTIME_TOOL_MISSING and runs_for < LOOKING:
        wait = _wait_of_failure(seen, pending, since)  # the attempt before; this one has most likely the same end
        return None if wait is None else replace(wait, next_at=None)
    if note.startswith(WAITS_FOR_ITS_TURN):
        return _wait_of_pace(seen, note, since)
    if name == Activity.COMPACT:
        text = "the beginning of its conversation is being summarised"
        return seen.wait(Cause.COMPACTION, text, seen.alone, since)
    if name == Activity.OPEN_TURN and runs_for > OPENING:
        if note.startswith(WAITS_FOR_SERVERS):
            text = f"it is being opened: {note}"
            advice = f"look at that server; its init_timeout ends the wait, and {seen.ends}"
            return seen.wait(Cause.OPENING, text, advice, since)
        text = "it is being opened: the store, or a function of its instructions, has not answered yet"
        return seen.wait(Cause.OPENING, text, f"look at the worker's log; {seen.ends}", since)
    return None


def _wait_of_failure(seen: Seen, pending: PendingActivityInfo, since: datetime | None) -> TurnWait | None:
    """The last attempt has failed, and the next one comes."""
    failure, next_at, attempt = pending.last_failure, _time(pending.scheduled_time), pending.attempt
    if _is_lost(pending):
        lost = _describe_lost(pending)
        return seen.wait(Cause.LOST_WORKER, lost, _ANOTHER, since, attempt=attempt, next_at=next_at)
    if not failure.HasField("application_failure_info"):
        return None
    code, details = failure.application_failure_info.type, failure.application_failure_info.details
    if code == ReasonCode.RUNTIME_WORKER_SHUTDOWN:
        return None
    if code == ReasonCode.RUNTIME_STORE_UNAVAILABLE:
        return _wait_of_store(seen, failure.message, since, attempt, next_at)
    if code == ReasonCode.RUNTIME_QUEUED:
        return _wait_for_slot(seen, pending, since)
    if code == ReasonCode.RUNTIME_TOOL_MISSING and (missing := _detail(details, MissingVersion)) is not None:
        if missing.elsewhere and attempt <= PASSED_ON:
            return None
        text, advice = _explain_missing(seen, missing)
        wait = seen.wait(Cause.VERSION, text, advice, since, attempt=attempt, next_at=next_at)
        return replace(wait, missing=missing)
    if (retry := _detail(details, ProviderRetry)) is not None:
        why = f"HTTP {retry.status}" if retry.status else code
        text = f"retry {retry.attempt} of {retry.max_attempts} after {why} of {retry.model}"
        return seen.wait(Cause.PROVIDER, text, seen.alone, since, next_at=next_at)
    if code == ReasonCode.LLM_RATE_LIMITED:
        return _wait_of_pace(seen, failure.message, since, next_at)
    # Who reads it is not the worker that has said it.
    named = failure.message.replace("this worker", f"the worker {pending.last_worker_identity}", 1)
    said, _, advice = _shorten(named.replace("this worker", "it")).partition("; ")
    advice = advice or f"look at the worker's log; {seen.ends}"
    if code == ReasonCode.RUNTIME_STORE_MISMATCH:
        return seen.wait(Cause.OTHER_STORE, said, advice, since, attempt=attempt, next_at=next_at)
    text = f"its {pending.activity_type.name} fails: {said}"
    return seen.wait(Cause.FAILURE, text, advice, since, attempt=attempt, next_at=next_at)


def _explain_missing(seen: Seen, missing: MissingVersion) -> tuple[str, str]:
    """The text and the advice for a turn of which no worker that may take its calls has a part."""
    builds, cancel = _describe_builds(seen.builds), f"perdure cancel {seen.session}"
    bound = seen.bound
    if bound is None or seen.versions is None:
        which = "that has it" if missing.is_whole else "of the old version"
        asked = " that was asked" if missing.elsewhere else ""  # one that has just ended counts for a while
        return f"no worker{asked} has {missing}{builds}", f"start a worker {which}, or {cancel}"
    others = seen.versions.others(bound.version)  # their workers get none of the turn's calls
    move = move_command(seen.session, others[-1] if others else None)
    advice = f"move the turn to a version that has it, with its workers: {move}, or {cancel}"
    return f"no worker of {bound.name}, to which the turn's calls go, has {missing}{builds}", advice


def _describe_builds(builds: Sequence[str]) -> str:
    """The builds of the workers that poll, with the number of workers of each; empty if none tells its build."""
    counts = Counter(build for build in builds if build)
    if not counts:
        return ""
    shown = [f"{build} ({count})" for build, count in sorted(counts.items())]
    return f"; builds that poll: {', '.join(shown)}"


def _wait_for_slot(seen: Seen, pending: PendingActivityInfo, since: datetime | None) -> TurnWait:
    """The turn is not open yet: it asks for a slot every few seconds."""
    advice = f"it opens by itself when others end; a higher limit lets it go on; {seen.ends}"
    return seen.wait(Cause.QUEUED, pending.last_failure.message, advice, since)


def _wait_of_store(
    seen: Seen, said: str, since: datetime | None, attempt: int | None = None, next_at: datetime | None = None
) -> TurnWait:
    text, _, fix = _shorten(said).partition("; ")
    advice = f"{fix or 'make the store usable for the workers'}: the turn then goes on by itself"
    return seen.wait(Cause.STORE, text, advice, since, attempt=attempt, next_at=next_at)


def _wait_of_pace(seen: Seen, note: str, since: datetime | None, next_at: datetime | None = None) -> TurnWait:
    text = note.removeprefix(f"{WAITS_FOR_ITS_TURN}: ")
    return seen.wait(Cause.PACE, text, seen.alone, since, next_at=next_at)


def _wait_of_idle(seen: Seen) -> TurnWait | None:
    """Nothing is under way: the turn waits for people, for delegates, or for a pause to pass."""
    status = seen.status
    since = _time(seen.events[0].event_time) if seen.events else None
    unpause = f"'perdure unpause {seen.session}' goes on"
    if status is not None and status.state is RunState.PAUSED and status.paused is not None:
        return seen.wait(Cause.PAUSED, f"the session is {status.paused}", unpause, status.paused.since)
    if status is None and _state(seen) == RunState.PAUSED:
        return seen.wait(Cause.PAUSED, "the session is paused", unpause, since)
    if status is not None and status.requests:
        return wait_for_person(seen.session, status.requests, since)
    if seen.delegates:
        return _wait_of_delegates(seen, since)
    if status is None and _state(seen) == RunState.WAITING_FOR_INPUT:
        start = "start a worker"
        if (bound := seen.bound) is not None and seen.versions is not None:
            start = _advise_on_version(seen, bound, seen.versions)
        advice = f"{start}; perdure show {seen.session} has the request"
        return seen.wait(Cause.PERSON, NEEDS_A_WORKER, advice, since)
    if status is not None and status.activity.startswith(Activity.GENERATE):
        text = "a pause after a failed model call, which the model will be told of"
        return seen.wait(Cause.PROVIDER, text, seen.alone, since, next_at=_timer_ends(seen))
    return None


def wait_for_person(session: str, requests: Sequence[InputRequest], since: datetime | None) -> TurnWait:
    """The wait for a reply, with the command that gives it."""
    first, more = requests[0], f" and {len(requests) - 1} more" if len(requests) > 1 else ""
    if first.needs == "answer":
        text, advice = f"an answer to {first.question!r}", f"perdure answer {session} {first.request_id} VALUE"
    elif first.needs == "result":
        text = f"the result of {first.tool}, which its caller runs"
        advice = f"perdure submit {session} {first.request_id} VALUE"
    else:
        text = f"an approval of {first.tool} {first.arguments}"
        advice = f"perdure approve {session} {first.request_id}, or perdure deny {session} {first.request_id}"
    return TurnWait(
        session=session, cause=Cause.PERSON, text=" ".join(f"{text}{more}".split()), advice=advice, since=since
    )


def _wait_of_delegates(seen: Seen, since: datetime | None) -> TurnWait:
    """The turn waits for delegates; one that stands still itself is what has to be looked at."""
    is_share = seen.status is not None and seen.status.activity.startswith(WAITS_FOR_A_SHARE)
    worst = min(seen.below, key=lambda wait: _ORDER[wait.cause], default=None)
    if worst is not None and (
        worst.is_stuck or worst.cause is Cause.PERSON or (not is_share and _all_stand_still(seen))
    ):
        said = worst.text if worst.text.startswith(_A_DELEGATE) else f"{_A_DELEGATE}{worst.session} waits: {worst.text}"
        return replace(worst, text=said)
    names = ", ".join(seen.delegates[:NAMED_DELEGATES]) + (", ..." if len(seen.delegates) > NAMED_DELEGATES else "")
    if is_share:
        text = f"what is left of its budget is the share of delegates that still work: {names}"
        advice = f"it goes on when one ends; a higher limit by perdure extend {seen.session} lets it go on at once"
        return seen.wait(Cause.SHARE, text, advice, since)
    advice = f"perdure follow {seen.delegates[0]} shows its work"
    return seen.wait(Cause.DELEGATE, f"delegates that work: {names}", advice, since)


def _all_stand_still(seen: Seen) -> bool:
    """Whether each delegate waits for something else than delegates of its own that work."""
    still = {wait.session for wait in seen.below if wait.cause not in {Cause.DELEGATE, Cause.SHARE}}
    return len(still) == len(seen.delegates)


def _timer_ends(seen: Seen) -> datetime | None:
    """When the timer that was started last ends; None once it has."""
    started = next((event for event in seen.events if event.event_type == EventType.EVENT_TYPE_TIMER_STARTED), None)
    if started is None:
        return None
    lasts = started.timer_started_event_attributes.start_to_fire_timeout.ToTimedelta()
    ends = _time(started.event_time) + lasts
    return ends if ends > seen.now else None


def _is_untaken(seen: Seen) -> bool:
    """Whether no worker takes the turn's own code."""
    task = seen.described.pending_workflow_task
    is_scheduled = task.state == PendingWorkflowTaskState.PENDING_WORKFLOW_TASK_STATE_SCHEDULED
    return is_scheduled and seen.now - _time(task.scheduled_time) > UNTAKEN


def _waits_for_worker(pending: PendingActivityInfo, now: datetime) -> bool:
    is_scheduled = pending.state == PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED
    return is_scheduled and not pending.paused and now - _time(pending.scheduled_time) > UNTAKEN


def _is_polled(seen: Seen, queue: Queue) -> bool:
    last = seen.polled.get(queue)
    return last is not None and seen.now - last <= POLLER_AGE


def _is_pinned(pending: PendingActivityInfo) -> bool:
    """Whether only one worker may take the call, which holds the state of an MCP server."""
    return pending.activity_options.schedule_to_start_timeout.ToTimedelta() > timedelta(0)


def _is_lost(pending: PendingActivityInfo) -> bool:
    return pending.last_failure.HasField("timeout_failure_info")


def _describe_lost(pending: PendingActivityInfo) -> str:
    return f"the worker {pending.last_worker_identity} was lost while it ran {pending.activity_type.name}"


def _queue_of(seen: Seen, pending: PendingActivityInfo) -> Queue:
    return pending.activity_options.task_queue.name or seen.own_queue, TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY


def _scheduled_time_of(seen: Seen, pending: PendingActivityInfo) -> datetime | None:
    """When the activity was first asked for; a description has that of its last attempt."""
    for event in seen.events:
        if event.activity_task_scheduled_event_attributes.activity_id == pending.activity_id:
            return _time(event.event_time)
    return _time(pending.scheduled_time) if pending.attempt <= 1 else None


def _note(pending: PendingActivityInfo) -> str:
    """Text of the last beat."""
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


def _state(seen: Seen) -> Any:  # noqa: ANN401 - whatever JSON it holds
    """The search attribute, if the turns of this cluster have it."""
    fields = seen.described.workflow_execution_info.search_attributes.indexed_fields
    if SearchAttribute.STATE not in fields:
        return None
    with contextlib.suppress(ValueError):
        return json.loads(fields[SearchAttribute.STATE].data)
    return None


def _shorten(message: str) -> str:
    """A failure's message on one line, cut to ``MOST_SAID``."""
    return " ".join(message.split())[:MOST_SAID]


def _time(stamp: Timestamp) -> datetime:
    return stamp.ToDatetime(UTC)
