"""Whoever waits for a turn's end sits out a restart of the Temporal server, however long the wait has been."""

import asyncio
import os
import signal
import time

import pytest

from perdure import Agent
from perdure.testing import Script, ScriptedProvider, faults, say
from tests.house import House, eventually
from tests.workflow.asking import COLOUR, DONE, asker, results
from tests.workflow.test_mcp_door import host, waiting
from tests.workflow.test_people_doors import Terminal

pytestmark = pytest.mark.deep

AGENT = Agent(name="tester", model="openai/scripted")
HELD = Script(replies=(say("done").after(faults.hang(), faults.hang()),))
"""The first calls of the model get no answer."""

OPEN_FOR = 15.0
"""For its first ten seconds the SDK repeats a call by itself, whatever it fails with; a long poll lasts twenty."""


async def kill(house: House) -> None:
    os.kill(house.server.pid or 0, signal.SIGKILL)
    await house.server.wait()


async def test_whoever_waits_for_the_end_sits_out_a_restart(lasting: House) -> None:
    """``result``, a task, and ``wait`` of the MCP door, after a wait that is longer than the SDK's own patience."""

    async def waited() -> bool:
        return time.monotonic() - began > OPEN_FOR

    async with ScriptedProvider(HELD) as provider, lasting.worker(AGENT), host() as mcp:
        lasting.use(provider)
        turn = await lasting.client.start("tester", "go", session=lasting.session)
        began = time.monotonic()
        result = asyncio.create_task(turn.result())
        task = asyncio.create_task(lasting.client.task("tester")("go"))
        door = waiting(mcp, lasting.session)
        await provider.wait_for_requests(2)
        await eventually(waited)
        assert not {result, task, door} & {waiter for waiter in (result, task, door) if waiter.done()}
        await kill(lasting)
        await lasting.server.start()
        await provider.refuse()  # the attempts may have outlived the server, and hang
        await provider.accept()
        assert (await result).output == "done"
        trajectory = await task
        assert trajectory.result is not None
        assert trajectory.result.output == "done"
        assert (await door).structured_content["result"]["output"] == "done"


async def test_the_person_at_the_terminal_is_asked_again_after_a_restart(lasting: House) -> None:
    """What is typed while the server is away is refused in a line, and the question stands again."""
    async with ScriptedProvider(Script(replies=(COLOUR, DONE))) as provider, lasting.worker(asker()):
        lasting.use(provider)
        async with Terminal("run", "tester", "go", "--session", lasting.session) as terminal:
            await terminal.shows("  2. blue\r\n> ")
            await kill(lasting)
            terminal.types("1")
            refusal = "the Temporal server does not answer ("  # of what was typed, not of what is followed
            await terminal.shows(refusal)
            already = terminal.text.index(refusal)
            await lasting.server.start()
            await eventually(lambda: shown_behind(terminal, already))
            terminal.types("2")
            assert await terminal.ends() == 0
    assert results(provider.requests[-1].request.messages) == ["blue"]


async def shown_behind(terminal: Terminal, place: int) -> bool:
    return "  2. blue\r\n> " in terminal.text[place:]
