"""A store that one event loop has used is closed on any other, whatever has become of the first: nothing hangs."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest

from perdure.lanes.loops import CodeLoop
from perdure.store import Store, attendant, doorbell, live
from perdure.store.doorbell import Bell
from tests.house import eventually
from tests.unit.store.given import SESSION, open_turn

BOUND = 30.0
"""Longest wait for what comes in milliseconds."""

OURS = ("perdure-doorbell", "perdure-live")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doorbell, "LOOK_EVERY", timedelta(milliseconds=100))
    monkeypatch.setattr(doorbell, "TRY_EVERY", timedelta())
    monkeypatch.setattr(live, "LOOK_EVERY", timedelta(milliseconds=100))


@pytest.fixture
def owner() -> Iterator[CodeLoop]:
    """An event loop that runs in a thread of its own."""
    loop = CodeLoop("owner")
    loop.start()
    yield loop
    loop.close()


async def use(url: str) -> tuple[Store, Bell, AsyncExitStack]:
    """A store that this loop follows, until it listens for events and for pieces of answers."""
    stack, store = AsyncExitStack(), await Store.open(url)
    await open_turn(store)
    bell = stack.enter_context(store.doorbell.follow(SESSION))
    await stack.enter_async_context(store.live.follow(SESSION))
    await eventually(lambda: heard(bell))
    return store, bell, stack


async def heard(bell: Bell) -> bool:
    return bell.last_seq > 0


async def close(store: Store) -> None:
    async with asyncio.timeout(BOUND):
        await store.close()


async def attending() -> list[str]:
    """Names of the store's tasks that this loop still has."""
    await asyncio.sleep(0)
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name() in OURS]


def run_apart(work: Callable[[], Any]) -> Any:
    """Run on a thread without an event loop, as the tests' own loop may stand still but must not be replaced."""
    came: list[Any] = []
    thread = threading.Thread(target=lambda: came.append(work()), daemon=True)
    thread.start()
    thread.join(2 * BOUND)
    return came[0]


async def test_a_store_is_closed_while_the_loop_that_follows_runs_in_another_thread(url: str, owner: CodeLoop) -> None:
    store, bell, stack = await on(owner, use(url))
    waiting = asyncio.run_coroutine_threadsafe(bell.wait(1_000, timedelta(seconds=BOUND)), owner.loop)
    await close(store)
    assert await on(owner, attending()) == []
    assert not waiting.done()
    owner.loop.call_soon_threadsafe(bell.note, 1_000)
    owner.loop.call_soon_threadsafe(setattr, bell, "rung", 1_001)
    assert await asyncio.wrap_future(waiting)
    await on(owner, stack.aclose())
    await close(store)  # once more


async def on(owner: CodeLoop, work: Any) -> Any:
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, owner.loop))


@pytest.mark.parametrize("end", ["stop", "close"])
def test_a_store_is_closed_after_the_loop_that_followed_has_ended_without_ending_its_tasks(url: str, end: str) -> None:
    def work() -> list[str]:
        first = asyncio.new_event_loop()
        store, _, stack = first.run_until_complete(use(url))
        if end == "close":
            first.close()
            asyncio.run(follow_again(store))
        asyncio.run(close(store))
        asyncio.run(close(store))
        if end == "close":
            return []
        left: list[str] = first.run_until_complete(attending())
        first.run_until_complete(stack.aclose())
        first.close()
        return left

    assert run_apart(work) == []


def test_a_store_is_closed_in_the_run_after_the_one_that_opened_it_and_used_again_before(url: str) -> None:
    def work() -> bool:
        store, _, stack = asyncio.run(use(url))
        asyncio.run(follow_again(store))
        asyncio.run(leave_and_close(store, stack))
        return True

    assert run_apart(work)


async def follow_again(store: Store) -> None:
    """Follow until both tasks have looked for news on this loop, and go on."""
    with store.doorbell.follow("another") as bell:
        async with store.live.follow("another"):
            await open_turn(store, session="another", request_id="r2")
            await eventually(lambda: heard(bell))
            await asyncio.sleep(0)
            assert sorted(await attending()) == sorted(OURS)


async def leave_and_close(store: Store, stack: AsyncExitStack) -> None:
    async with stack:
        await close(store)


async def test_a_store_is_closed_on_its_own_loop_and_a_second_time(url: str) -> None:
    store, _, stack = await use(url)
    await close(store)
    assert await attending() == []
    await close(store)
    await stack.aclose()


async def test_a_loop_that_stands_still_until_the_close_holds_the_close_up_for_a_bounded_time_only(
    url: str, owner: CodeLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for the very close that would wait for it."""
    monkeypatch.setattr(attendant, "END_TIMEOUT", timedelta(milliseconds=50))
    here = asyncio.get_running_loop()
    store, _, stack = await on(owner, use(url))

    async def wait_for_the_close() -> None:
        asyncio.run_coroutine_threadsafe(close(store), here).result(BOUND)

    await on(owner, wait_for_the_close())
    await eventually(lambda: none_left(owner))
    await on(owner, stack.aclose())


async def none_left(owner: CodeLoop) -> bool:
    return not await on(owner, attending())
