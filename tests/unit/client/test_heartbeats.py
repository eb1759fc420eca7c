"""Whoever reads a silent turn is told that nothing has come, as often as wanted, and loses no event by it."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from perdure.client import Client, RequestRefusedError
from perdure.client.stream import with_heartbeats
from perdure.contracts.events import Envelope, Heartbeat, UserMessageReceived
from perdure.store import StoreUnavailableError

pytestmark = pytest.mark.timeout(60)

OFTEN = timedelta(milliseconds=10)
RARELY = timedelta(hours=1)


def envelope(seq: int, event: UserMessageReceived | Heartbeat | None = None, *, turn: int = 1) -> Envelope:
    said = UserMessageReceived(content=str(seq)) if event is None else event
    return Envelope(seq=seq, session="job", turn=turn, step=seq, at=datetime.now(UTC), event=said)


FIRST = envelope(4, Heartbeat(), turn=0)


class Source:
    """Events that come when they are given."""

    def __init__(self) -> None:
        self.given: asyncio.Queue[Envelope | Exception | None] = asyncio.Queue()
        self.closed = False

    async def events(self) -> AsyncIterator[Envelope]:
        try:
            while (item := await self.given.get()) is not None:
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            self.closed = True


async def test_heartbeats_come_only_while_nothing_else_does_with_the_place_of_the_last_event() -> None:
    """S-53: resuming behind a heartbeat misses nothing and repeats nothing."""
    source = Source()
    reading = with_heartbeats(source.events(), FIRST, OFTEN)
    silent = [await anext(reading), await anext(reading)]
    source.given.put_nowait(envelope(5))
    came = [received async for received in _until(reading, 5)]
    later = await anext(reading)
    source.given.put_nowait(None)
    rest = [received async for received in reading]
    assert [(received.seq, received.turn, received.event.type) for received in silent] == [(4, 0, "heartbeat")] * 2
    assert (came[-1].event.type, {received.seq for received in came[:-1]} <= {4}) == ("user_message", True)
    assert (later.seq, later.turn, later.step, later.event) == (5, 1, 5, Heartbeat())
    assert silent[0].at <= silent[1].at <= later.at
    assert all(isinstance(received.event, Heartbeat) for received in rest)
    assert source.closed


async def _until(reading: AsyncIterator[Envelope], seq: int) -> AsyncIterator[Envelope]:
    async for received in reading:
        yield received
        if received.seq == seq:
            return


async def test_no_heartbeat_comes_between_events_that_are_there() -> None:
    """S-53."""
    source = Source()
    for seq in range(5, 105):
        source.given.put_nowait(envelope(seq))
    source.given.put_nowait(None)
    came = [received async for received in with_heartbeats(source.events(), FIRST, RARELY)]
    assert [(received.seq, received.event.type) for received in came] == [
        (seq, "user_message") for seq in range(5, 105)
    ]


async def test_what_the_reading_fails_with_is_not_lost() -> None:
    source = Source()
    source.given.put_nowait(StoreUnavailableError("gone"))
    with pytest.raises(StoreUnavailableError, match="gone"):
        await anext(with_heartbeats(source.events(), FIRST, RARELY))


async def test_a_reader_that_leaves_leaves_nothing_behind() -> None:
    source = Source()
    reading = with_heartbeats(source.events(), FIRST, OFTEN)
    await anext(reading)
    before = asyncio.all_tasks()
    await reading.aclose()
    assert source.closed
    assert len(asyncio.all_tasks()) == len(before) - 1


@pytest.mark.usefixtures("worker")
async def test_an_ended_turn_is_read_with_its_types_and_a_heartbeat_that_is_too_short_is_refused(
    client: Client,
) -> None:
    turn = await client.start("writer", "go")
    await turn.result()
    chosen = [logged.event.type async for logged in turn.events(types=["agent_end"], heartbeat=RARELY)]
    assert chosen == ["agent_end"]
    with pytest.raises(RequestRefusedError, match=r"heartbeat: 0.001 s is too short; name 0.01 s or more"):
        await anext(turn.events(heartbeat=timedelta(milliseconds=1)))
