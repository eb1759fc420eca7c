"""Why a turn stands still, from descriptions that the real server gave, and from what they could say besides."""

import base64
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict
from temporalio.api.enums.v1 import PendingActivityState, TaskQueueType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionResponse

from perdure.client.causes import PASSED_ON, Seen, explain, find_untaken_queues
from perdure.contracts.budgets import Spent
from perdure.contracts.input_requests import InputRequest
from perdure.contracts.turns import RunState, TurnStatus
from perdure.contracts.values import replace
from perdure.contracts.waits import STUCK, WAITS_FOR_A_SHARE, WAITS_FOR_SERVERS, Cause, TurnWait, duration

FOLDER = Path(__file__).parent / "descriptions"
NOW = datetime(2026, 11, 22, 12, 0, 0, tzinfo=UTC)
QUEUE = "job-1"
CANCEL = "perdure cancel job-1"


def recorded(name: str) -> tuple[DescribeWorkflowExecutionResponse, datetime]:
    """What the server said of a turn, and when."""
    body = json.loads((FOLDER / f"{name}.json").read_text())
    return ParseDict(body["described"], DescribeWorkflowExecutionResponse()), datetime.fromisoformat(body["now"])


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "version",
            "no worker has tool 'two' of this version of agent 'tester' (attempt 2, next in 5 s); "
            f"start a worker of the old version, or {CANCEL}",
        ),
        (
            "version_changed",
            "no worker has tool 'two' with the arguments of this version of agent 'tester' (attempt 2, next in 5 s); "
            f"start a worker of the old version, or {CANCEL}",
        ),
        (
            "provider",
            "retry 1 of 8 after HTTP 429 of openai/scripted (next in 30 s); "
            f"it goes on by itself; {CANCEL} ends the turn",
        ),
        (
            "store",
            "the store sqlite:///.perdure/store.db cannot be used: database is locked; "
            "make the store usable for the workers: the turn then goes on by itself",
        ),
        (
            "worker",
            "no worker polls the task queue 'job-1'; start one with 'perdure worker --agents MODULE', "
            "or set PERDURE_TASK_QUEUE to your workers' queue",
        ),
    ],
)
def test_a_recorded_description_gives_the_cause_and_what_to_do(name: str, sentence: str) -> None:
    described, now = recorded(name)
    wait = explain(Seen(described=described, now=now))
    assert wait is not None
    assert wait.cause == name.partition("_")[0]
    assert wait.sentence(now).partition(": ")[2] == sentence
    assert (wait.session, wait.is_stuck) == ("job-1", wait.cause in STUCK)


def payload(value: object) -> dict[str, Any]:
    return {"metadata": {"encoding": "anNvbi9wbGFpbg=="}, "data": base64.b64encode(json.dumps(value).encode()).decode()}


