"""The floor: a bare workflow of two no-op activities a step, on the same server with the same worker settings.

``python -m benchmarks.floor`` runs it as the SDK does by default, in its sandbox; with ``bare`` as argument, without
one, as our worker runs its workflow.
"""

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.worker import UnsandboxedWorkflowRunner, Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

with workflow.unsafe.imports_passed_through():  # not the workflow's business: reloading it would slow the floor
    from perdure.client.connect import connect

TASK_QUEUE = "floor"
BARE = "bare"
TIMEOUT = timedelta(seconds=30)


@activity.defn
async def no_op(number: int) -> int:
    """Do nothing."""
    return number


@workflow.defn
class Floor:
    """Two activities a step, one after the other."""

    @workflow.run
    async def run(self, steps: int) -> int:
        """Carry out the steps."""
        for step in range(steps):
            await workflow.execute_activity(no_op, step, start_to_close_timeout=TIMEOUT)
            await workflow.execute_activity(no_op, step, start_to_close_timeout=TIMEOUT)
        return steps


async def main(queue: str) -> None:
    """Poll until killed; prints a line when it does."""
    client = await connect()
    worker = Worker(
        client,
        task_queue=queue,
        workflow_runner=UnsandboxedWorkflowRunner() if queue == BARE else SandboxedWorkflowRunner(),
        workflows=[Floor],
        activities=[no_op],
        workflow_task_executor=ThreadPoolExecutor(8),
        max_cached_workflows=1000,
        max_concurrent_activities=200,
    )
    async with worker:
        sys.stdout.write("polling\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(BARE if BARE in sys.argv else TASK_QUEUE))
