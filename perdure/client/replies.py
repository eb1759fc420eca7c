"""Replies to a session's input requests: to the turn that waits for them, or to the next one, which they begin."""

import contextlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from perdure.agents.files import File, Image
from perdure.client.errors import BlockedError, NoWorkerError, RequestRefusedError, SessionBusyError
from perdure.client.executions import Run
from perdure.client.read import closures, read_events
from perdure.client.requests import (
    Admit,
    Files,
    ReplyOptions,
    SendOptions,
    admit_all,
    read_content,
    turn_request,
    validate,
)
from perdure.client.sessions import Sessions
from perdure.client.turn import Turn
from perdure.client.updates import (
    NotTakenError,
    UpdateRefusedError,
    no_worker_took,
    send_again,
    send_update,
    worker_timeout,
)
from perdure.client.waits import Waits
from perdure.contracts.errors import ReasonCode
from perdure.contracts.events import UserInputReceived, UserMessageReceived
from perdure.contracts.input_requests import (
    AnswerRequest,
    ApproveRequest,
    DenyRequest,
    InputReceipt,
    OpenRequest,
    Reply,
    ReplyBody,
    ResultRequest,
    describe_other_terms,
    digest_of,
    readings,
    receipt_of,
)
from perdure.contracts.names import Update
from perdure.contracts.sends import SendRequest
from perdure.contracts.values import JsonValue
from perdure.contracts.waits import Cause
from perdure.store.errors import NotFoundError

_BODIES: Mapping[Update, type[ReplyBody]] = {
    Update.ANSWER: AnswerRequest,
    Update.APPROVE: ApproveRequest,
    Update.DENY: DenyRequest,
    Update.SUBMIT_RESULT: ResultRequest,
}
"""Inputs of the updates that reply."""


_UPDATES: Mapping[type[ReplyBody], Update] = {kind: update for update, kind in _BODIES.items()}


@dataclass(frozen=True)
class Replied:
    """Outcome of replies.

    Attributes:
        receipts: What was decided, in the order of the replies.
        turn: The number of the turn that they have started; None if one took them that was there already.
    """

    receipts: tuple[InputReceipt, ...] = ()
    turn: int | None = None


@dataclass(frozen=True)
class _Saying:
    """Options and message of a request that replies."""

    options: ReplyOptions
    request_id: str
    text: str
    files: Files


@dataclass(frozen=True)
class _Given:
    """Outcome of one attempt; ``has_message`` says whether the turn has the message too."""

    receipts: tuple[InputReceipt, ...] = ()
    turn: int | None = None
    has_message: bool = False


