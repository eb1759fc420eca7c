"""A session is erased with those of its delegates, whatever retention swept before, and however many there are."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import cast

import pytest
from sqlalchemy import Connection, insert, text

from perdure.client.erasures import NotErased, erase
from perdure.client.errors import SessionBusyError, SessionErasedError
from perdure.client.sessions import Sessions
from perdure.contracts.events import DelegateStart
from perdure.contracts.ids import DELEGATED, delegate_session
from perdure.contracts.messages import AssistantMessage
from perdure.contracts.retention import Retention, RetentionSettings
from perdure.contracts.tools import Delegated
from perdure.contracts.turns import Continuation, OpenTurn
from perdure.contracts.values import replace
from perdure.store import Artifact, ClaimedTurn, LedgerCall, StepRecord, Store, schema
from perdure.store.delegates import NAMES_AT_ONCE
from perdure.store.session_lock import new_session
from tests.unit.store.given import HELPER, SESSION, STARTED, commit, new_event, open_turn
from tests.unit.store.test_retention import sweep_all

CANARY = "canary-7f3a"
DAY = timedelta(days=1)
SMALL, LARGE = (2, 2, 2), (12, 7, 6)
"""Delegates of each session, by level; the larger tree has 600."""


@dataclass
class Idle:
    """What an erasure needs of the client's sessions, without a server: all are idle but the busy ones."""

    opened: Store
    busy: set[str] = field(default_factory=set)
    deleted: list[str] = field(default_factory=list)

    @property
    def runs(self) -> "Idle":
        return self

    async def store(self) -> Store:
        return self.opened

    async def wait_until_idle(self, session: str) -> None:
        if session in self.busy:
            raise SessionBusyError(f"a turn of session {session!r} runs")

    async def delete_histories(self, session: str) -> int:
        self.deleted.append(session)
        return 1

    def as_sessions(self) -> Sessions:
        return cast("Sessions", self)


async def make_step(store: Store, session: str, turn: ClaimedTurn, calls: Sequence[str]) -> StepRecord:
    """The turn's one answer, and an artifact."""
    step = StepRecord(
        id=f"{session}/{turn.turn}",
        session=session,
        turn=turn.turn,
        step=1,
        parent=turn.tip,
        messages=(AssistantMessage(content=f"{CANARY} answer"),),
    )
    ledger = [LedgerCall(call_id=call, tool="helper", arguments=f'{{"prompt": "{CANARY} ask"}}') for call in calls]
    await store.finish_generation(step, ledger, [])
    name = f"file-{session}-{turn.turn}"
    await store.keep_artifacts(
        [Artifact(id=name, session=session, media_type="text/plain", text=f"{CANARY} file" * 99)]
    )
    return step


async def make_delegates(
    store: Store, session: str, turn: ClaimedTurn, sizes: Sequence[int], root: str = SESSION
) -> list[str]:
    """An answer of a turn that calls delegates, and theirs, down the levels; their sessions. The turn stays open."""
    calls = [f"call_{session}_{turn.turn}_{number}" for number in range(sizes[0] if sizes else 0)]
    await make_step(store, session, turn, calls)
    made: list[str] = []
    for call in calls:
        delegate = delegate_session(root, "helper", session, call, turn.seed)
        start = DelegateStart(call_id=call, tool="helper", agent="helper", delegate=delegate)
        await store.append_events(session, [new_event(f"{turn.turn}/{call}/delegate_start", start, turn=turn.turn)])
        delegated = Delegated(
            session=session,
            turn=turn.turn,
            step=1,
            call_id=call,
            definition=HELPER.digest(),
            tool="helper",
            root=root,
            delegate=delegate,
        )
        request = Continuation(prompt=f"{CANARY} prompt", delegated=delegated)
        opening = OpenTurn(session=delegate, request=request, request_id=f"{DELEGATED}{call}", run_started_at=STARTED)
        below = await store.open_turn(opening, HELPER)
        made += [delegate, *await make_delegates(store, delegate, below, sizes[1:], root)]
        await end(store, delegate)
    return made


async def end(store: Store, session: str, turn: int = 1) -> None:
    ended = commit((await store.session(session)).tip or "", turn=turn)
    await store.commit_turn(ended.model_copy(update={"session": session}))


