"""Delegates where they are defined: what the model reads of them, and what can never work is refused."""

from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, AgentDefinitionError, Budgets, Delegate, ToolDefinitionError, spawn_agent, tool
from perdure.agents.data import AgentDataError, delegate_of
from perdure.contracts.tools import ToolDeclaration
from perdure.worker.agents import AgentLoadError, load_agents


def agent(name: str, **settings: Any) -> Agent:
    return Agent(**{"name": name, "model": "openai/scripted", **settings})


def arguments(tool: ToolDeclaration) -> list[str]:
    """What a model sends."""
    properties = tool.parameters["properties"]
    assert isinstance(properties, dict)
    return list(properties)


def test_a_delegate_is_a_tool_that_takes_a_query() -> None:
    """S-62: by agent, by name, or with settings."""
    lead = agent("lead", delegates=[agent("re.searcher", description="Finds."), "other", Delegate("third", "Third.")])
    first, other, third = lead.definition.tools
    assert (first.name, first.description) == ("re_searcher", "Finds.")
    assert (other.name, other.description) == ("other", "Have the agent other carry out a task.")
    assert third.description == "Third."
    assert first.parameters["required"] == ["query"]
    assert [tool.delegate.agent for tool in lead.definition.tools if tool.delegate] == ["re.searcher", "other", "third"]


def test_only_what_may_work_in_the_background_has_an_argument_for_it_and_a_tool_to_wait() -> None:
    """S-64: other agents have neither."""
    plain = agent("lead", delegates=["helper"], tools=[spawn_agent]).definition
    assert [tool.name for tool in plain.tools] == ["spawn_agent", "helper"]
    lead = agent("lead", delegates=["other", Delegate("helper", background=True)]).definition
    other, helper, wait = lead.tools
    assert (arguments(other), wait.name) == (["query"], "await_delegate")
    assert arguments(helper) == ["query", "run_in_background"]
    assert wait.builtin == "await_delegate"


def test_spawn_agent_may_be_allowed_to_work_in_the_background_and_no_other_tool_can() -> None:
    """S-64."""
    spawning = agent("lead", tools=[spawn_agent.with_(background=True)])
    clone, wait = spawning.definition.tools
    assert (arguments(clone)[-1], wait.name) == ("run_in_background", "await_delegate")
    with pytest.raises(ToolDefinitionError, match="background is for spawn_agent and for delegates"):

        @tool(background=True)
        def look() -> str:
            """Look."""
            return ""


def test_an_agent_that_is_data_may_allow_it_too() -> None:
    """S-64: as a field of the delegate, which is yes or no."""
    (delegate,) = delegate_of({"agent": "helper", "background": True})
    assert delegate.background
    with pytest.raises(AgentDataError, match="background is either true or false"):
        delegate_of({"agent": "helper", "background": "yes"})


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"delegates": ["lead"]}, "lead calls lead: a circle"),
        ({"delegates": [agent("b", delegates=["lead"])]}, "lead calls b calls lead: a circle"),
        ({"delegates": ["b"], "budgets": Budgets(depth=0)}, "depth=0 allows no delegates"),
        ({"tools": [spawn_agent], "budgets": Budgets(depth=0)}, "depth=0 allows no delegates"),
        ({"delegates": ["b"], "budgets": Budgets(behavior_calls=0)}, "behavior_calls=0 allows no delegates"),
        ({"delegates": ["b"], "budgets": Budgets(tool_calls=0)}, "tool_calls=0 allows no delegates"),
        ({"delegates": [5]}, "give an agent, its name or Delegate"),
        ({"delegates": ["no name"]}, "'no name' is no name of an agent"),
        ({"delegates": ["b", "b"]}, "two tools named b"),
    ],
)
def test_what_can_never_work_is_refused_in_one_line(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(AgentDefinitionError, match="agent 'lead'") as caught:
        agent("lead", **settings)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def module(folder: Path, text: str) -> list[str]:
    (file := folder / "delegating_agents.py").write_text(f"from perdure import Agent\n{text}", encoding="utf-8")
    return [str(file)]


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each test has a module of its own."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "delegating_agents", raising=False)


def test_a_worker_loads_the_agents_below_an_agent_with_it(tmp_path: Path) -> None:
    """S-62: no need to have each at the top of a module."""
    text = "lead = Agent(name='lead', model='p/m', delegates=[Agent(name='b', model='p/m', delegates=[]) ])"
    assert sorted(load_agents(module(tmp_path, text))) == ["b", "lead"]


def test_a_worker_without_a_delegate_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(AgentLoadError, match="agent 'lead' has the delegate 'nobody', which no module has"):
        load_agents(module(tmp_path, "lead = Agent(name='lead', model='p/m', delegates=['nobody'])"))


def test_a_circle_that_only_names_make_is_found_when_a_worker_starts(tmp_path: Path) -> None:
    text = "a = Agent(name='a', model='p/m', delegates=['b'])\nb = Agent(name='b', model='p/m', delegates=['a'])"
    with pytest.raises(AgentLoadError, match="a calls b calls a: a circle"):
        load_agents(module(tmp_path, text))
