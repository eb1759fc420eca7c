"""The ledger of tool calls: claimed before the body runs, ended once, never changed after.

It knows attempts by their claims only. It cannot tell whether the one that holds a call is dead, frozen or still at it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypedDict, Unpack

from sqlalchemy import Connection, Row, Text, bindparam, case, insert, literal, select, update

from perdure.contracts.errors import ErrorDetail, ReasonCode
from perdure.contracts.events import RESULT_CHARACTERS, NewEvent, ToolEnd, UserInputReceived
from perdure.contracts.input_requests import InputReceipt
from perdure.contracts.messages import ToolMessage
from perdure.contracts.tools import PlannedCall, ToolOutcome, claimant_of
from perdure.store import schema
from perdure.store.database import mark_wiped
from perdure.store.errors import NotFoundError, TurnEndedError
from perdure.store.keys.sealing import Content
from perdure.store.keys.tombstones import refuse_erased
from perdure.store.records import Artifact, Claim, LedgerCall
from perdure.store.rows import insert_into, load_tool_message
from perdure.store.session_lock import LockedSession

CallRow = Row[*tuple[object, ...]]

_T = schema.tool_calls
_THIS = (_T.c.session == bindparam("this_session"), _T.c.turn == bindparam("this_turn"))
_ONE = (*_THIS, _T.c.call_id == bindparam("this_call"))

_FIND = select(_T).where(*_ONE)
_FIND_MANY = select(_T).where(*_THIS, _T.c.call_id.in_(bindparam("call_ids", expanding=True)))
_RESULTS = select(_T.c.turn, _T.c.call_id, _T.c.state, _T.c.message).where(
    _T.c.session == bindparam("this_session"), _T.c.call_id.in_(bindparam("call_ids", expanding=True))
)
_FIND_MESSAGE = select(_T.c.message).where(*_ONE, _T.c.state == "ended")
_INSERT = insert(_T)
_ASKED = select(schema.input_requests.c.request_id).where(
    schema.input_requests.c.session == bindparam("this_session"),
    schema.input_requests.c.turn == bindparam("this_turn"),
    schema.input_requests.c.request_id == bindparam("this_call"),
)
_CLAIM = update(_T).where(*_ONE).values(state="claimed", claimant=bindparam("by"), claimed_at=bindparam("at"))
_WITHOUT_SECRETS = case((_T.c.masked, literal('"{}"', Text())), else_=_T.c.arguments)
"""The arguments that a call keeps once it has ended: masked ones are wiped."""

_END = (
    update(_T)
    .where(*_ONE)
    .values(state="ended", message=bindparam("result"), ended_at=bindparam("at"), arguments=_WITHOUT_SECRETS)
)
_END_FIRST = update(_T).where(*_ONE).values(state="ended", message=bindparam("result"), ended_at=bindparam("at"))
_PARK = update(_T).where(*_ONE).values(state="planned", message=bindparam("asked"), claimant=None, claimed_at=None)
_CLAIM_ENDED = update(_T).where(*_ONE).values(claimant=bindparam("by"), claimed_at=bindparam("at"))
_FORGET = update(_T).where(*_ONE, _T.c.state == "ended").values(arguments=_WITHOUT_SECRETS)
_FORGET_ALL = update(_T).where(*_THIS, _T.c.state == "ended", _T.c.masked).values(arguments=_WITHOUT_SECRETS)


@dataclass(frozen=True)
class CallKey:
    """The key of a row of the ledger."""

    session: str
    turn: int
    call_id: str

    @classmethod
    def of(cls, call: "HeldCall") -> "CallKey":
        """The key of a call that an attempt holds."""
        return cls(session=call["session"], turn=call["turn"], call_id=call["call_id"])

    def parameters(self) -> dict[str, object]:
        """The key as parameters of this module's statements."""
        return {"this_session": self.session, "this_turn": self.turn, "this_call": self.call_id}


