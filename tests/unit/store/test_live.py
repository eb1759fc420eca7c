"""Pieces of answers beside the store, in all three homes: in order, of the newest attempt only, and never for long."""

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from perdure.contracts.deltas import Delta
from perdure.store import Store, database, live
from perdure.store.live import Feed, merge
from tests.unit.store.given import SESSION, generate, open_turn

LONG = timedelta(seconds=30)


def delta(n: int, text: str, *, attempt: int = 1, step: int = 1, offset: int = 0) -> Delta:
    return Delta(session=SESSION, turn=1, step=step, attempt=attempt, n=n, offset=offset, text=text)


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "memory":
        return "sqlite://"
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'store' / 'perdure.db'}"
    return str(request.getfixturevalue("postgresql_url"))


@pytest.fixture
async def writer(address: str) -> AsyncIterator[Store]:
    async with await Store.open(address, upgrade=True) as store:
        yield store


@pytest.fixture
async def reader(address: str, writer: Store) -> AsyncIterator[Store]:
    """The store of another process; a store in memory has only one."""
    if address == "sqlite://":
        yield writer
        return
    async with await Store.open(address) as store:
        yield store


async def wait_for(feed: Feed, place: tuple[int, int, int, int]) -> None:
    """Wait until the feed has come so far."""
    async with asyncio.timeout(LONG.total_seconds()):
        while feed.place < place:
            await feed.wait(feed.version)


async def test_what_is_published_reaches_who_follows(writer: Store, reader: Store) -> None:
    """S-15: pieces come in order, whichever process publishes them."""
    with reader.doorbell.follow(SESSION):
        async with reader.live.follow(SESSION) as feed:
            await writer.live.publish([delta(0, "Hello "), delta(1, "wor", offset=6)])
            await wait_for(feed, (1, 1, 1, 1))
            assert [(found.text, found.offset) for found in feed.take((0, 0, 0, -1))] == [("Hello wor", 0)]
            await writer.live.publish([delta(2, "ld", offset=9)])
            await wait_for(feed, (1, 1, 1, 2))
            assert [(found.text, found.offset) for found in feed.take((1, 1, 1, 1))] == [("ld", 9)]


async def test_who_comes_later_gets_all_so_far_as_one_piece(writer: Store, reader: Store) -> None:
    await writer.live.publish([delta(0, "Hello "), delta(1, "world", offset=6)])
    async with reader.live.follow(SESSION) as feed:
        assert [(found.text, found.offset, found.n) for found in feed.take((0, 0, 0, -1))] == [("Hello world", 0, 1)]


async def test_a_higher_attempt_begins_anew_and_the_lower_one_is_heard_no_more(writer: Store, reader: Store) -> None:
    """S-15: no reader is given pieces of two attempts."""
    await writer.live.publish([delta(0, "first "), delta(1, "try", offset=6)])
    with reader.doorbell.follow(SESSION):
        async with reader.live.follow(SESSION) as feed:
            await writer.live.publish([delta(0, "second", attempt=2)])
            await wait_for(feed, (1, 1, 2, 0))
            await writer.live.publish([delta(2, " of a lost worker", attempt=1)])
            await writer.live.publish([delta(1, "!", attempt=2, offset=6)])
            await wait_for(feed, (1, 1, 2, 1))
            assert [found.text for found in feed.take((1, 1, 1, 1))] == ["second!"]


async def test_a_piece_that_is_too_long_for_a_notification_comes_all_the_same(writer: Store, reader: Store) -> None:
    long = "0123456789" * 2_000
    with reader.doorbell.follow(SESSION):
        async with reader.live.follow(SESSION) as feed:
            await writer.live.publish([delta(0, "a"), delta(1, long, offset=1)])
            await wait_for(feed, (1, 1, 1, 1))
            assert feed.take((0, 0, 0, -1))[0].text == f"a{long}"


async def test_odd_characters_come_as_they_are(writer: Store, reader: Store) -> None:
    odd = "nul \0, quote ' \" \\, line \n, 😀"
    await writer.live.publish([delta(0, odd)])
    async with reader.live.follow(SESSION) as feed:
        assert feed.take((0, 0, 0, -1))[0].text == odd


async def test_a_stored_answer_leaves_nothing(writer: Store, reader: Store) -> None:
    """Nothing is kept for good: rows of a step go when its answer is stored."""
    await writer.live.publish([delta(0, "one"), delta(0, "two", step=2)])
    await writer.live.forget(SESSION, 1, 1)
    assert [found.step for found in await reader.live.since(SESSION)] == [2]
    await writer.live.forget(SESSION, 1, 2)
    assert await reader.live.since(SESSION) == ()


