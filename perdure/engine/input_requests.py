"""What a turn asks people for, what a reply must be, and what it changes. Pure, and part of the workflow."""

import json
from collections.abc import Sequence
from datetime import datetime

from referencing.jsonschema import EMPTY_REGISTRY

from perdure.agents.schemas import Watched
from perdure.contracts.errors import REASONS, ErrorDetail, ReasonCode
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
from perdure.contracts.values import JsonValue, Value
from perdure.engine.conditions import Tally
from perdure.engine.state import Mailbox, TurnState


class WaitForPeople(Value):
    """Wait until somebody replies; ``until`` is when the approvals among the requests expire."""

    until: datetime | None = None


class ReplyError(ValueError):
    """A reply cannot be taken; the message says why, and what would do."""


class TooEarlyError(ReplyError):
    """A reply cannot be taken yet: people are about to be asked, or the turn is just stopping for it."""


def input_requests(state: TurnState) -> tuple[InputRequest, ...]:
    """What the turn waits for, as people see it."""
    return tuple(_request(call, state.expires_at) for call in state.asking)


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
    """The requests are told of once; from then on they are waited for."""
    if not state.asked:
        asked = input_requests(state)
        return AskPeople(session=state.session, store=state.store, turn=state.turn, step=state.step, requests=asked)
    expiring = any(call.needs == "approval" for call in state.asking)
    return WaitForPeople(until=state.expires_at if expiring else None)


def tell_decided(before: TurnState, after: TurnState) -> AskPeople | None:
    """The decisions that :func:`hear` has taken and that readers would not see until a call runs; None without any.

    A call may wait long for a worker that has its tool. The next generation writes what it reads by itself.
    """
    if not after.pending and not after.asking:
        return None
    receipts = {call.call_id: call.approval for call in (*after.pending, *after.builtins)}
    receipts |= {outcome.call_id: outcome.decided for outcome in after.failed}
    waiting = {call.call_id for call in after.asking}
    decided = tuple(
        DecidedRequest(tool=call.tool, **dict(receipt))
        for call in before.asking
        if call.call_id not in waiting and (receipt := receipts.get(call.call_id)) is not None
    )
    if not decided:
        return None
    return AskPeople(session=after.session, store=after.store, turn=after.turn, step=after.step, decided=decided)


def hear(state: TurnState, mail: Mailbox, now: datetime) -> tuple[TurnState, Mailbox]:
    """The state with every reply taken out of the mailbox, and what was not approved in time refused.

    Before the other calls of the answer have run, and once the turn is ending, nothing is heard.
    """
    if state.pending or state.ending is not None or not state.asking:
        return state, mail
    limit = state.policy.approvals_expire
    expires_at = state.expires_at or (now + limit if limit is not None else None)
    replies = {reply.request: reply for reply in mail.replies}
    asking: list[PlannedCall] = []
    approved: list[PlannedCall] = []
    decided: list[ToolOutcome] = []
    for call in state.asking:
        reply = replies.get(call.call_id)
        if reply is None:
            late = call.needs == "approval" and expires_at is not None and now >= expires_at
            decided.extend([_expired(call, now)] if late else [])
            asking.extend([] if late else [call])
        elif reply.decision == "approved":
            approved.append(call.model_copy(update={"approval": _receipt(mail, reply)}))
        else:
            decided.append(_outcome(call, reply, _receipt(mail, reply)))
    heard = state.model_copy(
        update={
            "asking": tuple(asking),
            **_to_run(state, approved),
            "failed": (*state.failed, *decided),
            "tally": _counted(state, decided),
            "expires_at": expires_at,
        }
    )
    return heard, mail.model_copy(update={"replies": ()})


def told(state: TurnState, recorded: RecordedDecisions | None) -> TurnState:
    """The state after people were told of the requests. If they decided when it was recorded, nobody is waited for."""
    if recorded is None:
        return state.model_copy(update={"asked": True})
    outcomes = {outcome.call_id: outcome for outcome in recorded.outcomes}
    approved: list[PlannedCall] = []
    decided: list[ToolOutcome] = []
    for call in state.asking:
        outcome = outcomes[call.call_id]
        if outcome.decided is not None and outcome.decided.decision == "approved":
            approved.append(call.model_copy(update={"approval": outcome.decided}))
        else:
            decided.append(outcome)
    update = {"failed": (*state.failed, *decided), "tally": _counted(state, decided)}
    return state.model_copy(update={"asked": True, "asking": (), **_to_run(state, approved), **update})


def _counted(state: TurnState, decided: list[ToolOutcome]) -> Tally:
    """The tally with the calls that people decided about in place of their tools."""
    tools = {call.call_id: call.tool for call in state.asking}
    return state.tally.with_ended([(tools[outcome.call_id], outcome.error is None) for outcome in decided])


def _to_run(state: TurnState, approved: Sequence[PlannedCall]) -> dict[str, object]:
    """The approved calls as what is to run next, activities and the workflow's own."""
    own = tuple(call for call in approved if call.is_own)
    pending = tuple(call for call in approved if not call.is_own)
    return {"pending": pending, "builtins": (*state.builtins, *own)}


def unfinished(state: TurnState, mail: Mailbox) -> tuple[ToolOutcome, ...]:
    """The outcomes of requests in a turn that ends: a reply that was taken counts, the others are withdrawn."""
    replies = {reply.request: reply for reply in mail.replies}
    outcomes: list[ToolOutcome] = []
    for call in state.asking:
        reply = replies.get(call.call_id)
        if reply is not None and reply.decision != "approved":
            outcomes.append(_outcome(call, reply, _receipt(mail, reply)))
        elif reply is not None:
            message = f"Operation aborted: {call.tool} was approved by {reply.by} and the turn ended before it ran"
            outcomes.append(_error(call, ReasonCode.TOOL_CANCELLED, message, _receipt(mail, reply)))
        else:
            message = f"Operation aborted: the turn ended before a person decided about {call.tool}; it did not run"
            outcomes.append(_error(call, ReasonCode.TOOL_CANCELLED, message, None))
    return tuple(outcomes)


