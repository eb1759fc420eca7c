"""Input requests of a turn, what a reply must be, and what it changes."""

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from referencing.jsonschema import EMPTY_REGISTRY

from perdure.agents.schemas import Watched
from perdure.contracts.errors import REASONS, ReasonCode
from perdure.contracts.input_requests import (
    MAX_WAITING_BYTES,
    AskPeople,
    DecidedRequest,
    Decision,
    InputReceipt,
    InputRequest,
    Need,
    Reply,
    Settled,
    describe_other_terms,
    fingerprint_of,
    readings,
    receipt_of,
)
from perdure.contracts.recordings import RecordedDecisions
from perdure.contracts.server_questions import ServerAnswer, ServerQuestion
from perdure.contracts.tools import DEFAULT_CALLER_TIMEOUT, PlannedCall, ToolOutcome
from perdure.contracts.turns import StopReason
from perdure.contracts.values import JsonValue, replace, size_of
from perdure.engine.state import Mailbox, Tally, TurnState


@dataclass(frozen=True)
class WaitForPeople:
    """Wait until somebody replies; ``until`` is when the first of the requests expires."""

    until: datetime | None = None


class ReplyError(ValueError):
    """A reply cannot be taken; the message says why, and what would be accepted."""


class TooEarlyError(ReplyError):
    """A reply cannot be taken yet: people are about to be asked, or the turn is just stopping to wait for it."""


def input_requests(state: TurnState) -> tuple[InputRequest, ...]:
    """Input requests that the turn waits for, as people see them."""
    return tuple(_request(call, state.calls.expires_at) for call in state.calls.asking)


def _request(call: PlannedCall, expires_at: datetime | None) -> InputRequest:
    return InputRequest(
        request_id=call.request_id,
        needs=call.needs or "answer",
        tool=call.tool,
        arguments=call.arguments,
        question=call.question,
        options=call.options,
        form=None if call.asked is None else call.asked.form,
        digest=call.digest,
        expires_at=_expiry(call, expires_at),
    )


def _expiry(call: PlannedCall, of_approvals: datetime | None) -> datetime | None:
    """The time until which the reply can be given; a question has none, each call of a caller's tool its own."""
    return {"approval": of_approvals, "result": call.expires_at}.get(call.needs or "answer")


def stops(state: TurnState, mail: Mailbox) -> bool:
    """Whether the turn ends with its open requests, so that replies start the next one, and does not wait for them.

    One that stops for results alone waits as long as delegates run beside it, which its end would cancel, and if a
    message waits, whose turn would withdraw the requests.
    """
    if state.policy.interactive == "stop":
        return True
    needs_results = all(call.needs == "result" for call in state.calls.asking)
    return state.policy.stop_for_results and needs_results and not (state.running or mail.steered or mail.queued)


def ask_or_wait(state: TurnState, mail: Mailbox) -> AskPeople | WaitForPeople:
    """Tell people once what they are asked, then wait."""
    if not state.calls.asked:
        return _ask_people(state, requests=input_requests(state), stops=stops(state, mail))
    times = (_expiry(call, state.calls.expires_at) for call in state.calls.asking)
    return WaitForPeople(until=min((time for time in times if time is not None), default=None))


def _ask_people(
    state: TurnState,
    *,
    requests: tuple[InputRequest, ...] = (),
    decided: tuple[DecidedRequest, ...] = (),
    stops: bool = False,
) -> AskPeople:
    return AskPeople(
        session=state.origin.session,
        store=state.origin.store,
        trace=state.origin.trace,
        turn=state.origin.turn,
        step=state.step,
        requests=requests,
        decided=decided,
        stops=stops,
    )


