"""The runner of the tests' workers refuses what a workflow must not do, also in modules that it has loaded before."""

import pytest
import temporalio.client
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from tests.sandbox import strict_runner
from tests.workflow.careless import Careless


@pytest.mark.parametrize("what", ["clock", "chance"])
async def test_a_clock_and_a_random_number_are_refused_in_every_turn(
    temporal: temporalio.client.Client, what: str, request: pytest.FixtureRequest
) -> None:
    name = request.node.name
    async with Worker(temporal, task_queue=name, workflows=[Careless], workflow_runner=strict_runner()):
        for number in range(2):
            with pytest.raises(temporalio.client.WorkflowFailureError) as failed:
                await temporal.execute_workflow(Careless.run, what, id=f"{name}-{number}", task_queue=name)
            assert isinstance(failed.value.cause, ApplicationError)
            assert failed.value.cause.type == "RestrictedWorkflowAccessError"
