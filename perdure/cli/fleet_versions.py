"""Deployment versions of a fleet, as ``perdure doctor`` sees them: whether turns wait for one that nobody polls for."""

from collections.abc import Iterable
from datetime import UTC, datetime

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.workflowservice.v1 import DescribeWorkerDeploymentRequest

from perdure.cli.findings import Finding
from perdure.client import Client
from perdure.client.connect import describe_queue, rpc_errors, unless_missing
from perdure.client.versions import QueueVersions, Version, current_command, name_versions, worker_of
from perdure.contracts.names import AGENT_TURN

CHECK = "deployment versions"


async def look_at_versions(client: Client) -> list[Finding]:
    """The versions of the task queue's workers; nothing if no worker has one, and none is current.

    Raises:
        ClientError: The server does not answer.
    """
    queue, now = client.settings.task_queue, datetime.now(UTC)
    kind = TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW
    versions = QueueVersions.of(await describe_queue(client.temporal, queue, kind), now)
    known = {each for each in (*versions.polling, versions.current, versions.ramping) if each is not None}
    if not known:
        return []
    there = name_versions(sorted(versions.polling, key=str)) or "none"
    wrong = [finding for finding in [_look_at_current(versions, queue, there)] if finding is not None]
    every = await _every_version(client, {each.deployment for each in known})
    for version in sorted((known | every) - versions.polling):
        if count := await _count_pinned(client, version):
            turns = "running turn is" if count == 1 else "running turns are"
            text = f"{count} {turns} pinned to version {version}, and no worker of it polls {queue!r}"
            fix = f"start a worker {worker_of(version)}; or move each by the command of 'perdure list'"
            wrong.append(Finding(check=CHECK, ok=False, text=text, fix=fix))
    current = "none" if versions.current is None else str(versions.current)
    return wrong or [Finding(check=CHECK, ok=True, text=f"current: {current}; polling: {there}")]


def _look_at_current(versions: QueueVersions, queue: str, there: str) -> Finding | None:
    """Whether somebody polls for new turns."""
    current = versions.current
    if current in versions.polling:
        return None
    others = versions.others(current)
    other = f", or make another version current: {current_command(others[-1])}" if others else ""
    if current is None:
        text = f"no version is current, and every worker of {queue!r} has one ({there}), so new turns wait"
        fix = f"make one current: {current_command(others[-1])}"
    else:
        text = (
            f"version {current} is current, and no worker of it polls {queue!r} (polling: {there}), so new turns wait"
        )
        fix = f"start a worker {worker_of(current)}{other}"
    return Finding(check=CHECK, ok=False, text=text, fix=fix)


async def _every_version(client: Client, deployments: Iterable[str]) -> set[Version]:
    """The versions that the server knows of these deployments."""
    found = set[Version]()
    for name in deployments:
        request = DescribeWorkerDeploymentRequest(namespace=client.temporal.namespace, deployment_name=name)
        described = await unless_missing(
            client.temporal.workflow_service.describe_worker_deployment(request, retry=True)
        )
        if described is not None:
            summaries = described.worker_deployment_info.version_summaries
            found |= {told for each in summaries if (told := Version.of(each.deployment_version)) is not None}
    return found


async def _count_pinned(client: Client, version: Version) -> int:
    """The running turns that stay on the version."""
    query = (
        f"WorkflowType = '{AGENT_TURN}' AND ExecutionStatus = 'Running' AND TaskQueue = '{client.settings.task_queue}' "
        f"AND TemporalWorkerDeploymentVersion = '{version.deployment}:{version.build}' "
        "AND TemporalWorkflowVersioningBehavior = 'Pinned'"
    )
    with rpc_errors():
        return (await client.temporal.count_workflows(query)).count
