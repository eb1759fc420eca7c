"""``perdure follow`` over a restart of the server or the store: one line each way, no event lost or repeated."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent
from perdure.testing import Script, ScriptedProvider, faults, say
from tests.house import WAIT_SECONDS, House, eventually

pytestmark = pytest.mark.deep

AGENT = Agent(name="tester", model="openai/scripted")
HELD = Script(replies=(say("done").after(faults.hang()),))
"""The first call of the model gets no answer; the one after it does."""


class Follower:
    """``perdure follow`` in a process of its own."""

    def __init__(self, process: "subprocess.Popen[bytes]", folder: Path) -> None:
        self.process = process
        self.folder = folder

    def said(self, name: str) -> list[str]:
        return (self.folder / name).read_text().splitlines()

    async def shows(self, name: str, part: str) -> None:
        async def there() -> bool:
            return any(part in line for line in self.said(name))

        await eventually(there)

    async def ends(self) -> int:
        return await asyncio.to_thread(self.process.wait, WAIT_SECONDS)


@contextmanager
def following(house: House) -> Iterator[Follower]:
    command = [sys.executable, "-m", "perdure.cli", "follow", house.session, "--json"]
    with (house.folder / "out").open("wb") as out, (house.folder / "err").open("wb") as err:
        process = subprocess.Popen(command, stdout=out, stderr=err, env=os.environ.copy())
    house.processes.append(process)
    yield Follower(process, house.folder)


def assert_whole(follower: Follower) -> None:
    events: list[dict[str, Any]] = [json.loads(line) for line in follower.said("out")]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert (events[-1]["type"], events[-1]["stop_reason"]) == ("agent_end", "finished")


async def test_a_server_that_is_killed_and_started_again(lasting: House) -> None:
    async with ScriptedProvider(HELD) as provider, lasting.worker(AGENT):
        lasting.use(provider)
        await lasting.start()
        await provider.wait_for_requests(1)
        with following(lasting) as follower:
            await follower.shows("out", "generation_start")
            os.kill(lasting.server.pid or 0, signal.SIGKILL)
            await lasting.server.wait()
            await follower.shows("err", "the Temporal server does not answer")
            await lasting.server.start()
            await provider.refuse()  # the attempt may have outlived the server, and hangs
            await provider.accept()
            assert await follower.ends() == 0
    # On a busy machine the worker may take a while to poll the new server, of which a follower is told rightly.
    assert [line for line in follower.said("err") if "no worker polls" not in line] == [
        "perdure: the Temporal server does not answer; trying again for 60 s",
        "perdure: the Temporal server answers again",
    ]
    assert_whole(follower)


async def test_a_store_that_is_stopped_and_started_again(fleet: House, postgresql: Any) -> None:
    async with ScriptedProvider(HELD) as provider, fleet.worker(AGENT):
        fleet.use(provider)
        handle = await fleet.start()
        await provider.wait_for_requests(1)
        with following(fleet) as follower:
            await follower.shows("out", "generation_start")
            await asyncio.to_thread(postgresql.stop)
            await follower.shows("err", "the transcript store does not answer")
            await asyncio.to_thread(postgresql.ensure_postgres_running)
            await follower.shows("err", "answers again")
            await handle.signal("cancel", {"reason": "enough"})
            assert await follower.ends() == 6
    assert follower.said("err") == [
        "perdure: the transcript store does not answer; trying again for 60 s",
        "perdure: the transcript store answers again",
    ]
    assert json.loads(follower.said("out")[-1])["stop_reason"] == "cancelled"
