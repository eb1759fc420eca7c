"""Hooks whose worker is killed, or whose turn is stopped, while they run: what they have done stays done."""

import asyncio
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, Budgets, Continue, Hook, HookContext, hook
from perdure.contracts.messages import Message
from perdure.testing import Script, ScriptedProvider, call, say
from tests.house import WAIT_SECONDS, House
from tests.workflow.bodies import happened
from tests.workflow.killing import has_lines, lines_of, read, result_of

pytestmark = pytest.mark.deep

AGENTS = "tests.workflow.agents_with_hooks"
SCRIPT = Script(replies=(call(("work", {})), say("done")))

CALM = ["first generation_end", "first tool_end", "second tool_end", "first generation_end"]
"""The calls of hooks in a turn whose worker lives."""


@pytest.fixture
def lines(house: House) -> Path:
    """The file in which each call of a hook leaves a line."""
    return lines_of(house)


async def transcript(house: House) -> list[tuple[str, str]]:
    messages: tuple[Message, ...] = await house.store.transcript(house.session)
    return [(message.role, message.content) for message in messages]


EXPECTED = [
    ("user", "go"),
    ("user", "be brief"),
    ("assistant", ""),
    ("tool", "did it"),
    ("user", "better"),
    ("assistant", "done"),
]


async def test_a_hook_that_has_ended_is_not_called_again_when_its_worker_is_killed(house: House, lines: Path) -> None:
    """S-36 S-80: its reaction is recorded before anybody hears of it, and the next worker goes on behind it."""
    async with ScriptedProvider(SCRIPT) as provider:
        house.use(provider)
        handle = await house.start()
        for _ in range(2):  # each dies with the first hook that it calls
            dying = house.spawn_worker(AGENTS, main="tests.workflow.worker_that_dies", DIE_AFTER="append_events")
            assert await asyncio.to_thread(dying.process.wait, WAIT_SECONDS) == -9
        await house.spawn_worker(AGENTS).polling()
        result = await result_of(handle)
        assert provider.request_count == 2
    assert (result["stop_reason"], result["steps"], read(lines)) == ("finished", 2, CALM)
    assert await transcript(house) == EXPECTED
    assert [line["hook_name"] for line in await house.events("react_step")] == ["brief", "first"]
    events = await house.events()
    assert [line["seq"] for line in events] == list(range(1, len(events) + 1))


async def test_a_hook_whose_worker_is_killed_while_it_runs_is_called_again(house: House, lines: Path) -> None:
    """S-36: at least once: what it does outside may happen twice, what the turn makes of it does not."""
    async with ScriptedProvider(SCRIPT) as provider:
        house.use(provider)
        first = house.spawn_worker(AGENTS, HOLD="1")
        await first.polling()
        handle = await house.start()
        await has_lines(lines, 1)
        first.kill()
        await house.spawn_worker(AGENTS).polling()
        await result_of(handle)
    assert read(lines) == [CALM[0], *CALM]
    assert await transcript(house) == EXPECTED


class Held:
    """A hook that a test holds by the hand."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.stopped = threading.Event()

    def hook(self) -> Hook:
        @hook("step_end")
        def held(_: Any, context: HookContext) -> Continue:
            self.started.set()
            if context.wait(WAIT_SECONDS):
                self.stopped.set()
            return Continue("never read")

        return held


async def test_a_turn_that_is_cancelled_in_a_hook_is_cancelled(house: House) -> None:
    """S-40 S-36: also behind the model's last text, which the hook might not have been content with."""
    held = Held()
    tester = Agent(name="tester", model="openai/scripted", hooks=[held.hook()])
    async with ScriptedProvider(Script(replies=(say("done"),))) as provider, house.worker(tester):
        house.use(provider)
        handle = await house.start()
        await happened(held.started)
        await handle.signal("cancel", {"reason": "enough"})
        result = await result_of(handle)
        await happened(held.stopped)
    assert (result["stop_reason"], result["error"]) == ("cancelled", "Operation aborted: enough")
    assert await transcript(house) == [("user", "go"), ("assistant", "done")]


async def test_the_time_budget_ends_a_turn_in_a_hook(house: House) -> None:
    """S-70 S-36."""
    held = Held()
    tester = Agent(
        name="tester", model="openai/scripted", hooks=[held.hook()], budgets=Budgets(seconds=timedelta(seconds=2))
    )
    async with ScriptedProvider(Script(replies=(say("done"),))) as provider, house.worker(tester):
        house.use(provider)
        result = await house.run()
        await happened(held.stopped)
    assert (result["stop_reason"], result["reason_code"]) == ("budget_exhausted", "budget.seconds_exhausted")