async def make_tree(store: Store, sizes: Sequence[int]) -> list[str]:
    """A session whose first turn has called delegates, and its second one another; the sessions below it."""
    first = await open_turn(store, f"{CANARY} first")
    made = await make_delegates(store, SESSION, first, sizes)
    await end(store, SESSION)
    second = await open_turn(store, f"{CANARY} second", request_id="r2")
    made += await make_delegates(store, SESSION, second, sizes[-1:])
    await end(store, SESSION, 2)
    return made


async def what_is_left(store: Store, folder: Path) -> list[str]:
    """Where the canary still stands: tables and files."""

    def read(connection: Connection) -> list[str]:
        rows = {
            name: connection.execute(text(f"SELECT * FROM {name}")).all()
            for name in schema.metadata.tables
            if name != "live"
        }
        return [name for name, found in rows.items() if CANARY in str(found)]

    files = [file.name for file in folder.rglob("*") if file.is_file() and CANARY.encode() in file.read_bytes()]
    return [*await store.read("look", read), *files]


KINDS: dict[str, RetentionSettings] = {
    "none": {},
    "events": {"events": "1h"},
    "artifacts": {"artifacts": "1h"},
    "the page's": {"events": "30d", "transcript": "1y"},
}


@pytest.fixture
async def store(url: str, tmp_path: Path) -> AsyncIterator[Store]:
    """A store whose large artifacts are files."""
    async with await Store.open(url, upgrade=True, artifacts=f"file://{tmp_path / 'files'}") as opened:
        yield opened


async def keep_for(store: Store, **kept: object) -> None:
    await store.register_agents([replace(HELPER, retention=Retention(**kept) if kept else None)])  # type: ignore[arg-type]


@pytest.mark.parametrize("sizes", [SMALL, pytest.param(LARGE, marks=pytest.mark.deep)], ids=["few", "600"])
@pytest.mark.parametrize("kind", KINDS)
async def test_no_byte_is_left_of_an_erased_session_and_its_delegates(
    store: Store, tmp_path: Path, kind: str, sizes: tuple[int, ...]
) -> None:
    """S-94: the tombstone lists them, and what Temporal has of each is deleted."""
    below = await make_tree(store, sizes)
    await keep_for(store, **KINDS[kind])
    if KINDS[kind]:
        swept = await sweep_all(store, after=60 * DAY)
        assert (swept.events or swept.artifacts) > len(below)
        assert swept.erased == 0
    assert await what_is_left(store, tmp_path / "files")
    sessions = Idle(store)
    erased = await erase(sessions.as_sessions(), SESSION, histories=True, by="ann")
    assert sorted(erased.delegates) == sorted(below)
    assert erased.not_erased == ()
    assert (erased.histories, sorted(sessions.deleted)) == (len(below) + 1, sorted([*below, SESSION]))
    assert erased.tombstone.delegates == tuple(sorted(below))
    assert await what_is_left(store, tmp_path / "files") == []
    assert await store.sessions() == ()
    with pytest.raises(SessionErasedError, match="was erased on request by ann"):
        await erase(sessions.as_sessions(), SESSION, histories=False, by="ann")


@pytest.mark.parametrize("sizes", [SMALL, pytest.param(LARGE, marks=pytest.mark.deep)], ids=["few", "600"])
@pytest.mark.parametrize("events", [None, "1h"], ids=["with events", "events swept before"])
async def test_a_sweep_erases_delegates_with_their_caller(
    store: Store, tmp_path: Path, events: str | None, sizes: tuple[int, ...]
) -> None:
    """S-94: those of the delegates' agent have no retention of their own here."""
    below = await make_tree(store, sizes)
    await store.register_agents([replace(HELPER, retention=Retention(events=events, transcript="30d"))])
    if events:
        assert (await sweep_all(store, after=DAY)).events > len(below)
    assert (await sweep_all(store, after=31 * DAY, dry_run=True)).kept == ()
    swept = await sweep_all(store, after=31 * DAY)
    assert (swept.erased, swept.kept) == (len(below) + 1, ())
    assert await what_is_left(store, tmp_path / "files") == []
    stone = await store.tombstone(SESSION)
    assert stone is not None
    assert (stone.reason, stone.delegates) == ("retention", tuple(sorted(below)))


