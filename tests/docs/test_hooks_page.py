"""What the page on hooks shows is run, and its tables have every reaction and every event."""

import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest

from perdure import Agent
from perdure.contracts.hooks import HOOK_EVENTS, AnyReaction, RuleEvent
from perdure.contracts.turns import TurnRequest
from perdure.testing import Script, ScriptedProvider, call, say
from tests.house import House

PAGE = (Path(__file__).parents[2] / "docs" / "hooks.md").read_text(encoding="utf-8")
(CODE,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
(REQUEST,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def coder() -> Agent:
    """The agent of the page."""
    names: dict[str, Any] = {}
    exec(compile(CODE, "docs/hooks.md", "exec"), names)
    agent: Agent = names["agent"]
    return Agent(**{name: getattr(agent, name) for name in ("name", "tools", "hooks")}, model="openai/scripted")


async def test_the_hooks_of_the_page_have_their_way(house: House, coder: Agent) -> None:
    script = Script(
        replies=(
            say("It works."),
            call(("run_tests", {"path": "other"})),
            call(("run_tests", {"path": "tests"})),
            say("It works now."),
        )
    )
    async with ScriptedProvider(script) as provider, house.worker(coder):
        house.use(provider)
        handle = await house.client.start("coder", "go", session=house.session)
        result = await handle.result()
        metrics = await handle.tool_metrics(detailed=True)
    assert (result.stop_reason, result.output) == ("finished", "It works now.")
    won = [(line["hook_name"], line["reaction"]["type"]) for line in await house.events("react_step")]
    assert won == [("brief", "continue"), ("nudge", "continue"), ("green", "retry_with_feedback")]
    assert (metrics.count, metrics.success_rate, metrics.tools["run_tests"].count) == (2, 1.0, 2)


async def test_the_request_of_the_page_is_accepted(house: House, coder: Agent) -> None:
    asked = json.loads(REQUEST)
    script = Script(replies=(call(("run_tests", {"path": "tests"})), say("never said")))
    async with ScriptedProvider(script) as provider, house.worker(coder):
        house.use(provider)
        result = await house.run(**asked)
    assert TurnRequest.model_validate(asked).rules is not None
    assert (result["stop_reason"], result["stopped_by"]) == ("finished", "once")


def test_the_tables_have_every_reaction_and_every_event() -> None:
    (reactions,) = re.findall(r"## Reactions\n(.*?)\n## ", PAGE, re.DOTALL)
    (events,) = re.findall(r"## Events\n(.*?)\n## ", PAGE, re.DOTALL)
    (rules,) = re.findall(r"## Rules\n(.*?)\n## ", PAGE, re.DOTALL)
    named = re.findall(r"^\| `(\w+)\(", reactions, re.MULTILINE)
    assert named == [reaction.__name__ for reaction in get_args(get_args(AnyReaction)[0])]
    rows = [row.split("|")[1] for row in events.splitlines() if row.startswith("| `")]
    assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted(HOOK_EVENTS)
    (known,) = re.findall(r"knows\n\((.*?)\)", rules, re.DOTALL)
    assert re.findall(r"`(\w+)`", known) == list(get_args(RuleEvent))
