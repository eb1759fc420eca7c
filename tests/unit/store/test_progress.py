"""How far a running call is stands in the log, as long as it runs, and for the attempt that holds it."""

from perdure.contracts.events import ToolProgress
from perdure.store import Store
from tests.unit.store.given import SESSION, claim, commit, finish, new_event, types
from tests.unit.store.test_ledger import planned


async def report(store: Store, claimant: str, number: int = 1) -> bool:
    progress = ToolProgress(call_id="c1", tool="search", progress=number)
    return await store.report_progress(SESSION, "c1", claimant, new_event(f"{claimant}/{number}", progress))


async def test_the_attempt_that_holds_the_call_may_report(store: Store) -> None:
    await planned(store)
    await claim(store, "w1")

    assert await report(store, "w1")
    assert await report(store, "w1", 2)
    assert await report(store, "w1", 2)

    assert await types(store) == ["agent_start", "tool_start", "tool_progress", "tool_progress"]
    assert [envelope.seq for envelope in await store.events(SESSION)] == [1, 2, 3, 4]


async def test_nobody_reports_before_the_claim_or_after_the_end(store: Store) -> None:
    await planned(store)
    assert not await report(store, "w1")
    await claim(store, "w1")
    await finish(store, "w1")

    assert not await report(store, "w1")

    assert await types(store) == ["agent_start", "tool_start", "tool_end"]


async def test_an_attempt_that_has_lost_the_call_does_not_report(store: Store) -> None:
    await planned(store)
    await claim(store, "zombie")
    await claim(store, "w2", lost="zombie")

    assert not await report(store, "zombie")
    assert await report(store, "w2")


async def test_nothing_is_reported_after_the_end_of_the_turn(store: Store) -> None:
    tip = await planned(store)
    await claim(store, "w1")
    await store.commit_turn(commit(tip, call_ids=["c1"]))
    before = await store.events(SESSION)

    assert not await report(store, "w1")

    assert await store.events(SESSION) == before
