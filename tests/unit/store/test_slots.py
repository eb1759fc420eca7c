"""Slots: no more turns of an agent or a tenant are open than may, and those that wait have an order."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from perdure.contracts.budgets import Spent
from perdure.contracts.turns import CommitTurn, Continuation, OpenTurn, StopReason
from perdure.contracts.values import replace
from perdure.store import ClaimedTurn, Store
from perdure.store.slots import STALE, InTheWay, NoSlotError, SlotLimit, SlotWait
from tests.unit.store.given import HELPER, LATER, STARTED, delegate_opening

ONE = SlotLimit(of="agent", name="helper", most=1)
ACME = SlotLimit(of="tenant", name="acme", most=1)


def opening(session: str, tenant: str = "", *, request_id: str = "r", at: datetime = STARTED) -> OpenTurn:
    request = Continuation(prompt="go", agent="helper", tenant=tenant)
    return OpenTurn(session=session, request=request, request_id=request_id, run_started_at=at)


async def ask(store: Store, asked: OpenTurn, *limits: SlotLimit, priority: int = 3) -> SlotWait | None:
    return await store.ask_for_slot(asked, "helper", limits, priority)


async def take(store: Store, asked: OpenTurn, *limits: SlotLimit) -> ClaimedTurn:
    return await store.open_turn(asked, HELPER, limits=limits)


async def end(store: Store, session: str, claimed: ClaimedTurn) -> None:
    await store.commit_turn(
        CommitTurn(
            session=session,
            turn=claimed.turn,
            tip=claimed.tip,
            stop_reason=StopReason.FINISHED,
            steps=0,
            spent=Spent(),
        )
    )


async def rows(store: Store) -> Sequence[str]:
    return [turn.session for turn in reversed(await store.queued_turns())]


async def test_a_turn_waits_for_the_slot_of_another_and_gets_it_when_that_one_ends(store: Store) -> None:
    first = await take(store, opening("a"), ONE)
    wait = await ask(store, opening("b"), ONE)
    assert wait is not None
    assert str(wait) == "queued: 1 turn runs of agent 'helper', whose limit is 1 (max_running); 0 wait before it"
    with pytest.raises(NoSlotError):
        await take(store, opening("b"), ONE)
    assert await rows(store) == ["b"]
    await end(store, "a", first)
    assert await ask(store, opening("b"), ONE) is None
    assert (await take(store, opening("b"), ONE)).turn == 1
    assert await rows(store) == []


async def test_who_came_first_goes_first_and_a_second_slot_is_not_held_up_by_one_that_waits(store: Store) -> None:
    held = [await take(store, opening(name), ONE) for name in ("a",)]
    for name in ("b", "c", "d"):
        assert await ask(store, opening(name), ONE) is not None
    await end(store, "a", held[0])
    later = await ask(store, opening("d"), ONE)
    assert later is not None
    assert str(later) == "queued: 0 of 1 turns of agent 'helper' run (max_running); 2 wait before it"
    with pytest.raises(NoSlotError):
        await take(store, opening("new"), ONE)
    two = replace(ONE, most=2)
    assert await ask(store, opening("c"), two) is None, "b and c are the first two of two slots"
    assert await ask(store, opening("b"), two) is None
    assert await ask(store, opening("d"), two) is not None


async def test_a_lower_priority_key_goes_first(store: Store) -> None:
    held = await take(store, opening("a"), ONE)
    for name, priority in (("late", 5), ("usual", 3), ("first", 1)):
        assert await ask(store, opening(name), ONE, priority=priority) is not None
    await end(store, "a", held)
    assert await ask(store, opening("usual"), ONE) is not None
    assert await ask(store, opening("first"), ONE, priority=1) is None


async def test_a_limit_that_is_raised_counts_at_the_next_try(store: Store) -> None:
    await take(store, opening("a"), ONE)
    assert await ask(store, opening("b"), ONE) is not None
    assert await ask(store, opening("b"), replace(ONE, most=2)) is None
    await store.leave_queue("b")
    assert await rows(store) == []


async def test_a_turn_that_its_tenant_holds_up_does_not_hold_up_others_of_the_agent(store: Store) -> None:
    agents = replace(ONE, most=2)
    await take(store, opening("a", "acme"), agents, ACME)
    for name in ("b", "c"):
        wait = await ask(store, opening(name, "acme"), agents, ACME)
        assert wait is not None
        assert wait.limit == ACME
        assert "tenant 'acme', whose limit is 1 (PERDURE_TENANT_MAX_RUNNING)" in str(wait)
    assert (await take(store, opening("d", "other"), agents)).turn == 1
    assert await ask(store, opening("e", "other"), agents) is not None


async def test_delegates_hold_no_slot(store: Store) -> None:
    caller = await take(store, opening("a"), ONE)
    await take(store, delegate_opening(caller, "call", session="a"))
    two = replace(ONE, most=2)
    assert (await take(store, opening("b"), two)).turn == 1


async def test_a_sessions_own_turn_that_was_cut_off_is_not_in_its_way_and_in_nobodys_once_it_waits(
    store: Store,
) -> None:
    await take(store, opening("a"), ONE)
    again = opening("a", request_id="r2", at=LATER)
    assert await ask(store, opening("b"), ONE) is not None
    assert (await ask(store, again, ONE)) is not None, "b came before"
    assert await ask(store, opening("b"), ONE) is None, "the open turn of a is of a run that has ended"
    await store.leave_queue("b")
    assert (await take(store, again, ONE)).turn == 2


async def test_a_turn_that_nobody_asks_for_any_more_holds_up_nobody(store: Store) -> None:
    first = await take(store, opening("a"), ONE)
    await ask(store, opening("gone"), ONE)
    await ask(store, opening("b"), ONE)
    await end(store, "a", first)
    assert await ask(store, opening("b"), ONE) is not None
    old = text("UPDATE queued_turns SET seen_at = :at WHERE session = 'gone'")
    await store.write("age", lambda c: c.execute(old, {"at": (datetime.now(UTC) - STALE - timedelta(seconds=1))}))
    assert await ask(store, opening("b"), ONE) is None
    assert await rows(store) == ["b"]


async def test_what_is_in_the_way_is_found_a_few_at_a_time_and_freed_when_it_is_gone(store: Store) -> None:
    limit = replace(ONE, most=4)
    for number in range(4):
        await take(store, opening(f"s{number}", at=STARTED + timedelta(seconds=number)), limit)
    wait = await ask(store, opening("b"), limit)
    assert wait is not None
    assert wait.is_near
    seen = [[other.session for other in await store.find_in_the_way("b", wait, attempt)] for attempt in (1, 2, 3)]
    assert seen == [["s0", "s1", "s2"], ["s3"], ["s2", "s3"]]
    (oldest, *_) = await store.find_in_the_way("b", wait, 1)
    assert await store.free_slot(oldest)
    assert not await store.free_slot(oldest)
    turn = await store.turn("s0", 1)
    assert turn.result is not None
    assert (turn.result.stop_reason, turn.result.reason_code) == ("error", "runtime.turn_closed")
    assert await ask(store, opening("b"), limit) is None
    assert await ask(store, opening("c"), limit) is not None
    behind = await ask(store, opening("c"), limit)
    assert behind is not None
    assert await store.find_in_the_way("c", behind, 1) == (InTheWay(session="b", turn=None, run_started_at=STARTED),)
    assert not await store.free_slot(InTheWay(session="b", turn=None, run_started_at=LATER))
    assert await store.free_slot(InTheWay(session="b", turn=None, run_started_at=STARTED))
    assert await ask(store, opening("c"), limit) is None


async def test_two_processes_never_both_take_the_last_slot(store: Store, url: str) -> None:
    limits = (replace(ONE, most=3), replace(ACME, most=5))
    async with await Store.open(url) as other:

        async def attempt(number: int) -> bool:
            try:
                await take([store, other][number % 2], opening(f"s{number}", "acme"), *limits)
            except NoSlotError:
                return False
            return True

        taken = await asyncio.gather(*map(attempt, range(20)))
    assert sum(taken) == 3


async def test_a_turn_in_the_queue_is_its_own_sessions_next_one(store: Store) -> None:
    await end(store, "a", await take(store, opening("a"), ONE))
    await take(store, opening("b"), ONE)
    for session in ("a", "c"):
        await ask(store, opening(session, request_id="later"), ONE)
    assert [(turn.session, turn.turn) for turn in await store.queued_turns()] == [("c", 1), ("a", 2)]
