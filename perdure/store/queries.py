"""The queries of readers: sessions, turns, steps, artifacts. None takes a lock.

Long, because there are many queries, each of a few lines.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal

from sqlalchemy import (
    ColumnElement,
    Connection,
    Float,
    Row,
    Select,
    Text,
    bindparam,
    cast,
    exists,
    false,
    func,
    literal,
    select,
    type_coerce,
)

from perdure.contracts.events import GenerationAdapted
from perdure.contracts.ids import DELEGATED
from perdure.contracts.input_requests import OpenRequest
from perdure.contracts.messages import Message
from perdure.contracts.turns import RunState, StopReason
from perdure.contracts.values import replace
from perdure.store import schema
from perdure.store.commit_turn import find_turn, find_turn_of_request
from perdure.store.errors import NotFoundError
from perdure.store.keys.tombstones import missing_session
from perdure.store.keys.vault import open_vault
from perdure.store.records import (
    Artifact,
    SessionFilter,
    SessionRecord,
    StepRecord,
    TurnGlance,
    TurnRecord,
)
from perdure.store.rows import session_record, step_record, turn_record
from perdure.store.slots import queued_turns, select_queued
from perdure.store.steps import history

_IDENTITY = select(schema.identity.c.id)
_SESSION = select(schema.sessions).where(schema.sessions.c.session == bindparam("session"))
_LAST_SEQS = select(schema.sessions.c.session, schema.sessions.c.last_seq).where(
    schema.sessions.c.session.in_(bindparam("names", expanding=True))
)
_TURNS = select(*schema.TURN).where(schema.turns.c.session == bindparam("session")).order_by(schema.turns.c.turn)
_STEPS = (
    select(schema.steps)
    .where(schema.steps.c.session == bindparam("session"))
    .order_by(schema.steps.c.turn, schema.steps.c.step, schema.steps.c.created_at)
)
_OF_OPEN_TURN = (schema.input_requests.c.session == schema.sessions.c.session) & (
    schema.input_requests.c.turn == schema.sessions.c.open_turn
)
IS_WAITING = exists().where(_OF_OPEN_TURN, schema.IS_UNDECIDED).correlate(schema.sessions)
"""Whether the open turn of a session waits for a person."""

_ADAPTATIONS = (
    select(schema.adaptations.c.adapted)
    .where(schema.adaptations.c.session == bindparam("session"))
    .order_by(schema.adaptations.c.seq)
)
_ARTIFACT = select(schema.artifacts).where(schema.artifacts.c.id == bindparam("id"))

_S = schema.steps
_last = (
    select(_S.c.parent, _S.c.session)
    .join(schema.sessions, _S.c.id == func.coalesce(schema.sessions.c.tip, schema.sessions.c.head))
    .where(schema.sessions.c.session == bindparam("session"))
    .cte("chain", recursive=True)
)
_steps = _last.union_all(select(_S.c.parent, _S.c.session).where(_S.c.id == _last.c.parent))
_ORIGIN = select(_steps.c.session).where(_steps.c.session == bindparam("other")).limit(1)


def store_id(connection: Connection) -> str:
    """The store's id, which it got when its tables were made."""
    return str(connection.execute(_IDENTITY).scalar_one())


def session(connection: Connection, session: str) -> SessionRecord:
    """A session and its state.

    Raises:
        NotFoundError: There is no such session.
    """
    row = connection.execute(_SESSION, {"session": session}).one_or_none()
    if row is None or row.turn == 0:  # claimed by a gateway, without a turn yet
        raise missing_session(connection, session)
    return session_record(row)


NAMES_AT_ONCE = 5_000
"""Session ids in one statement at most: databases limit its parameters."""


def read_last_seqs(connection: Connection, names: Collection[str]) -> dict[str, int]:
    """Sequence numbers of the last events of these sessions, as far as they exist."""
    listed, found = list(names), dict[str, int]()
    for place in range(0, len(listed), NAMES_AT_ONCE):
        chosen = {"names": listed[place : place + NAMES_AT_ONCE]}
        found.update((row.session, row.last_seq) for row in connection.execute(_LAST_SEQS, chosen))
    return found


