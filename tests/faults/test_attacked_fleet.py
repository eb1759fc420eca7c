"""A tenant attacks another one's jobs on two gateways and two workers over PostgreSQL, in the middle of its work.

The attacker knows all that is public: names of agents, hashes of definitions, ids of the victim's sessions, and how ids
were once derived from these.
"""

import asyncio
import contextlib
import hashlib
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest
import temporalio.client

from perdure import Agent, Delegate, tool
from perdure.client.connect import DATA_CONVERTER
from perdure.contracts.generations import Generate
from perdure.store import NotFoundError
from perdure.store.rows import step_id
from perdure.testing import ChatRequest, Reply, ScriptedProvider, call, say
from tests.gateway import gateway, token_lines
from tests.house import House, eventually

pytestmark = pytest.mark.deep

SECRET = "invoice 4711 of ann"
JOBS = 8


@tool(requires_approval=True)
def pay(what: str) -> str:
    """Pay."""
    return f"paid {what}"


HELPER = Agent(name="helper", model="openai/scripted", instructions="I am helper.", tools=[pay])
LEAD = Agent(
    name="lead", model="openai/scripted", instructions="I am lead.", delegates=[Delegate(HELPER, interactive=True)]
)


def answers(request: ChatRequest) -> Reply:
    """The lead asks its helper, which pays once a person has said yes, and says what it has read."""
    has_result = any(message["role"] == "tool" for message in request.messages)
    if "I am helper" in request.system:
        told = " | ".join(str(message.get("content")) for message in request.messages[1:])
        return say(told) if has_result else call(("pay", {"what": told}))
    return say("done") if has_result else call(("helper", {"query": SECRET}))


def guessed(session: str, definition: str, agent: str = "helper") -> list[str]:
    """Ids that the helper's session might have, as a stranger can compute them."""
    parent = step_id("prompt", session, 1, None, "pay")
    step = Generate(session=session, turn=1, step=1, parent=parent, definition=definition).step_id()
    made = f"call_{step[:16]}_0"
    digests = (hashlib.sha256(f"{session}{mark}{made}".encode()).hexdigest() for mark in ("\n", "", "."))
    ids = [f"{session}.{agent}.{digest[:16]}" for digest in digests]
    return [*ids, f"{session}.{agent}", f"{session}~{agent}~{'0' * 32}", f"{session}.{agent}.{made}"]


@asynccontextmanager
async def besieged(fleet: House) -> AsyncIterator[tuple[httpx.AsyncClient, httpx.AsyncClient]]:
    """The victim at one gateway, and the attacker at the other."""
    lines, tokens = token_lines(ann=("acme", "admin"), eve=("evil", "admin"))
    async with AsyncExitStack() as stack:
        fleet.use(await stack.enter_async_context(ScriptedProvider(answers)))
        second = await temporalio.client.Client.connect(fleet.server.address, data_converter=DATA_CONVERTER)
        for client in (None, second):
            await stack.enter_async_context(fleet.worker(LEAD, HELPER, client=client))
        doors = [await stack.enter_async_context(gateway(fleet, gateway_tokens=lines)) for _ in range(2)]
        ann = await stack.enter_async_context(doors[0].holder(tokens["ann"]))
        eve = await stack.enter_async_context(doors[1].holder(tokens["eve"]))
        yield ann, eve


async def attack(eve: httpx.AsyncClient, sessions: list[str], definition: str) -> Counter[int]:
    """Try each id that each session's helper might have at each door."""
    seen: Counter[int] = Counter()
    for session in sessions:
        for taken in guessed(session, definition):
            sent = [
                eve.post("/v1/sessions", json={"agent": "helper", "prompt": "evil words", "session": taken}),
                eve.post(f"/v1/sessions/{taken}/messages", json={"prompt": "evil words"}),
                eve.post(f"/v1/sessions/{taken}/cancel", json={}),
                eve.post(f"/v1/sessions/{taken}/resume", json={"prompt": "evil words"}),
                eve.get(f"/v1/sessions/{taken}/transcript"),
                eve.get(f"/v1/sessions/{taken}/requests"),
                eve.delete(f"/v1/sessions/{taken}"),
            ]
            for answer in await asyncio.gather(*sent):
                assert SECRET not in answer.text
                seen[answer.status_code] += 1
    return seen


async def approve_all(ann: httpx.AsyncClient, eve: httpx.AsyncClient) -> None:
    """Say yes to each payment; before that the attacker says so, by its exact id."""
    done: set[str] = set()
    async with asyncio.timeout(120):
        while len(done) <= JOBS:
            for item in (await ann.get("/v1/inbox")).json()["items"]:
                place = f"/v1/sessions/{item['session']}/answers/{item['request_id']}"
                assert (await eve.post(place, json={"action": "approve"})).status_code == 404
                assert (await ann.post(place, json={"action": "approve"})).status_code < 300
                done.add(item["session"])
            await asyncio.sleep(0.05)
    assert SECRET not in (await eve.get("/v1/inbox")).text


async def opened(fleet: House, session: str) -> Any:
    with contextlib.suppress(NotFoundError):
        return await fleet.store.turn(session, 1)
    return None


async def test_no_job_of_another_tenant_is_read_steered_or_stopped(fleet: House) -> None:
    """T-03: while it runs, and from each door that the attacker has."""
    async with besieged(fleet) as (ann, eve):
        await ann.post("/v1/sessions", json={"agent": "lead", "prompt": "pay", "session": "earlier"})
        definition = (await eventually(lambda: opened(fleet, "earlier"))).definition
        names = [f"bank-{number}" for number in range(JOBS)]
        attacked = asyncio.create_task(attack(eve, names, definition))
        for name in names:
            started = await ann.post("/v1/sessions", json={"agent": "lead", "prompt": "pay", "session": name})
            assert started.status_code in {202, 409}, started.text
        await approve_all(ann, eve)
        results = [await (await fleet.client.attach(name, 1)).result() for name in names]
        counts = await attacked
    assert {result.stop_reason for result in results} == {"finished"}
    assert counts.total() > 100
    assert not [code for code in counts if code >= 500]