class Replies:
    """Input requests that wait for people, and their replies."""

    def __init__(self, sessions: Sessions, admit: Admit = admit_all) -> None:
        self._sessions, self._admit = sessions, admit

    def under(self, admit: Admit) -> "Replies":
        """Those whose turns, where a session that has stopped goes on, begin in this context."""
        return Replies(self._sessions, admit)

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
        body, options = validate(_BODIES[update], fields), ReplyOptions()
        if body.message is not None:
            options = ReplyOptions(prompt=body.message.prompt, by=body.message.by)
        replied = await self.reply_to_all(session, [body.model_copy(update={"message": None})], options)
        return replied.receipts[0]

    async def reply_to_all(self, session: str, said: Sequence[ReplyBody], options: ReplyOptions) -> Replied:
        """Give several replies; see :meth:`Client.reply`.

        A turn that waits gets the message beside them with the last one, so that its model reads all of them together.
        What is asked twice is the same request, and so is its message.
        """
        if not said or not all(type(one) in _UPDATES for one in said):
            kinds = ", ".join(kind.__name__ for kind in _UPDATES)
            raise RequestRefusedError(f"replies: give at least one, each of them one of {kinds}")
        if any(one.message is not None for one in said):
            raise RequestRefusedError("replies: a message stands beside all of them; give it as prompt, and no message")
        prompt, attempts, replied = options.get("prompt", ""), itertools.count(), _Given()
        request_id = digest_of(session, [[one.model_dump_json() for one in said], repr(prompt)])
        saying = _Saying(options, request_id, *await read_content(prompt))
        try:
            while len(replied.receipts) < len(said):
                left = said[len(replied.receipts) :]
                given = await send_again(lambda: self._give(session, left, saying, next(attempts)))  # noqa: B023
                replied = replace(given, receipts=(*replied.receipts, *given.receipts))
            if prompt and not replied.has_message and not await self._has_heard(session, said[-1].request, saying.text):
                sent = SendOptions(by=options.get("by", ""), request_id=request_id)
                await self._sessions.send(session, prompt, "steer", **sent)
        except NotTakenError as error:
            why = "it is not asked yet, or its turns end as fast as it is given"
            raise SessionBusyError(f"session {session!r} did not take the reply: {why}; try again") from error
        except TimeoutError:
            await self._sessions.check_worker()
            raise no_worker_took("reply", session) from None
        return Replied(replied.receipts, replied.turn)

    async def _give(self, session: str, said: Sequence[ReplyBody], saying: "_Saying", attempt: int) -> "_Given":
        """Give the first to the running turn, or have all of them start the next one.

        The same reply is the same update, which the server answers from the history: repeats count as one of those that
        a run may take. A refusal may be kept there too, so each attempt has an id of its own.

        Raises:
            NotTakenError: The turn ended meanwhile, is about to ask, or somebody else was first.
        """
        newest, body = await self._sessions.runs.find_newest(session), said[0]
        if newest is None or not newest.running or await self._is_queued(session, newest, saying):
            try:
                return await self._go_on_with(session, [one.reply() for one in said], saying, newest)
            except SessionBusyError as error:
                raise NotTakenError("lost") from error
        reply, has_message = body.reply(), bool(saying.text) and len(said) == 1
        if has_message:
            body = body.model_copy(update={"message": await self._message_of(session, saying)})
        more = [saying.request_id] if has_message else []
        stands = [reply.always.model_dump(mode="json")] if reply.always is not None else []
        digest = digest_of(reply.request, [reply.decision, reply.value, reply.digest, *stands, *more])
        update, named = _UPDATES[type(body)], f"{digest}-{attempt}"
        try:
            receipt = await send_update(self._sessions.temporal, session, update, body, InputReceipt, named)
        except UpdateRefusedError as error:
            return _Given((await self._find_receipt(session, reply, error),))
        return _Given((receipt,), has_message=has_message)

    async def _is_queued(self, session: str, run: Run, saying: "_Saying") -> bool:
        """Whether a run is that of the turn which the same replies have begun, and which has not opened."""
        is_same = run.request_id == saying.request_id
        return is_same and await self._sessions.turn_asked_before(session, run.request_id) is None

    async def _message_of(self, session: str, saying: "_Saying") -> SendRequest:
        parts = await self._sessions.keep_files(session, saying.files)
        fields: dict[str, object] = {"prompt": saying.text, "request_id": saying.request_id, "when_busy": "steer"}
        return validate(SendRequest, {**fields, "parts": parts, "by": saying.options.get("by", "")})

    async def _find_receipt(self, session: str, reply: Reply, refused: UpdateRefusedError) -> InputReceipt:
        """The receipt of the same reply in an earlier turn."""
        if refused.code not in {ReasonCode.REQUEST_INVALID, ReasonCode.REQUEST_TOO_LARGE}:
            raise NotTakenError("lost") from refused
        if await self._find_decision(session, reply.request) is not None:
            return await self._find_same_reply(session, reply)
        raise RequestRefusedError(f"session {session!r} refused the reply: {refused}") from refused

    async def _go_on_with(
        self, session: str, replies: Sequence[Reply], saying: "_Saying", newest: Run | None
    ) -> "_Given":
        """Start the turn that goes on with the replies, except for those that were given before.

        It has the priority of the run that asked.
        """
        await self._sessions.check_known(session)
        store = await self._sessions.store()
        record = await store.session(session)
        last = await store.turn(session, record.turn)
        waits = {request.request_id: request for request in last.result.requests} if last.result is not None else {}
        stand = {
            reply.request: await self._find_same_reply(session, reply)
            for reply in replies
            if reply.request not in waits
        }
        left = [reply for reply in replies if reply.request in waits]
        if not left:
            return _Given(tuple(stand.values()))
        options, own = saying.options, {"prompt": saying.text, "request_id": saying.request_id, "replies": left}
        request = turn_request(session, {**options, **own})
        if request.agent is not None:
            await self._sessions.check_agent(request.agent, session)
        priority = options.get("priority") or (newest.priority if newest is not None else None)
        begins = newest is None or not newest.running  # or else it is queued
        async with self._admit(record) if begins else contextlib.nullcontext():
            turn = await self._sessions.start(session, request, saying.files, priority, tenant=record.tenant)
        number, at = await self._number_of(turn, record.turn + 1), datetime.now(UTC)
        if number is None:
            result = await turn.result()
            if result.reason_code == ReasonCode.REQUEST_BLOCKED:
                raise BlockedError(f"session {session!r}: {result.error}")
            raise RequestRefusedError(f"session {session!r} refused the reply: {result.error}")
        with contextlib.suppress(NotFoundError):  # it is queued
            at = (await store.turn(session, number)).started_at
        for reply in left:
            asked = waits[reply.request]
            stand[reply.request] = receipt_of(reply, at, digest=asked.digest, arguments=asked.arguments)
        return _Given(tuple(stand[reply.request] for reply in replies), number, has_message=True)

    async def _number_of(self, turn: Turn, expected: int) -> int | None:
        """The number of a turn that replies begin, also while it waits for a slot; None if it was refused.

        Raises:
            NoWorkerError: No worker has opened it yet.
        """
        try:
            async with worker_timeout():
                return await turn.number()
        except TimeoutError:
            wait = await Waits(self._sessions.runs).wait_of(turn.session)
        if wait is not None and wait.cause is Cause.QUEUED:
            return expected
        msg = f"the reply has started the next turn of session {turn.session!r}, which waits for a worker and takes it"
        raise NoWorkerError(f"{msg}; there is no need to reply again")

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

    async def _has_heard(self, session: str, request: str, text: str) -> bool:
        """Whether a message came with the reply to this request when that was given before."""
        is_behind = False
        async for envelope in read_events(await self._sessions.store(), session):
            event = envelope.event
            is_behind |= isinstance(event, UserInputReceived) and event.request_id == request
            if is_behind and isinstance(event, UserMessageReceived) and event.content == text:
                return True
        return False

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


def refuse_attached(value: JsonValue) -> None:
    """Refuse an answer that has images or files.

    Raises:
        RequestRefusedError: It has.
    """
    if any(isinstance(part, Image | File) for part in (value if isinstance(value, list) else [value])):
        raise RequestRefusedError(
            "an answer is text or JSON; send images and files before it, with "
            'client.send(session, […], when_busy="steer")'
        )


def _canonical(value: JsonValue) -> str:
    """An answer as it is compared, whatever the order of an object's keys."""
    return json.dumps(value, sort_keys=True)
