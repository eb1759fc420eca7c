"""What a turn asks people for, what a reply must be, and what it changes."""

import contextlib
import json
from dataclasses import dataclass
from datetime import datetime

from referencing.jsonschema import EMPTY_REGISTRY

from perdure.agents.schemas import Watched
from perdure.contracts.errors import REASONS, ReasonCode
from perdure.contracts.input_requests import (
    AskPeople,
    DecidedRequest,
    InputReceipt,
    InputRequest,
    Reply,
    Settled,
    fingerprint_of,
    readings,
)
from perdure.contracts.recordings import RecordedDecisions
from perdure.contracts.tools import PlannedCall, ToolOutcome
from perdure.contracts.turns import MAX_WAITING_BYTES, StopReason
from perdure.contracts.values import JsonValue, replace
from perdure.engine.state import Mailbox, Tally, TurnState


@dataclass(frozen=True)
class WaitForPeople:
    """Wait until somebody replies; ``until`` is when the approvals among the requests expire."""

    until: datetime | None = None


class ReplyError(ValueError):
    """A reply cannot be taken; the message says why, and what would be accepted."""


class TooEarlyError(ReplyError):
    """A reply cannot be taken yet: people are about to be asked, or the turn is just stopping to wait for it."""


def input_requests(state: TurnState) -> tuple[InputRequest, ...]:
    """What the turn waits for, as people see it."""
    return tuple(_request(call, state.calls.expires_at) for call in state.calls.asking)


def _request(call: PlannedCall, expires_at: datetime | None) -> InputRequest:
    return InputRequest(
        request_id=call.call_id,
        needs=call.needs or "answer",
        tool=call.tool,
        arguments=call.arguments,
        question=call.question,
        options=call.options,
        digest=call.digest,
        expires_at=expires_at if call.needs == "approval" else None,
    )


def ask_or_wait(state: TurnState) -> AskPeople | WaitForPeople:
    """Tell people once what they are asked, then wait."""
    if not state.calls.asked:
        return _ask_people(state, requests=input_requests(state))
    expiring = any(call.needs == "approval" for call in state.calls.asking)
    return WaitForPeople(until=state.calls.expires_at if expiring else None)


def _ask_people(
    state: TurnState, *, requests: tuple[InputRequest, ...] = (), decided: tuple[DecidedRequest, ...] = ()
) -> AskPeople:
    return AskPeople(
        session=state.origin.session,
        store=state.origin.store,
        trace=state.origin.trace,
        turn=state.origin.turn,
        step=state.step,
        requests=requests,
        decided=decided,
    )


def tell_decided(before: TurnState, after: TurnState) -> AskPeople | None:
    """The decisions of :func:`apply_replies` to write into the event log now; None if there are none.

    They are written at once because an approved call may wait long for a worker that has its tool. If no call is left
    to run or to ask about, the next ``generate`` writes them.
    """
    if not after.calls.pending and not after.calls.asking:
        return None
    receipts = {call.call_id: call.approval for call in (*after.calls.pending, *after.calls.own)}
    receipts |= {outcome.call_id: outcome.decided for outcome in after.calls.outcomes}
    waiting = {call.call_id for call in after.calls.asking}
    decided = tuple(
        DecidedRequest(tool=call.tool, **dict(receipt))
        for call in before.calls.asking
        if call.call_id not in waiting and (receipt := receipts.get(call.call_id)) is not None
    )
    return _ask_people(after, decided=decided) if decided else None


def apply_replies(state: TurnState, mail: Mailbox, now: datetime) -> tuple[TurnState, Mailbox]:
    """Apply every reply in the mailbox to its call, and refuse calls that were not approved in time.

    Nothing is applied before the other calls of the answer have run, nor once the turn is ending.
    """
    if state.calls.pending or state.ending is not None or not state.calls.asking:
        return state, mail
    limit = state.policy.approvals_expire
    expires_at = state.calls.expires_at or (now + limit if limit is not None else None)
    replies = {reply.request: reply for reply in mail.replies}
    asking: list[PlannedCall] = []
    approved: list[PlannedCall] = []
    decided: list[ToolOutcome] = []
    for call in state.calls.asking:
        reply = replies.get(call.call_id)
        if reply is None:
            late = call.needs == "approval" and expires_at is not None and now >= expires_at
            decided.extend([_expired(call, now)] if late else [])
            asking.extend([] if late else [call])
        elif reply.decision == "approved":
            approved.append(replace(call, approval=_receipt(mail, reply)))
        else:
            decided.append(_outcome(call, reply, _receipt(mail, reply)))
    calls = replace(state.calls.with_approved(approved), asking=tuple(asking), expires_at=expires_at)
    state = replace(state, calls=calls.with_outcomes(decided), tally=_counted(state, decided))
    return state, replace(mail, replies=())


