"""The event log: one gapless sequence per session, however many write."""

import asyncio
import uuid
from itertools import pairwise

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perdure.contracts.events import UserMessageReceived
from perdure.store import Store
from tests.unit.store.given import SESSION, answer, claim, finish, generate, new_event, open_turn, types, wish

WRITERS = 8

batches = st.lists(st.lists(st.integers(min_value=0, max_value=11), max_size=4), min_size=1, max_size=10)


async def test_concurrent_writers_leave_no_gap_and_no_duplicate(store: Store) -> None:
    """S-46: sequence numbers are gapless and increasing per session."""
    await open_turn(store)

    await asyncio.gather(
        *(store.append_events(SESSION, [new_event(f"{writer}/{n}") for n in range(5)]) for writer in range(WRITERS))
    )

    events = await store.events(SESSION)
    assert [envelope.seq for envelope in events] == list(range(1, 5 * WRITERS + 2))
    assert all(earlier.at <= later.at for earlier, later in pairwise(events))
    assert (await store.session(SESSION)).last_seq == len(events)


async def test_two_stores_on_one_database_share_the_sequence(store: Store, url: str) -> None:
    """S-46: also between processes, which have nothing in common but the database."""
    await open_turn(store)
    async with await Store.open(url) as other:
        await asyncio.gather(
            *((store, other)[n % 2].append_events(SESSION, [new_event(f"{n}")]) for n in range(2 * WRITERS))
        )

    assert [envelope.seq for envelope in await store.events(SESSION)] == list(range(1, 2 * WRITERS + 2))


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batches=batches)
async def test_whatever_is_written_twice_the_sequence_is_gapless(store: Store, batches: list[list[int]]) -> None:
    """S-46: no duplicates after a replay, which writes the same keys again in another order."""
    session = uuid.uuid4().hex
    await open_turn(store, session=session)

    await asyncio.gather(
        *(store.append_events(session, [new_event(f"key {key}") for key in batch]) for batch in batches)
    )

    events = await store.events(session)
    assert [envelope.seq for envelope in events] == list(range(1, len(events) + 1))
    written = [envelope.event.content for envelope in events if isinstance(envelope.event, UserMessageReceived)]
    assert sorted(written) == sorted({f"key {key}" for batch in batches for key in batch})


async def test_an_event_of_a_known_key_uses_up_no_number(store: Store) -> None:
    await open_turn(store)
    await store.append_events(SESSION, [new_event("a"), new_event("b"), new_event("a")])

    await store.append_events(SESSION, [new_event("b"), new_event("c")])

    found = [(envelope.seq, envelope.event.type) for envelope in await store.events(SESSION, after=1)]
    assert found == [(2, "user_message"), (3, "user_message"), (4, "user_message")]


async def test_sessions_are_numbered_apart(store: Store) -> None:
    await open_turn(store, session="a")
    await open_turn(store, session="b")

    assert [(await store.session(name)).last_seq for name in ("a", "b")] == [1, 1]


async def test_parallel_calls_of_one_step_are_each_recorded(store: Store) -> None:
    opened = await open_turn(store)
    wishes = [wish(f"c{n}") for n in range(WRITERS)]
    await answer(store, generate(opened.tip), calls=wishes)

    async def run(call_id: str) -> bool:
        await claim(store, call_id, call_id=call_id)
        return await finish(store, call_id, call_id=call_id)

    assert all(await asyncio.gather(*(run(call.call_id) for call in wishes)))
    assert sorted(await types(store)) == ["agent_start"] + ["tool_end"] * WRITERS + ["tool_start"] * WRITERS


async def test_one_of_many_claimants_runs_a_tool_that_is_not_safe_to_repeat(store: Store) -> None:
    opened = await open_turn(store)
    await answer(store, generate(opened.tip), calls=[wish()])

    claims = await asyncio.gather(*(claim(store, f"w{n}") for n in range(WRITERS)))

    assert sorted(found.state for found in claims) == ["free"] + ["uncertain"] * (WRITERS - 1)


async def test_one_of_many_identical_requests_opens_the_turn(store: Store) -> None:
    opened = await asyncio.gather(*(open_turn(store) for _ in range(WRITERS)))

    assert sorted(opening.first for opening in opened) == [False] * (WRITERS - 1) + [True]
    assert {(opening.turn, opening.tip) for opening in opened} == {(1, opened[0].tip)}
