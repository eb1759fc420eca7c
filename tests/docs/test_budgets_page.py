"""What the page on budgets shows is run, and its table has every budget."""

import re
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent
from perdure.engine.limits import CODES
from perdure.testing import Script, ScriptedProvider, call
from tests.house import House

PAGE = (Path(__file__).parents[2] / "docs" / "budgets.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def careful() -> Agent:
    """The agent of the page, after every block has run."""
    names: dict[str, Any] = {}
    exec(compile("".join(BLOCKS), "docs/budgets.md", "exec"), names)
    agent: Agent = names["careful"].clone(tools=[names["measure"].function])
    return agent


async def test_the_agent_of_the_page_works_through_its_todos_within_its_budgets(house: House, careful: Agent) -> None:
    script = Script(
        replies=(
            call(("todo", {"new_titles": ["measure the hall"]}), ("measure", {"room": "hall"})),
            call(("todo", {"completed": [0]}), ("attempt_completion", {}), text="12 square metres"),
        )
    )
    async with ScriptedProvider(script) as provider, house.worker(careful):
        house.use(provider)
        result = await house.run("careful")
    assert (result["stop_reason"], result["output"]) == ("finished", "12 square metres")
    assert result["todos"] == [{"title": "measure the hall", "completed": True}]


def test_the_table_has_every_budget_with_its_code() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \|.*\| `(budget\.\w+)` \|$", PAGE, re.MULTILINE))
    assert rows == {name: str(code) for name, code in CODES.items()}
