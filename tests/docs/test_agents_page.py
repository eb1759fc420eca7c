"""What the page on agents as data shows is run: its file is loaded, and its request is one that a worker takes."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, Fallback, TurnContext
from perdure.agents.data import InlineAgents
from perdure.contracts.turns import TurnRequest
from perdure.worker.agents import AgentLoadError, load

PAGE = (Path(__file__).parents[2] / "docs" / "agents.md").read_text(encoding="utf-8")
(FILE,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
(REQUEST,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
(INSTRUCTIONS, _, _, PYTHON) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)

OFFICE = """
from perdure import tool

def find_order(number: int) -> str:
    "Find an order."
    return f"order {number}"

find_order = tool(find_order)

@tool
def pay_back(number: int) -> str:
    "Pay an order back."
    return "done"
"""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    (tmp_path / "agents.yaml").write_text(FILE, encoding="utf-8")
    (tmp_path / "office.py").write_text(OFFICE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return ["agents.yaml", "office"]


def test_the_file_of_the_page_loads(files: list[str]) -> None:
    agents = load(files).agents
    assert sorted(agents) == ["clerk", "proofreader"]
    clerk = agents["clerk"]
    assert [tool.name for tool in clerk.tools] == ["find_order", "pay_back"]
    assert [server.name for server in clerk.mcp_servers] == ["post"]
    assert [hook.name for hook in clerk.hooks] == ["once more"]
    assert clerk.fallback_models == (Fallback(model="anthropic/claude-sonnet-4-5"),)


def test_the_errors_of_the_page_are_what_a_user_reads(files: list[str]) -> None:
    told: list[str] = []
    for right, wrong in (("max_retries: 3", "max_retries: -3"), ("feedback:", "feedbak:")):
        Path("agents.yaml").write_text(FILE.replace(right, wrong), encoding="utf-8")
        with pytest.raises(AgentLoadError) as refusal:
            load(files)
        told.append(str(refusal.value))
    assert told == re.findall(r"^    (agents\.yaml:.*)", PAGE, re.MULTILINE)


def test_the_request_of_the_page_is_one_that_such_a_worker_takes(files: list[str]) -> None:
    request = TurnRequest.model_validate(json.loads(REQUEST))
    loaded = load(files)
    agent = InlineAgents(loaded.registered, loaded.agents).agent(request.definition or {})
    assert (agent.name, [tool.name for tool in agent.tools], agent.max_steps) == ("counter", ["find_order"], 20)


def test_the_python_of_the_page_is_an_agent() -> None:
    names: dict[str, Agent] = {}
    exec(compile(PYTHON, "docs/agents.md", "exec"), names)
    assert names["clerk"].models == ("openai/gpt-5-mini", "anthropic/claude-sonnet-4-5", "openai/gpt-5-nano")


async def test_the_function_of_the_page_makes_instructions() -> None:
    names: dict[str, Any] = {}
    exec(compile(INSTRUCTIONS, "docs/agents.md", "exec"), names)
    assert await names["instruct"](TurnContext(tenant="acme", by="Ada")) == "You answer Ada. Be formal."
    assert await names["instruct"](TurnContext()) == "You answer a customer. Be friendly."
    assert callable(names["greeter"].instructions)
