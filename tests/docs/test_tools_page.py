"""What the pages on tools show is run, and the table of settings is the decorator's."""

import json
import re
from pathlib import Path
from typing import Any, get_args
from unittest.mock import Mock

import pytest

from perdure import Agent, DidNotHappen, EffectUnknown, Happened, tool
from perdure.agents.context import InvalidOutputError
from perdure.agents.environment import UnmetNeedError
from perdure.agents.tool import ToolSettings
from perdure.contracts.agents import ToolMode
from perdure.testing import Script, ScriptedProvider, call, say
from perdure.worker.agents import check_needs
from tests.docs.sections import section
from tests.house import House

PAGE = (Path(__file__).parents[2] / "docs" / "tools.md").read_text(encoding="utf-8")


def run_python_of(page: str) -> dict[str, Any]:
    """Run the blocks of a page in order; the names that they bind."""
    names: dict[str, Any] = {}
    exec(compile("".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL)), "docs", "exec"), names)
    return names


@pytest.fixture
def clerk() -> Agent:
    """The agent of the page, after every block has run."""
    names = run_python_of(PAGE)
    return Agent(**{name: getattr(names["clerk"], name) for name in ("name", "model", "tools")})


async def test_the_tools_of_the_page_work_in_a_turn(house: House, clerk: Agent) -> None:
    house.environment.setenv("GITHUB_TOKEN", "ghx-0123456789")
    house.environment.setenv("GITHUB_PAGES", "1")
    script = Script(
        replies=(
            call(("notes__read", {"page": "title"}), ("notes__write", {"page": "one", "text": "tides"})),
            call(("open_issues", {"repository": "acme/web"})),
            say("done"),
        )
    )
    async with ScriptedProvider(script) as provider, house.worker(clerk):
        house.use(provider)
        assert (await house.run("clerk"))["output"] == "done"
        messages = provider.requests[-1].request.messages
    title, written, issues = (str(message["content"]) for message in messages if message["role"] == "tool")
    assert (title, written) == ("The notebook of Ada", "one has 5 characters")
    assert json.loads(issues) == ["GET https://api.github.com/repos/acme/web/issues?page=1"]


def test_the_refusal_of_the_page_is_the_one_of_the_worker(clerk: Agent) -> None:
    with pytest.raises(UnmetNeedError) as refusal:
        check_needs([clerk], "here", {})
    assert f"perdure: {refusal.value}" in " ".join(PAGE.split())


def test_the_error_of_the_page_is_the_one_of_a_wrong_result() -> None:
    """S-25."""

    @tool
    def find() -> list[str]:
        return [3]  # type: ignore[list-item]

    assert find.returns is not None
    with pytest.raises(InvalidOutputError) as refusal:
        find.returns.check(find())
    assert str(refusal.value) in " ".join(PAGE.split())


def test_the_table_has_every_setting_and_no_other() -> None:
    settings = section("tools", "Settings")
    assert re.findall(r"^\| `(\w+)` \|", settings, re.MULTILINE) == list(ToolSettings.__annotations__)


async def test_the_desk_of_the_page_works_for_the_customer_that_its_starter_names(house: House) -> None:
    names = run_python_of(section("services", "On whose behalf a turn works"))
    script = Script(replies=(call(("find_order", {"number": "4712"})), say("There is none.")))
    async with ScriptedProvider(script) as provider, house.worker(names["desk"]):
        house.use(provider)
        assert await names["answer_ada"](house.client) == "There is none."
        last = provider.requests[-1].request
    assert last.system == "You answer ada@acme.example, of Acme. Write in German."
    assert last.messages[-1]["content"] == "there is no such order"


def test_the_reconciler_of_the_page_finds_out_what_happened() -> None:
    names = run_python_of(section("failures", "Calls whose worker was lost"))
    context = Mock(idempotency_key="key-1")
    assert names["look_up"]("ann", 5000, context) == EffectUnknown("the bank lists large payments the day after")
    assert names["look_up"]("ann", 5, context) == DidNotHappen()
    assert names["pay"]("ann", 5, context) == "5 to ann"
    assert names["look_up"]("ann", 5, context) == Happened("5 to ann")


def test_the_table_has_every_tool_mode() -> None:
    assert re.findall(r"^\| `([\w-]+)` \|", section("tools", "Tool modes"), re.MULTILINE) == list(get_args(ToolMode))
