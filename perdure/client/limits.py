"""Other limits for a turn that runs: what a client sends, and what it makes of a refusal."""

from typing import Unpack

import temporalio.client

from perdure.client.errors import NoWorkerError, RequestRefusedError, SessionIdleError
from perdure.client.requests import validate
from perdure.client.updates import TIMEOUT, NotTakenError, UpdateRefusedError, deliver, update_errors
from perdure.contracts.budgets import ExtendRequest, Limits
from perdure.contracts.names import Update
from perdure.contracts.turns import BudgetStatus


def extend_request(*, turn: int | None, end: bool, **limits: Unpack[Limits]) -> ExtendRequest:
    """The request that sets these limits.

    Raises:
        RequestRefusedError: One of them is none.
    """
    request = validate(ExtendRequest, {"turn": turn, "end": end, **limits})
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

    async def attempt() -> BudgetStatus:
        with update_errors():
            status: BudgetStatus = await handle.execute_update(
                Update.EXTEND, request.sparse(), result_type=BudgetStatus
            )
        return status

    not_taken = f"no worker took the limits for session {session!r} within {TIMEOUT.total_seconds():.0f} s"
    try:
        return await deliver(attempt, again=frozenset({"lost"}))
    except UpdateRefusedError as error:
        raise RequestRefusedError(f"session {session!r} refused the limits: {error}") from error
    except NotTakenError as error:
        if error.why == "lost":
            raise NoWorkerError(not_taken) from error
        msg = f"no turn of session {session!r} runs, so that there are no limits to change"
        raise SessionIdleError(msg) from None
    except TimeoutError:
        raise NoWorkerError(not_taken) from None
