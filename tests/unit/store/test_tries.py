"""S-86: a retry joins the job of the try before it, once nobody waits for that, and no two join one."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from perdure.contracts.values import replace
from perdure.store import Store, tries
from perdure.store.admission import Asked, Known
from perdure.store.tries import LATELY, SILENT, Joined, Try

FIRST = Try(said="ann says go", number=0, holder="g1")
AGAIN = replace(FIRST, number=1, holder="g2")
UNCOUNTED = replace(FIRST, number=None, holder="g2")


async def begin(store: Store, key: str, one: Try = FIRST) -> None:
    await store.note_alive(one.holder)
    await store.admit(Asked(tenant="acme", action="respond", body="{}", session=key, begins=True, key=key, attempt=one))


async def joined(store: Store, one: Try, after: timedelta = timedelta(0)) -> str | None:
    """The key that a try joins, so long after now: empty while a connection stands, and None without a job."""
    found = await store.write("join", lambda rows: tries.join(rows, one, datetime.now(UTC) + after))
    return None if found is None else found.key


async def test_a_retry_joins_what_ended_and_nothing_that_stands(store: Store) -> None:
    assert await joined(store, AGAIN) is None
    await begin(store, "k1")
    await store.note_alive("g2")
    assert await joined(store, AGAIN) == ""
    assert await joined(store, replace(AGAIN, said="bob says go")) is None
    await store.note_alive("g1", {"k1": False})
    assert await joined(store, UNCOUNTED) is None
    assert await joined(store, AGAIN, LATELY) is None
    assert await joined(store, AGAIN) == "k1"
    assert await joined(store, AGAIN) is None  # as its second first retry; the next one waits for the first
    assert await joined(store, replace(AGAIN, number=2)) == ""
    await store.note_alive("g1", {"k1": False})  # which has not held it since
    assert await joined(store, replace(AGAIN, number=2)) == ""
    await store.note_alive("g2", {"k1": False})
    assert await joined(store, replace(AGAIN, number=2)) == "k1"


async def test_a_retry_of_what_was_refused_begins_a_job_and_takes_nobody_elses(store: Store) -> None:
    await begin(store, "k1")
    await begin(store, "k2", replace(FIRST, holder="g2"))
    await store.note_alive("g1", {"k1": False})
    await store.note_refused("k2")
    await store.note_alive("g2", {"k2": False})
    assert await joined(store, AGAIN) is None
    assert await joined(store, AGAIN) == "k1"
    assert await joined(store, AGAIN) is None


async def test_the_connections_of_a_gateway_that_is_not_heard_of_have_ended(store: Store) -> None:
    await begin(store, "k1")
    assert await joined(store, AGAIN, SILENT - timedelta(seconds=1)) == ""
    assert await joined(store, AGAIN, SILENT + timedelta(seconds=1)) == "k1"


@pytest.mark.parametrize(("told", "within"), [(True, timedelta(0)), (False, timedelta(seconds=30))])
async def test_a_try_that_is_not_counted_joins_what_was_told_to_come_again_or_as_the_operator_says(
    store: Store, told: bool, within: timedelta
) -> None:
    one = replace(UNCOUNTED, within=within)
    await begin(store, "k1", one)
    assert await joined(store, one) == ("" if within else None)
    await store.note_alive("g2", {"k1": told})
    assert await joined(store, one, LATELY + timedelta(seconds=1)) is None
    assert await joined(store, one) == "k1"
    await store.note_alive("g2", {"k1": False})
    assert await joined(store, one) == ("k1" if within else None)


async def test_of_many_that_say_the_same_each_joins_one(url: str) -> None:
    async with await Store.open(url, upgrade=True) as one, await Store.open(url) as other:
        for number in range(6):
            await begin(one, f"k{number}")
        await one.note_alive("g1", {f"k{number}": False for number in range(6)})
        found = await asyncio.gather(*(store.join_try(AGAIN) for _ in range(4) for store in (one, other)))
        keys = [each.key for each in found if each is not None and each.key]
        assert len(keys) == len({*keys}) >= 4
        while (more := await one.join_try(AGAIN)) is not None and more != Joined():
            keys.append(more.key)
        assert sorted(keys) == [f"k{number}" for number in range(6)]


async def test_who_joins_gets_the_ticket_or_begins_what_was_not_begun(store: Store) -> None:
    await begin(store, "k1")
    await store.note_alive("g1", {"k1": False})
    assert await joined(store, AGAIN) == "k1"
    again = Asked(tenant="acme", action="respond", body="{}", session=None, begins=True, key="k1")
    fresh = await store.admit(again)
    assert (fresh.session, isinstance(fresh, Known)) == ("k1", False)
    await store.note_outcome(fresh, "k1", 1, "r1")  # type: ignore[arg-type]
    known = await store.admit(again)
    assert isinstance(known, Known)
    assert (known.ticket.session, known.ticket.turn) == ("k1", 1)
