"""The end of a turn: by its own commit; or by the next turn or its caller, if its workflow was terminated."""

from collections.abc import Sequence

from sqlalchemy import Connection, Row, bindparam, select, update

from perdure.contracts.errors import REASONS, ErrorDetail, ReasonCode
from perdure.contracts.events import (
    AgentEnd,
    AgentError,
    AgentStalled,
    Event,
    GenerationError,
    NewEvent,
    UserMessageReceived,
    to_events,
)
from perdure.contracts.ids import DELEGATED
from perdure.contracts.messages import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage
from perdure.contracts.tools import Delegated, DelegateReport, FinishCall
from perdure.contracts.turns import MAX_OUTPUT_CHARACTERS, CommitTurn, StopReason, TurnResult
from perdure.contracts.values import JsonValue, replace
from perdure.store import schema
from perdure.store.accounting import paid_of_interrupted, spent_of_turn, todos_in
from perdure.store.errors import NotFoundError
from perdure.store.keys.sealing import Content
from perdure.store.records import Committed, StepRecord
from perdure.store.rows import step_id
from perdure.store.session_lock import LockedSession
from perdure.store.steps import insert_step, require_step
from perdure.store.tool_calls import OpenCalls, forget_arguments

ABORTED = "Operation aborted"
"""Text for people and models about work that a cancel ended."""

CUT_NOTICE = "\n[cut here; the transcript holds the whole text]"
"""The end of an output that was too long for a result."""

_DID_NOT_RUN = frozenset({ReasonCode.TOOL_CANCELLED, ReasonCode.TOOL_DENIED})

TurnRow = Row[*tuple[object, ...]]

_T = schema.turns
_FIND = select(*schema.TURN).where(_T.c.session == bindparam("session"), _T.c.turn == bindparam("turn"))
_FIND_BY_REQUEST = select(*schema.TURN).where(
    _T.c.session == bindparam("session"), _T.c.request_id == bindparam("request_id")
)
_END = (
    update(_T)
    .where(_T.c.session == bindparam("this_session"), _T.c.turn == bindparam("this_turn"))
    .values(
        ended_at=bindparam("at"),
        stop_reason=bindparam("why"),
        reason_code=bindparam("code"),
        last_step=bindparam("tip"),
        result=bindparam("recorded"),
        exception=bindparam("second"),
        error=bindparam("failed"),
    )
)


def commit_turn(connection: Connection, commit: CommitTurn) -> Committed:
    """End a turn, or return the recorded result of one that has ended.

    If the store has lost the turn's last steps, the turn ends with the reason ``runtime.store_behind``.

    Raises:
        NotFoundError: There is no such session or turn.
    """
    locked = LockedSession.find(connection, commit.session)
    row = find_turn(connection, commit.session, commit.turn)
    if locked is None or row is None:
        msg = f"there is no turn {commit.turn} of session {commit.session!r}"
        raise NotFoundError(msg)
    if row.result is not None:
        result = TurnResult.model_validate_json(row.result)
        return Committed(result=result, first=False, started_at=row.started_at, ended_at=row.ended_at)
    if commit.abandoned:
        if commit.delegated is None or row.request_id != f"{DELEGATED}{commit.delegated.call_id}":
            msg = f"turn {commit.turn} of session {commit.session!r} is of another request"
            raise NotFoundError(msg)
        result = close_abandoned(locked, row, commit.delegated)
    else:
        try:
            result = close_turn(locked, row, commit)
        except NotFoundError as error:  # raised before anything is written
            locked = LockedSession.lock_for_turn(connection, commit.session, commit.turn)
            result = close_turn(locked, row, _from_what_is_left(locked, commit, error))
    locked.save()
    return Committed(result=result, first=True, started_at=row.started_at, ended_at=locked.now, tenant=locked.tenant)


def _from_what_is_left(locked: LockedSession, commit: CommitTurn, lost: NotFoundError) -> CommitTurn:
    """The commit of a turn whose last steps the store has lost: it ends with the last step that is left.

    Its spending stays the workflow's, which is more complete than the store's.
    """
    tip = require_step(locked.connection, locked.tip or "")
    code = ReasonCode.RUNTIME_STORE_BEHIND
    left = replace(
        commit,
        tip=tip.id,
        call_ids=tuple(call.call_id for call in tip.calls),
        failed=(),
        requests=(),
        aborted_step=None,
        stopped_by=None,
    )
    if commit.stop_reason is StopReason.CANCELLED:
        return left
    error = ErrorDetail(code=code, title="runtime", message=f"{REASONS[code].text} ({lost})")
    return replace(left, stop_reason=StopReason.ERROR, error=error)


