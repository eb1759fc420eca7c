"""What was erased is in no page of the file in which ``perdure dev`` keeps Temporal's histories."""

from pathlib import Path

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import Client

from perdure.cli.server import EmbeddedServer, ServerOptions
from perdure.local_ports import find_free_port
from tests.house import eventually

pytestmark = pytest.mark.deep

MARKER = "pay-invoice-4711-" * 20


async def test_a_deleted_history_is_not_left_in_the_free_pages_of_the_file(tmp_path: Path) -> None:
    db = tmp_path / "temporal.db"

    async def is_in_the_file() -> bool:
        return MARKER.encode() in db.read_bytes()

    async def is_gone() -> bool:
        return not await is_in_the_file()

    async with EmbeddedServer(ServerOptions(port=find_free_port(), db=db)) as server:
        client = await Client.connect(server.address)
        kept = await client.start_workflow("Nothing", "kept", id="kept", task_queue="nobodys")
        erased = await client.start_workflow("Nothing", MARKER, id="erased", task_queue="nobodys")
        await eventually(is_in_the_file)
        await erased.terminate()
        execution = WorkflowExecution(workflow_id="erased", run_id=erased.first_execution_run_id or "")
        request = DeleteWorkflowExecutionRequest(namespace="default", workflow_execution=execution)
        await client.workflow_service.delete_workflow_execution(request, retry=True)
        await eventually(is_gone)
        await kept.terminate()
    assert await is_gone()