class OpenCalls:
    """Calls of one turn, read together; those without a result can be ended."""

    def __init__(self, locked: LockedSession, turn: int, call_ids: Iterable[str]) -> None:
        """Read the rows of these calls.

        Raises:
            NotFoundError: The ledger does not have one of them.
        """
        self._locked = locked
        self._turn = turn
        wanted = list(dict.fromkeys(call_ids))
        self._rows: dict[str, CallRow] = {}
        if wanted:
            keys = {"this_session": locked.session, "this_turn": turn, "call_ids": wanted}
            self._rows = {row.call_id: row for row in locked.connection.execute(_FIND_MANY, keys)}
        for call_id in wanted:
            if call_id not in self._rows:
                raise NotFoundError(_describe_missing_call(self._key(call_id)))
        self._messages = {
            call_id: load_tool_message(row.message) for call_id, row in self._rows.items() if row.state == "ended"
        }
        self._ended: list[str] = []

    def record(self, failed: Sequence[ToolOutcome]) -> None:
        """End calls with outcomes that only the workflow knows. Recorded results stay."""
        for outcome in failed:
            content = outcome.preview or (outcome.error.message if outcome.error else "")
            self._end(outcome.call_id, content, outcome.error, outcome.decided, outcome.delegate)

    def end_rest(self, *, cancelled: bool) -> None:
        """End every call that has no result yet, with an error that says what is known of its effect."""
        for call_id, row in self._rows.items():
            if call_id in self._messages:
                continue
            code, started = ReasonCode.TOOL_CANCELLED, row.state == "claimed"
            if cancelled:
                what = "was cancelled while it ran; its effect is unknown" if started else "was cancelled before it ran"
            elif not started and (row.message is not None or self._has_asked(call_id)):
                what = "waited for a person when its turn was lost, and what anybody replied with it; it did not run"
            else:
                code = ReasonCode.TOOL_EFFECT_UNKNOWN
                what = "was lost while it ran; its effect is unknown" if started else "was lost before it ran"
            error = ErrorDetail(code=code, title=row.tool, message=f"Operation aborted: {row.tool} {what}")
            self._end(call_id, error.message, error)

    def withdraw(self, calls: Iterable[PlannedCall]) -> None:
        """End those of the calls that have no result yet: they waited for a reply, and another message came instead."""
        for call in calls:
            if call.call_id not in self._messages:
                message = call.describe_withdrawn("another message came")
                error = ErrorDetail(code=ReasonCode.TOOL_CANCELLED, title=call.tool, message=message)
                self._end(call.call_id, message, error)

    def results(self, call_ids: Sequence[str]) -> tuple[ToolMessage, ...]:
        """The results of these calls, in the order of ``call_ids``."""
        return tuple(self._messages[call_id] for call_id in call_ids)

    def write(self) -> None:
        """Write the calls that were ended here, and their events."""
        if not self._ended:
            return
        now = self._locked.now
        ended = [_end_columns_of(self._key(call_id), self._messages[call_id], now) for call_id in self._ended]
        # A background delegate that works on a call may still have to read the arguments.
        at_work = [
            self._messages[call_id].delegate is not None and self._rows[call_id].delegate_spent is None
            for call_id in self._ended
        ]
        for statement, kept in ((_END, False), (_END_FIRST, True)):
            rows = [row for row, works in zip(ended, at_work, strict=True) if works is kept]
            if rows:
                self._locked.connection.execute(statement, rows)

    def _end(
        self,
        call_id: str,
        content: str,
        error: ErrorDetail | None,
        decided: InputReceipt | None = None,
        delegate: str | None = None,
    ) -> None:
        if call_id in self._messages:
            return
        row = self._rows[call_id]
        message = ToolMessage(
            call_id=call_id, name=row.tool, content=content, error=error, decided=decided, delegate=delegate
        )
        self._messages[call_id] = message
        self._ended.append(call_id)
        if decided is not None:
            received = UserInputReceived(tool=row.tool, **dict(decided))
            key = f"{self._turn}/{call_id}/user_input_received"
            self._locked.append(NewEvent(key=key, turn=self._turn, step=row.step, event=received))
        ran = self._locked.now - row.claimed_at if row.state == "claimed" else timedelta(0)
        end = ToolEnd(
            call_id=call_id,
            tool=row.tool,
            result=content[:RESULT_CHARACTERS],
            error=error,
            seconds=round(max(ran.total_seconds(), 0.0), 3),
        )
        key = f"{self._turn}/{call_id}/tool_end"
        self._locked.append(NewEvent(key=key, turn=self._turn, step=row.step, event=end))

    def _has_asked(self, call_id: str) -> bool:
        asked = {"this_session": self._locked.session, "this_turn": self._turn, "this_call": call_id}
        return self._locked.connection.scalar(_ASKED, asked) is not None

    def _key(self, call_id: str) -> CallKey:
        return CallKey(session=self._locked.session, turn=self._turn, call_id=call_id)


def enter_calls(locked: LockedSession, turn: int, step: int, calls: Sequence[LedgerCall]) -> None:
    """Insert the calls of an answer as planned; a rejected one is inserted as ended."""
    if not calls:
        return
    rows = [
        {
            "session": locked.session,
            "turn": turn,
            "call_id": call.call_id,
            "step": step,
            "tool": call.tool,
            "arguments": Content(locked.session, "{}" if call.rejected and call.masked else call.arguments),
            "masked": call.masked,
            "state": "ended" if call.rejected else "planned",
            "message": _rejection(locked.session, call),
            "ended_at": locked.now if call.rejected else None,
        }
        for call in calls
    ]
    locked.connection.execute(_INSERT, rows)