def find_turn(connection: Connection, session: str, turn: int) -> TurnRow | None:
    """The row of a turn; None if there is none."""
    return connection.execute(_FIND, {"session": session, "turn": turn}).one_or_none()


def find_turn_of_request(connection: Connection, session: str, request_id: str) -> TurnRow | None:
    """The row of the turn that a request has begun; None if it has begun none."""
    return connection.execute(_FIND_BY_REQUEST, {"session": session, "request_id": request_id}).one_or_none()


def close_lost_turn(connection: Connection, session: str, turn: int, *, reason: str) -> TurnResult | None:
    """End this turn as cancelled, which its workflow cannot do; None if it is not open."""
    locked = LockedSession.find(connection, session)
    row = find_turn(connection, session, turn)
    if locked is None or row is None or locked.open_turn != turn:
        return None
    error = ErrorDetail(
        code=ReasonCode.RUNTIME_ABORTED, title="runtime", message=f"{ABORTED}: {reason}" if reason else ABORTED
    )
    result = close_abandoned(locked, row, end=(StopReason.CANCELLED, error))
    locked.save()
    return result


def close_behind(connection: Connection, session: str, turn: int, known: TurnResult) -> TurnResult | None:
    """End this turn, whose end and maybe last steps the store has lost; None if it is not open.

    Args:
        connection: The transaction.
        session: The turn's session.
        turn: The turn's number.
        known: The result with which the turn's workflow ended.
    """
    locked = LockedSession.find(connection, session)
    row = find_turn(connection, session, turn)
    if locked is None or row is None or locked.open_turn != turn:
        return None
    code = ReasonCode.RUNTIME_STORE_BEHIND
    ended = f"Temporal knows that it ended as {known.stop_reason} after {known.steps} steps"
    error = ErrorDetail(code=code, title="runtime", message=f"{REASONS[code].text} ({ended})")
    result = close_abandoned(locked, row, end=(StopReason.ERROR, error))
    locked.save()
    return result


def close_abandoned(
    locked: LockedSession,
    row: TurnRow,
    delegated: Delegated | None = None,
    end: tuple[StopReason, ErrorDetail] | None = None,
) -> TurnResult:
    """End a turn whose workflow is gone, from the last step it stored; as an error unless ``end`` says otherwise."""
    tip = require_step(locked.connection, locked.tip or "")
    code = ReasonCode.RUNTIME_TURN_CLOSED
    why, error = end or (
        StopReason.ERROR,
        ErrorDetail(code=code, title="runtime", message=REASONS[code].text),
    )
    spent, steps = spent_of_turn(locked.connection, locked.session, row.turn)
    commit = CommitTurn(
        session=locked.session,
        turn=row.turn,
        tip=tip.id,
        stop_reason=why,
        error=error,
        steps=steps,
        spent=spent,
        call_ids=tuple(call.call_id for call in tip.calls),
        delegated=delegated,
        todos=todos_in(locked.connection, locked.session, row.turn),
    )
    return close_turn(locked, row, commit)


def close_turn(locked: LockedSession, row: TurnRow, commit: CommitTurn) -> TurnResult:
    """Write the end of a turn: results, last step, events, result. The caller saves the session."""
    commit = replace(commit, spent=commit.spent.with_failed(paid_of_interrupted(locked, commit)))
    commit = _with_the_stored_answer(locked, commit)
    tip = require_step(locked.connection, commit.tip)
    head, results = _close_conversation(locked, commit, tip)
    forget_arguments(locked, commit.turn)
    result = TurnResult(
        session=commit.session,
        turn=commit.turn,
        agent=row.agent,
        stop_reason=commit.stop_reason,
        reason_code=commit.error.code if commit.error else None,
        error=_error_text(commit),
        output=output_of(tip, commit, results),
        value=_value(tip, commit),
        steps=commit.steps,
        usage=commit.spent.usage,
        cost_usd=commit.spent.cost_usd,
        unpriced_calls=commit.spent.unpriced_calls,
        requests=commit.requests,
        stopped_by=commit.stopped_by,
        delegated_steps=commit.spent.delegated_steps,
        report=DelegateReport(spent=commit.spent) if commit.delegated is not None else None,
        exhausted_by=_exhausted_budget_of(commit),
        exception=next((code for code in commit.error.codes if code.startswith("exception.")), None)
        if commit.error
        else None,
        todos=commit.todos,
        spent=commit.spent,
    )
    failure = _failure_of(commit)
    _append_events(locked, commit, result, failure)
    end = {
        "this_session": commit.session,
        "this_turn": commit.turn,
        "at": locked.now,
        "why": result.stop_reason.value,
        "code": result.reason_code,
        "tip": head,
        "recorded": Content(commit.session, result.model_dump_json()),
        "second": result.exception,
        "failed": None if failure is None else Content(commit.session, failure.model_dump_json()),
    }
    locked.connection.execute(_END, end)
    locked.head, locked.tip, locked.open_turn = head, None, None
    return result