def sessions(
    connection: Connection, wanted: SessionFilter, limit: int, only: Collection[str] | None = None
) -> tuple[tuple[SessionRecord, TurnRecord], ...]:
    """Sessions with their last turns, the latest start of a last turn first; with ``only``, among these sessions.

    At most ``limit`` are returned.
    """
    # Ordered by the start of the last turn, not by the last write: that index is updated once a turn.
    kept = _select_last_turns().where(*_conditions(wanted))
    if only is not None:
        kept = kept.where(schema.turns.c.session.in_(only))
    ordered = kept.order_by(schema.turns.c.started_at.desc(), schema.turns.c.session.desc())
    if open_vault().encrypts:
        listed = _find_sealed(connection, ordered, wanted.get("text") or "", limit)
    else:
        listed = list(connection.execute(ordered.limit(limit)))
    ids = [row.session for row in listed]
    found = connection.execute(select(schema.sessions).where(schema.sessions.c.session.in_(ids)))
    waits = find_waiting(connection, ids)
    queued = {waiting.session for waiting in queued_turns(connection)}
    records = {
        row.session: replace(session_record(row), waiting=row.session in waits, queued=row.session in queued)
        for row in found
    }
    return tuple((records[row.session], turn_record(row)) for row in listed)


SEARCHED_AT_ONCE = 500
"""Turns whose sealed results are opened together for a search."""


def _find_sealed(
    connection: Connection, ordered: Select[*tuple[object, ...]], text: str, limit: int
) -> list[Row[*tuple[object, ...]]]:
    """The first turns with the text in session id, prompt or result. SQL cannot search what is sealed: it is opened."""
    found: list[Row[*tuple[object, ...]]] = []
    page, place = SEARCHED_AT_ONCE if text else limit, 0
    turns, wanted = schema.turns.c, text.lower()
    while len(found) < limit:
        names = ordered.with_only_columns(turns.session, maintain_column_froms=True).limit(page).offset(place)
        listed = connection.scalars(names).all()
        erased = open_vault().load(listed)
        readable = turns.session.in_([name for name in listed if name not in erased])
        chosen = ordered.where(readable) if erased else ordered.limit(page).offset(place)
        rows = connection.execute(chosen).all()
        prompts = read_prompts(connection, {row.session: row.turn for row in rows}) if text else {}
        found += (
            row
            for row in rows
            if any(wanted in said.lower() for said in (row.session, row.result or "", prompts.get(row.session, "")))
        )
        place += page
        if len(listed) < page:
            break
    return found[:limit]


def _match_prompt(text: str) -> ColumnElement[bool]:
    """Whether the text stands in the prompt with which a turn began, which is kept as a JSON string."""
    written = json.dumps(text, ensure_ascii=False)[1:-1]
    for special in "/%_":
        written = written.replace(special, f"/{special}")
    pattern = func.lower(literal(f"%{written}%", Text))
    return func.lower(type_coerce(schema.turns.c.prompt, Text)).like(pattern, escape="/")


def _conditions(wanted: SessionFilter) -> Iterator[ColumnElement[bool]]:
    turns = schema.turns.c
    if (before := wanted.get("before")) is not None:
        at, name = before
        yield (turns.started_at < at) | ((turns.started_at == at) & (turns.session < name))
    if (tenant := wanted.get("tenant")) is not None:
        yield schema.sessions.c.tenant == tenant
    if (agent := wanted.get("agent")) is not None:
        yield turns.agent == agent
    if (state := wanted.get("state")) is not None:
        if state is RunState.PAUSED:  # only Temporal knows this state: the store lists such turns as running
            yield false()
        queued = schema.sessions.c.session.in_(select_queued())
        yield queued if state is RunState.QUEUED else ~queued
        running = schema.sessions.c.open_turn.is_not(None)
        if state is not RunState.QUEUED:
            yield ~running if state is RunState.ENDED else running
        if state in {RunState.RUNNING, RunState.WAITING_FOR_INPUT}:
            yield IS_WAITING if state is RunState.WAITING_FOR_INPUT else ~IS_WAITING
    if (stop_reason := wanted.get("stop_reason")) is not None:
        yield turns.stop_reason == stop_reason.value
    if (reason_code := wanted.get("reason_code")) is not None:
        # Turns that an older release ended have the exception only in their results, which are not sealed.
        in_result = turns.result.contains(f'"exception":"{reason_code}"', autoescape=True)
        is_second = (turns.exception == reason_code) | in_result
        yield (
            (turns.reason_code == reason_code) | is_second
            if reason_code.startswith("exception.")
            else (turns.reason_code == reason_code)
        )
    if (since := wanted.get("since")) is not None:
        yield turns.started_at >= since
    if (text := wanted.get("text")) and not open_vault().encrypts:
        named = turns.session.icontains(text, autoescape=True)
        yield named | turns.result.icontains(text, autoescape=True) | _match_prompt(text)
    if (caller := wanted.get("caller")) is not None:
        yield schema.sessions.c.caller == caller
    if not wanted.get("delegates", True):
        yield turns.request_id.not_like(f"{DELEGATED}%")


