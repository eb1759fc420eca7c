"""The pieces of an answer reach its followers whatever the database does meanwhile, and hold up no call (S-15)."""

import asyncio
from collections.abc import Sequence

import pytest

from perdure.activities.telling import deltas
from perdure.activities.telling.deltas import DeltaPublisher, Shows
from perdure.contracts.deltas import START, Delta
from perdure.store.live import Live

SHOWS = Shows(session="s", turn=1, step=1, attempt=1)


class FailingLive(Live):
    """Pieces in memory; some publications fail, counted from 1."""

    def __init__(self, fails: Sequence[int]) -> None:
        super().__init__()
        self.tries = 0
        self.tried = asyncio.Condition()
        self._fails = fails

    async def publish(self, deltas: Sequence[Delta]) -> None:
        self.tries += 1
        async with self.tried:
            self.tried.notify_all()
        if self.tries in self._fails:
            raise OSError("database is locked")
        await super().publish(deltas)

    async def wait(self, tries: int) -> None:
        async with asyncio.timeout(60), self.tried:
            await self.tried.wait_for(lambda: self.tries >= tries)


@pytest.mark.parametrize("fails", [(), (1,), (2,), (1, 2), (1, 2, 3)])
async def test_pieces_that_cannot_be_published_are_published_later(
    fails: tuple[int, ...], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without another piece behind them: a model may think for minutes, and who follows would see nothing."""
    monkeypatch.setattr(deltas, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(deltas, "FLUSH_SECONDS", 0.0)
    live = FailingLive(fails)
    async with DeltaPublisher(live, SHOWS) as publisher, live.follow("s") as feed:
        publisher.text("The quick ")
        await live.wait(1)
        publisher.text("brown fox")
        async with asyncio.timeout(60):
            while "".join(delta.text for delta in feed.take(START)) != "The quick brown fox":
                await feed.wait(feed.version)
    runs = len([before for before in fails if before - 1 not in fails])
    assert caplog.text.count("cannot be shown at the moment: OSError") == runs


async def test_a_database_that_fails_for_good_holds_up_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deltas, "RETRY_SECONDS", 0.0)
    live = FailingLive(range(1, 1_000_000))
    async with DeltaPublisher(live, SHOWS) as publisher:
        publisher.text("The quick ")
        await live.wait(3)
    assert await live.since("s") == ()
