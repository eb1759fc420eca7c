"""PostgreSQL behind PgBouncer in transaction mode: each transaction may go to another of the server's connections."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest

from perdure.contracts.budgets import Spent
from perdure.contracts.turns import CommitTurn, StopReason
from perdure.store import Store
from tests.faults.pooled import pgbouncer_or_skip
from tests.house import WAIT_SECONDS
from tests.postgresql import url_of
from tests.unit.store.given import HELPER, answer, generate, opening

pytestmark = pytest.mark.deep

CLIENTS = 4
TURNS = 8
"""More than a driver waits for before it prepares a statement: five executions."""


@pytest.fixture
async def pooled(postgresql: Any) -> AsyncIterator[str]:
    """The store's address through a real PgBouncer with two connections to the server."""
    async with pgbouncer_or_skip(postgresql) as url:
        yield url


async def turns_of(store: Store, session: str) -> list[StopReason]:
    """The ends of some turns, one after another."""
    ends: list[StopReason] = []
    for number in range(1, TURNS + 1):
        begun = opening(f"message {number}", session=session, request_id=f"r{number}")
        opened = await store.open_turn(begun, HELPER)
        request = generate(opened.tip, turn=opened.turn).model_copy(update={"session": session})
        step = await answer(store, request, f"answer {number}")
        commit = CommitTurn(
            session=session, turn=opened.turn, tip=step.id, stop_reason=StopReason.FINISHED, steps=1, spent=Spent()
        )
        ends.append((await store.commit_turn(commit)).result.stop_reason)
        await store.conversation(step.id)
    return ends


async def test_clients_that_share_a_servers_connections_find_none_of_the_others_statements(pooled: str) -> None:
    """Prepared statements belong to a connection of the server, which the next transaction does not get again."""
    async with asyncio.timeout(WAIT_SECONDS), AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(await Store.open(pooled, upgrade=True)) for _ in range(CLIENTS)]
        ends = await asyncio.gather(*(turns_of(store, f"pooled-{at}") for at, store in enumerate(stores)))
        assert ends == [[StopReason.FINISHED] * TURNS] * CLIENTS
        for at, store in enumerate(stores):
            assert len(await store.transcript(f"pooled-{at}")) == 2 * TURNS


async def test_a_ring_is_heard_behind_the_pool_only_by_who_listens_beside_it(pooled: str, postgresql: Any) -> None:
    """S-47: which ``perdure doctor`` tells; behind the pool alone, the look of each second is what is left."""
    direct = url_of(postgresql)
    async with await Store.open(pooled, upgrade=True, listen_url=direct) as beside:
        assert await beside.doorbell.answers()
    async with await Store.open(pooled) as behind, await Store.open(direct) as writer:
        await writer.open_turn(opening("go", session="behind", request_id="behind"), HELPER)
        with behind.doorbell.follow("behind") as bell:
            assert await bell.wait(0, timedelta(seconds=WAIT_SECONDS))