def at(seconds: float) -> str:
    """So long before now, as the server writes it; a negative time is yet to come."""
    return (NOW - timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


def running(name: str = "generate", *, beat: float = 1, note: str = "", **more: Any) -> dict[str, Any]:
    """An activity that a worker runs since 30 s."""
    return {
        "activity_id": "3",
        "activity_type": {"name": name},
        "state": "PENDING_ACTIVITY_STATE_STARTED",
        "attempt": 1,
        "scheduled_time": at(30),
        "last_started_time": at(30),
        "last_heartbeat_time": at(beat),
        "last_worker_identity": "7@host",
        "heartbeat_details": {"payloads": [payload(part) for part in (note, {"lost_attempts": 0}) if part]},
        **more,
    }


def failed(code: str, message: str = "it is away; do this", *, ago: float = -4, **more: Any) -> dict[str, Any]:
    """An activity whose last attempt has failed, and whose next one is due in so many seconds."""
    failure = {"message": message, "application_failure_info": {"type": code}}
    return {
        **running(),
        "state": "PENDING_ACTIVITY_STATE_SCHEDULED",
        "attempt": 3,
        "scheduled_time": at(ago),
        "last_failure": failure,
        **more,
    }


def described(*activities: dict[str, Any], **more: Any) -> DescribeWorkflowExecutionResponse:
    body = {
        "execution_config": {"task_queue": {"name": QUEUE}},
        "workflow_execution_info": {"execution": {"workflow_id": "job-1"}},
        "pending_activities": list(activities),
        **more,
    }
    return ParseDict(body, DescribeWorkflowExecutionResponse())


UNSEEN = Seen(described=DescribeWorkflowExecutionResponse(), now=NOW)
"""Nothing is known beside the time; :func:`why` adds the description."""


def why(*activities: dict[str, Any], seen: Seen | None = None, **more: Any) -> TurnWait | None:
    return explain(replace(seen or UNSEEN, described=described(*activities, **more)))


LOST = {"message": "activity Heartbeat timeout", "timeout_failure_info": {"timeout_type": "TIMEOUT_TYPE_HEARTBEAT"}}
PACE = "waits for its turn: openai limits this key, it takes 4.8 calls a second, 12 calls are before this one"
SILENT_FILES = "no answer yet from MCP server: files"
PINNED = {"schedule_to_start_timeout": "60s"}
WAITING: dict[str, Any] = {"state": "PENDING_ACTIVITY_STATE_SCHEDULED", "scheduled_time": at(20)}


@pytest.mark.parametrize(
    ("activity", "cause", "text"),
    [
        (running(paused=True), Cause.PAUSED, "somebody has paused its activity 'generate'"),
        (running(beat=7), Cause.LOST_WORKER, "the worker 7@host, which runs its generate, is silent"),
        (failed("x", last_failure=LOST), Cause.LOST_WORKER, "the worker 7@host was lost while it ran generate"),
        (running(note=PACE), Cause.PACE, "openai limits this key, it takes 4.8 calls a second, 12 calls are before"),
        (failed("llm.rate_limited", PACE), Cause.PACE, "openai limits this key"),
        (running("compact"), Cause.COMPACTION, "the beginning of its conversation is being summarised"),
        (running("open_turn"), Cause.OPENING, "it is being opened: the store, or a function of its instructions"),
        (
            running("open_turn", note=f"{WAITS_FOR_SERVERS}: files"),
            Cause.OPENING,
            f"it is being opened: {SILENT_FILES}",
        ),
        (failed("runtime.store_unavailable"), Cause.STORE, "it is away"),
        (
            failed("runtime.store_mismatch", "this worker looks at a; start this worker with b"),
            Cause.OTHER_STORE,
            "the worker 7@host looks at a",
        ),
        (failed("KeyError", "'x'"), Cause.FAILURE, "its generate fails: 'x'"),
        (running("two", **WAITING, activity_options=PINNED), Cause.MCP_STATE, "the worker that holds the state"),
        (running(**WAITING), Cause.WORKER, "no worker polls the task queue 'job-1'"),
        (
            failed("x", last_failure=LOST, ago=20),
            Cause.WORKER,
            "the worker 7@host was lost while it ran generate; no worker polls the task queue 'job-1'",
        ),
        (failed("runtime.store_unavailable", ago=20), Cause.WORKER, "no worker polls the task queue 'job-1'"),
    ],
)
def test_each_cause_at_an_activity_is_told_apart(activity: dict[str, Any], cause: Cause, text: str) -> None:
    wait = why(activity)
    assert wait is not None
    assert (wait.cause, wait.text[: len(text)]) == (cause, text)
    assert wait.advice


@pytest.mark.parametrize(
    "activity",
    [
        running(),
        running("two", note="3 of 8 files"),
        running("open_turn", last_started_time=at(1)),
        running(**{**WAITING, "scheduled_time": at(1)}),
        failed("runtime.worker_shutdown"),
    ],
)
def test_a_turn_that_goes_on_waits_for_nothing(activity: dict[str, Any]) -> None:
    assert why(activity) is None


@pytest.mark.parametrize(("seconds", "cause"), [(0.5, Cause.VERSION), (3, None)])
def test_a_worker_that_looks_for_a_missing_tool_does_not_hide_that_it_is_missing(
    seconds: float, cause: Cause | None
) -> None:
    """Each attempt runs for a moment; one that runs on has found its tool."""
    described, now = recorded("version")
    (pending,) = described.pending_activities
    pending.state = PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
    pending.last_started_time.FromDatetime(now - timedelta(seconds=seconds))
    wait = explain(Seen(described=described, now=now))
    assert (wait.cause if wait is not None else None) == cause
    assert wait is None or wait.next_at is None


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        ("agent", "agent 'two'"),
        ("delegate", "agent 'two', a delegate of agent 'tester'"),
        ("server", "MCP server 'two' of this version of agent 'tester'"),
        ("hook", "hook 'two' of this version of agent 'tester'"),
    ],
)
@pytest.mark.parametrize(
    ("builds", "polling"),
    [
        ((), ""),
        (("",), ""),
        (("a.B", "", "a.A", "a.B"), "; builds that poll: a.A (1), a.B (2)"),
    ],
)
def test_a_wait_for_a_version_names_what_is_missing_and_the_builds_that_poll(
    what: str, sentence: str, builds: tuple[str, ...], polling: str
) -> None:
    missing = {"agent": "tester", "what": what, "name": "two", "definition": "d"}
    refused = failed("runtime.tool_missing")
    refused["last_failure"]["application_failure_info"]["details"] = {"payloads": [payload({}), payload(missing)]}
    wait = why(refused, seen=replace(UNSEEN, builds=builds))
    assert wait is not None
    assert (wait.cause, wait.text) == (Cause.VERSION, f"no worker has {sentence}{polling}")
    version = "that has it" if what in {"agent", "delegate"} else "of the old version"
    assert wait.advice == f"start a worker {version}, or perdure cancel job-1"


