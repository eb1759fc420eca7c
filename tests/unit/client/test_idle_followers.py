"""Followers of a job at which nothing happens ask nothing: one query a second stands for all of them."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from perdure.client import Client
from tests.house import eventually

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("worker")]

FOLLOWERS = 30


async def test_idle_followers_read_nothing_and_ask_temporal_ever_less(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-47: while the safety query comes three times, no follower reads; then each gets what is written."""
    turn = await client.start("writer", "hold")
    await turn.number()
    store, reads = await client.store(), Counter[str]()
    read = store.read

    async def count(operation: str, work: Any) -> Any:
        reads[operation] += 1
        return await read(operation, work)

    monkeypatch.setattr(store, "read", count)
    got: list[list[int]] = [[] for _ in range(FOLLOWERS)]

    async def follow(numbers: list[int]) -> None:
        async for envelope in client.events(turn.session, 0):
            numbers.append(envelope.seq)  # noqa: PERF401 - looked at while it grows

    tasks = [asyncio.create_task(follow(numbers)) for numbers in got]

    async def all_wait() -> bool:
        return all(got) and reads["events"] >= 2 * FOLLOWERS

    await eventually(all_wait)

    async def look(count: int) -> bool:
        return reads["last_seqs"] >= count

    looks = reads["last_seqs"]
    await eventually(lambda: look(looks + 1))
    before = reads["events"]
    await eventually(lambda: look(looks + 4))
    # One more each for its look at the workflow, which comes ever later, or two where a process was held up.
    assert reads["events"] - before <= 2 * FOLLOWERS
    await client.temporal.get_workflow_handle(turn.session).signal("finish")
    await asyncio.gather(*tasks)
    assert {tuple(numbers) for numbers in got} == {(1, 2)}
