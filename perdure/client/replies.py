"""What people say to a session's input requests: to the turn that waits for them, or to the next one."""

import itertools
import json
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping
from datetime import UTC, datetime

import temporalio.client

from perdure.agents.files import File, Image
from perdure.client.connect import rpc_errors
from perdure.client.errors import NoWorkerError, RequestRefusedError, SessionBusyError
from perdure.client.executions import Runs
from perdure.client.read import closures
from perdure.client.requests import Files, turn_request, validate
from perdure.client.turn import Turn
from perdure.client.updates import TIMEOUT, NotTakenError, UpdateRefusedError, deliver, update_errors
from perdure.contracts.errors import ReasonCode
from perdure.contracts.events import UserInputReceived
from perdure.contracts.input_requests import (
    AnswerRequest,
    ApproveRequest,
    DenyRequest,
    InputReceipt,
    OpenRequest,
    Reply,
    digest_of,
    readings,
)
from perdure.contracts.names import AGENT_TURN, SearchAttribute, Update
from perdure.contracts.turns import StopReason, TurnRequest
from perdure.contracts.values import JsonValue
from perdure.store import Store
from perdure.store.errors import NotFoundError

PAGE = 500
"""Events read at once."""

WAITING = StopReason.WAITING_FOR_INPUT


_Body = AnswerRequest | ApproveRequest | DenyRequest


