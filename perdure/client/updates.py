"""The delivery of an update to the running turn of a session, such as other limits: what came of it, whatever fails."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from typing import Literal, TypeVar, Unpack

import temporalio.client
from temporalio.client import WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from perdure.client.connect import is_missing, rpc_errors
from perdure.client.errors import NoWorkerError, RequestRefusedError, SessionIdleError
from perdure.client.patience import PAUSE
from perdure.client.requests import validate
from perdure.contracts.budgets import ExtendRequest, Limits
from perdure.contracts.names import Update
from perdure.contracts.turns import BudgetStatus
from perdure.contracts.waits import PauseReceipt, PauseRequest

Result = TypeVar("Result")

ATTEMPTS = 20
"""How often an update is sent that meets a turn just as it ends, half a second apart."""

TIMEOUT = timedelta(seconds=30)
"""How long a worker may take until it has taken an update."""

Why = Literal["idle", "closed", "lost"]
"""Why no turn has taken an update: no run is open, the run closed under it, or nobody knows."""

ANY: frozenset[Why] = frozenset({"idle", "closed", "lost"})

_CLOSED_UNDER_UPDATE = "AcceptedUpdateCompletedWorkflow"
"""The server's type for an update that was accepted by a workflow that then closed without answering it."""


class UpdateRefusedError(Exception):
    """The workflow refused the update.

    Attributes:
        code: The type of its failure: a reason code if the refusal is one of perdure's.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class NotTakenError(Exception):
    """No turn has taken the update, or nobody knows; the same update may be sent again.

    Attributes:
        why: What has come between.
    """

    def __init__(self, why: Why) -> None:
        super().__init__(f"the update was not taken: {why}")
        self.why = why


@contextlib.contextmanager
def update_errors() -> Iterator[None]:
    """Turn what an update fails with into a refusal, a reason to send it again, or an error of the client."""
    with rpc_errors():
        try:
            yield
        except WorkflowUpdateFailedError as error:
            failure = error.cause if isinstance(error.cause, ApplicationError) else None
            if failure is not None and failure.type == _CLOSED_UNDER_UPDATE:
                raise NotTakenError("closed") from error
            message = failure.message if failure is not None else str(error.cause)
            raise UpdateRefusedError((failure.type if failure is not None else None) or "", message) from error
        except WorkflowUpdateRPCTimeoutOrCancelledError as error:
            # The SDK raises it for two things: somebody cancelled this task and waits for that, or the server left.
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise asyncio.CancelledError from error
            raise NotTakenError("lost") from error
        except RPCError as error:
            if is_missing(error):
                raise NotTakenError("idle") from error
            if error.status is RPCStatusCode.ABORTED:
                raise NotTakenError("closed") from error
            if error.status is RPCStatusCode.RESOURCE_EXHAUSTED:  # too many at once, or a second run within a moment
                raise NotTakenError("lost") from error
            raise


async def send_update(
    temporal: temporalio.client.Client,
    session: str,
    update: Update,
    request: object,
    kind: type[Result],
    update_id: str | None = None,
) -> Result:
    """Send an update to the running turn once, and give its result; raises as :func:`update_errors` does."""
    handle = temporal.get_workflow_handle(session)
    with update_errors():
        result: Result = await handle.execute_update(update, request, id=update_id, result_type=kind)
    return result


async def send_again(attempt: Callable[[], Awaitable[Result]], *, again: frozenset[Why] = ANY) -> Result:
    """Make an attempt up to 20 times, half a second apart, while it is not taken for one of these causes.

    Raises:
        NotTakenError: No attempt was taken.
    """
    for _ in range(ATTEMPTS - 1):
        try:
            return await attempt()
        except NotTakenError as error:
            if error.why not in again:
                raise
        await asyncio.sleep(PAUSE.total_seconds())
    return await attempt()


async def deliver(attempt: Callable[[], Awaitable[Result]], *, again: frozenset[Why] = ANY) -> Result:
    """Send an update until a turn takes it: one that ends as the update arrives cannot, the next one can.

    Args:
        attempt: Sends the update once.
        again: When to send it again; by default always, since another turn may take it.

    Raises:
        NotTakenError: No turn has taken it.
        TimeoutError: No worker has within the time for it.
    """
    async with asyncio.timeout(TIMEOUT.total_seconds()):
        return await send_again(attempt, again=again)


def extend_request(*, turn: int | None, end: bool, **limits: Unpack[Limits]) -> ExtendRequest:
    """The request that sets these limits."""
    request = validate(ExtendRequest, {"turn": turn, "end": end, **limits})
    if not request.limits:
        raise RequestRefusedError("name at least one limit, such as max_steps=50")
    return request


async def send_pause(
    temporal: temporalio.client.Client, session: str, update: Update, request: PauseRequest
) -> PauseReceipt:
    """Pause the session's running turn, or have it go on.

    Raises:
        SessionIdleError: No turn of the session runs.
        NoWorkerError: No worker took the update.
    """
    try:
        return await deliver(
            lambda: send_update(temporal, session, update, request, PauseReceipt), again=ANY - {"idle"}
        )
    except UpdateRefusedError as error:
        raise RequestRefusedError(f"session {session!r} refused to {update}: {error}") from error
    except NotTakenError as error:
        if error.why == "lost":
            raise NoWorkerError(
                f"no worker took the {update} for session {session!r}; start one, and try again"
            ) from error
        raise SessionIdleError(f"no turn of session {session!r} runs, so that there is nothing to {update}") from None
    except TimeoutError:
        msg = f"no worker took the {update} for session {session!r} within {TIMEOUT.total_seconds():.0f} s"
        raise NoWorkerError(msg) from None


async def send_limits(temporal: temporalio.client.Client, session: str, request: ExtendRequest) -> BudgetStatus:
    """Give the running turn its limits.

    Raises:
        NoWorkerError: No worker took them.
    """
    not_taken = f"no worker took the limits for session {session!r} within {TIMEOUT.total_seconds():.0f} s"
    try:
        return await deliver(
            lambda: send_update(temporal, session, Update.EXTEND, request, BudgetStatus),
            again=frozenset({"lost"}),
        )
    except UpdateRefusedError as error:
        raise RequestRefusedError(f"session {session!r} refused the limits: {error}") from error
    except NotTakenError as error:
        if error.why == "lost":
            raise NoWorkerError(not_taken) from error
        raise SessionIdleError(f"no turn of session {session!r} runs, so that there are no limits to change") from None
    except TimeoutError:
        raise NoWorkerError(not_taken) from None
