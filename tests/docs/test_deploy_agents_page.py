"""Each statement of docs/upgrades.md on a new version of an agent, tried in its order with old and new workers."""

import asyncio
import json
from functools import partial
from typing import Any

import pytest

from perdure import Agent, ask_user, tool
from perdure.client import Turn
from perdure.client.connect import connect
from perdure.contracts.waits import Cause, TurnWait
from perdure.testing import ChatRequest, Reply, ScriptedProvider, call, say
from tests.house import WAIT_SECONDS, House, eventually
from tests.workflow.asking import results
from tests.workflow.test_people_doors import perdure

pytestmark = pytest.mark.deep


@tool
def price(item: str) -> str:
    """Tell the price."""
    return f"{item} by the old body"


@tool(name="price")
def new_price(item: str) -> str:
    """Tell the price in euros."""
    return f"{item} by the new body"


@tool
def weigh(item: str) -> str:
    """Weigh it."""
    return f"{item} on the old scales"


@tool(name="weigh")
def new_weigh(item: str, unit: str) -> str:
    """Weigh it."""
    return f"{item} in {unit}"


OLD = Agent(name="clerk", model="openai/old", instructions="Old.", tools=[ask_user, price, weigh], max_steps=3)
NEW = Agent(name="clerk", model="openai/new", instructions="New.", tools=[ask_user, new_price, new_weigh], max_steps=1)


def answer(request: ChatRequest) -> Reply:
    """Ask a person, then call both tools, then end."""
    if "New." in request.system:
        return say("new")
    item = call(("price", {"item": "tea"}), ("weigh", {"item": "tea"}))
    return (call(("ask_user", {"question": "Go on?"})), item, say("old"))[request.index]


async def asked(turn: Turn) -> str:
    (request,) = await eventually(turn.requests)
    found: str = request.request_id
    return found


async def needs_version() -> set[str]:
    """The sessions that ``perdure list --needs-version`` names."""
    code, printed, errors = await perdure("list", "--needs-version", "--json")
    assert code == 0, errors
    return {json.loads(line)["session"] for line in printed.splitlines()}


async def ended(turn: Turn) -> Any:
    async with asyncio.timeout(WAIT_SECONDS):
        return await turn.result()


async def test_each_statement_of_the_page_is_so(house: House) -> None:
    client, kept, dropped = house.client, house.session, f"{house.session}-2"
    async with ScriptedProvider(answer) as provider:
        house.use(provider)
        async with house.worker(OLD):
            turns = [await client.start("clerk", "go", session=session) for session in (kept, dropped)]
            requests = [await asked(turn) for turn in turns]

        async with house.worker(NEW):  # the old ones were stopped
            for turn, request in zip(turns, requests, strict=True):
                await client.answer(turn.session, request, "yes", by="ann")

            async def stands(turn: Turn) -> TurnWait | None:
                wait = await turn.waits_for()
                return wait if wait is not None and wait.cause is Cause.VERSION and wait.next_at is not None else None

            for turn in turns:
                wait = await eventually(partial(stands, turn))
                assert wait.missing is not None
                assert wait.text == "no worker has tool 'weigh' with the arguments of this version of agent 'clerk'"
                assert wait.since is not None
            assert await needs_version() == {kept, dropped}
            sent = [(asked.request.model, asked.request.system) for asked in provider.requests]
            assert set(sent) == {("old", "Old.")}  # the frozen definition, also on the new worker
            await client.cancel(dropped, "needs the old version")
            assert (await ended(turns[1])).stop_reason == "cancelled"

            beside = await connect(address=house.server.address)
            async with house.worker(OLD, client=beside):  # an old worker is started again: the turn goes on by itself
                result = await ended(turns[0])
        assert (result.stop_reason, result.output, result.steps) == ("finished", "old", 3)
        told = results(provider.requests[-1].request.messages)
        assert told == ["yes", "tea by the new body", "tea on the old scales"]  # a body is not frozen

        async with house.worker(NEW):  # a new version counts from the next turn on
            result = await ended(await client.send(kept, "again"))
        assert (result.output, provider.requests[-1].request.model) == ("new", "new")
        assert "unit" in json.dumps(provider.requests[-1].body)
