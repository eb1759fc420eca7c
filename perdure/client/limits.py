"""Other limits for a turn that runs: what a client sends, and what it makes of a refusal."""

import asyncio
from datetime import timedelta
from typing import Unpack

import temporalio.client
from pydantic import ValidationError
from temporalio.client import WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from perdure.client.connect import rpc_errors
from perdure.client.errors import NoWorkerError, RequestRefusedError, SessionIdleError
from perdure.client.runs import CLOSED_UNDER_UPDATE
from perdure.contracts.limits import ExtendRequest, Limits
from perdure.contracts.names import Update
from perdure.contracts.turns import BudgetStatus

EXTEND_TIMEOUT = timedelta(seconds=30)
"""How long a worker may take until it has taken the limits."""

_CLOSING = frozenset({RPCStatusCode.NOT_FOUND, RPCStatusCode.ABORTED})


def extend_request(*, turn: int | None, end: bool, **limits: Unpack[Limits]) -> ExtendRequest:
    """The request that sets these limits.

    Raises:
        RequestRefusedError: One of them is none.
    """
    try:
        request = ExtendRequest.model_validate({"turn": turn, "end": end, **limits})
    except ValidationError as error:
        first = error.errors()[0]
        raise RequestRefusedError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    if not request.limits:
        raise RequestRefusedError("name at least one limit, such as max_steps=50")
    return request


async def sent(temporal: temporalio.client.Client, session: str, request: ExtendRequest) -> BudgetStatus:
    """Give the running turn its limits.

    Raises:
        RequestRefusedError: It refuses them.
        SessionIdleError: No turn of the session runs.
        NoWorkerError: No worker took them.
    """
    handle = temporal.get_workflow_handle(session)
    idle = SessionIdleError(f"no turn of session {session!r} runs, so that there are no limits to change")
    try:
        async with asyncio.timeout(EXTEND_TIMEOUT.total_seconds()):
            with rpc_errors():
                try:
                    status: BudgetStatus = await handle.execute_update(
                        Update.EXTEND, request.sparse(), result_type=BudgetStatus
                    )
                except WorkflowUpdateFailedError as error:
                    cause = error.cause
                    if isinstance(cause, ApplicationError) and cause.type == CLOSED_UNDER_UPDATE:
                        raise idle from None
                    message = cause.message if isinstance(cause, ApplicationError) else str(cause)
                    raise RequestRefusedError(f"session {session!r} refused the limits: {message}") from error
                except WorkflowUpdateRPCTimeoutOrCancelledError as error:
                    # The SDK hides a cancellation in this error; whoever cancelled us waits for it.
                    raise asyncio.CancelledError from error
                except RPCError as error:
                    if error.status not in _CLOSING:
                        raise
                    raise idle from None
    except TimeoutError:
        seconds = f"{EXTEND_TIMEOUT.total_seconds():.0f} s"
        msg = f"no worker took the limits for session {session!r} within {seconds}"
        raise NoWorkerError(msg) from None
    return status
