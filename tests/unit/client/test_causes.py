"""Why a workflow failed, in the words of whatever failed in it."""

import pytest
from temporalio.exceptions import ActivityError, ApplicationError, ChildWorkflowError, FailureError

from perdure.client.executions import _cause


def activity_error(cause: Exception | None) -> FailureError:
    error = ActivityError(
        "Activity task failed",
        scheduled_event_id=1,
        started_event_id=2,
        identity="worker",
        activity_type="commit_turn",
        activity_id="1",
        retry_state=None,
    )
    error.__cause__ = cause
    return error


def child_error(cause: Exception) -> FailureError:
    error = ChildWorkflowError(
        "Child Workflow execution failed",
        namespace="default",
        workflow_id="child",
        run_id="run",
        workflow_type="AgentTurn",
        initiated_event_id=1,
        started_event_id=2,
        retry_state=None,
    )
    error.__cause__ = cause
    return error


ROOF = ApplicationError("the roof fell in")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ROOF, "the roof fell in"),
        (activity_error(ROOF), "the roof fell in"),
        (child_error(activity_error(ROOF)), "the roof fell in"),
        (activity_error(None), "Activity task failed"),
    ],
    ids=["alone", "in an activity", "in a delegate's activity", "of nobody knows what"],
)
def test_what_only_says_that_something_failed_is_looked_behind(error: FailureError, said: str) -> None:
    assert _cause("s", error) == f"the workflow of session 's' failed: {said}"