@pytest.mark.parametrize(("attempt", "is_told"), [(1, False), (PASSED_ON, False), (PASSED_ON + 1, True)])
def test_a_call_on_its_way_to_a_worker_that_has_its_tool_is_told_only_if_it_does_not_arrive(
    attempt: int, is_told: bool
) -> None:
    """Else a rollout with workers of both versions would call the operator, who has nothing to do."""
    missing = {"agent": "tester", "what": "tool", "name": "two", "definition": "d", "elsewhere": True}
    refused = failed("runtime.tool_missing", attempt=attempt)
    refused["last_failure"]["application_failure_info"]["details"] = {"payloads": [payload({}), payload(missing)]}
    wait = why(refused)
    text = "no worker that was asked has tool 'two' of this version of agent 'tester'"
    assert (wait.text if wait is not None else None) == (text if is_told else None)


def test_of_several_causes_the_worst_is_told() -> None:
    wait = why(running(note=PACE), failed("runtime.store_unavailable"), running("compact"))
    assert wait is not None
    assert wait.cause is Cause.STORE


def test_workers_that_have_asked_of_late_may_be_busy() -> None:
    turn = described(running(**WAITING))
    (queue,) = find_untaken_queues(Seen(described=turn, now=NOW))
    assert queue == (QUEUE, TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY)
    wait = explain(Seen(described=turn, now=NOW, polled={queue: NOW - timedelta(seconds=40)}))
    assert wait is not None
    assert wait.text == "no worker takes its next task from the task queue 'job-1': the workers are gone, or busy"
    later = Seen(described=turn, now=NOW + timedelta(seconds=9), polled={queue: NOW - timedelta(seconds=40)})
    assert explain(later) == wait  # whoever follows is told once
    assert "PERDURE_MAX_ACTIVITIES" in wait.advice
    assert wait.since == NOW - timedelta(seconds=20)


def event(kind: str, ago: float, **more: Any) -> HistoryEvent:
    return ParseDict({"event_type": f"EVENT_TYPE_{kind}", "event_time": at(ago), **more}, HistoryEvent())


def test_a_wait_began_when_the_activity_was_first_asked_for() -> None:
    scheduled = event("ACTIVITY_TASK_SCHEDULED", 300, activity_task_scheduled_event_attributes={"activity_id": "3"})
    other = event("ACTIVITY_TASK_SCHEDULED", 10, activity_task_scheduled_event_attributes={"activity_id": "4"})
    wait = why(failed("KeyError"), seen=replace(UNSEEN, events=(other, scheduled)))
    assert wait is not None
    assert wait.since == NOW - timedelta(seconds=300)
    unknown = why(failed("KeyError"))
    assert unknown is not None
    assert unknown.since is None


def test_code_that_fails_in_every_worker_is_told_with_its_failure() -> None:
    task = {"state": "PENDING_WORKFLOW_TASK_STATE_SCHEDULED", "scheduled_time": at(9), "attempt": 4}
    said = {"failure": {"message": "[TMPRL1100] Nondeterminism error"}}
    failure = event("WORKFLOW_TASK_FAILED", 60, workflow_task_failed_event_attributes=said)
    wait = why(seen=replace(UNSEEN, events=(failure,)), pending_workflow_task=task)
    assert wait is not None
    assert (wait.cause, wait.attempt) == (Cause.WORKFLOW_TASK, 4)
    assert wait.text.endswith("[TMPRL1100] Nondeterminism error")
    done = event("WORKFLOW_TASK_COMPLETED", 60)
    other = why(seen=replace(UNSEEN, events=(done, failure)), pending_workflow_task=task)
    assert other is not None
    assert other.cause is Cause.WORKER
    lost = why(seen=replace(UNSEEN, events=(event("WORKFLOW_TASK_TIMED_OUT", 60),)), pending_workflow_task=task)
    assert lost is not None
    assert lost.text == "the turn's own code fails in every worker: none answers for it"


