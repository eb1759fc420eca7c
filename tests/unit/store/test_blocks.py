"""Blocks in the store: the claim of a turn meets them in its own transaction, on both databases."""

import asyncio
import threading
from collections.abc import AsyncIterator, Collection
from datetime import UTC, datetime

import pytest
from sqlalchemy import Connection, Engine, create_engine, event, text

from perdure.contracts.agents import AgentDefinition, Compaction
from perdure.contracts.blocks import Block, BlockRequest
from perdure.contracts.retries import Fallback
from perdure.contracts.values import replace
from perdure.store import NotFoundError, Store
from perdure.store import blocks as blocks_of_store
from perdure.store.database import Address
from perdure.store.errors import TurnBlockedError
from perdure.store.records import MeantTurn
from tests.unit.store.given import HELPER, open_turn, opening

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def block(number: int = 1, *, agent: str | None = None, tenant: str | None = None, model: str | None = None) -> Block:
    return Block(id=f"bl_{number:016x}", agent=agent, tenant=tenant, model=model, by="ann", reason="x", created_at=NOW)


def meant(session: str, agent: str) -> MeantTurn:
    return MeantTurn(session=session, turn=1, agent=agent)


async def test_a_block_refuses_the_claims_that_it_means_and_no_others(store: Store) -> None:
    """An agent, a tenant and a model each; of several filters, all have to fit; the lift lets turns begin again."""
    many = replace(
        HELPER, name="many", fallback_models=(Fallback(model="b/two"),), compaction=Compaction(model="c/three")
    )
    acme = opening(session="acme")
    acme = replace(acme, request=replace(acme.request, tenant="acme"))
    cases = (
        (block(1, agent="helper"), HELPER, acme, True),
        (block(2, agent="many"), HELPER, acme, False),
        (block(3, tenant="acme"), HELPER, acme, True),
        (block(4, tenant=""), HELPER, acme, False),
        (block(5, model="test/model"), HELPER, acme, True),
        (block(6, model="b/two"), many, acme, True),
        (block(7, model="c/three"), many, acme, True),
        (block(8, model="b/two"), HELPER, acme, False),
        (block(9), HELPER, acme, True),
        (block(10, agent="helper", tenant="acme", model="test/model"), HELPER, acme, True),
        (block(11, agent="helper", tenant="other"), HELPER, acme, False),
    )
    for number, (given, definition, asked, refused) in enumerate(cases):
        await store.add_block(given)
        mine = replace(asked, session=f"s{number}")
        if refused:
            with pytest.raises(
                TurnBlockedError, match=rf"blocked by ann since 2026-01-02.*: x; lift .*unblock {given.id}"
            ):
                await store.open_turn(mine, definition)
            with pytest.raises(NotFoundError):  # nothing of it stands in the store
                await store.session(mine.session)
        assert await store.lift_block(given.id, by="bob")
        assert (await store.open_turn(mine, definition)).first


async def test_a_turn_that_is_open_is_found_again_by_every_attempt(store: Store) -> None:
    """The retry of an opening, and the block of one tenant for a turn of a session of another."""
    first = await open_turn(store)
    await store.add_block(block())
    again = await open_turn(store)
    assert (again.turn, again.first, again.store) == (first.turn, False, store.id)
    with pytest.raises(TurnBlockedError):
        await open_turn(store, request_id="r2")


async def test_the_rows_are_the_audit_trail(store: Store) -> None:
    """The same block twice is one; a lift stands with its name, and comes once."""
    first = await store.add_block(block(1, agent="helper"))
    assert await store.add_block(block(2, agent="helper")) == first
    second = await store.add_block(block(3, agent="helper", tenant=""))
    assert await store.blocks() == (first, second)
    assert [await store.lift_block(first.id, by=who) for who in ("bob", "eve")] == [True, False]
    (lifted, _) = await store.blocks(lifted=True)
    assert (lifted.lifted_by, lifted.by, lifted.lifted_at is not None) == ("bob", "ann", True)
    assert await store.blocks() == (second,)
    assert (await store.add_block(block(4, agent="helper"))).id == block(4).id
    with pytest.raises(NotFoundError, match="no block 'bl_"):
        await store.lift_block(block(9).id, by="bob")


async def test_a_tenant_sees_and_lifts_its_own_blocks_alone(store: Store) -> None:
    mine, others, all_ = block(1, tenant="acme"), block(2, tenant=""), block(3)
    for each in (mine, others, all_):
        await store.add_block(each)
    assert await store.blocks(tenant="acme") == (mine,)
    for foreign in (others, all_):
        with pytest.raises(NotFoundError):
            await store.lift_block(foreign.id, by="eve", tenant="acme")
    assert await store.lift_block(mine.id, by="ann", tenant="acme")


