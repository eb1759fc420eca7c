"""The page on trajectories names every event there is, and what it shows is run."""

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

from perdure import Agent
from perdure.contracts.events import EVENT_TYPES, RESULT_CHARACTERS, Heartbeat
from perdure.testing import ScriptedProvider, say
from tests.house import House

PAGE = (Path(__file__).parents[2] / "docs" / "trajectory.md").read_text(encoding="utf-8")
DREADNODE = {
    *("AgentStart", "AgentEnd", "AgentError", "AgentStalled", "UserInputRequired", "Heartbeat", "CompactionEvent"),
    *("GenerationStart", "GenerationContent", "GenerationEnd", "GenerationStep", "GenerationError", "GenerationRetry"),
    *("ToolStart", "ToolEnd", "ToolStep", "ToolError", "ReactStep"),
}
"""Its events, but for the base of its steps."""


def test_the_table_has_every_type_of_event_with_its_class_in_order() -> None:
    """S-45: and every event of Dreadnode is one of ours, by its name."""
    classes = {**EVENT_TYPES, "heartbeat": Heartbeat}
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \|", PAGE, re.MULTILINE)
    assert rows == [(kind, event.__name__) for kind, event in classes.items()]
    assert {name for _, name in rows} >= DREADNODE


def test_the_length_of_a_result_on_the_page_is_that_of_the_code() -> None:
    assert f"the first {RESULT_CHARACTERS:,} characters" in PAGE


async def test_the_code_of_the_page_runs(house: House) -> None:
    names: dict[str, Any] = {"timedelta": timedelta}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(block, "docs/trajectory.md", "exec"), names)
    tester, clerk = (Agent(name=name, model="openai/scripted") for name in ("tester", "clerk"))
    async with ScriptedProvider(lambda _: say("done")) as provider, house.worker(tester, clerk):
        house.use(provider)
        await house.run()
        assert await names["last_words"](house.client, house.session) == "done"
        (call,) = re.findall(r"`(turn\.events\(heartbeat=.*?\))`", PAGE)
        names["turn"] = await house.client.attach(house.session)
        events = [envelope async for envelope in eval(call, names)]
        evaluated = await names["evaluate"](house.client, ["one", "two"])
    assert [turn.messages[-1].content for turn in evaluated] == ["done", "done"]
    assert events[-1].event.type == "agent_end"