class Replies(ABC):
    """The part of the client that is for people: what waits for them, and their replies.

    The same reply twice is harmless, also when the turn is long over.
    """

    temporal: temporalio.client.Client
    _runs: Runs

    @abstractmethod
    async def store(self) -> Store:
        """The transcript store."""

    @abstractmethod
    async def check_worker(self) -> None:
        """See that a worker polls the task queue."""

    @abstractmethod
    async def _start(self, session: str, request: TurnRequest, files: Files = ()) -> Turn:
        """Start a turn."""

    @abstractmethod
    async def _known_to_the_store(self, session: str) -> None:
        """See that the session exists."""

    async def answer(self, session: str, request: str, value: JsonValue, *, by: str = "") -> InputReceipt:
        """Answer a question: the value becomes the result of the call that asks.

        Text that does not fit is taken for JSON if that does. A session that has stopped for the question goes on with
        its next turn.

        Raises:
            RequestRefusedError: Nothing waits for this answer, it does not fit, or another one was given before.
            UnknownSessionError: There is no session of that id.
            NoWorkerError: No worker took the answer.
        """
        if any(isinstance(part, Image | File) for part in (value if isinstance(value, list) else [value])):
            msg = (
                "an answer is text or JSON; send images and files before it, with client.send(session, […], steer=True)"
            )
            raise RequestRefusedError(msg)
        return await self._reply(session, Update.ANSWER, AnswerRequest, {"request": request, "value": value, "by": by})

    async def approve(self, session: str, request: str, *, by: str, digest: str = "") -> InputReceipt:
        """Let a tool call run; with the request's ``digest``, only if its arguments are what it was made of.

        Raises:
            RequestRefusedError: Nothing waits for it, it expired, is for other arguments, or was denied before.
            UnknownSessionError: There is no session of that id.
            NoWorkerError: No worker took the approval.
        """
        return await self._reply(
            session, Update.APPROVE, ApproveRequest, {"request": request, "by": by, "digest": digest}
        )

    async def deny(self, session: str, request: str, *, by: str, reason: str = "") -> InputReceipt:
        """Refuse a tool call, or to answer a question: the model gets an error result with the reason.

        Raises:
            RequestRefusedError: Nothing waits for it, or something else was decided before.
            UnknownSessionError: There is no session of that id.
            NoWorkerError: No worker took the denial.
        """
        return await self._reply(session, Update.DENY, DenyRequest, {"request": request, "by": by, "reason": reason})

    async def inbox(
        self, session: str | None = None, *, agent: str | None = None, tenant: str | None = None
    ) -> list[OpenRequest]:
        """What waits for people now, the oldest request first: over all sessions, or of one.

        Left out are turns whose workflow Temporal has ended, and approvals whose time is over.

        Args:
            session: Only what this session waits for.
            agent: Only turns of this agent.
            tenant: Only turns of this tenant; by the search attribute ``PerdureTenant``.

        Raises:
            ServerUnreachableError: The server does not answer.
            StoreError: The store does not answer.
        """
        store, now = await self.store(), datetime.now(UTC)
        found = [
            request
            for request in await store.open_requests(session, agent)
            if request.expires_at is None or request.expires_at > now
        ]
        kept = {request.session for request in found}
        if not kept:
            return []
        kept -= set(await closures(self.temporal, await store.open_runs(kept)))
        if tenant is not None:
            waits = f'({SearchAttribute.STATE} = "{WAITING}" OR {SearchAttribute.STOP_REASON} = "{WAITING}")'
            query = f'WorkflowType = "{AGENT_TURN}" AND {SearchAttribute.TENANT} = {json.dumps(tenant)} AND {waits}'
            with rpc_errors():
                kept &= {run.id async for run in self.temporal.list_workflows(query)}
        return [request for request in found if request.session in kept]

    async def _reply(
        self, session: str, update: Update, kind: type[_Body], fields: Mapping[str, object]
    ) -> InputReceipt:
        body = validate(kind, fields)
        request_id, attempts = uuid.uuid4().hex, itertools.count()
        try:
            return await deliver(lambda: self._give(session, update, body, request_id, next(attempts)))
        except NotTakenError as error:
            why = "it is not asked yet, or its turns end as fast as it is given"
            raise SessionBusyError(f"session {session!r} did not take the reply: {why}; try again") from error
        except TimeoutError:
            newest = await self._runs.newest(session)
            if newest is not None and newest.running and newest.request_id == request_id:
                msg = (
                    f"the reply has started the next turn of session {session!r}, which waits for a worker and takes it"
                )
                raise NoWorkerError(f"{msg}; there is no need to reply again") from None
            await self.check_worker()
            msg = f"no worker took the reply for session {session!r} within {TIMEOUT.total_seconds():.0f} s"
            raise NoWorkerError(msg) from None

    async def _give(self, session: str, update: Update, body: _Body, request_id: str, attempt: int) -> InputReceipt:
        """Give it to the running turn, or have it start the next one.

        The same reply is the same update, which the server answers from the history: repeats count as one of those that
        a run may take. A refusal may be kept there too, so each attempt has an id of its own.

        Raises:
            NotTakenError: The turn ended meanwhile, is about to ask, or somebody else was first.
        """
        newest, reply = await self._runs.newest(session), body.reply()
        if newest is None or not newest.running:
            try:
                return await self._go_on_with(session, reply, request_id)
            except SessionBusyError as error:
                raise NotTakenError("lost") from error
        handle = self.temporal.get_workflow_handle(session)
        try:
            with update_errors():
                said = digest_of(reply.request, [reply.decision, reply.value, reply.digest])
                receipt: InputReceipt = await handle.execute_update(
                    update, body, id=f"{said}-{attempt}", result_type=InputReceipt
                )
        except UpdateRefusedError as error:
            return await self._decided(session, reply, error)
        return receipt

    async def _decided(self, session: str, reply: Reply, refused: UpdateRefusedError) -> InputReceipt:
        """The receipt of the same reply in an earlier turn.

        Raises:
            RequestRefusedError: The workflow refused it.
            NotTakenError: The workflow asks soon.
        """
        if refused.code != ReasonCode.REQUEST_INVALID:
            raise NotTakenError("lost") from refused
        if await self._decided_before(session, reply.request) is not None:
            return await self._same_as_before(session, reply)
        raise RequestRefusedError(f"session {session!r} refused the reply: {refused}") from refused

    async def _go_on_with(self, session: str, reply: Reply, request_id: str) -> InputReceipt:
        """Start the turn that goes on with the reply; or find that the same reply was given before."""
        await self._known_to_the_store(session)
        store = await self.store()
        record = await store.session(session)
        last = await store.turn(session, record.turn)
        waits = {request.request_id: request for request in last.result.requests} if last.result is not None else {}
        if reply.request not in waits:
            return await self._same_as_before(session, reply)
        text = reply.value if isinstance(reply.value, str) and reply.value else f"{reply.decision} {reply.request}"
        request = turn_request(session, {"prompt": text, "request_id": request_id, "reply": reply})
        turn = await self._start(session, request)
        if await turn.number() is None:
            result = await turn.result()
            raise RequestRefusedError(f"session {session!r} refused the reply: {result.error}")
        opened = await store.turn(session, turn.turn or 0)
        return InputReceipt(
            request_id=reply.request,
            decision=reply.decision,
            by=reply.by,
            at=opened.started_at,
            digest=waits[reply.request].digest,
        )

    async def _same_as_before(self, session: str, reply: Reply) -> InputReceipt:
        """The receipt of a reply that was given before, by the log.

        Raises:
            RequestRefusedError: Nothing waits for it, or something else was decided.
        """
        found = await self._decided_before(session, reply.request)
        if found is None:
            msg = f"session {session!r} does not wait for {reply.request!r}; see 'perdure follow {session}'"
            raise RequestRefusedError(msg)
        receipt, result = found
        answers = {value if isinstance(value, str) else _canonical(value) for value in readings(reply.value)}
        same = answers & {result, *(_canonical(value) for value in readings(result))}
        if receipt.decision == reply.decision and (reply.decision != "answered" or same):
            if reply.digest and reply.digest != receipt.digest:
                msg = f"the arguments of {reply.request!r} were not those of this approval"
                raise RequestRefusedError(msg)
            return receipt
        who = receipt.by or "somebody"
        msg = f"{reply.request!r} was {receipt.decision} by {who} at {receipt.at.isoformat()}; that stands"
        raise RequestRefusedError(msg)

    async def _decided_before(self, session: str, request: str) -> tuple[InputReceipt, str] | None:
        """What was decided about a request: the receipt, from the log, and all of the call's result."""
        store, after = await self.store(), 0
        receipt: InputReceipt | None = None
        turn = 0
        try:
            while page := await store.events(session, after=after, limit=PAGE):
                after = page[-1].seq
                for envelope in page:
                    event = envelope.event
                    if isinstance(event, UserInputReceived) and event.request_id == request:
                        receipt = InputReceipt(**event.model_dump(exclude={"type", "tool"}))
                        turn = envelope.turn
        except NotFoundError:
            return None
        if receipt is None:
            return None
        message = await store.result_of_call(session, turn, request)  # an event has the beginning only
        return receipt, message.content if message is not None else ""


def _canonical(value: JsonValue) -> str:
    """An answer as it is compared, whatever the order of an object's keys."""
    return json.dumps(value, sort_keys=True)