def settle(state: TurnState, mail: Mailbox, reply: Reply, now: datetime) -> tuple[Mailbox, InputReceipt]:
    """Take a reply into the mailbox, or find that the same was taken before.

    Raises:
        TooEarlyError: It cannot be taken yet.
        ReplyError: It cannot be taken.
    """
    for settled in mail.settled:
        if settled.receipt.request_id == reply.request:
            return mail, _same(settled, reply)
    call = next((call for call in state.asking if call.call_id == reply.request), None)
    if call is not None and _asks_soon(state):
        msg = f"{reply.request!r} cannot be replied to yet: the turn is just about to ask; try again in a moment"
        raise TooEarlyError(msg)
    if call is None or not state.asked or state.ending is not None:
        waiting = ", ".join(call.call_id for call in state.asking) if state.asked and state.ending is None else ""
        msg = f"nothing waits for {reply.request!r}; " + (f"what waits is {waiting}" if waiting else "nothing waits")
        raise ReplyError(msg)
    check_time(_request(call, state.expires_at), now)
    reply = checked(call, reply, _schema(state, call))
    _need_room_for(state, mail, reply)
    receipt = InputReceipt(request_id=reply.request, decision=reply.decision, by=reply.by, at=now, digest=call.digest)
    return mail.with_reply(reply, Settled(receipt=receipt, said=fingerprint_of(reply))), receipt


def _asks_soon(state: TurnState) -> bool:
    """Whether people are about to be asked, or the turn is stopping so that a reply starts the next."""
    if state.ending is not None:
        return state.ending.stop_reason is StopReason.WAITING_FOR_INPUT
    return not state.asked


def check_time(request: InputRequest, now: datetime) -> None:
    """See that the request has not expired.

    Raises:
        ReplyError: It has.
    """
    if request.expires_at is not None and now >= request.expires_at:
        msg = f"{request.request_id!r} expired at {request.expires_at.isoformat()}; send a message to go on without it"
        raise ReplyError(msg)


def checked(call: PlannedCall, reply: Reply, schema: dict[str, JsonValue] | None) -> Reply:
    """The reply with its answer as the call takes it.

    Raises:
        ReplyError: It is not what the call waits for.
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
        raise ReplyError(other_arguments(reply))
    if reply.decision != "answered":
        return reply
    return reply.model_copy(update={"value": _fitting(call, reply.value, schema)})


def other_arguments(reply: Reply) -> str:
    """Why an approval that names another digest is refused."""
    return f"the arguments of {reply.request!r} are not those of this approval; look at the request again"


def _schema(state: TurnState, call: PlannedCall) -> dict[str, JsonValue] | None:
    policy = state.policy.tools.get(call.tool)
    return policy.answer if policy is not None else None


def _fitting(call: PlannedCall, value: JsonValue, schema: dict[str, JsonValue] | None) -> JsonValue:
    """The answer; a text that does not fit is taken for JSON if that fits."""
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
    """The receipt of the first reply, for one that says the same."""
    receipt = settled.receipt
    if any(
        fingerprint_of(reply.model_copy(update={"value": value})) == settled.said for value in readings(reply.value)
    ):
        if reply.digest and reply.digest != receipt.digest:
            raise ReplyError(other_arguments(reply))
        return receipt
    who = receipt.by or "somebody"
    msg = f"{reply.request!r} was {receipt.decision} by {who} at {receipt.at.isoformat()}; that stands"
    raise ReplyError(msg)


def _need_room_for(state: TurnState, mail: Mailbox, reply: Reply) -> None:
    """Refuse an answer that would not fit into one payload with those before it."""
    waiting = sum(len(other.model_dump_json().encode()) for other in (*mail.replies, reply))
    waiting += sum(len(outcome.preview.encode()) for outcome in state.failed)
    if waiting > MAX_WAITING_BYTES:
        msg = f"the answers of this step are over {MAX_WAITING_BYTES:,} bytes together; give a shorter one"
        raise ReplyError(msg)


def _receipt(mail: Mailbox, reply: Reply) -> InputReceipt:
    """A reply in the mailbox came in with its receipt."""
    return next(settled.receipt for settled in mail.settled if settled.receipt.request_id == reply.request)


def _outcome(call: PlannedCall, reply: Reply, receipt: InputReceipt) -> ToolOutcome:
    if reply.decision == "answered":
        text = reply.value if isinstance(reply.value, str) else json.dumps(reply.value, ensure_ascii=False)
        return ToolOutcome(call_id=call.call_id, preview=text, recorded=False, decided=receipt).sparse()
    what = f"{call.tool} was denied" if call.needs == "approval" else "the question was declined"
    why = f": {reply.reason}" if reply.reason else ""
    return _error(call, ReasonCode.TOOL_DENIED, f"{what} by {reply.by}{why}", receipt)


def _expired(call: PlannedCall, now: datetime) -> ToolOutcome:
    code = ReasonCode.TOOL_APPROVAL_EXPIRED
    receipt = InputReceipt(request_id=call.call_id, decision="expired", at=now, digest=call.digest)
    return _error(call, code, REASONS[code].text, receipt)


def _error(call: PlannedCall, code: ReasonCode, message: str, receipt: InputReceipt | None) -> ToolOutcome:
    error = ErrorDetail(code=code, title=call.tool, message=message)
    return ToolOutcome(call_id=call.call_id, preview=message, error=error, recorded=False, decided=receipt).sparse()