def find_waiting(connection: Connection, names: Collection[str]) -> frozenset[str]:
    """The sessions among ``names`` whose open turn waits for a person."""
    statement = select(schema.sessions.c.session).where(
        schema.sessions.c.session.in_(names), schema.sessions.c.open_turn.is_not(None), IS_WAITING
    )
    return frozenset(connection.scalars(statement))


def open_runs(connection: Connection, names: Collection[str] | None = None) -> dict[str, datetime]:
    """Start of the first run of each open turn, by session; of all sessions without ``names``."""
    turns, sessions = schema.turns.c, schema.sessions.c
    is_open = (sessions.session == turns.session) & (sessions.open_turn == turns.turn)
    statement = select(turns.session, turns.run_started_at).join_from(schema.sessions, schema.turns, is_open)
    chosen = statement.where(schema.IS_OPEN) if names is None else statement.where(sessions.session.in_(names))
    return {row.session: row.run_started_at for row in connection.execute(chosen)}


GLANCE = 200
"""Characters of a prompt in a list at most."""


def read_glances(connection: Connection, turns: Mapping[str, int]) -> dict[str, TurnGlance]:
    """For one turn of each session (``turns`` by session): the beginning of its prompt, its last step and its cost."""
    steps = schema.steps.c
    paid = func.sum(cast(type_coerce(steps.cost, Text), Float)).label("paid")
    counts = (
        select(steps.session, steps.turn, func.max(steps.step).label("last"), paid)
        .where(steps.session.in_(turns), steps.turn.in_(set(turns.values())))
        .group_by(steps.session, steps.turn)
    )
    told = {(row.session, row.turn): row for row in connection.execute(counts)}
    found: dict[str, TurnGlance] = {}
    prompts = read_prompts(connection, turns)
    for name, turn in turns.items():
        row, prompt = told.get((name, turn)), prompts.get(name, "")[:GLANCE]
        cost = Decimal(str(round(row.paid or 0, 6))) if row is not None else Decimal(0)
        found[name] = TurnGlance(prompt=prompt, steps=row.last if row is not None else 0, cost_usd=cost)
    return found


def read_prompts(connection: Connection, turns: Mapping[str, int]) -> dict[str, str]:
    """The prompt of one turn of each session, by session."""
    rows = schema.turns.c
    wanted = rows.session.in_(turns), rows.turn.in_(set(turns.values())), rows.prompt.is_not(None)
    found = connection.execute(select(rows.session, rows.turn, rows.prompt).where(*wanted))
    return {row.session: row.prompt for row in found if turns[row.session] == row.turn}


def open_requests(
    connection: Connection, session: str | None = None, agent: str | None = None, tenant: str | None = None
) -> tuple[OpenRequest, ...]:
    """The undecided input requests of open turns, and of sessions that stopped for people; the oldest first."""
    requests, sessions, turns = schema.input_requests.c, schema.sessions.c, schema.turns.c
    chosen = [
        *([sessions.session == session] if session is not None else []),
        *([turns.agent == agent] if agent is not None else []),
        *([sessions.tenant == tenant] if tenant is not None else []),
    ]
    of_session = (turns.session == sessions.session) & (turns.turn == sessions.turn)
    asked = (
        select(*requests, turns.agent)
        .join_from(schema.sessions, schema.turns, of_session)
        .join(schema.input_requests, _OF_OPEN_TURN)
        .where(schema.IS_OPEN, schema.IS_UNDECIDED, *chosen)
    )
    waiting: list[OpenRequest] = []
    for row in connection.execute(asked):
        about = {"agent": row.agent, "turn": row.turn, "session": row.session, "asked_at": row.asked_at}
        waiting.append(OpenRequest.model_validate(json.loads(row.request) | about, extra="ignore"))
    stopped = _select_last_turns().where(
        turns.stop_reason == StopReason.WAITING_FOR_INPUT.value, sessions.open_turn.is_(None), *chosen
    )
    for ended in connection.execute(stopped):
        record = turn_record(ended)
        about = {"session": record.session, "turn": record.turn, "agent": record.agent, "asked_at": record.ended_at}
        left = record.result.requests if record.result is not None else ()
        waiting += (OpenRequest.model_validate(dict(request) | about) for request in left)
    return tuple(sorted(waiting, key=lambda request: request.asked_at))