def _with_the_stored_answer(locked: LockedSession, commit: CommitTurn) -> CommitTurn:
    """The commit, extended by an answer that was stored while the turn was being stopped.

    The workflow never heard of that answer. But it is paid for and its events are in the log, so the conversation keeps
    it.
    """
    if commit.aborted_step is None or locked.tip is None or locked.tip == commit.tip:
        return commit
    step = require_step(locked.connection, locked.tip)
    if (step.turn, step.step, step.parent) != (commit.turn, commit.aborted_step, commit.tip):
        return commit
    spent = commit.spent.with_call(step.usage, step.cost_usd)
    if step.summarised is not None:
        return replace(commit, tip=step.id, spent=spent)
    said = [message.content for message in step.messages if isinstance(message, UserMessage)][len(commit.said) :]
    read = sum(content == message.prompt for content, message in zip(said, commit.steered, strict=False))
    return replace(
        commit,
        tip=step.id,
        steps=commit.steps + 1,
        spent=spent,
        call_ids=tuple(call.call_id for call in step.calls),
        failed=(),
        steered=commit.steered[read:],
        said=(),
        aborted_step=None,
    )


def _close_conversation(
    locked: LockedSession, commit: CommitTurn, tip: StepRecord
) -> tuple[str, tuple[ToolMessage, ...]]:
    """Write the rest of the conversation: the id of its last step, and the results of the last answer's calls."""
    # Every call must have a result in the conversation, or providers refuse the next turn.
    ids = (*commit.call_ids, *(outcome.call_id for outcome in commit.failed))
    calls = OpenCalls(locked, commit.turn, ids)
    calls.record(commit.failed)
    if commit.requests:  # the reply starts a turn that goes on from this answer
        calls.write()
        return tip.id, ()
    calls.end_rest(cancelled=commit.stop_reason is StopReason.CANCELLED)
    calls.write()
    results = calls.results(commit.call_ids)
    messages: tuple[Message, ...] = (
        *results,
        *(UserMessage(content=text) for text in commit.said),
        *(UserMessage(content=message.prompt, parts=message.parts) for message in commit.steered),
    )
    if not messages:
        return tip.id, ()
    steered = [(message.request_id, message.prompt) for message in commit.steered]
    identity = [commit.call_ids, steered, *([commit.said] if commit.said else [])]
    step = StepRecord(
        id=step_id("closing", commit.session, commit.turn, tip.id, *identity),
        session=commit.session,
        turn=commit.turn,
        step=tip.step + 1,
        parent=tip.id,
        messages=messages,
    )
    insert_step(locked, step)
    return step.id, results


def output_of(tip: StepRecord, commit: CommitTurn, results: Sequence[ToolMessage] = ()) -> str:
    """The text of the result: the summary of a carried-out ``finish``, or else the last answer.

    That of a delegate also has the results of the answer's calls, as its caller reads nothing else of it.
    """
    if commit.stop_reason is StopReason.FINISHED and commit.stopped_by is None:
        # After an approval, ``finish`` stands in the answer of the turn before.
        done = {outcome.call_id for outcome in commit.failed if outcome.error is None}
        calls = (call for call in tip.calls if commit.steps or call.call_id in done)
        said = (call.builtin.summary for call in calls if isinstance(call.builtin, FinishCall) and not call.rejected)
        summary = next((summary for summary in said if summary), "")
        if summary:
            return summary
    answer = _answer(tip, commit)
    text = answer.content if answer is not None else ""
    if commit.delegated is not None:
        text = _worked_out(text, answer.tool_calls if answer is not None else (), results, commit.stopped_by)
    if len(text) <= MAX_OUTPUT_CHARACTERS:
        return text
    return text[: MAX_OUTPUT_CHARACTERS - len(CUT_NOTICE)] + CUT_NOTICE


