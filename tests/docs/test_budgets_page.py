"""What the page on budgets shows is run, and its table has every budget."""

import re
from inspect import isfunction, signature
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, stop
from perdure.engine.limits import CODES
from perdure.testing import Script, ScriptedProvider, call
from tests.house import House

PAGE = (Path(__file__).parents[2] / "docs" / "budgets.md").read_text(encoding="utf-8")
(CONDITIONS,) = re.findall(r"### Stop conditions\n(.*?)\n## ", PAGE, re.DOTALL)
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


def test_the_table_has_every_stop_condition_with_arguments_it_takes() -> None:
    factories = {name for name, made in vars(stop).items() if isfunction(made) and not name.startswith("_")}
    shown = dict(re.findall(r"`(\w+)\(([^`]*)\)`", " ".join(re.findall(r"^\| (`[^|]*) \| ", CONDITIONS, re.MULTILINE))))
    assert shown.keys() == factories
    for name, arguments in shown.items():
        known = signature(getattr(stop, name)).parameters
        for argument in filter(None, arguments.split(", ")):
            parameter, _, default = argument.partition("=")
            assert parameter in known, name
            assert not default or repr(known[parameter].default).replace("'", '"') == default, name