async def test_a_door_finds_the_block_that_a_turn_would_meet(store: Store) -> None:
    other = AgentDefinition(name="other", model="b/two", fallback_models=(Fallback(model="c/three"),))
    await store.register_agents([HELPER, other])
    await open_turn(store)
    assert await store.find_block("", "s") is None
    await store.add_block(block(1, model="test/model"))
    await store.add_block(block(2, agent="other", tenant="acme"))
    for tenant, session, agent, model, found in (
        ("", "s", None, None, 1),
        ("", "new", "helper", None, 1),
        ("", "new", "other", None, 0),
        ("acme", "new", "other", None, 2),
        ("", "new", "other", "test/model", 1),
        ("", "new", "helper", "b/two", 0),
        ("", "nobody", None, None, 0),
        ("", "new", "unknown", None, 0),
    ):
        met = await store.find_block(tenant, session, agent, model)
        assert (met.id if met else None) == (block(found).id if found else None), (tenant, session, agent, model)
    assert await store.blocked_agents(block(model="c/three")) == ("other",)
    assert await store.blocked_agents(block(tenant="acme")) == ("helper", "other")


async def test_the_open_turns_that_a_block_means(store: Store) -> None:
    await open_turn(store, session="a")
    await store.open_turn(opening(session="b"), replace(HELPER, name="other", model="b/two"))
    a, b = meant("a", "helper"), meant("b", "other")
    for given, found in (
        (block(), {a, b}),
        (block(agent="other"), {b}),
        (block(tenant="acme"), set()),
        (block(tenant="", model="test/model"), {a}),
    ):
        assert {*await store.blocked_turns(given)} == found


@pytest.fixture
async def second(store: Store, url: str) -> AsyncIterator[Store]:
    """Another process's store, at the same database."""
    async with await Store.open(url) as opened:
        yield opened


async def test_a_block_waits_for_the_claims_that_have_not_seen_it(
    store: Store, second: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim that has looked and not committed: the block stands only once that turn can be found and cancelled."""
    looked, go_on = threading.Event(), threading.Event()
    require = blocks_of_store.require_unblocked

    def slow(connection: Connection, definition: AgentDefinition, tenants: Collection[str]) -> str:
        found = require(connection, definition, tenants)
        looked.set()
        assert go_on.wait(60)
        return found

    monkeypatch.setattr("perdure.store.open_turn.require_unblocked", slow)
    claim = asyncio.create_task(open_turn(store))
    await asyncio.to_thread(looked.wait, 60)
    blocking = asyncio.create_task(second.add_block(block()))
    await _waits_for_lock(second)
    assert not blocking.done()
    go_on.set()
    assert (await claim).first
    await blocking
    assert await second.blocked_turns(block()) == (meant("s", "helper"),)


async def _waits_for_lock(store: Store) -> None:
    """Until PostgreSQL says that somebody waits; SQLite has no such list, and lets its second writer wait by itself."""
    if store.public_url.startswith("sqlite"):
        return
    query = text("SELECT count(*) FROM pg_locks WHERE NOT granted AND mode = 'ExclusiveLock'")
    async with asyncio.timeout(60):
        while not await store.read("waits", lambda connection: connection.scalar(query)):
            await asyncio.sleep(0.01)


async def test_no_claim_escapes_a_block_that_is_written_meanwhile(store: Store, second: Store) -> None:
    """Two processes claim as fast as they can: each turn is open when the block stands, or was refused."""

    async def claim(which: Store, session: str) -> bool:
        try:
            await open_turn(which, session=session)
        except TurnBlockedError:
            return False
        return True

    sessions = [f"s{number}" for number in range(60)]
    claims = [asyncio.create_task(claim(store if n % 2 else second, name)) for n, name in enumerate(sessions)]
    while not any(task.done() for task in claims):
        await asyncio.sleep(0)
    await second.add_block(block())
    seen = {turn.session for turn in await second.blocked_turns(block())}
    opened = {name for name, task in zip(sessions, claims, strict=True) if await task}
    assert seen == opened


async def test_a_claim_costs_no_statement_more(url: str) -> None:
    """The look at the blocks is the statement that reads the store's id."""
    async with await Store.open(url, upgrade=True) as store:
        await open_turn(store, session="warm")
        for session in ("new", "warm"):
            counted: list[str] = []

            def note(_: object, __: object, statement: str, *___: object, counted: list[str] = counted) -> None:
                counted.append(statement)

            event.listen(store._database.engine, "before_cursor_execute", note)
            await open_turn(store, session=session, request_id="r2")
            event.remove(store._database.engine, "before_cursor_execute", note)
            assert sum("identity" in statement for statement in counted) == 1, counted
            assert sum("blocks" in statement for statement in counted) == 1
            assert all("identity" in statement for statement in counted if "blocks" in statement)


async def test_readers_hold_up_no_block(url: str) -> None:
    """A backup reads for hours."""
    async with await Store.open(url, upgrade=True) as store:
        engine: Engine = create_engine(Address(url).url)
        with engine.begin() as reader:
            assert reader.execute(text("SELECT count(*) FROM blocks")).scalar_one() == 0
            async with asyncio.timeout(60):
                await store.add_block(block())
        engine.dispose()


@pytest.mark.parametrize("wrong", [{}, {"agent": ""}, {"agent": "a", "everything": True}, {"reason": "x" * 201}])
def test_a_block_without_a_meaning_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"agent|reason"):
        BlockRequest.model_validate(wrong)