def _select_last_turns() -> Select[*tuple[object, ...]]:
    last = (schema.sessions.c.session == schema.turns.c.session) & (schema.sessions.c.turn == schema.turns.c.turn)
    return select(*schema.TURN).join_from(schema.turns, schema.sessions, last)


def turn(connection: Connection, session: str, number: int) -> TurnRecord:
    """A turn by its number.

    Raises:
        NotFoundError: There is no such turn.
    """
    row = find_turn(connection, session, number)
    if row is None:
        raise NotFoundError(_describe_missing_turn(session, number))
    return turn_record(row)


def turn_by_request(connection: Connection, session: str, request_id: str) -> TurnRecord | None:
    """The turn that a request has begun; None if it has begun none."""
    row = find_turn_of_request(connection, session, request_id)
    return None if row is None else turn_record(row)


def turns(connection: Connection, session: str) -> tuple[TurnRecord, ...]:
    """All turns of a session, in order."""
    return tuple(turn_record(row) for row in connection.execute(_TURNS, {"session": session}))


def traces(connection: Connection, session: str, turns: Sequence[int]) -> dict[int, str]:
    """Trace ids of these turns, by turn; turns without a trace are left out."""
    traced = select(schema.turns.c.turn, schema.turns.c.trace).where(
        schema.turns.c.session == session, schema.turns.c.turn.in_(turns), schema.turns.c.trace.is_not(None)
    )
    return {row.turn: row.trace for row in connection.execute(traced)}


def transcript(connection: Connection, name: str, *, turn: int | None = None) -> tuple[Message, ...]:
    """Every message of the conversation as it is now, or as it was at the end of a turn.

    Messages that a compaction replaced for models are among them; summaries are not.

    Raises:
        NotFoundError: There is no such session or turn.
    """
    record, number = session(connection, name), turn
    end = record.tip or record.head
    if number is not None and number != record.open_turn:
        row = find_turn(connection, name, number)
        if row is None:
            raise NotFoundError(_describe_missing_turn(name, number))
        end = row.last_step or end
    return () if end is None else history(connection, end)


def adaptations(connection: Connection, session: str) -> tuple[GenerationAdapted, ...]:
    """Refusals of the providers of a session so far, in order."""
    rows = connection.scalars(_ADAPTATIONS, {"session": session})
    return tuple(GenerationAdapted.model_validate_json(adapted) for adapted in rows)


def steps(connection: Connection, session: str) -> tuple[StepRecord, ...]:
    """All steps of a session, also those that are in no conversation any more."""
    return tuple(step_record(row) for row in connection.execute(_STEPS, {"session": session}))


def artifact(connection: Connection, artifact: str, *, session: str | None = None) -> Artifact:
    """A large output, an image or a file; with ``session``, only if that session may read it.

    Raises:
        NotFoundError: There is no such artifact.
    """
    row = connection.execute(_ARTIFACT, {"id": artifact}).one_or_none()
    # A fork may read the artifacts of the session that it began in.
    if row is None or (
        session not in {None, row.session}
        and connection.scalar(_ORIGIN, {"session": session, "other": row.session}) is None
    ):
        msg = f"there is no artifact {artifact!r}" if session is None else f"{session!r} has no artifact {artifact!r}"
        raise NotFoundError(msg)
    return Artifact(
        id=row.id, session=row.session, media_type=row.media_type, text=row.text, location=row.location or ""
    )


def _describe_missing_turn(session: str, number: int) -> str:
    return f"session {session!r} has no turn {number}"
