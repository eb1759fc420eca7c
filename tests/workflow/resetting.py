"""Workflows that an operator resets to an earlier event."""

from typing import Any

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import WorkflowHandle

from tests.house import House


async def completed_tasks(handle: WorkflowHandle[Any, Any]) -> list[int]:
    """The events of a run after which it can be reset."""
    history = await handle.fetch_history()
    return [event.event_id for event in history.events if event.HasField("workflow_task_completed_event_attributes")]


async def reset(house: House, event: int, request_id: str = "reset") -> WorkflowHandle[Any, Any]:
    """The run of the session that begins anew after a workflow task."""
    request = ResetWorkflowExecutionRequest(
        namespace=house.temporal.namespace,
        workflow_execution=WorkflowExecution(workflow_id=house.session),
        reason="test",
        workflow_task_finish_event_id=event,
        request_id=request_id,
    )
    made = await house.temporal.workflow_service.reset_workflow_execution(request, retry=True)
    return house.temporal.get_workflow_handle(house.session, run_id=made.run_id)