def with_people_told(state: TurnState, recorded: RecordedDecisions | None) -> TurnState:
    """The state after people were told of the requests. In a replay the recording's decisions stand in for people's."""
    told = replace(state.calls, asked=True)
    if recorded is None:
        return replace(state, calls=told)
    outcomes = {outcome.call_id: outcome for outcome in recorded.outcomes}
    approved: list[PlannedCall] = []
    decided: list[ToolOutcome] = []
    for call in state.calls.asking:
        outcome = outcomes[call.call_id]
        if outcome.decided is not None and outcome.decided.decision == "approved":
            approved.append(replace(call, approval=outcome.decided))
        else:
            decided.append(outcome)
    calls = replace(told.with_approved(approved), asking=()).with_outcomes(decided)
    return replace(state, calls=calls, tally=_counted(state, decided))


def _counted(state: TurnState, decided: list[ToolOutcome]) -> Tally:
    """The tally with the calls that people decided about in place of their tools."""
    tools = {call.call_id: call.tool for call in state.calls.asking}
    return state.tally.with_ended([(tools[outcome.call_id], outcome.error is None) for outcome in decided])


def withdraw_requests(state: TurnState, mail: Mailbox) -> tuple[ToolOutcome, ...]:
    """The outcomes of requests in a turn that ends: a reply that was taken counts, the others are withdrawn."""
    replies = {reply.request: reply for reply in mail.replies}
    outcomes: list[ToolOutcome] = []
    for call in state.calls.asking:
        reply = replies.get(call.call_id)
        if reply is not None and reply.decision != "approved":
            outcomes.append(_outcome(call, reply, _receipt(mail, reply)))
        elif reply is not None:
            message = f"Operation aborted: {call.tool} was approved by {reply.by} and the turn ended before it ran"
            outcomes.append(call.as_error(ReasonCode.TOOL_CANCELLED, message, decided=_receipt(mail, reply)))
        else:
            message = f"Operation aborted: the turn ended before a person decided about {call.tool}; it did not run"
            outcomes.append(call.as_error(ReasonCode.TOOL_CANCELLED, message))
    return tuple(outcomes)


def accept_reply(state: TurnState, mail: Mailbox, reply: Reply, now: datetime) -> tuple[Mailbox, InputReceipt]:
    """Take a reply into the mailbox. The same reply again gets the receipt of the first.

    Raises:
        TooEarlyError: People are about to be asked; the reply will do in a moment.
        ReplyError: Nothing waits for this reply, it does not fit, or another one was taken before.
    """
    for settled in mail.settled:
        if settled.receipt.request_id == reply.request:
            return mail, _same(settled, reply)
    call = next((call for call in state.calls.asking if call.call_id == reply.request), None)
    if call is not None and _asks_soon(state):
        msg = f"{reply.request!r} cannot be replied to yet: the turn is just about to ask; try again in a moment"
        raise TooEarlyError(msg)
    asks = state.calls.asked and state.ending is None
    if call is None or not asks:
        waiting = ", ".join(call.call_id for call in state.calls.asking) if asks else ""
        msg = f"nothing waits for {reply.request!r}; " + (f"what waits is {waiting}" if waiting else "nothing waits")
        raise ReplyError(msg)
    check_time(_request(call, state.calls.expires_at), now)
    reply = validate_reply(call, reply, _schema(state, call))
    _need_room_for(state, mail, reply)
    receipt = InputReceipt(request_id=reply.request, decision=reply.decision, by=reply.by, at=now, digest=call.digest)
    return mail.with_reply(reply, Settled(receipt=receipt, said=fingerprint_of(reply))), receipt


def accept_first_reply(state: TurnState, mail: Mailbox, reply: Reply, now: datetime) -> Mailbox:
    """Take the reply for which the turn was started, which ``open_turn`` has checked.

    A turn that was reset does not take it again: its call has run.
    """
    asked = replace(state, calls=replace(state.calls, asked=True))
    with contextlib.suppress(ReplyError):
        mail, _ = accept_reply(asked, mail, reply, now)
    return mail


def _asks_soon(state: TurnState) -> bool:
    """Whether people are about to be asked, or the turn is stopping so that a reply starts the next."""
    if state.ending is not None:
        return state.ending.stop_reason is StopReason.WAITING_FOR_INPUT
    return not state.calls.asked


def check_time(request: InputRequest, now: datetime) -> None:
    """Refuse a reply to a request that has expired.

    Raises:
        ReplyError: The request has expired.
    """
    if request.expires_at is not None and now >= request.expires_at:
        msg = f"{request.request_id!r} expired at {request.expires_at.isoformat()}; send a message to go on without it"
        raise ReplyError(msg)