async def test_an_erased_session_leaves_nothing(writer: Store, reader: Store) -> None:
    await writer.live.publish([delta(0, "one"), delta(0, "two", step=7)])
    await reader.live.erase(SESSION, 1)
    assert await writer.live.since(SESSION) == ()


async def test_what_a_lost_worker_left_is_swept_away(
    address: str, writer: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    if address == "sqlite://":  # which goes with its process
        return
    monkeypatch.setattr(live, "KEPT", timedelta(seconds=-1))
    monkeypatch.setattr(live, "SWEEP_EVERY", timedelta(days=10_000))  # longer than the machine has run
    await writer.live.publish([delta(0, "left")])
    await writer.live.forget("another", 1, 1)
    assert await writer.live.since(SESSION) == ()


async def test_pieces_stand_in_no_table_of_the_log(writer: Store) -> None:
    """Nothing of them is in the events."""
    await open_turn(writer)
    before = await writer.events(SESSION, after=0, limit=100)
    await writer.live.publish([delta(0, "text")])
    assert await writer.events(SESSION, after=0, limit=100) == before


async def test_a_lease_is_read_with_the_lock_of_a_generation(writer: Store) -> None:
    """Who follows is known without a further round trip; a session may be watched before it exists."""
    await writer.watch(SESSION)
    opened = await open_turn(writer)
    assert (await writer.begin_generation(generate(opened.tip), [])).is_watched


async def test_without_a_lease_nobody_watches(writer: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = await open_turn(writer)
    assert not (await writer.begin_generation(generate(opened.tip), [])).is_watched
    monkeypatch.setattr("perdure.store.live.LEASE", timedelta(seconds=-1))
    await writer.watch(SESSION)
    assert not (await writer.begin_generation(generate(opened.tip), [])).is_watched


def test_neighbours_of_one_kind_become_one() -> None:
    """A tool call is one delta, with its newest size."""

    def call(n: int, at: int, characters: int, tool: str = "") -> Delta:
        return delta(n, "", offset=at).model_copy(update={"kind": "tool_call", "characters": characters, "tool": tool})

    merged = merge([delta(0, "a"), delta(1, "b", offset=1), call(2, 0, 3, "pay"), call(3, 0, 9), call(4, 1, 2)])
    assert [(found.kind, found.text, found.tool, found.characters, found.n) for found in merged] == [
        ("text", "ab", "", 0, 1),
        ("tool_call", "", "pay", 9, 3),
        ("tool_call", "", "", 2, 4),
    ]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A store's file, which has no pieces beside it yet."""
    return tmp_path / "store" / "perdure.db"


async def test_two_who_open_the_file_at_once_both_come_in(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S-15: SQLite refuses the switch to its write-ahead log at once while another one makes it, too."""
    store = f"sqlite:///{file}"
    async with await Store.open(store, upgrade=True) as mine:
        beside = sqlite3.connect(f"{file}.live.db", isolation_level=None, check_same_thread=False)
        beside.execute("BEGIN EXCLUSIVE")
        beside.execute("CREATE TABLE another (one TEXT)")

        def go_on(_seconds: float) -> None:
            if beside.in_transaction:
                beside.execute("COMMIT")

        monkeypatch.setattr(time, "sleep", go_on)
        await mine.live.publish([delta(0, "Hello")])
        assert [found.text for found in await mine.live.since(SESSION)] == ["Hello"]
        beside.close()


async def test_a_file_that_could_not_be_opened_is_opened_later(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is half open is closed; who follows meanwhile has the log, and the pieces once they can be read."""
    monkeypatch.setattr(database, "BUSY_TIMEOUT", timedelta(0))
    store = f"sqlite:///{file}"
    async with await Store.open(store, upgrade=True) as mine, await Store.open(store) as other:
        file.with_name("perdure.db.live.db").mkdir()
        with pytest.raises(OSError, match="directory"):
            await mine.live.publish([delta(0, "Hello")])
        async with other.live.follow(SESSION) as feed:
            file.with_name("perdure.db.live.db").rmdir()
            await mine.live.publish([delta(0, "Hello")])
            await wait_for(feed, (1, 1, 1, 0))
            assert [found.text for found in feed.take((0, 0, 0, -1))] == ["Hello"]
