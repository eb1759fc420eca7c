"""Where the server sends the tasks of a turn, and what is said of one that no worker polls for."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict
from temporalio.api.workflowservice.v1 import DescribeTaskQueueResponse, DescribeWorkflowExecutionResponse

from perdure.client.causes import Seen, explain
from perdure.client.versions import Bound, QueueVersions, Version, bound_of

NOW = datetime(2026, 11, 24, 12, tzinfo=UTC)
A, B = Version("agents", "A"), Version("agents", "B")


def named(version: Version) -> dict[str, str]:
    return {"deployment_name": version.deployment, "build_id": version.build}


def queue(*polling: Version | None, current: Version | None = None, ago: float = 5) -> QueueVersions:
    """A task queue as the server describes it."""
    at = (NOW - timedelta(seconds=ago)).isoformat().replace("+00:00", "Z")
    pollers: list[dict[str, Any]] = [
        {"last_access_time": at, "identity": "7@host"}
        if version is None
        else {
            "last_access_time": at,
            "deployment_options": {**named(version), "worker_versioning_mode": "WORKER_VERSIONING_MODE_VERSIONED"},
        }
        for version in polling
    ]
    info = {} if current is None else {"current_deployment_version": named(current)}
    told = ParseDict({"pollers": pollers, "versioning_info": info}, DescribeTaskQueueResponse())
    return QueueVersions.of(told, NOW)


def turn(**versioning: Any) -> DescribeWorkflowExecutionResponse:
    """A turn whose next task waits for a worker since 30 s."""
    at = (NOW - timedelta(seconds=30)).isoformat().replace("+00:00", "Z")
    return ParseDict(
        {
            "execution_config": {"task_queue": {"name": "jobs"}},
            "workflow_execution_info": {"execution": {"workflow_id": "job-1"}, "versioning_info": versioning},
            "pending_workflow_task": {
                "state": "PENDING_WORKFLOW_TASK_STATE_SCHEDULED",
                "attempt": 1,
                "scheduled_time": at,
                "original_scheduled_time": at,
            },
        },
        DescribeWorkflowExecutionResponse(),
    )


PINNED = {"behavior": "VERSIONING_BEHAVIOR_PINNED", "deployment_version": named(A)}
MOVES = {"behavior": "VERSIONING_BEHAVIOR_AUTO_UPGRADE", "deployment_version": named(A)}
TO_B = {"pinned": {"version": named(B), "behavior": "PINNED_OVERRIDE_BEHAVIOR_PINNED"}}


@pytest.mark.parametrize(
    ("told", "bound"),
    [
        (PINNED, Bound(A, is_pinned=True)),
        (MOVES, Bound(B, is_pinned=False)),
        ({}, Bound(B, is_pinned=False)),
        ({**MOVES, "version_transition": {"deployment_version": named(A)}}, Bound(A, is_pinned=False)),
        ({**PINNED, "versioning_override": {"auto_upgrade": True}}, Bound(B, is_pinned=False)),
        ({**PINNED, "versioning_override": TO_B}, Bound(B, is_pinned=True)),
        ({**MOVES, "versioning_override": TO_B}, Bound(B, is_pinned=True)),
    ],
)
def test_a_turn_goes_to_its_own_version_or_to_the_current_one(told: dict[str, Any], bound: Bound) -> None:
    info = turn(**told).workflow_execution_info.versioning_info
    assert bound_of(info, queue(A, B, current=B)) == bound


@pytest.mark.parametrize(
    ("told", "versions", "said", "advice"),
    [
        (
            PINNED,
            queue(B, current=B),
            "the turn is pinned to version agents.A, and no worker of it polls the task queue 'jobs', "
            "where agents.B polls",
            "start a worker with PERDURE_DEPLOYMENT=agents and PERDURE_BUILD_ID=A, or move the turn: "
            "'temporal workflow update-options --workflow-id job-1 --versioning-override-behavior pinned "
            "--versioning-override-deployment-name agents --versioning-override-build-id B'",
        ),
        (
            MOVES,
            queue(A, None, current=B),
            "the turn goes to version agents.B, and no worker of it polls the task queue 'jobs', "
            "where no deployment version, agents.A polls",
            "start a worker with PERDURE_DEPLOYMENT=agents and PERDURE_BUILD_ID=B, or make another version current: "
            "'temporal worker deployment set-current-version --deployment-name agents --build-id A'",
        ),
        (
            {},
            queue(A),
            "the turn goes to no deployment version, and no worker of it polls the task queue 'jobs', "
            "where agents.A polls",
            "start a worker without PERDURE_DEPLOYMENT, or make another version current: "
            "'temporal worker deployment set-current-version --deployment-name agents --build-id A'",
        ),
    ],
    ids=["pinned", "a roll-back without its workers", "never current"],
)
def test_a_turn_of_a_version_without_workers_names_it_and_the_command(
    told: dict[str, Any], versions: QueueVersions, said: str, advice: str
) -> None:
    wait = explain(Seen(described=turn(**told), now=NOW, versions=versions))
    assert wait is not None
    assert (wait.text, wait.advice, wait.is_stuck) == (said, advice, True)


@pytest.mark.parametrize(
    "versions",
    [None, queue(), queue(None), queue(A, current=A), queue(B, current=B, ago=80)],
    ids=["not looked at", "nobody", "no versions", "its own", "gone"],
)
def test_where_versions_say_nothing_the_queue_does(versions: QueueVersions | None) -> None:
    wait = explain(Seen(described=turn(**PINNED), now=NOW, versions=versions))
    assert wait is not None
    assert "version" not in wait.text