def validate_reply(call: PlannedCall, reply: Reply, schema: dict[str, JsonValue] | None) -> Reply:
    """The reply, with its answer read as the call's schema or options want it.

    Raises:
        ReplyError: The reply is not of the kind that the call waits for, its answer does not fit, nobody is named as
            deciding, or the approval is for other arguments.
    """
    if call.needs == "approval" and reply.decision == "answered":
        msg = f"{call.call_id!r} is no question: {call.tool} waits to be approved or denied"
        raise ReplyError(msg)
    if call.needs == "answer" and reply.decision == "approved":
        msg = f"{call.call_id!r} is a question and needs an answer: {call.question or call.tool}"
        raise ReplyError(msg)
    if reply.decision != "answered" and not reply.by:
        msg = "by: who decides has to be named"
        raise ReplyError(msg)
    if reply.decision == "approved" and reply.digest and reply.digest != call.digest:
        raise ReplyError(digest_error(reply))
    if reply.decision != "answered":
        return reply
    return replace(reply, value=_fitting(call, reply.value, schema))


def digest_error(reply: Reply) -> str:
    """Why an approval that names another digest is refused."""
    return f"the arguments of {reply.request!r} are not those of this approval; look at the request again"


def _schema(state: TurnState, call: PlannedCall) -> dict[str, JsonValue] | None:
    policy = state.policy.tools.get(call.tool)
    return policy.answer if policy is not None else None


def _fitting(call: PlannedCall, value: JsonValue, schema: dict[str, JsonValue] | None) -> JsonValue:
    """The answer as it fits the options or the schema; a text is also read as JSON."""
    if call.options:
        if value not in call.options:
            msg = f"the answer has to be one of: {', '.join(call.options)}"
            raise ReplyError(msg)
        return value
    if schema is None:
        return value
    # With an empty registry, so that nothing is fetched.
    validator = Watched(schema, registry=EMPTY_REGISTRY)
    candidates = readings(value)
    try:
        for candidate in candidates:
            if validator.is_valid(candidate):
                return candidate
        problem = next(iter(validator.iter_errors(candidates[-1])))
    except Exception as error:  # noqa: BLE001 - whatever the schema makes of an answer that nobody foresaw
        msg = f"the answer cannot be checked against the tool's schema: {type(error).__name__}; deny the question"
        raise ReplyError(msg) from None
    msg = f"the answer does not fit: at {problem.json_path}: {problem.message[:300]}"
    raise ReplyError(msg)


def _same(settled: Settled, reply: Reply) -> InputReceipt:
    """The receipt of the reply that was taken, if this one says the same.

    Raises:
        ReplyError: It says something else: the first reply stands.
    """
    receipt = settled.receipt
    if any(fingerprint_of(replace(reply, value=value)) == settled.said for value in readings(reply.value)):
        if reply.digest and reply.digest != receipt.digest:
            raise ReplyError(digest_error(reply))
        return receipt
    who = receipt.by or "somebody"
    msg = f"{reply.request!r} was {receipt.decision} by {who} at {receipt.at.isoformat()}; that stands"
    raise ReplyError(msg)


def _need_room_for(state: TurnState, mail: Mailbox, reply: Reply) -> None:
    """Refuse a reply that would make those of one step too large for a payload."""
    waiting = sum(len(other.model_dump_json().encode()) for other in (*mail.replies, reply))
    waiting += sum(len(outcome.preview.encode()) for outcome in state.calls.outcomes)
    if waiting > MAX_WAITING_BYTES:
        msg = f"the answers of this step are over {MAX_WAITING_BYTES:,} bytes together; give a shorter one"
        raise ReplyError(msg)


def _receipt(mail: Mailbox, reply: Reply) -> InputReceipt:
    """The receipt of a reply that is in the mailbox."""
    return next(settled.receipt for settled in mail.settled if settled.receipt.request_id == reply.request)


def _outcome(call: PlannedCall, reply: Reply, receipt: InputReceipt) -> ToolOutcome:
    if reply.decision == "answered":
        text = reply.value if isinstance(reply.value, str) else json.dumps(reply.value, ensure_ascii=False)
        return ToolOutcome(call_id=call.call_id, preview=text, recorded=False, decided=receipt)
    what = f"{call.tool} was denied" if call.needs == "approval" else "the question was declined"
    why = f": {reply.reason}" if reply.reason else ""
    return call.as_error(ReasonCode.TOOL_DENIED, f"{what} by {reply.by}{why}", decided=receipt)


def _expired(call: PlannedCall, now: datetime) -> ToolOutcome:
    code = ReasonCode.TOOL_APPROVAL_EXPIRED
    receipt = InputReceipt(request_id=call.call_id, decision="expired", at=now, digest=call.digest)
    return call.as_error(code, REASONS[code].text, decided=receipt)
