"""Followers that are cut off at random, over a killed worker, rotations and turns, miss nothing and repeat nothing."""

import asyncio
import contextlib
import json
import os
import random
import sys
from contextlib import aclosing

import httpx
import pytest

from perdure.client import Client
from perdure.testing import Script, ScriptedProvider, call, say
from tests.gateway import gateway
from tests.house import House
from tests.sse import follow
from tests.workflow.killing import lines_of, result_of, worker
from tests.workflow.rotation.rotations import rotated

pytestmark = [pytest.mark.deep, pytest.mark.timeout(240)]

STEPS = 16
TURNS = 3
CUTS = 100
TURN = [call(("put", {})) for _ in range(STEPS)]


class Reader:
    """Keeps the numbers that came, and decides at random when it is cut off."""

    def __init__(self, seed: int, most: int) -> None:
        self._random = random.Random(seed)
        self._most = most
        self.seen: list[int] = []
        self.cuts = 0

    @property
    def last(self) -> int:
        return self.seen[-1] if self.seen else 0

    def draw(self) -> int:
        """After how many events the next cut comes."""
        self.cuts += 1
        return self._random.randint(0, self._most)


async def over_http(reader: Reader, http: httpx.AsyncClient, session: str) -> None:
    while True:
        left = reader.draw()
        async with follow(http, session, str(reader.last)) as stream:
            async for sent in stream:
                if sent.event == "end":
                    return
                reader.seen.append(int(sent.id))
                if (left := left - 1) <= 0:
                    break


async def by_client(reader: Reader, client: Client, session: str) -> None:
    while True:
        left = reader.draw()
        async with aclosing(client.events(session, reader.last)) as events:  # type: ignore[type-var]  # a generator
            async for envelope in events:
                reader.seen.append(envelope.seq)
                if (left := left - 1) <= 0:
                    break
            else:
                return


async def by_command(reader: Reader, session: str) -> None:
    while True:
        left = reader.draw()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "perdure.cli", "follow", session, "--json", "--after", str(reader.last)),
            stdout=asyncio.subprocess.PIPE,
            env=os.environ.copy(),
        )
        assert process.stdout is not None
        async for line in process.stdout:
            reader.seen.append(json.loads(line)["seq"])
            if (left := left - 1) <= 0:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.communicate()  # whatever it had printed by then is lost
                break
        else:
            if await process.wait() == 0:
                return


async def test_who_is_cut_off_a_hundred_times_ends_with_every_number_once(house: House) -> None:
    """S-46 S-47: from HTTP, the client and the command line."""
    lines_of(house)
    script = Script(replies=tuple(reply for _ in range(TURNS) for reply in (*TURN, say("done"))))
    readers = [Reader(46, 3), Reader(47, 3), Reader(48, 90)]
    async with ScriptedProvider(script) as provider, gateway(house) as door:
        house.use(provider)
        first = await worker(house)
        handle = await house.start()
        await house.wait_for_event("generation_start")
        for number in range(1, TURNS):
            await house.client.send(house.session, f"go on {number}")
        following = [
            asyncio.create_task(over_http(readers[0], door.http, house.session)),
            asyncio.create_task(by_client(readers[1], house.client, house.session)),
            asyncio.create_task(by_command(readers[2], house.session)),
        ]
        await house.wait_for_event("tool_end", 5)
        first.kill()
        await worker(house)
        await asyncio.gather(*following)
        await result_of(handle)
        await rotated(house, house.session)
    events = await house.events()
    assert [event["type"] for event in events].count("agent_end") == TURNS
    numbers = list(range(1, len(events) + 1))
    assert [reader.seen for reader in readers] == [numbers] * 3
    assert min(reader.cuts for reader in readers[:2]) >= CUTS
