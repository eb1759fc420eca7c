"""The delivery of an update to the running turn of a session, such as other limits: what came of it, whatever fails."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
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
"""Number of times that an update is sent that meets a turn just as it ends, half a second apart."""

TIMEOUT = timedelta(seconds=30)
"""Longest time until a worker has taken what was sent to it, an update or a turn."""

Why = Literal["idle", "closed", "lost"]
"""Reason no turn has taken an update: no run is open, the run closed under it, or nobody knows."""

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


def worker_timeout() -> asyncio.Timeout:
    """The bound of a wait until a worker has taken what was sent to it."""
    return asyncio.timeout(TIMEOUT.total_seconds())


def no_worker_took(what: str, session: str) -> NoWorkerError:
    """The error of a wait that has passed this bound."""
    return NoWorkerError(f"no worker took the {what} for session {session!r} within {TIMEOUT.total_seconds():.0f} s")


@contextlib.asynccontextmanager
async def sending_update() -> AsyncIterator[None]:
    """Turn what an update fails with into a refusal, a reason to send it again, or an error of the client.

    Raises:
        UpdateRefusedError: The workflow refused it.
        NotTakenError: No turn has taken it, or nobody knows.
        TimeoutError: No worker has within the time for it.
    """
    async with worker_timeout():
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
                if (
                    error.status is RPCStatusCode.RESOURCE_EXHAUSTED
                ):  # too many at once, or a second run within a moment
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
    """Send an update to the running turn once, and give its result; raises as :func:`sending_update` does."""
    handle = temporal.get_workflow_handle(session)
    async with sending_update():
        result: Result = await handle.execute_update(update, request, id=update_id, result_type=kind)
    return result


async def send_again(attempt: Callable[[], Awaitable[Result]], *, again: frozenset[Why] = ANY) -> Result:
    """Make an attempt up to 20 times, half a second apart: a turn that ends cannot take it, the next one can.

    Args:
        attempt: Sends an update or starts a turn, once.
        again: When to make it again; by default always.

    Raises:
        NotTakenError: No attempt was taken.
        TimeoutError: No worker has taken one within the time for it.
    """
    for _ in range(ATTEMPTS - 1):
        try:
            return await attempt()
        except NotTakenError as error:
            if error.why not in again:
                raise
        await asyncio.sleep(PAUSE.total_seconds())
    return await attempt()


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
        return await send_again(
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
        raise no_worker_took(update, session) from None


async def send_limits(temporal: temporalio.client.Client, session: str, request: ExtendRequest) -> BudgetStatus:
    """Give the running turn its limits.

    Raises:
        NoWorkerError: No worker took them.
    """
    try:
        return await send_again(
            lambda: send_update(temporal, session, Update.EXTEND, request, BudgetStatus),
            again=frozenset({"lost"}),
        )
    except UpdateRefusedError as error:
        raise RequestRefusedError(f"session {session!r} refused the limits: {error}") from error
    except NotTakenError as error:
        if error.why == "lost":
            raise no_worker_took("limits", session) from error
        raise SessionIdleError(f"no turn of session {session!r} runs, so that there are no limits to change") from None
    except TimeoutError:
        raise no_worker_took("limits", session) from None
