"""Admissions on one PostgreSQL: a tenant waits for no other one, and passes its limit through no gateway."""

import asyncio
import threading
from collections import Counter

import pytest
from sqlalchemy import Connection

from perdure.client import ClientError
from perdure.contracts.values import replace
from perdure.gateway.limits import Limits, counted_from
from perdure.gateway.problems import ProblemError
from perdure.settings import Settings
from perdure.store import Store
from perdure.store.admission import Asked, Fresh, OverLimit
from perdure.store.session_lock import take_turns
from tests.unit.store.given import HELPER, commit, opening

AT_ONCE, MOST = 8, 3


def start(tenant: str, session: str) -> Asked:
    return Asked(tenant=tenant, action="start", body="{}", session=session, begins=True, is_named=True, most=MOST)


def send(tenant: str, session: str, *, most: int = MOST) -> Asked:
    return Asked(tenant=tenant, action="send", body="{}", session=session, most=most)


async def make_idle(store: Store, session: str, tenant: str = "") -> None:
    """Begin and end the first turn of a session."""
    asked = opening(session=session)
    asked = replace(asked, request=replace(asked.request, tenant=tenant))
    opened = await store.open_turn(asked, HELPER)
    await store.commit_turn(replace(commit(opened.tip), session=session))


async def test_the_starts_of_two_tenants_do_not_wait_for_each_other(postgresql_url: str) -> None:
    holds, let_go = threading.Event(), threading.Event()

    def hold(connection: Connection) -> None:
        take_turns(connection, "perdure admission slow")
        holds.set()
        let_go.wait(600)

    async with await Store.open(postgresql_url, upgrade=True) as store, await Store.open(postgresql_url) as other:
        holding = asyncio.create_task(other.write("hold", hold))
        try:
            assert await asyncio.to_thread(holds.wait, 120)
            slow = asyncio.create_task(store.admit(start("slow", "s-1")))
            fast = asyncio.create_task(store.admit(start("fast", "f-1")))
            done, _ = await asyncio.wait({slow, fast}, timeout=120, return_when=asyncio.FIRST_COMPLETED)
            assert done == {fast}
            assert isinstance(await fast, Fresh)
        finally:
            let_go.set()
            await holding
        assert isinstance(await slow, Fresh)


async def test_of_starts_at_two_gateways_at_once_as_many_pass_as_the_limit_says(postgresql_url: str) -> None:
    async with await Store.open(postgresql_url, upgrade=True) as one, await Store.open(postgresql_url) as other:
        for tries in range(10):
            asked = [start(f"t-{tries}", f"t-{tries}-{number}") for number in range(AT_ONCE)]
            found = await asyncio.gather(*((one, other)[n % 2].admit(each) for n, each in enumerate(asked)))
            assert Counter(type(each) for each in found) == {Fresh: MOST, OverLimit: AT_ONCE - MOST}
            assert {each.running for each in found if isinstance(each, OverLimit)} == {MOST}


async def test_of_messages_to_idle_sessions_at_two_gateways_as_many_pass_as_the_limit_says(postgresql_url: str) -> None:
    """Until a worker opens such a turn, its session's row says that it has begun."""
    async with await Store.open(postgresql_url, upgrade=True) as one, await Store.open(postgresql_url) as other:
        for tries in range(5):
            for number in range(AT_ONCE):
                await make_idle(one, f"s-{tries}-{number}", tenant=f"t-{tries}")
            asked = [send(f"t-{tries}", f"s-{tries}-{number}") for number in range(AT_ONCE)]
            found = await asyncio.gather(*((one, other)[n % 2].admit(each) for n, each in enumerate(asked)))
            assert Counter(type(each) for each in found) == {Fresh: MOST, OverLimit: AT_ONCE - MOST}


async def test_a_resume_of_many_counts_what_another_gateway_has_begun(postgresql_url: str) -> None:
    limits = Limits(Settings(gateway_max_running=1))
    async with await Store.open(postgresql_url, upgrade=True) as store:
        for session in ("old", "older"):
            await make_idle(store, session, tenant="acme")
        fresh = await store.admit(send("acme", "old", most=1))
        assert isinstance(fresh, Fresh)
        with pytest.raises(ProblemError, match="1 running jobs, as many as it may"):
            async with limits.begin_next(store, "acme", "older"):
                pytest.fail("one runs already")
        with pytest.raises(ClientError):
            async with counted_from(store, "old", fresh.begun_at):
                raise ClientError("Temporal does not answer")
        async with limits.begin_next(store, "acme", "older"):
            pass
        assert isinstance(await store.admit(send("acme", "old", most=1)), OverLimit)