def tell_decided(before: TurnState, after: TurnState) -> AskPeople | None:
    """The decisions of :func:`apply_replies` to write into the event log now; None if there are none.

    They are written at once because an approved call may wait long for a worker that has its tool. If no call is left
    to run or to ask about, the next ``generate`` writes them.
    """
    if not after.calls.pending and not after.calls.asking:
        return None
    run_next = (*after.calls.pending, *after.calls.own)
    receipts = {call.call_id: call.approval if call.answer is None else call.answer.receipt for call in run_next}
    receipts |= {outcome.call_id: outcome.decided for outcome in after.calls.outcomes}
    waiting = {call.request_id for call in after.calls.asking}
    decided = tuple(
        DecidedRequest(tool=call.tool, **dict(receipt))
        for call in before.calls.asking
        if call.request_id not in waiting and (receipt := receipts.get(call.call_id)) is not None
    )
    return _ask_people(after, decided=decided) if decided else None


def apply_replies(state: TurnState, mail: Mailbox, now: datetime) -> tuple[TurnState, Mailbox]:
    """Apply every reply in the mailbox to its call, and refuse calls whose approval or result did not come in time.

    Nothing is applied before the other calls of the answer have run, nor once the turn is ending.
    """
    if state.calls.pending or state.ending is not None or not state.calls.asking:
        return state, mail
    limit = state.policy.approvals_expire
    expires_at = state.calls.expires_at or (now + limit if limit is not None else None)
    replies = {reply.request: reply for reply in mail.replies}
    standing = [
        (call, _receipt(mail, reply))
        for call in state.calls.asking
        if (reply := replies.get(call.call_id)) is not None and reply.always is not None
    ]
    asking: list[PlannedCall] = []
    approved: list[PlannedCall] = []
    decided: list[ToolOutcome] = []
    for asked in state.calls.asking:
        call = _with_expiry(state, asked, now)
        reply, until = replies.get(call.request_id), _expiry(call, expires_at)
        if reply is None and until is not None and now >= until:
            decided.append(_expired(call, now))
        elif reply is None and (covering := _find_covering(call, standing, now)) is not None:
            approved.append(replace(call, approval=covering))
        elif reply is None:
            asking.append(call)
        elif reply.decision == "approved":
            approved.append(replace(call, approval=_receipt(mail, reply)))
        elif call.asked is not None:
            approved.append(_answered(call, call.asked, reply, _receipt(mail, reply)))
        else:
            decided.append(_outcome(call, reply, _receipt(mail, reply)))
    calls = replace(state.calls.with_approved(approved), asking=tuple(asking), expires_at=expires_at)
    choice = next((reply.tool_choice for reply in mail.replies if reply.tool_choice is not None), state.tool_choice)
    state = replace(state, calls=calls.with_outcomes(decided), tally=_counted(state, decided), tool_choice=choice)
    return state, replace(mail, replies=())


def _find_covering(
    call: PlannedCall, standing: Sequence[tuple[PlannedCall, InputReceipt]], now: datetime
) -> InputReceipt | None:
    """The receipt of a call that waits beside one whose approval has just been given to stand, and that it covers."""
    if call.needs != "approval":
        return None
    for given, receipt in standing:
        always = receipt.always
        if given.tool == call.tool and always is not None and always.cover(given.digest, call.digest, now):
            return replace(
                receipt, request_id=call.request_id, digest=call.digest, always=None, standing=receipt.request_id
            )
    return None


def _answered(call: PlannedCall, asked: ServerQuestion, reply: Reply, receipt: InputReceipt) -> PlannedCall:
    """The call as it is sent again, with the answer to its MCP server's question."""
    accepts = reply.decision == "answered"
    answer = ServerAnswer(
        number=asked.number,
        action="accept" if accepts else "decline",
        value=reply.value if accepts else None,
        receipt=receipt,
    )
    return call.model_copy(update={"needs": None, "question": "", "options": (), "answer": answer})


def _with_expiry(state: TurnState, call: PlannedCall, now: datetime) -> PlannedCall:
    """The call; one of a caller's tool with the time that its tool leaves for the result, from now."""
    if call.needs != "result" or call.expires_at is not None:
        return call
    policy = state.policy.tools.get(call.tool)
    return replace(call, expires_at=now + (DEFAULT_CALLER_TIMEOUT if policy is None else policy.timeout))


