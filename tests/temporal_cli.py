"""Temporal's own command line, as an operator or another service has it: nothing of ours but what it talks to."""

import asyncio
import json
import os
import shlex
from typing import Any

import temporalio.client
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest

from perdure.cli.server import find_binary
from tests.house import eventually

PARTITIONS = 4
"""Partitions of a task queue, unless a server is told another number."""


async def temporal(*arguments: str, address: str | None = None) -> tuple[int, str]:
    """The exit code and the output of ``temporal``; without an address it comes from the environment."""
    process = await asyncio.create_subprocess_exec(
        find_binary(),
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "TEMPORAL_ADDRESS": address} if address else None,
    )
    output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


async def workflow(*arguments: str, fails: bool = False) -> Any:
    """What a ``temporal workflow`` command prints as JSON."""
    code, output = await temporal("workflow", *arguments, "--output", "json")
    assert (code != 0) is fails, output
    return json.JSONDecoder().raw_decode(output)[0]  # what fails says so behind it


async def carry_out(advice: str, address: str | None = None) -> None:
    """Run the first command of Temporal's that an advice has, as it stands.

    Raises:
        AssertionError: There is none, or the server refuses it.
    """
    _, _, behind = advice.partition("'temporal ")
    assert behind, advice
    command = shlex.split(behind.partition("'")[0])
    code, said = await temporal(*command, *(["--yes"] if command[0] == "worker" else []), address=address)
    assert code == 0, (advice, said)


async def make_current(client: temporalio.client.Client, queue: str, deployment: str, build: str) -> None:
    """What an operator runs, as soon as the server has seen a worker of the build; it then takes a moment to spread.

    Each partition of the queue is asked, as the state of the deployment may say for ever that the change goes on
    (temporalio/temporal#11842).
    """
    partitions = [queue, *(f"/_sys/{queue}/{number}" for number in range(1, PARTITIONS))]
    address = client.service_client.config.target_host

    async def done() -> bool:
        code, _ = await temporal(
            *("worker", "deployment", "set-current-version", "--yes"),
            *("--deployment-name", deployment, "--build-id", build),
            address=address,
        )
        return code == 0

    async def spread() -> bool:
        return all([await _build_of(client, partition) == build for partition in partitions])

    await eventually(done)
    await eventually(spread)


async def _build_of(client: temporalio.client.Client, queue: str) -> str:
    """The build that a queue, or one partition of it, gives new turns to."""
    request = DescribeTaskQueueRequest(
        namespace=client.namespace,
        task_queue=TaskQueue(name=queue),
        task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
    )
    described = await client.workflow_service.describe_task_queue(request, retry=True)
    return described.versioning_info.current_deployment_version.build_id
