"""Keys are exchanged with workers in processes of their own: of key store and Temporal, in three steps, under load."""

import asyncio
import base64
from datetime import timedelta
from pathlib import Path

import pytest

from perdure.cli.keys import payloads_in
from perdure.client import Client
from perdure.client.encryption import key_id_of
from perdure.contracts.messages import ToolMessage
from perdure.settings import Settings
from perdure.store.errors import StoreKeyError
from perdure.testing import ChatRequest, Reply, ScriptedProvider, call, say
from tests.house import House, WorkerProcess, eventually
from tests.workflow.killing import AGENTS, lines_of, read
from tests.workflow.test_command_line import perdure
from tests.workflow.test_key_rotation import FAILED

pytestmark = pytest.mark.deep

K1, K2 = (f"k{number}:{base64.b64encode(bytes(range(number, number + 32))).decode()}" for number in (1, 2))
AT_ONCE = 2
MAIN = "tests.workflow.worker_that_forgets"


def answers(request: ChatRequest) -> Reply:
    return say("done") if request.messages[-1]["role"] == "tool" else call(("pay", {}))


class Fleet:
    """Two worker processes, replaced one after the other, and a client that has the keys of the day."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.workers: list[WorkerProcess] = []
        self.clients: list[Client] = []
        self.turns: dict[str, int] = {}

    async def deploy(self, keys: str) -> None:
        """New workers beside the old ones, which drain; then the client. Each session goes on meanwhile."""
        self.house.environment.setenv("PERDURE_ENCRYPTION_KEYS", keys)
        old, self.workers = self.workers, []
        for _ in range(2):
            self.workers.append(self.house.spawn_worker(AGENTS, main=MAIN))
            await self.workers[-1].polling()
            if old:
                assert await old.pop().stop() == 0
        self.clients.append(await Client.connect(Settings()))
        before = dict(self.turns)

        async def have_gone_on() -> bool:
            return all(self.turns[session] >= count + 2 for session, count in before.items())

        await eventually(have_gone_on)

    async def take_turns(self, session: str, stopping: asyncio.Event) -> None:
        while not stopping.is_set():
            turn = await self.clients[-1].start("tester", "go", session=session)
            result = await turn.result()
            assert (result.output, result.error) == ("done", None)
            self.turns[session] += 1


async def test_keys_are_exchanged_while_worker_processes_are_replaced(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No task fails, each tool runs once, all is read without the old key in the end, and the verb says when."""
    monkeypatch.setattr("perdure.client.worker_stores.POLLER_AGE", timedelta(0))
    monkeypatch.setenv("PERDURE_KEY_STORE_URL", f"sqlite:///{tmp_path / 'keys.db'}")
    lines, stopping, fleet = lines_of(house), asyncio.Event(), Fleet(house)
    async with ScriptedProvider(answers) as provider:
        house.use(provider)
        await fleet.deploy(K1)
        fleet.turns = dict.fromkeys([f"{house.session}-{number}" for number in range(AT_ONCE)], 0)
        load = [asyncio.create_task(fleet.take_turns(session, stopping)) for session in fleet.turns]
        await fleet.deploy(f"{K1},{K2}")
        await fleet.deploy(f"{K2},{K1}")
        code, (said,) = await perdure("store", "rewrap")
        assert (code, said) == (0, {"rewrapped": AT_ONCE, "keys": {"k2": AT_ONCE}})
        stopping.set()
        await asyncio.gather(*load)
        total, fleet.turns = sum(fleet.turns.values()), {}
        await fleet.deploy(K2)
        assert len(read(lines)) == len(set(read(lines))) == total
        reader = fleet.clients[-1]
        for number in range(AT_ONCE):
            session = f"{house.session}-{number}"
            results = [m for m in await reader.transcript(session) if isinstance(m, ToolMessage)]
            assert {message.content for message in results} == {"paid"}
            assert (await (await reader.send(session, "again")).result()).output == "done"
            async for event in reader.temporal.get_workflow_handle(session).fetch_history_events():
                assert event.event_type not in FAILED
                assert {key_id_of(payload) for payload in payloads_in(event)} <= {"k2"}
        monkeypatch.setenv("PERDURE_ENCRYPTION_KEYS", K1)
        with pytest.raises(StoreKeyError, match="encrypted with the key 'k2'"):
            await (await Client.connect(Settings())).store()
        for client in fleet.clients:
            await client.close()
