"""What the page on delegates shows is run: its agents are defined there, and its table is the table of the code."""

import re
from pathlib import Path
from typing import Any

from perdure.agents.delegates import CLONE_TYPES

PAGE = (Path(__file__).parents[2] / "docs" / "delegates.md").read_text(encoding="utf-8")
LEAD, EDITOR, WORKER = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def run(text: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(text, "docs/delegates.md", "exec"), names)
    return names


def test_the_lead_of_the_page_has_three_delegates_that_take_a_query() -> None:
    tools = run(LEAD)["lead"].definition.tools
    assert [tool.name for tool in tools] == ["researcher", "negotiator", "bookkeeper"]
    assert [list(tool.parameters["properties"]) for tool in tools] == [["query"]] * 3
    assert [tool.delegate.interactive for tool in tools] == [False, True, False]


def test_the_types_and_caps_of_the_page_are_those_of_the_code() -> None:
    shown = re.findall(r"^\| `(\w+)` \| [^|]+ \| (\d+) \|$", PAGE, re.MULTILINE)
    assert {name: int(cap) for name, cap in shown} == {
        name: clone_type.max_steps for name, clone_type in CLONE_TYPES.items()
    }


def test_the_worker_of_the_page_can_spawn() -> None:
    names = [tool.name for tool in run(WORKER)["worker"].definition.tools]
    assert names == ["spawn_agent", "read_output"]


def test_the_editor_of_the_page_can_wait_for_what_it_lets_work_in_the_background() -> None:
    tools = run(EDITOR)["editor"].definition.tools
    assert [tool.name for tool in tools] == ["spawn_agent", "researcher", "await_delegate"]
    assert ["run_in_background" in tool.parameters["properties"] for tool in tools] == [True, True, False]
