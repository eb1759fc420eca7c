"""The doorbell: each write wakes who follows, writers never wait for that, and a lost ring costs only a look."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, text

from perdure.contracts.events import NewEvent, UserMessageReceived
from perdure.store import Store, StoreError, doorbell
from perdure.store.database import Address
from perdure.store.doorbell import Bell, FileDoorbell, PostgresqlDoorbell
from tests.house import eventually
from tests.unit.store.given import SESSION, open_turn

NEVER = timedelta(hours=1)
LONG = timedelta(seconds=60)
"""Upper bound of a wait that is no measurement."""


@pytest.fixture
async def writer(url: str, store: Store) -> AsyncIterator[Store]:
    """Another process's store, as far as the database can tell."""
    async with await Store.open(url) as other:
        yield other


@pytest.fixture
def no_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """No safety query helps."""
    monkeypatch.setattr(doorbell, "LOOK_EVERY", NEVER)


@pytest.fixture
def administration(postgresql_url: str) -> Iterator[Connection]:
    engine = create_engine(Address(postgresql_url).url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        yield connection
    engine.dispose()


async def say(store: Store, number: int, session: str = SESSION) -> None:
    """Write one event more."""
    heard = UserMessageReceived(content=f"message {number}")
    await store.append_events(session, [NewEvent(key=f"1/said/{number}", turn=1, step=0, event=heard)])


async def attend(store: Store, bell: Bell, session: str = SESSION) -> None:
    """Wait until the store listens, and knows of what was written before."""
    last = await store.last_seqs([session])
    await eventually(lambda: _is_at(bell, last[session]))


async def _is_at(bell: Bell, seq: int) -> bool:
    return bell.last_seq == seq


@pytest.mark.usefixtures("no_looks")
async def test_each_write_of_another_process_wakes_a_follower(store: Store, writer: Store) -> None:
    """S-47: without any look at the store meanwhile."""
    await open_turn(writer)
    with store.doorbell.follow(SESSION) as bell:
        await attend(store, bell)
        for number in range(5):
            rung = bell.rung
            await say(writer, number)
            assert await bell.wait(rung, LONG)


@pytest.mark.usefixtures("no_looks")
async def test_a_ring_wakes_those_who_follow_its_session_and_nobody_else(store: Store, writer: Store) -> None:
    await open_turn(writer)
    await open_turn(writer, session="quiet", request_id="r2")
    with store.doorbell.follow(SESSION) as bell, store.doorbell.follow("quiet") as quiet:
        await attend(store, bell)
        await attend(store, quiet, "quiet")
        rung, silent = bell.rung, quiet.rung
        await say(writer, 1)
        assert await bell.wait(rung, LONG)
        assert quiet.rung == silent


async def test_a_lost_ring_costs_no_more_than_the_safety_query(
    store: Store, writer: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-47: nothing rings, and the follower is woken all the same."""
    monkeypatch.setattr(doorbell, "LOOK_EVERY", timedelta(milliseconds=50))
    monkeypatch.setattr(PostgresqlDoorbell, "ring", lambda *_: None)
    monkeypatch.setattr(FileDoorbell, "_is_changed", lambda _: False)
    await open_turn(writer)
    with store.doorbell.follow(SESSION) as bell:
        await attend(store, bell)
        rung = bell.rung
        await say(writer, 1)
        assert await bell.wait(rung, LONG)


async def test_a_store_in_memory_wakes_its_own_followers() -> None:
    async with await Store.open("sqlite://", upgrade=True) as store:
        await open_turn(store)
        with store.doorbell.follow(SESSION) as bell:
            rung = bell.rung
            await say(store, 1)
            assert await bell.wait(rung, LONG)
        await say(store, 2)  # nobody follows
        assert await store.doorbell.answers()


async def test_what_is_known_rings_no_more_and_what_another_reader_has_found_rings(store: Store) -> None:
    with store.doorbell.follow(SESSION) as bell:
        bell.note(3)
        assert bell.rung == 1
        bell.note(3)
        bell.note(2)
        assert bell.rung == 1
        assert not await bell.wait(1, timedelta(0))


async def test_a_follower_is_told_when_the_store_is_away(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads then, and says so itself."""
    monkeypatch.setattr(doorbell, "LOOK_EVERY", timedelta(milliseconds=50))
    with store.doorbell.follow(SESSION) as bell:
        store._database.engine.dispose()
        monkeypatch.setattr(store, "_readers", None)
        monkeypatch.setattr(store.doorbell, "_read_last", _away)
        assert await bell.wait(bell.rung, LONG)
        monkeypatch.undo()


async def _away(_: object) -> Any:
    raise StoreError("away")


LISTENERS = text(f"SELECT pid FROM pg_stat_activity WHERE query = 'LISTEN {doorbell.CHANNEL}'")
RINGERS = text("SELECT pid FROM pg_stat_activity WHERE query LIKE '%pg_notify(%' AND pid <> pg_backend_pid()")


async def test_one_connection_listens_however_many_follow_and_only_then(
    postgresql_url: str, administration: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PostgresqlDoorbell, "linger", timedelta(0))
    monkeypatch.setattr(doorbell, "LOOK_EVERY", timedelta(milliseconds=50))

    async def listening() -> list[Any]:
        return list(administration.execute(LISTENERS))

    async def silent() -> bool:
        return not await listening()

    async with await Store.open(postgresql_url, upgrade=True) as store, AsyncExitStack() as stack:
        assert await silent()
        for number in range(50):
            stack.enter_context(store.doorbell.follow(f"s{number % 7}"))
        assert len(await eventually(listening)) == 1
        await asyncio.sleep(0)
        await stack.aclose()
        await eventually(silent)


async def test_a_connection_that_is_lost_is_made_again(
    postgresql_url: str, administration: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that listens and the one that rings; meanwhile writers go on."""
    monkeypatch.setattr(doorbell, "TRY_EVERY", timedelta(0))
    monkeypatch.setattr(doorbell, "LOOK_EVERY", timedelta(milliseconds=50))

    async def listening() -> Any:
        return administration.scalar(LISTENERS)

    async with await Store.open(postgresql_url, upgrade=True) as store:
        monkeypatch.setattr(store.doorbell, "_read_last", _nothing)
        await open_turn(store)
        with store.doorbell.follow(SESSION) as bell:
            for number, kind in enumerate((LISTENERS, RINGERS, LISTENERS), start=1):
                first = await eventually(listening)
                await say(store, 10 * number)
                assert await bell.wait(0, LONG)
                for pid in administration.scalars(kind).all():
                    administration.execute(text(f"SELECT pg_terminate_backend({pid})"))
                if kind is LISTENERS:
                    await eventually(partial(_is_other, administration, first))
                rung, written = bell.rung, 0
                while not await bell.wait(rung, timedelta(milliseconds=200)):  # what is rung while it is away is lost
                    written += 1
                    await say(store, 10_000 * number + written)


async def test_that_nothing_listens_is_said_once_and_so_is_its_end(
    postgresql_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is tried every two seconds, for as long as the database is away."""
    monkeypatch.setattr(doorbell, "TRY_EVERY", timedelta(0))
    monkeypatch.setattr(doorbell, "LOOK_EVERY", timedelta(milliseconds=5))
    tried: list[int] = []

    async with await Store.open(postgresql_url, upgrade=True) as store:
        opens = store.doorbell._open  # type: ignore[attr-defined]

        def open_at_last(loop: asyncio.AbstractEventLoop) -> None:
            tried.append(1)
            if len(tried) <= 3:
                raise OSError
            opens(loop)

        monkeypatch.setattr(store.doorbell, "_open", open_at_last)
        await open_turn(store)

        async def said() -> bool:
            return caplog.messages[-1:] == ["a connection listens for events again"]

        with caplog.at_level(logging.INFO, "perdure.store"), store.doorbell.follow(SESSION):
            await eventually(said)
    assert [message.partition(";")[0] for message in caplog.messages] == [
        "nothing listens for events",
        "a connection listens for events again",
    ]
    assert len(tried) == 4


async def _nothing(_: object) -> dict[str, int]:
    return {}


async def _is_other(administration: Connection, pid: int) -> bool:
    return administration.scalar(LISTENERS) not in {None, pid}


async def test_a_doorbell_that_cannot_ring_fails_no_writer(
    postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doorbell._Ringer, "_NOTIFY", "SELECT no_such_function(%s, %s)")
    async with await Store.open(postgresql_url, upgrade=True) as store:
        await open_turn(store)
        before = len(await store.events(SESSION))
        for number in range(20):
            await say(store, number)
        assert len(await store.events(SESSION)) == before + 20
        monkeypatch.setattr(doorbell, "CHECK_TIMEOUT", timedelta(seconds=1))
        assert not await store.doorbell.answers()


async def test_many_writes_ring_together(postgresql_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer hands over and goes on; one statement tells of all that has come, by the last number of each."""
    told: list[dict[str, int]] = []
    batches = doorbell._Ringer._batches

    def keep(ringer: Any) -> Iterator[Any]:
        for last in batches(ringer):
            told.append(dict(last))
            yield last

    monkeypatch.setattr(doorbell._Ringer, "_batches", keep)
    async with await Store.open(postgresql_url, upgrade=True) as store:
        for number in range(1, 501):
            store.doorbell.ring({"a": number, f"b{number % 3}": number})
    assert len(told) < 100
    assert {name: seq for last in told for name, seq in last.items()} == {"a": 500, "b0": 498, "b1": 499, "b2": 500}


async def test_an_open_connection_is_asked_whether_it_still_stands(
    postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what is rung meanwhile arrives."""
    monkeypatch.setattr(doorbell, "PING_EVERY", timedelta(0))
    monkeypatch.setattr(doorbell, "LOOK_EVERY", timedelta(milliseconds=1))
    async with await Store.open(postgresql_url, upgrade=True) as store:
        await open_turn(store)
        monkeypatch.setattr(store.doorbell, "_read_last", _nothing)
        assert await store.doorbell.answers()
        with store.doorbell.follow(SESSION) as bell:
            for number in range(100):
                rung = bell.rung
                await say(store, number)
                assert await bell.wait(rung, LONG)


async def test_a_doorbell_rings_through_the_database(store: Store) -> None:
    """What ``perdure doctor`` asks."""
    assert await store.doorbell.answers()