def _rejection(session: str, call: LedgerCall) -> Content | None:
    if call.rejected is None:
        return None
    message = ToolMessage(call_id=call.call_id, name=call.tool, content=call.rejected.as_result(), error=call.rejected)
    return Content(session, message.model_dump_json())


def take_over_calls(locked: LockedSession, calls: Sequence[str], *, turn: int, before: int) -> None:
    """Copy the rows of an answer's open calls to the turn that goes on from it, at its step 0."""
    keys = {"this_session": locked.session, "this_turn": before, "call_ids": list(calls)}
    rows = [
        {
            **row,
            "turn": turn,
            "step": 0,
            "arguments": Content(locked.session, row["arguments"]),
            "message": None if row["message"] is None else Content(locked.session, row["message"]),
        }
        for row in locked.connection.execute(_FIND_MANY, keys).mappings()
    ]
    locked.connection.execute(_INSERT, rows)


class HeldCall(TypedDict):
    """A call, and the attempt that holds it or wants to."""

    session: str
    turn: int
    call_id: str
    claimant: str


def claim_call(
    connection: Connection, *, lost: str | None = None, events: Sequence[NewEvent], **wanted: Unpack[HeldCall]
) -> Claim:
    """Claim a call, and write ``events`` if the claim is granted.

    The same claimant may claim again. A call that another claimant holds is *uncertain*, and nothing is written. An
    attempt that names the claimant in ``lost`` takes the call over, if that claimant still holds it.

    Raises:
        NotFoundError: There is no such session, turn or tool call.
        TurnEndedError: The turn has ended, or a later attempt of the same activity holds the call, and a frozen worker
            asks late.
    """
    call, claimant = CallKey.of(wanted), wanted["claimant"]
    locked = LockedSession.lock_for_turn(connection, call.session, call.turn)
    row = connection.execute(_FIND, call.parameters()).one_or_none()
    if row is None:
        raise NotFoundError(_describe_missing_call(call))
    if row.state == "ended" and _is_delegate_of(row, claimant):
        connection.execute(_CLAIM_ENDED, {**call.parameters(), "by": claimant, "at": locked.now})
        locked.append(*events)
        locked.save()
        return Claim(state="free", arguments=row.arguments)
    if row.state == "ended":
        return Claim(state="committed", message=load_tool_message(row.message), aborted=bool(row.aborted))
    if row.state == "claimed" and _is_later(row.claimant, claimant):
        msg = f"call {call.call_id!r} is in the hands of a later attempt; this one came back too late to make it"
        raise TurnEndedError(msg)
    if row.state == "claimed" and row.claimant not in {claimant, lost}:
        return Claim(
            state="uncertain",
            arguments=row.arguments,
            held_by=row.claimant,
            runs=1 + (row.runs or 0),
            asked=row.message or "",
        )
    connection.execute(_CLAIM, {**call.parameters(), "by": claimant, "at": locked.now})
    locked.append(*events)
    locked.save()
    return Claim(state="free", arguments=row.arguments, asked=row.message or "")


def _is_delegate_of(row: CallRow, claimant: str) -> bool:
    """Whether the claimant is the background delegate that the call's first result names."""
    delegate = load_tool_message(row.message).delegate
    return delegate is not None and claimant == claimant_of(delegate)


def _is_later(held: str, asking: str) -> bool:
    """Whether the claimant ``held`` is a later attempt of the same activity than ``asking``."""
    place, _, at = asking.rpartition("/")
    held_place, _, held_at = held.rpartition("/")
    return bool(place) and held_place == place and held_at > at


class FinishedCall(HeldCall):
    """Arguments of :func:`finish_call` without the artifacts."""

    message: ToolMessage | None
    events: Sequence[NewEvent]


def finish_call(
    connection: Connection, *, artifacts: Sequence[Artifact] = (), **finished: Unpack[FinishedCall]
) -> bool:
    """Record the result of a call if the claimant still holds it; otherwise write nothing and return False.

    Without a message only the events are written: a background delegate has ended, whose call has its result already,
    or gets it from another call.
    """
    call, message, events = CallKey.of(finished), finished["message"], finished["events"]
    locked = LockedSession.find(connection, call.session)
    if locked is None or locked.open_turn != call.turn:
        return False
    row = connection.execute(_FIND, call.parameters()).one_or_none()
    if row is None or row.claimant != finished["claimant"]:
        return False
    if message is None:
        connection.execute(_FORGET, call.parameters())
        locked.append(*events)
        locked.save()
        return True
    if row.state == "ended":
        # The same result again: it was committed before, but the answer did not arrive.
        return load_tool_message(row.message) == message
    connection.execute(_END, _end_columns_of(call, message, locked.now))
    for artifact in artifacts:
        insert_artifact(connection, call, artifact, locked.now)
    locked.append(*events)
    locked.save()
    return True


