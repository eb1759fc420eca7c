"""The verbs that change something, as a program calls them: ``--json`` and the exit code."""

import asyncio
import json
import subprocess
import sys
from typing import Any

import pytest

from perdure import Agent
from perdure.testing import ScriptedProvider, faults, say
from tests.house import House

pytestmark = pytest.mark.deep

AGENT = Agent(name="tester", model="openai/scripted")


async def perdure(*args: str, refused: bool = False) -> tuple[int, list[dict[str, Any]]]:
    """The exit code, and the lines of JSON; stderr has a line only if the call is ``refused``."""
    command = [sys.executable, "-m", "perdure.cli", *args, "--json"]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    assert len(done.stderr.splitlines()) == refused, done.stderr
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


async def test_cancel_says_whether_a_turn_was_there_to_be_told(house: House) -> None:
    async with ScriptedProvider(always=faults.hang()) as provider, house.worker(AGENT):
        house.use(provider)
        handle = await house.start()
        await provider.wait_for_requests(1)
        assert await perdure("cancel", house.session) == (0, [{"session": house.session, "sent": True}])
        await handle.result()
        assert await perdure("cancel", house.session) == (0, [{"session": house.session, "sent": False}])


async def test_setup_lists_what_it_registered(house: House) -> None:
    assert await perdure("setup") == (0, [{"registered": []}])


async def test_send_gives_the_turn_that_takes_the_message_and_follow_ends_with_its_end(house: House) -> None:
    async with ScriptedProvider(lambda _: say("done")) as provider, house.worker(AGENT):
        house.use(provider)
        await house.run()
        assert await perdure("send", house.session, "more", "--detach") == (0, [{"session": house.session, "turn": 2}])
        code, events = await perdure("follow", house.session)
    assert code == 0
    assert {event["turn"] for event in events} == {2}
    assert (events[0]["type"], events[-1]["type"], events[-1]["stop_reason"]) == (
        "agent_start",
        "agent_end",
        "finished",
    )
