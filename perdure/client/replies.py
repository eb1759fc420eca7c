"""Replies of people to a session's input requests: to the turn that waits for them, or to the next one."""

import contextlib
import itertools
import json
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime

from perdure.client.errors import BlockedError, NoWorkerError, RequestRefusedError, SessionBusyError
from perdure.client.read import closures, read_events
from perdure.client.requests import turn_request, validate
from perdure.client.sessions import Sessions
from perdure.client.updates import (
    NotTakenError,
    UpdateRefusedError,
    no_worker_took,
    send_again,
    send_update,
    worker_timeout,
)
from perdure.contracts.errors import ReasonCode
from perdure.contracts.events import UserInputReceived
from perdure.contracts.input_requests import (
    AnswerRequest,
    ApproveRequest,
    DenyRequest,
    InputReceipt,
    OpenRequest,
    Reply,
    ResultRequest,
    describe_other_terms,
    digest_of,
    readings,
)
from perdure.contracts.names import Update
from perdure.contracts.values import JsonValue
from perdure.store.errors import NotFoundError

_Body = AnswerRequest | ApproveRequest | DenyRequest | ResultRequest

_BODIES: Mapping[Update, type[_Body]] = {
    Update.ANSWER: AnswerRequest,
    Update.APPROVE: ApproveRequest,
    Update.DENY: DenyRequest,
    Update.SUBMIT_RESULT: ResultRequest,
}
"""Inputs of the updates that reply."""


