"""What the failure of a call to Temporal means: the server is away, or it refuses."""

import pytest
from temporalio.service import RPCError, RPCStatusCode

from perdure.client import ServerRefusedError, ServerUnreachableError
from perdure.client.connect import error_of_call, is_away


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (RPCStatusCode.UNAVAILABLE, "connection refused"),
        (RPCStatusCode.CANCELLED, "Timeout expired"),
        (RPCStatusCode.DEADLINE_EXCEEDED, "context deadline exceeded"),
        (RPCStatusCode.UNKNOWN, "transport error"),
        (RPCStatusCode.UNKNOWN, "h2 protocol error: error reading a body from connection"),
        (RPCStatusCode.UNKNOWN, "stream closed because of a broken pipe"),
    ],
)
def test_a_server_that_goes_while_it_is_asked_is_away(status: RPCStatusCode, message: str) -> None:
    error = RPCError(message, status, b"")
    assert is_away(error)
    assert isinstance(error_of_call(error), ServerUnreachableError)


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (RPCStatusCode.UNKNOWN, "the workflow is in a bad mood"),
        (RPCStatusCode.PERMISSION_DENIED, "the connection is forbidden"),
        (RPCStatusCode.UNAUTHENTICATED, "transport error"),
        (RPCStatusCode.INTERNAL, "h2 protocol"),
    ],
)
def test_any_other_failure_is_an_answer(status: RPCStatusCode, message: str) -> None:
    error = RPCError(message, status, b"")
    assert not is_away(error)
    assert isinstance(error_of_call(error), ServerRefusedError)
