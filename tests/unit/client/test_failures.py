"""What of an exception reaches a history."""

from temporalio.api.failure.v1 import Failure
from temporalio.exceptions import ApplicationError

from perdure.client.connect import DATA_CONVERTER
from perdure.contracts.errors import ErrorDetail


def written(error: ApplicationError, cause: Exception | None = None) -> Failure:
    failure = Failure()
    try:
        raise error from cause
    except ApplicationError as raised:
        DATA_CONVERTER.failure_converter.to_failure(raised, DATA_CONVERTER.payload_converter, failure)
    return failure


def raised(error: Exception) -> Exception:
    try:
        raise error
    except type(error):
        return error


def test_a_failure_with_its_reason_is_a_sentence_and_its_cause_keeps_the_stack_trace() -> None:
    detail = ErrorDetail(code="tool.execution_error", title="work", message="the tool failed", type="OSError")
    failure = written(ApplicationError(detail.message, detail, type=detail.code), raised(OSError("gone")))
    assert (failure.message, failure.stack_trace) == ("the tool failed", "")
    assert failure.application_failure_info.type == "tool.execution_error"
    assert "in raised" in failure.cause.stack_trace


def test_any_other_failure_keeps_its_stack_trace() -> None:
    assert "in written" in written(ApplicationError("boom", {"code": "other"}, type="Fault")).stack_trace
    assert "in written" in written(ApplicationError("boom")).stack_trace