def _expired(call: PlannedCall, now: datetime) -> ToolOutcome:
    receipt = InputReceipt(request_id=call.call_id, decision="expired", at=now, digest=call.digest)
    if call.needs == "result":
        message = f"the caller, who runs {call.tool}, sent no result in time; whether it ran is unknown"
        return call.as_error(ReasonCode.TOOL_TIMEOUT, message, decided=receipt)
    code = ReasonCode.TOOL_APPROVAL_EXPIRED
    return call.as_error(code, REASONS[code].text, decided=receipt)


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
        reply = replies.get(call.request_id)
        if call.asked is not None:
            outcomes.append(_withdrawn_question(call, None if reply is None else _receipt(mail, reply)))
        elif reply is not None and reply.decision != "approved":
            outcomes.append(_outcome(call, reply, _receipt(mail, reply)))
        elif reply is not None:
            message = f"Operation aborted: {call.tool} was approved by {reply.by} and the turn ended before it ran"
            outcomes.append(call.as_error(ReasonCode.TOOL_CANCELLED, message, decided=_receipt(mail, reply)))
        else:
            outcomes.append(call.as_error(ReasonCode.TOOL_CANCELLED, call.describe_withdrawn("the turn ended")))
    return tuple(outcomes)


def _withdrawn_question(call: PlannedCall, receipt: InputReceipt | None) -> ToolOutcome:
    what = "before the answer was sent" if receipt is not None else "before a person answered"
    message = f"Operation aborted: the MCP server of {call.tool} asked something, and the turn ended {what}"
    return call.as_error(ReasonCode.TOOL_CANCELLED, message, decided=receipt)


def accept_reply(state: TurnState, mail: Mailbox, reply: Reply, now: datetime) -> tuple[Mailbox, InputReceipt]:
    """Take a reply into the mailbox. The same reply again gets the receipt of the first.

    Raises:
        TooEarlyError: People are about to be asked; the reply will do in a moment.
        ReplyError: Nothing waits for this reply, it does not fit, or another one was taken before.
    """
    for settled in mail.settled:
        if settled.receipt.request_id == reply.request:
            return mail, _same(settled, reply)
    call = next((call for call in state.calls.asking if call.request_id == reply.request), None)
    if call is not None and _asks_soon(state):
        msg = f"{reply.request!r} cannot be replied to yet: the turn is just about to ask; try again in a moment"
        raise TooEarlyError(msg)
    asks = state.calls.asked and state.ending is None
    if call is None or not asks:
        waiting = ", ".join(call.request_id for call in state.calls.asking) if asks else ""
        msg = f"nothing waits for {reply.request!r}; " + (f"what waits is {waiting}" if waiting else "nothing waits")
        raise ReplyError(msg)
    check_time(_request(call, state.calls.expires_at), now)
    check_until(reply, now)
    return _take_reply(state, mail, call, reply, now)


def _take_reply(
    state: TurnState, mail: Mailbox, call: PlannedCall, reply: Reply, now: datetime
) -> tuple[Mailbox, InputReceipt]:
    tool = state.policy.tools.get(call.tool)
    schema = call.asked.form if call.asked is not None else None if tool is None else tool.answer
    reply = validate_reply(call, reply, schema)
    # The replies of one step travel in one payload.
    size = size_of((*mail.replies, reply))
    size += sum(len(outcome.preview.encode()) for outcome in state.calls.outcomes)
    if size > MAX_WAITING_BYTES:
        msg = f"the answers of this step are over {MAX_WAITING_BYTES:,} bytes together; give a shorter one"
        raise ReplyError(msg)
    receipt = receipt_of(reply, now, digest=call.digest, arguments=call.arguments)
    return mail.with_reply(reply, Settled(receipt=receipt, said=fingerprint_of(reply))), receipt