def status(activity: str = "", *requests: InputRequest) -> TurnStatus:
    return TurnStatus(
        session="job-1",
        turn=1,
        agent="a",
        model="m",
        state=RunState.RUNNING,
        step=1,
        max_steps=5,
        activity=activity,
        queued=0,
        cancelling=False,
        spent=Spent(),
        requests=requests,
    )


def test_an_idle_turn_waits_for_a_person_a_delegate_a_share_or_a_pause() -> None:
    asked = InputRequest(
        request_id="c1", needs="answer", tool="ask_user", arguments="{}", question="Which?", digest="d"
    )
    children = {"pending_children": [{"workflow_id": f"job-1.{number}"} for number in range(4)]}

    def idle(said: TurnStatus | None, *below: TurnWait, **more: Any) -> TurnWait:
        wait = why(seen=replace(UNSEEN, status=said, below=below), **more)
        assert wait is not None
        return wait

    person = idle(status("waiting for an answer", asked), **children)
    assert (person.cause, person.text) == (Cause.PERSON, "an answer to 'Which?'")
    assert person.advice == "perdure answer job-1 c1 VALUE"
    delegate = idle(status("delegates: helper"), **children)
    assert (delegate.cause, delegate.advice) == (Cause.DELEGATE, "perdure follow job-1.0 shows its work")
    assert delegate.text == "delegates that work: job-1.0, job-1.1, job-1.2, ..."
    share = idle(status(f"{WAITS_FOR_A_SHARE}: helper"), **children)
    assert (share.cause, "perdure extend job-1" in share.advice) == (Cause.SHARE, True)
    assert idle(status("generate, step 2")).cause is Cause.PROVIDER
    below = TurnWait(session="job-1.1", cause=Cause.WORKER, text="t", advice="a")
    stuck = idle(status("delegates: helper"), below, **children)
    assert (stuck.cause, stuck.text, stuck.session) == (Cause.WORKER, "delegate job-1.1 waits: t", "job-1.1")
    assert why(seen=UNSEEN) is None


def test_a_delegate_that_waits_is_told_of_when_no_other_works() -> None:
    """The innermost is named, once; a caller that waits for a share is told of that."""
    works = TurnWait(session="job-1.0", cause=Cause.DELEGATE, text="delegates that work: a", advice="a")
    retry = TurnWait(session="job-1.1", cause=Cause.PROVIDER, text="retry 1 of 8", advice="it goes on by itself")
    inner = retry.model_copy(update={"session": "job-1.1.0", "text": "delegate job-1.1.0 waits: retry 1 of 8"})

    def told(said: TurnStatus, *below: TurnWait, count: int) -> tuple[Cause, str]:
        children = [{"workflow_id": f"job-1.{number}"} for number in range(count)]
        wait = why(seen=replace(UNSEEN, status=said, below=below), pending_children=children)
        assert wait is not None
        return wait.cause, wait.text

    works_for_it, share = status("delegates: helper"), status(f"{WAITS_FOR_A_SHARE}: helper")
    assert told(works_for_it, retry, count=1) == (Cause.PROVIDER, "delegate job-1.1 waits: retry 1 of 8")
    assert told(works_for_it, inner, count=1) == (Cause.PROVIDER, inner.text)
    assert told(works_for_it, retry, count=2)[0] is Cause.DELEGATE
    assert told(works_for_it, retry, works, count=2)[0] is Cause.DELEGATE
    assert told(share, retry, count=1)[0] is Cause.SHARE


def test_a_pause_ends_when_its_timer_does() -> None:
    timer = {"timer_started_event_attributes": {"start_to_fire_timeout": "40s"}}
    for ago, left in ((10, 30), (50, None)):
        seen = replace(UNSEEN, status=status("generate, step 2"), events=(event("TIMER_STARTED", ago, **timer),))
        wait = why(seen=seen)
        assert wait is not None
        assert wait.next_at == (None if left is None else NOW + timedelta(seconds=left))


def test_without_a_worker_the_search_attribute_says_that_a_person_is_waited_for() -> None:
    fields = {"PerdureState": payload("waiting_for_input")}
    info = {"execution": {"workflow_id": "job-1"}, "search_attributes": {"indexed_fields": fields}}
    wait = why(workflow_execution_info=info)
    assert wait is not None
    assert wait.cause is Cause.PERSON


@pytest.mark.parametrize(
    ("seconds", "text"), [(-3, "0 s"), (119, "119 s"), (120, "2 min"), (7_200, "2 h"), (172_800, "2 d")]
)
def test_a_time_is_told_in_the_unit_that_says_most(seconds: float, text: str) -> None:
    assert duration(timedelta(seconds=seconds)) == text
