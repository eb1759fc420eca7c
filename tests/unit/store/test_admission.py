"""Admissions of turns: of several at once one has the key, one the session, and none passes the tenant's limit."""

import asyncio
from datetime import timedelta

import pytest

from perdure.contracts.blocks import Block
from perdure.contracts.values import replace
from perdure.store import Store, tenants
from perdure.store.admission import Asked, Blocked, Fresh, Known, OverLimit, Taken, Unseen
from tests.unit.store.given import HELPER, STARTED, commit, opening

START = Asked(tenant="acme", action="start", body="{}", session="s", begins=True, is_named=True)
SEND = Asked(tenant="acme", action="send", body="{}", session="s", most=1)


def named(session: str, **fields: object) -> Asked:
    return START.model_copy(update={"session": session, **fields})


async def test_of_two_tenants_that_claim_one_session_at_once_one_has_it(url: str) -> None:
    async with await Store.open(url, upgrade=True) as one, await Store.open(url) as other:
        for number in range(20):
            asked = named(f"s-{number}")
            found = await asyncio.gather(one.admit(asked), other.admit(named(f"s-{number}", tenant="evil")))
            assert sorted(type(each).__name__ for each in found) == ["Fresh", "Taken"]


async def test_of_two_requests_with_one_key_at_once_both_have_one_session_and_one_makes_it(url: str) -> None:
    async with await Store.open(url, upgrade=True) as one, await Store.open(url) as other:
        for number in range(20):
            asked = START.model_copy(update={"session": None, "is_named": False, "stem": "a", "key": f"k-{number}"})
            found = await asyncio.gather(one.admit(asked), other.admit(asked))
            fresh = [each for each in found if isinstance(each, Fresh)]
            assert len(fresh) == 2
            assert {each.session for each in fresh} == {fresh[0].session}
            assert {each.request_id for each in fresh} == {fresh[0].request_id}
            assert sorted(each.claimed for each in fresh) == [False, True]


async def test_of_two_admissions_at_once_none_passes_the_limit(url: str) -> None:
    async with await Store.open(url, upgrade=True) as one, await Store.open(url) as other:
        for number in range(20):
            tenant = f"t-{number}"
            first, second = (named(f"{tenant}-{name}", tenant=tenant, most=1) for name in "ab")
            found = await asyncio.gather(one.admit(first), other.admit(second))
            assert sorted(type(each).__name__ for each in found) == ["Fresh", "OverLimit"]
            refused = next(each for each in found if isinstance(each, OverLimit))
            assert refused.running == 1
            assert await one.tenant_of(refused.session) is None, "what is refused claims no session"


async def test_a_key_says_what_came_of_its_request_and_is_no_other_ones(store: Store) -> None:
    asked = named("s", key="k")
    fresh = await store.admit(asked)
    assert isinstance(fresh, Fresh)
    ticket = await store.note_outcome(fresh, "k", None, "r")
    assert (ticket.session, ticket.turn) == ("s", 1)
    assert await store.admit(asked) == Known(session="s", ticket=ticket)
    assert await store.admit(asked.model_copy(update={"body": "{1}"})) == Taken(session="s", what="key")


@pytest.mark.parametrize("everything", [True, False])
async def test_what_an_operator_blocks_claims_no_session(store: Store, *, everything: bool) -> None:
    block = Block(id=f"bl_{1:016x}", tenant="acme", agent=None if everything else "clerk", created_at=STARTED)
    await store.add_block(block)
    assert isinstance(await store.admit(named("s", agent="clerk")), Blocked)
    assert await store.tenant_of("s") is None


async def test_a_session_that_the_store_does_not_know_is_looked_for_elsewhere_first(store: Store) -> None:
    asked = Asked(tenant="acme", action="send", body="{}", session="s")
    assert await store.admit(asked) == Unseen(session="s")
    looked = asked.model_copy(update={"looked": True, "elsewhere": "evil"})
    assert await store.admit(looked) == Taken(session="s", what="session")
    assert isinstance(await store.admit(looked.model_copy(update={"elsewhere": "acme"})), Fresh)


async def test_an_id_under_which_temporal_runs_another_turn_is_taken(store: Store) -> None:
    assert await store.admit(named("s", runs=True)) == Taken(session="s", what="session")
    assert isinstance(await store.admit(named("s")), Fresh)
    assert isinstance(await store.admit(named("s", runs=True)), Fresh), "its own turn runs"


async def test_an_agent_that_nobody_has_registered_is_told_beside_those_that_are(store: Store) -> None:
    await store.register_agents([HELPER])
    asked = named("s", agent="nobody", knows_agent=False)
    found = await store.admit(asked)
    assert isinstance(found, Fresh)
    assert found.strangers == (HELPER.name,)
    found = await store.admit(named("s", agent=HELPER.name, knows_agent=False))
    assert isinstance(found, Fresh)
    assert found.strangers == ()


async def test_a_turn_that_begins_in_an_old_session_counts_once_and_until_it_has_ended(store: Store) -> None:
    await make_idle(store, "s")
    fresh, again = await store.admit(SEND), await store.admit(SEND)
    assert isinstance(fresh, Fresh)
    assert isinstance(again, Fresh)
    assert fresh.begun_at is not None
    assert again.begun_at is None, "if the second fails, the first still counts"
    assert isinstance(await store.admit(named("other", most=1)), OverLimit)
    asked = opening(session="s", request_id="second")
    opened = await store.open_turn(replace(asked, request=replace(asked.request, tenant="acme")), HELPER)
    assert isinstance(await store.admit(named("other", most=1)), OverLimit)
    await store.commit_turn(replace(commit(opened.tip), session="s", turn=2))
    assert isinstance(await store.admit(named("other", most=1)), Fresh)


async def test_what_no_worker_opens_counts_for_a_time_only(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    await make_idle(store, "s")
    first = await store.admit(SEND)
    assert isinstance(await store.admit(named("other", most=1)), OverLimit)
    monkeypatch.setattr(tenants, "UNOPENED", timedelta(0))
    later = await store.admit(SEND)
    assert isinstance(first, Fresh)
    assert isinstance(later, Fresh)
    assert later.begun_at is not None
    assert first.begun_at is not None
    assert later.begun_at > first.begun_at
    assert isinstance(await store.admit(named("other", most=1)), Fresh)


async def test_without_a_limit_nothing_is_counted(store: Store) -> None:
    await make_idle(store, "s")
    fresh = await store.admit(replace(SEND, most=0))
    assert isinstance(fresh, Fresh)
    assert fresh.begun_at is None
    assert isinstance(await store.admit(named("other", most=1)), Fresh)


async def make_idle(store: Store, session: str) -> None:
    """Begin and end the first turn of a session of the tenant."""
    asked = opening(session=session)
    opened = await store.open_turn(replace(asked, request=replace(asked.request, tenant="acme")), HELPER)
    await store.commit_turn(replace(commit(opened.tip), session=session))