def _worked_out(text: str, calls: Sequence[ToolCall], results: Sequence[ToolMessage], stopped_by: str | None) -> str:
    """Text of a delegate's last answer, with its calls that ran and their results, and what stopped it there."""
    came = {result.call_id: result for result in results}
    ran = [
        f"{call.name}({call.arguments}):\n{result.content}"
        for call in calls
        if (result := came.get(call.id)) is not None and (result.error is None or result.error.code not in _DID_NOT_RUN)
    ]
    if text.strip() and not calls:
        return text
    parts = [text, *ran, f"[stopped by {stopped_by}]" if stopped_by is not None else ""]
    return "\n\n".join(part for part in parts if part.strip())


def _value(tip: StepRecord, commit: CommitTurn) -> JsonValue:
    """The answer's JSON value, if the model's answer ended the turn and its output was not cut."""
    answer = _answer(tip, commit)
    if answer is None or len(answer.content) > MAX_OUTPUT_CHARACTERS:
        return None
    return answer.value if commit.stop_reason in {StopReason.FINISHED, StopReason.STALLED} else None


def _answer(tip: StepRecord, commit: CommitTurn) -> AssistantMessage | None:
    """The last answer of the turn, which is in its last step; that may also hold a correction or a summary."""
    if commit.steps == 0 or tip.step == 0:  # answers in the prompt's step are of an imported conversation
        return None
    return next((message for message in reversed(tip.messages) if isinstance(message, AssistantMessage)), None)


def _exhausted_budget_of(commit: CommitTurn) -> str | None:
    """The name of the budget that ended the turn, such as ``cost``; None if none did."""
    if commit.stop_reason is not StopReason.BUDGET_EXHAUSTED or commit.error is None:
        return None
    name = commit.error.code.removeprefix("budget.")
    return name.removesuffix("_exhausted") if name != "exhausted" else None


def _error_text(commit: CommitTurn) -> str | None:
    if commit.error is not None:
        return commit.error.message
    return ABORTED if commit.stop_reason is StopReason.CANCELLED else None


def _failure_of(commit: CommitTurn) -> ErrorDetail | None:
    """The failure that ended the turn; a cancel is none."""
    return None if commit.stop_reason is StopReason.CANCELLED else commit.error


def _append_events(locked: LockedSession, commit: CommitTurn, result: TurnResult, failure: ErrorDetail | None) -> None:
    turn = commit.turn

    def append(name: str, event: Event, step: int = commit.steps) -> None:
        locked.append(NewEvent(key=f"{turn}/{name}", turn=turn, step=step, event=event))

    locked.append(*to_events(turn, commit.decided))
    # The generation that was to read these may have written their events before it failed: hence the same keys.
    reader = commit.aborted_step or commit.steps + 1
    for place, text in enumerate(commit.said):
        append(f"{reader}/said/{place}", UserMessageReceived(content=text, is_notice=True))
    for message in commit.steered:
        append(
            f"{reader}/user_message/{message.request_id}",
            UserMessageReceived(content=message.prompt, parts=message.parts),
        )
    if commit.aborted_step is not None:
        aborted = ErrorDetail(code=ReasonCode.RUNTIME_ABORTED, title="generation", message=ABORTED)
        append(f"{commit.aborted_step}/generation_error", GenerationError(error=aborted), commit.aborted_step)
    if commit.stop_reason is StopReason.STALLED:
        append("agent_stalled", AgentStalled())
    if failure is not None:
        append("agent_error", AgentError(error=failure))
    append(
        "agent_end",
        AgentEnd(
            stop_reason=result.stop_reason,
            reason_code=result.reason_code,
            error=result.error,
            output=result.output,
            steps=result.steps,
            usage=result.usage,
            cost_usd=result.cost_usd,
            unpriced_calls=result.unpriced_calls,
            value=result.value,
            stopped_by=result.stopped_by,
            exhausted_by=result.exhausted_by,
        ),
    )