class Replies:
    """Input requests that wait for people, and their replies."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def open_requests(self, session: str | None, *, agent: str | None, tenant: str | None) -> list[OpenRequest]:
        """The open requests of sessions that go on, the oldest first; see :meth:`Client.inbox`."""
        store, now = await self._sessions.store(), datetime.now(UTC)
        found = [
            request
            for request in await store.open_requests(session, agent, tenant)
            if request.expires_at is None or request.expires_at > now
        ]
        kept = {request.session for request in found}
        if not kept:
            return []
        kept -= set(await closures(self._sessions.temporal, await store.open_runs(kept)))
        return [request for request in found if request.session in kept]

    async def reply(self, session: str, update: Update, fields: Mapping[str, object]) -> InputReceipt:
        """Give a reply to the turn that waits for it, or to the next one; the same reply twice is harmless."""
        body = validate(_BODIES[update], fields)
        request_id, attempts = uuid.uuid4().hex, itertools.count()
        try:
            return await send_again(lambda: self._give(session, update, body, request_id, next(attempts)))
        except NotTakenError as error:
            why = "it is not asked yet, or its turns end as fast as it is given"
            raise SessionBusyError(f"session {session!r} did not take the reply: {why}; try again") from error
        except TimeoutError:
            await self._sessions.check_worker()
            raise no_worker_took("reply", session) from None

    async def _give(self, session: str, update: Update, body: _Body, request_id: str, attempt: int) -> InputReceipt:
        """Give it to the running turn, or have it start the next one.

        The same reply is the same update, which the server answers from the history: repeats count as one of those that
        a run may take. A refusal may be kept there too, so each attempt has an id of its own.

        Raises:
            NotTakenError: The turn ended meanwhile, is about to ask, or somebody else was first.
        """
        newest, reply = await self._sessions.runs.find_newest(session), body.reply()
        if newest is None or not newest.running:
            try:
                return await self._go_on_with(session, reply, request_id)
            except SessionBusyError as error:
                raise NotTakenError("lost") from error
        stands = [reply.always.model_dump(mode="json")] if reply.always is not None else []
        said = digest_of(reply.request, [reply.decision, reply.value, reply.digest, *stands])
        try:
            return await send_update(self._sessions.temporal, session, update, body, InputReceipt, f"{said}-{attempt}")
        except UpdateRefusedError as error:
            return await self._find_receipt(session, reply, error)

    async def _find_receipt(self, session: str, reply: Reply, refused: UpdateRefusedError) -> InputReceipt:
        """The receipt of the same reply in an earlier turn."""
        if refused.code != ReasonCode.REQUEST_INVALID:
            raise NotTakenError("lost") from refused
        if await self._find_decision(session, reply.request) is not None:
            return await self._find_same_reply(session, reply)
        raise RequestRefusedError(f"session {session!r} refused the reply: {refused}") from refused

    async def _go_on_with(self, session: str, reply: Reply, request_id: str) -> InputReceipt:
        """Start the turn that goes on with the reply; or find that the same reply was given before."""
        await self._sessions.check_known(session)
        store = await self._sessions.store()
        record = await store.session(session)
        last = await store.turn(session, record.turn)
        waits = {request.request_id: request for request in last.result.requests} if last.result is not None else {}
        if reply.request not in waits:
            return await self._find_same_reply(session, reply)
        text = reply.value if isinstance(reply.value, str) and reply.value else f"{reply.decision} {reply.request}"
        request = turn_request(session, {"prompt": text, "request_id": request_id, "reply": reply})
        turn = await self._sessions.start(session, request)
        try:
            async with worker_timeout():
                number = await turn.number()
        except TimeoutError:
            msg = f"the reply has started the next turn of session {session!r}, which waits for a worker and takes it"
            raise NoWorkerError(f"{msg}; there is no need to reply again") from None
        if number is None:
            result = await turn.result()
            if result.reason_code == ReasonCode.REQUEST_BLOCKED:
                raise BlockedError(f"session {session!r}: {result.error}")
            raise RequestRefusedError(f"session {session!r} refused the reply: {result.error}")
        opened = await store.turn(session, number)
        return InputReceipt(
            request_id=reply.request,
            decision=reply.decision,
            by=reply.by,
            at=opened.started_at,
            digest=waits[reply.request].digest,
            always=reply.always and reply.always.of_call(waits[reply.request].arguments),
        )

    async def _find_same_reply(self, session: str, reply: Reply) -> InputReceipt:
        """The receipt of a reply that was given before, by the log."""
        found = await self._find_decision(session, reply.request)
        if found is None:
            msg = f"session {session!r} does not wait for {reply.request!r}; see 'perdure follow {session}'"
            raise RequestRefusedError(msg)
        receipt, result = found
        answers = {value if isinstance(value, str) else _canonical(value) for value in readings(reply.value)}
        same = answers & {result, *(_canonical(value) for value in readings(result))}
        if receipt.decision == reply.decision and (reply.decision in {"approved", "denied"} or same):
            if reply.digest and reply.digest != receipt.digest:
                kind = "approval" if reply.decision == "approved" else "result"
                raise RequestRefusedError(f"the arguments of {reply.request!r} were not those of this {kind}")
            if (problem := describe_other_terms(reply, receipt)) is not None:
                raise RequestRefusedError(problem)
            return receipt
        who = receipt.by or "somebody"
        msg = f"{reply.request!r} was {receipt.decision} by {who} at {receipt.at.isoformat()}; that stands"
        raise RequestRefusedError(msg)

    async def _find_decision(self, session: str, request: str) -> tuple[InputReceipt, str] | None:
        """Find the decision about a request: the receipt, from the log, and all of the call's result."""
        store, turn = await self._sessions.store(), 0
        receipt: InputReceipt | None = None
        with contextlib.suppress(NotFoundError):
            async for envelope in read_events(store, session):
                event = envelope.event
                if isinstance(event, UserInputReceived) and event.request_id == request:
                    receipt, turn = InputReceipt(**event.model_dump(exclude={"type", "tool"})), envelope.turn
        if receipt is None:
            return None
        message = await store.result_of_call(session, turn, request)  # an event has the beginning only
        return receipt, message.content if message is not None else ""


def _canonical(value: JsonValue) -> str:
    """An answer as it is compared, whatever the order of an object's keys."""
    return json.dumps(value, sort_keys=True)
