"""Pieces of an answer between the events of its session: none comes before the events that come before it (S-15)."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from perdure.client.deltas import DeltaBatch, DeltaReader, merge_deltas, reader_from
from perdure.contracts.deltas import Delta
from perdure.contracts.events import Envelope
from perdure.store import Store
from perdure.store.live import Feed
from tests.unit.store.given import SESSION, generate, open_turn


def piece(step: int, text: str) -> Delta:
    return Delta(session=SESSION, turn=1, step=step, attempt=1, n=0, offset=0, text=text)


@pytest.mark.parametrize("seen", [0, 1, 2, 3], ids=["nothing", "the beginning", "a whole step", "all"])
async def test_a_piece_that_is_heard_of_first_comes_behind_its_step_all_the_same(seen: int) -> None:
    """Notices of events and of pieces travel apart; a reader that came early lost the first pieces for good."""
    async with await Store.open("sqlite://", upgrade=True) as store:
        opened = await open_turn(store)
        await store.begin_generation(generate(opened.tip), [])
        log = list(await store.events(SESSION, after=0, limit=100))
        seen = len(log) if seen == 3 else min(seen, len(log) - 1)
        feed = Feed(SESSION)
        feed.add(piece(log[-1].step, "Hello"))
        goes_on = asyncio.Event()

        async def events() -> AsyncGenerator[Envelope, None]:
            await goes_on.wait()
            for envelope in log[seen:]:
                yield envelope
            await asyncio.Event().wait()

        reader = await reader_from(store, SESSION, seen)
        merged = merge_deltas(events(), feed, DeltaReader.note, reader)
        first = asyncio.ensure_future(anext(merged))
        if seen < len(log):
            done, _ = await asyncio.wait([first], timeout=0)
            assert not done
            goes_on.set()
        async with asyncio.timeout(30):
            told = [await first]
            while not isinstance(told[-1], DeltaBatch):
                told.append(await anext(merged))
        assert told[:-1] == log[seen:]
        assert [delta.text for delta in told[-1].deltas] == ["Hello"]
        await merged.aclose()


async def test_a_reader_that_has_the_whole_log_so_far_waits_for_the_turn_behind_it() -> None:
    """A stream of a session's second turn begins before that has written anything."""
    async with await Store.open("sqlite://", upgrade=True) as store:
        await open_turn(store)
        reader = await reader_from(store, SESSION, (await store.session(SESSION)).last_seq)
        feed = Feed(SESSION)
        feed.add(piece(1, "Hello"))
        assert reader.take(feed) == ()