async def test_a_session_that_keeps_its_latest_keeps_the_delegates_of_its_last_turn(
    store: Store, tmp_path: Path
) -> None:
    """S-94: and no byte of the others."""
    below = await make_tree(store, SMALL)
    lead = replace(HELPER, name="lead", retention=Retention(transcript="30d", keep_latest=True))
    await store.register_agents([lead])
    await store.write("rename", lambda c: c.execute(text("UPDATE sessions SET agent = 'lead' WHERE session = 's'")))
    last = [record.session for record, _ in await store.sessions(caller=SESSION)][: SMALL[-1]]
    planned = await sweep_all(store, after=31 * DAY, dry_run=True)
    swept = await sweep_all(store, after=31 * DAY)
    assert (planned.erased, swept.erased, swept.trimmed) == (len(below) - len(last), len(below) - len(last), 1)
    left = {record.session for record, _ in await store.sessions()}
    assert left == {SESSION, *last}
    assert (await sweep_all(store, after=31 * DAY)).erased == 0


async def test_a_delegate_that_runs_is_told_and_erased_the_next_time(store: Store, tmp_path: Path) -> None:
    """S-94: its caller's session is gone all the same, and the second call finds it by its own row."""
    below = await make_tree(store, SMALL)
    sessions = Idle(store, busy={below[2]})
    erased = await erase(sessions.as_sessions(), SESSION, histories=True, by="ann")
    assert erased.not_erased == (NotErased(session=below[2], why=f"a turn of session {below[2]!r} runs"),)
    assert sorted(erased.delegates) == sorted(set(below) - {below[2]})
    assert below[2] not in sessions.deleted
    assert [record.session for record, _ in await store.sessions()] == [below[2]]
    sessions.busy.clear()
    again = await erase(sessions.as_sessions(), SESSION, histories=True, by="ann")
    assert (again.delegates, again.not_erased) == ((below[2],), ())
    assert again.tombstone.delegates == tuple(sorted(below))
    assert await what_is_left(store, tmp_path / "files") == []


async def test_a_pause_and_an_erasure_reach_more_delegates_than_one_statement_names(store: Store) -> None:
    """Three levels, each wider than a slice; a pause is for those that run."""
    levels = [[SESSION], *([f"{level}-{number}" for number in range(NAMES_AT_ONCE + 2)] for level in "abc")]
    rows = [
        {**new_session(name, "helper", ""), "caller": above[place % len(above)], "open_turn": 1}
        for above, below in pairwise(levels)
        for place, name in enumerate(below)
    ]
    await store.write("make", lambda connection: connection.execute(insert(schema.sessions), rows))
    assert len(await store.running_delegates(SESSION)) == NAMES_AT_ONCE + 2
    found = [each.session for each in await store.sessions_below(SESSION)]
    assert (len(found), found[0][0], found[-1][0]) == (3 * (NAMES_AT_ONCE + 2), "c", "a")


async def test_a_sweep_waits_for_a_delegate_that_runs_and_garbage_is_one_whose_caller_is_gone(store: Store) -> None:
    first = await open_turn(store)
    (delegate,) = await make_delegates(store, SESSION, first, (1,))
    await end(store, SESSION)
    await store.write("open", lambda c: c.execute(text("UPDATE sessions SET open_turn = 1 WHERE caller = 's'")))
    await store.register_agents([replace(HELPER, retention=Retention(transcript="30d"))])
    swept = await sweep_all(store, after=31 * DAY)
    assert {kept.session: kept.why for kept in swept.kept} == {
        SESSION: f"turn 1 of its delegate {delegate} is open",
        delegate: "its turn 1 is open",
    }
    await store.erase_session(SESSION)
    assert (await store.collect_garbage())["erasures"] == 0
    await store.write("close", lambda c: c.execute(text("UPDATE sessions SET open_turn = NULL")))
    assert (await store.collect_garbage(dry_run=True))["erasures"] == 1
    assert (await store.collect_garbage())["erasures"] == 1
    assert await store.sessions() == ()
