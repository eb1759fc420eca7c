"""How failures are written into a history."""

from temporalio.api.failure.v1 import Failure
from temporalio.converter import DefaultFailureConverter, PayloadConverter
from temporalio.exceptions import ApplicationError


class PlainFailureConverter(DefaultFailureConverter):
    """As the SDK writes them; but of a failure that carries its reason, the sentence without a stack trace.

    Such a trace shows how the reason came through Temporal and perdure; in the UI it hides the sentence. What stands
    behind the failure, such as the exception of a tool, keeps its own.
    """

    def to_failure(self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure) -> None:
        """Write an exception into a failure."""
        super().to_failure(exception, payload_converter, failure)
        if _says_why(exception):
            failure.ClearField("stack_trace")


def _says_why(exception: BaseException) -> bool:
    """Whether its detail has a reason code, and that is its type; the sandbox has classes of its own for details."""
    if not isinstance(exception, ApplicationError) or exception.type is None:
        return False
    return any(getattr(detail, "code", None) == exception.type for detail in exception.details)