def park_call(connection: Connection, *, asked: str, **held: Unpack[HeldCall]) -> bool:
    """Keep what the call's MCP server asks, and give the claim back: the call is sent again with the answer.

    Returns:
        False, with nothing written, if the claimant does not hold the call any more.
    """
    call = CallKey.of(held)
    locked = LockedSession.find(connection, call.session)
    if locked is None or locked.open_turn != call.turn:
        return False
    row = connection.execute(_FIND, call.parameters()).one_or_none()
    if row is None or row.state == "ended":
        return False
    if row.claimant != held["claimant"]:
        return bool(row.state == "planned" and row.message == asked)  # the same again: its answer did not arrive
    connection.execute(_PARK, {**call.parameters(), "asked": Content(call.session, asked)})
    locked.save()
    return True


def forget_arguments(locked: LockedSession, turn: int) -> None:
    """Wipe the masked arguments of a turn's calls that have ended."""
    wiped = locked.connection.execute(_FORGET_ALL, {"this_session": locked.session, "this_turn": turn})
    if wiped.rowcount:
        mark_wiped(locked.connection)


def report_progress(connection: Connection, session: str, call_id: str, claimant: str, event: NewEvent) -> bool:
    """Write a progress event if the claimant still holds the call; otherwise write nothing and return False."""
    call = CallKey(session=session, turn=event.turn, call_id=call_id)
    locked = LockedSession.find(connection, call.session)
    if locked is None or locked.open_turn != call.turn:
        return False
    if not holds_call(connection, session, call.turn, call_id, claimant):
        return False
    locked.append(event)
    locked.save()
    return True


def keep_artifacts(connection: Connection, artifacts: Sequence[Artifact]) -> None:
    """Store files of a message before the message is sent; existing ones stay.

    Raises:
        SessionErasedError: The session was erased.
    """
    for session in {artifact.session for artifact in artifacts}:
        refuse_erased(connection, session)
    for artifact in artifacts:
        insert_artifact(connection, CallKey(artifact.session, 0, ""), artifact, datetime.now(UTC))


def insert_artifact(connection: Connection, call: CallKey, artifact: Artifact, now: datetime) -> None:
    """Insert an artifact of a call; an existing one stays."""
    values = {
        "id": artifact.id,
        "session": artifact.session,
        "turn": call.turn,
        "call_id": call.call_id,
        "media_type": artifact.media_type,
        "text": Content(artifact.session, artifact.text),
        "created_at": now,
        "location": artifact.location or None,
    }
    connection.execute(insert_into(connection, schema.artifacts).on_conflict_do_nothing(), values)


def result_of_call(connection: Connection, session: str, turn: int, call_id: str) -> ToolMessage | None:
    """The result of a call; None while it has none."""
    message = connection.scalar(_FIND_MESSAGE, CallKey(session, turn, call_id).parameters())
    return None if message is None else load_tool_message(message)


def read_results(
    connection: Connection, session: str, calls: Sequence[PlannedCall], turn: int | None = None
) -> tuple[dict[str, ToolMessage], dict[str, CallRow]]:
    """Results of calls, and the rows of those without one, both by call id: in a turn, or in the last that has each."""
    ended: dict[str, ToolMessage] = {}
    pending: dict[str, CallRow] = {}
    if not calls:
        return ended, pending
    statement = _RESULTS.order_by(_T.c.turn) if turn is None else _RESULTS.where(_T.c.turn == turn)
    for row in connection.execute(statement, {"this_session": session, "call_ids": [call.call_id for call in calls]}):
        ended.pop(row.call_id, None)
        pending.pop(row.call_id, None)
        if row.state == "ended":
            ended[row.call_id] = load_tool_message(row.message)
        else:
            pending[row.call_id] = row
    return ended, pending


def holds_call(connection: Connection, session: str, turn: int, call_id: str, claimant: str) -> bool:
    """Whether the claimant holds a call that has no result yet."""
    row = connection.execute(_FIND, CallKey(session, turn, call_id).parameters()).one_or_none()
    return row is not None and (row.state, row.claimant) == ("claimed", claimant)


def _end_columns_of(call: CallKey, message: ToolMessage, now: datetime) -> dict[str, object]:
    return {**call.parameters(), "result": Content(call.session, message.model_dump_json()), "at": now}


def _describe_missing_call(call: CallKey) -> str:
    return f"turn {call.turn} of session {call.session!r} has no tool call {call.call_id!r}"
