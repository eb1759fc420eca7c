"""A client that one event loop has used is closed on another."""

import asyncio
from contextlib import AsyncExitStack
from datetime import timedelta

import pytest

from perdure.client import Client
from perdure.lanes.loops import CodeLoop
from perdure.settings import Settings

BOUND = timedelta(seconds=30)
"""Longest wait for what comes in milliseconds."""


async def use(settings: Settings) -> tuple[Client, AsyncExitStack]:
    """A client whose store is followed on this loop."""
    client, following = await Client.connect(settings), AsyncExitStack()
    store = await client.store()
    following.enter_context(store.doorbell.follow("session"))
    await following.enter_async_context(store.live.follow("session"))
    return client, following


async def close(client: Client) -> None:
    async with asyncio.timeout(BOUND.total_seconds()):
        await client.close()
        await client.close()


async def test_a_client_is_closed_on_another_loop_while_its_own_runs(client: Client) -> None:
    """As ``as_mcp`` has it: async tools have a loop of their own, and the server closes what they use on its loop."""
    owner = CodeLoop("tool")
    owner.start()
    try:
        opening = asyncio.run_coroutine_threadsafe(use(client.settings), owner.loop)
        used, following = await asyncio.wrap_future(opening)
        await close(used)
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(following.aclose(), owner.loop))
    finally:
        await asyncio.to_thread(owner.close)


@pytest.mark.parametrize("later", ["the same thread", "another thread"])
async def test_a_client_is_closed_in_a_run_after_the_one_that_opened_it(client: Client, later: str) -> None:
    def first() -> Client:
        return asyncio.run(use(client.settings))[0]

    def both() -> None:
        asyncio.run(close(first()))

    if later == "the same thread":
        await asyncio.to_thread(both)
    else:
        used = await asyncio.to_thread(first)
        await asyncio.to_thread(lambda: asyncio.run(close(used)))
