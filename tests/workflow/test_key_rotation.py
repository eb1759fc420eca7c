"""Keys are introduced and exchanged while jobs run: workers of two deployments are there at once, and no task fails."""

import asyncio
import base64
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import temporalio.client
from temporalio.api.enums.v1 import EventType

from perdure import Agent, ask_user, tool
from perdure.cli.keys import payloads_in
from perdure.client import Client
from perdure.client.connect import make_converter
from perdure.client.encryption import key_id_of
from perdure.contracts.errors import DecryptionError, UnknownKeyError
from perdure.security.keyring import Keyring
from perdure.testing import ChatRequest, Reply, ScriptedProvider, call, say
from tests.house import House, eventually

pytestmark = pytest.mark.deep

K1, K2 = (f"k{number}:{base64.b64encode(bytes(range(number, number + 32))).decode()}" for number in (1, 2))

FAILED = frozenset({EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED, EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED})

AT_ONCE = 3
"""Sessions that take one turn after the other while keys are exchanged."""


@tool
def look(at: str) -> str:
    """Look at something."""
    return f"{at} looks good"


AGENT = Agent(name="tester", model="openai/scripted", tools=[look, ask_user])


def answers(request: ChatRequest) -> Reply:
    """A turn of two steps; one whose prompt says so asks a person, and looks again once it is answered."""
    last = str(request.messages[-1].get("content"))
    if last == "ask":
        return call(("ask_user", {"question": "go on?"}))
    return say("done") if request.messages[-1]["role"] == "tool" and last != "yes" else call(("look", {"at": "it"}))


class Fleet:
    """Two workers, replaced one after the other, and clients that use what is deployed."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.unread: list[UnknownKeyError | DecryptionError] = []
        self.workers: list[AsyncExitStack] = []
        self.client = house.client
        self.turns: Counter[str] = Counter()

    async def connect(self, keys: str | None) -> temporalio.client.Client:
        converter = make_converter(Keyring.parse(keys) if keys else None, failed=self.unread.append)
        return await temporalio.client.Client.connect(self.house.server.address, data_converter=converter)

    async def start_worker(self, keys: str | None) -> None:
        stack = AsyncExitStack()
        await stack.enter_async_context(self.house.worker(AGENT, client=await self.connect(keys)))
        self.workers.append(stack)

    async def deploy(self, keys: str | None) -> None:
        """Replace each worker, the new one beside the old one at first, and then the clients."""
        for old in list(self.workers):
            await self.start_worker(keys)
            self.workers.remove(old)
            await old.aclose()
        self.client = Client(await self.connect(keys), self.house.settings)
        before = dict(self.turns)

        async def are_gone() -> bool:
            """Whether nobody waits with a client of before."""
            return all(self.turns[session] >= count + 2 for session, count in before.items())

        await eventually(are_gone)

    async def take_turns(self, session: str, stopping: asyncio.Event) -> None:
        """One turn after the other, with the keys that are deployed by then."""
        while not stopping.is_set():
            turn = await self.client.start("tester", "go", session=session)
            assert (await turn.result()).output == "done"
            self.turns[session] += 1


@asynccontextmanager
async def running(house: House) -> AsyncIterator[Fleet]:
    fleet = Fleet(house)
    try:
        for _ in range(2):
            await fleet.start_worker(None)
        yield fleet
    finally:
        for worker in fleet.workers:
            await worker.aclose()


async def keys_in(temporal: temporalio.client.Client, session: str) -> list[str | None]:
    """The keys of a history's payloads, in order; none of its tasks has failed."""
    found: list[str | None] = []
    async for event in temporal.get_workflow_handle(session).fetch_history_events():
        assert event.event_type not in FAILED
        assert event.activity_task_started_event_attributes.attempt <= 1
        found.extend(map(key_id_of, payloads_in(event)))
    return found


async def test_keys_are_introduced_and_exchanged_under_load_and_no_task_fails(house: House) -> None:
    """From plain text to a first key, and from that to a second one, with a turn that is open all the time."""
    stopping, lasting = asyncio.Event(), f"{house.session}-lasting"
    async with ScriptedProvider(answers) as provider, running(house) as fleet:
        house.use(provider)
        await fleet.client.start("tester", "ask", session=lasting)
        sessions = [f"{house.session}-{number}" for number in range(AT_ONCE)]
        fleet.turns.update(dict.fromkeys(sessions, 0))
        load = [asyncio.create_task(fleet.take_turns(session, stopping)) for session in sessions]
        for keys in (f"plain,{K1}", K1, f"{K1},{K2}", f"{K2},{K1}"):
            await fleet.deploy(keys)
            assert not any(task.done() for task in load)

        async def asked() -> str | None:
            return next((open_.request_id for open_ in await fleet.client.inbox(lasting)), None)

        await fleet.client.answer(lasting, await eventually(asked), "yes")
        assert (await (await fleet.client.attach(lasting)).result()).output == "done"
        stopping.set()
        await asyncio.gather(*load)
        fleet.turns.clear()
        assert fleet.unread == []
        kept = await keys_in(house.temporal, lasting)
        assert kept[0] is None
        assert kept[-1] == "k2"
        for session in sessions:
            assert set(await keys_in(house.temporal, session)) == {"k2"}
        await fleet.deploy(K2)  # nothing open needs the first key any more
        last = await fleet.client.start("tester", "go", session=f"{house.session}-last")
        assert (await last.result()).output == "done"
        assert fleet.unread == []


async def test_a_turn_whose_key_no_worker_has_waits_for_one_that_has_it(house: House) -> None:
    """A task fails in the meantime, and the turn does not."""
    async with ScriptedProvider(answers) as provider:
        house.use(provider)
        fleet = Fleet(house)
        try:
            await fleet.start_worker(K2)
            client = Client(await fleet.connect(K1), house.settings)
            await client.start("tester", "go", session=house.session)

            async def noticed() -> bool:
                return bool(fleet.unread)

            await eventually(noticed)
            assert fleet.unread[0].key_id == "k1"
            await fleet.deploy(f"{K2},{K1}")
            reader = Client(await fleet.connect(f"{K2},{K1}"), house.settings)
            assert (await (await reader.attach(house.session)).result()).output == "done"
        finally:
            for worker in fleet.workers:
                await worker.aclose()