def accept_first_replies(state: TurnState, mail: Mailbox, replies: Sequence[Reply], now: datetime) -> Mailbox:
    """Take the replies for which the turn was started, which ``open_turn`` has checked, however long it waited then.

    A turn that was reset does not take them again: their calls have run.
    """
    calls = {call.request_id: call for call in state.calls.asking}
    for reply in replies:
        if (call := calls.get(reply.request)) is not None:
            with contextlib.suppress(ReplyError):
                mail, _ = _take_reply(state, mail, call, reply, now)
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


def check_until(reply: Reply, now: datetime) -> None:
    """Refuse a standing approval that would end before it begins.

    Raises:
        ReplyError: Its time is over.
    """
    until = None if reply.always is None else reply.always.until
    if until is not None and until <= now:
        msg = f"until: {until.isoformat()} is over; name a time to come, or leave it out"
        raise ReplyError(msg)


def validate_reply(call: PlannedCall, reply: Reply, schema: dict[str, JsonValue] | None) -> Reply:
    """The reply, with its answer read as the call's schema or options want it.

    Raises:
        ReplyError: The reply is not of the kind that the call waits for, its answer does not fit, nobody is named as
            deciding, or the approval is for other arguments.
    """
    if reply.decision not in _FITTING_DECISIONS[call.needs or "answer"]:
        what = {
            "approval": f"is no question: {call.tool} waits to be approved or denied",
            "answer": f"is a question and needs an answer: {call.question or call.tool}",
            "result": f"needs the result of {call.tool}, which its caller runs; submit the result",
        }[call.needs or "answer"]
        raise ReplyError(f"{call.request_id!r} {what}")
    if reply.always is not None and reply.decision != "approved":
        msg = "always: only an approval can stand for further calls"
        raise ReplyError(msg)
    if reply.decision in {"approved", "denied"} and not reply.by:
        msg = "by: who decides has to be named"
        raise ReplyError(msg)
    if reply.decision in {"approved", "returned", "failed"} and reply.digest and reply.digest != call.digest:
        raise ReplyError(digest_error(reply))
    if reply.decision not in {"answered", "returned"}:
        return reply
    return replace(reply, value=_fitting(call, reply.value, schema))


_FITTING_DECISIONS: dict[Need, frozenset[Decision]] = {
    "answer": frozenset({"answered", "denied"}),
    "approval": frozenset({"approved", "denied"}),
    "result": frozenset({"returned", "failed", "denied"}),
}
"""Decisions of replies that fit a request's need."""


RESULTS: frozenset[Decision] = frozenset({"returned", "failed"})
"""Decisions that are results of the caller."""


def digest_error(reply: Reply) -> str:
    """Refusal of an approval or a result that names another digest."""
    kind = "approval" if reply.decision == "approved" else "result"
    return f"the arguments of {reply.request!r} are not those of this {kind}; look at the request again"


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
        if (problem := describe_other_terms(reply, receipt)) is not None:
            raise ReplyError(problem)
        return receipt
    who = receipt.by or "somebody"
    msg = f"{reply.request!r} was {receipt.decision} by {who} at {receipt.at.isoformat()}; that stands"
    raise ReplyError(msg)


def _receipt(mail: Mailbox, reply: Reply) -> InputReceipt:
    """The receipt of a reply that is in the mailbox."""
    return next(settled.receipt for settled in mail.settled if settled.receipt.request_id == reply.request)


def _outcome(call: PlannedCall, reply: Reply, receipt: InputReceipt) -> ToolOutcome:
    if reply.decision == "failed":
        return call.as_error(ReasonCode.TOOL_EXECUTION_ERROR, str(reply.value), decided=receipt)
    if reply.decision in {"answered", "returned"}:
        text = reply.value if isinstance(reply.value, str) else json.dumps(reply.value, ensure_ascii=False)
        return ToolOutcome(call_id=call.call_id, preview=text, recorded=False, decided=receipt)
    what = "the question was declined" if call.needs == "answer" else f"{call.tool} was denied"
    why = f": {reply.reason}" if reply.reason else ""
    return call.as_error(ReasonCode.TOOL_DENIED, f"{what} by {reply.by}{why}", decided=receipt)
