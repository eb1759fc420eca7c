"""The Nexus service: workflows of other namespaces start turns, send messages, reply and cancel.

A turn that an operation starts is linked with its caller in Temporal's UI, and delivers its result to the caller. A
cancel of the operation is Temporal's own cancel of the turn. Whoever may use the endpoint reaches every session:
Temporal checks who may, and perdure checks no tenant.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

from nexusrpc import HandlerError, HandlerErrorType
from nexusrpc.handler import StartOperationContext, service_handler, sync_operation
from temporalio import nexus
from temporalio.exceptions import WorkflowAlreadyStartedError

from perdure.client import Client, ClientError, RequestRefusedError, SessionBusyError, UnknownSessionError
from perdure.client.replies import Replies
from perdure.client.requests import check_name, session_id, turn_request, validate, workflow_options
from perdure.client.sessions import Sessions
from perdure.contracts.names import AGENT_TURN, NEXUS_SERVICE, Update
from perdure.contracts.sends import SendRequest
from perdure.contracts.turns import CancelRequest, TurnResult
from perdure.settings import Settings
from perdure.store.errors import StoreError

Given = dict[str, Any]
"""The input of an operation: an object with the session, and the fields of the request or of the update."""

_KINDS: Mapping[type[Exception], HandlerErrorType] = {
    UnknownSessionError: HandlerErrorType.NOT_FOUND,
    RequestRefusedError: HandlerErrorType.BAD_REQUEST,
    WorkflowAlreadyStartedError: HandlerErrorType.CONFLICT,
    SessionBusyError: HandlerErrorType.CONFLICT,
    ClientError: HandlerErrorType.UNAVAILABLE,
    StoreError: HandlerErrorType.UNAVAILABLE,
}
"""Nexus' kind of each error, the first that fits. Temporal tries an operation again if it was UNAVAILABLE."""


@service_handler(name=NEXUS_SERVICE)
class NexusService:
    """The operations, each with a client of its own: a caller in Temporal has few."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    @nexus.workflow_run_operation
    async def start(self, context: nexus.WorkflowRunOperationContext, given: Given) -> nexus.WorkflowHandle[TurnResult]:
        """Start a turn of the session, or of a new one if none is named; its result is the operation's."""
        async with _handler_errors():
            fields: dict[str, object] = {"request_id": context.request_id, **given}
            named = fields.pop("session", None)
            priority = cast("int | None", fields.get("priority"))  # turn_request refuses anything else
            session = str(named) if named else session_id(str(fields.get("agent") or ""))
            request = turn_request(session, fields)
            sessions = Sessions(nexus.client(), self._settings)
            try:
                await check_name(session, request.tenant, sessions.store)
                share = await sessions.share_of(session, request, priority)
            finally:
                await sessions.close()
            options = workflow_options(session, request, share, self._settings)
            return await context.start_workflow(AGENT_TURN, request, result_type=TurnResult, **options)

    @sync_operation
    async def send(self, context: StartOperationContext, given: Given) -> Given:
        """Send a message; gives the number of the ``turn`` that takes it."""
        async with _handler_errors(), Client(nexus.client(), self._settings) as client:
            session, fields = _session_in(given)
            asked = validate(SendRequest, fields)
            turn = await client.send(
                session,
                asked.prompt,
                when_busy=asked.when_busy,
                request_id=asked.request_id or context.request_id,
                context=asked.context,
                by=asked.by,
            )
            return {"turn": turn.turn or await turn.number()}

    @sync_operation
    async def cancel(self, _: StartOperationContext, given: Given) -> Given:
        """Cancel a turn; ``stops`` says whether there was one to cancel."""
        async with _handler_errors(), Client(nexus.client(), self._settings) as client:
            session, fields = _session_in(given)
            asked = validate(CancelRequest, fields)
            stops = await client.cancel(session, asked.reason, asked.turn, drop_queue=asked.drop_queue)
            return {"stops": stops}

    @sync_operation
    async def answer(self, _: StartOperationContext, given: Given) -> Given:
        """Answer a question; gives the receipt, as do the other replies."""
        return await self._reply(Update.ANSWER, given)

    @sync_operation
    async def approve(self, _: StartOperationContext, given: Given) -> Given:
        """Approve a tool call."""
        return await self._reply(Update.APPROVE, given)

    @sync_operation
    async def deny(self, _: StartOperationContext, given: Given) -> Given:
        """Deny a tool call, or decline a question."""
        return await self._reply(Update.DENY, given)

    @sync_operation
    async def submit_result(self, _: StartOperationContext, given: Given) -> Given:
        """Submit the result of a tool call that the caller runs."""
        return await self._reply(Update.SUBMIT_RESULT, given)

    async def _reply(self, update: Update, given: Given) -> Given:
        async with _handler_errors():
            session, fields = _session_in(given)
            sessions = Sessions(nexus.client(), self._settings)
            try:
                receipt = await Replies(sessions).reply(session, update, fields)
            finally:
                await sessions.close()
            return receipt.model_dump(mode="json")


def _session_in(given: Given) -> tuple[str, Given]:
    """The session that the input names, and the other fields."""
    session = given.get("session")
    if not isinstance(session, str) or not session:
        raise RequestRefusedError("session: is needed, as a text")
    return session, {name: value for name, value in given.items() if name != "session"}


@asynccontextmanager
async def _handler_errors() -> AsyncIterator[None]:
    """Turn errors of callers and outages into Nexus' own."""
    try:
        yield
    except tuple(_KINDS) as error:
        kind = next(kind for own, kind in _KINDS.items() if isinstance(error, own))
        raise HandlerError(str(error), type=kind) from None
