"""What an author is warned of, at the line where it is written; and what nobody is warned of."""

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure import (
    Agent,
    AgentWarning,
    ApprovalPolicy,
    ApprovalRule,
    Continue,
    Fail,
    Finish,
    HookRule,
    StdioServerConfig,
    ask_user,
    hook,
    stop,
    todo,
    tool,
)
from perdure.agents.data import InlineAgents, Registered
from perdure.worker.agents import load_agents

HEAD: dict[str, Any] = {"name": "a", "model": "p/m"}


@tool
def look(place: str) -> str:
    """Look at a place."""
    return place


def ends(event: Any) -> Finish | None:
    """Want an end."""


def says(event: Any) -> Finish | str:
    """Give a text."""
    return event or Finish()


def tells(event: Any) -> Iterator[Finish]:
    """Give them one by one."""
    yield Finish()


def notes(event: Any) -> None:
    """Want nothing."""


async def decides(event: Any) -> "Continue | Fail | None":
    """Want what may be wanted."""


def unknown(event: Any) -> "NotThere":  # type: ignore[name-defined]  # noqa: F821
    """Say what only a type checker knows."""


def rules(*decisions: tuple[str, Any]) -> ApprovalPolicy:
    return ApprovalPolicy(rules=tuple(ApprovalRule(tool=name, decision=decision) for name, decision in decisions))


def question(**settings: Any) -> object:
    @tool(interactive=True, **settings)
    def ask(question: str) -> str:
        return question

    return ask


WARNED: dict[str, tuple[Callable[[], object], str]] = {
    "a reaction at the end": (
        lambda: hook("agent_end", "agent_error")(ends),
        "hook 'ends': its Finish is ignored, because the turn has ended by then; return None, or be on an event",
    ),
    "no reaction": (
        lambda: hook("tool_end")(says),  # type: ignore[arg-type]
        "hook 'says': the str that it returns is no reaction and ignored",
    ),
    "a generator": (
        lambda: hook("tool_end")(tells),  # type: ignore[arg-type]
        "hook 'tells' yields, so its body never runs; use return",
    ),
    "a tool of no tool's event": (
        lambda: hook("step_end", "agent_start", tool="look")(notes),
        "hook 'notes': tool='look' is not looked at, because step_end, agent_start is about no tool",
    ),
    "the same of a rule": (
        lambda: Agent(**HEAD, hooks=[HookRule(name="r", on="step_end", tool="look", reaction=Finish(), times=1)]),
        "agent 'a': hook 'r': tool='look' is not looked at",
    ),
    "a rule that always goes on": (
        lambda: Agent(**HEAD, hooks=[HookRule(name="r", on=["tool_end", "step_end"], reaction=Continue("more"))]),
        "agent 'a': hook 'r': the turn goes on after every step, so that only its limits or a stop end it; give the",
    ),
    "a condition on no tool": (
        lambda: Agent(**HEAD, tools=[look], stop_conditions=[stop.step_count(9) | stop.tool_use("lok")]),
        "agent 'a': stop_conditions: tool_use of 'lok' never holds, because there is no such tool; the tools are look",
    ),
    "a hook's condition on no tool": (
        lambda: Agent(**HEAD, hooks=[hook("step_end", when=~stop.tool_output("x", "lok"))(notes)]),
        "agent 'a': hook 'notes': when: tool_output of 'lok' never holds, because there is no such tool",
    ),
    "a condition on what todos become": (
        lambda: Agent(**HEAD, tools=[todo], stop_conditions=[~stop.tool_output("x", "todo")]),
        "agent 'a': stop_conditions: tool_output of 'todo' never holds, because only results of tools with a body and "
        "of delegates are looked through; use stop.tool_use('todo')",
    ),
    "a condition on what a person says": (
        lambda: Agent(**HEAD, tools=[ask_user], stop_conditions=[stop.tool_output("x", "ask_user")]),
        "tool_output of 'ask_user' never holds, because only results of tools with a body and of delegates are looked",
    ),
    "a rule behind a wider one": (
        lambda: Agent(**HEAD, tools=[look], approvals=rules(("l*", "allow"), ("look", "deny"))),
        "agent 'a': approvals: the rule that would deny 'look' never applies, because the one for 'l*' (allow)",
    ),
    "a question with a body": (
        lambda: question(idempotent=True),
        "tool 'ask': idempotent is about a body, and that of an interactive tool never runs; leave it out",
    ),
}


@pytest.mark.parametrize("name", WARNED)
def test_what_comes_to_nothing_is_warned_of_where_it_is_written(name: str) -> None:
    """S-36: one line, with the cause, what to write, and the place."""
    make, told = WARNED[name]
    with pytest.warns(AgentWarning) as warned:
        make()
    [warning] = warned
    assert told in str(warning.message)
    assert "\n" not in str(warning.message)
    lines, first = inspect.getsourcelines(question if name == "a question with a body" else make)
    assert warning.filename == __file__
    assert first <= warning.lineno < first + len(lines)


def test_what_may_have_an_effect_is_warned_of_nowhere() -> None:
    """Warnings are errors here."""
    hook("agent_end", "tool_end", tool="look", when=stop.tool_use("other"))(ends)
    server = StdioServerConfig(name="files", command="x")
    narrow = ApprovalRule(tool="look", arguments={"required": ["place"]}, decision="allow")
    Agent(
        **HEAD,
        tools=[look],
        delegates=["helper"],
        mcp_servers=[server],
        stop_conditions=[stop.tool_use("files__read"), stop.tool_use("helper"), stop.tool_error("gone"), stop.never()],
        hooks=[hook("step_end")(decides), hook("step_end")(unknown), hook("tool_error", tool="gone")(notes)],
        approvals=ApprovalPolicy(rules=(narrow, *rules(("look", "deny"), ("l*", "ask"), ("*", "ask")).rules)),
    )


FILE = """
agents:
  - name: a
    model: p/m
  - name: b
    model: p/m
    stop_conditions: [{type: tool_use, tool: dig}]
"""


def test_an_agent_of_a_file_is_warned_of_at_its_line(tmp_path: Path) -> None:
    file = tmp_path / "agents.yaml"
    file.write_text(FILE, encoding="utf-8")
    with pytest.warns(AgentWarning, match="agent 'b': stop_conditions: tool_use of 'dig'") as warned:
        load_agents([str(file)])
    assert [(warning.filename, warning.lineno) for warning in warned] == [(str(file), 5)]


def test_an_agent_of_a_request_warns_nobody_at_the_worker() -> None:
    conditions: Any = [{"type": "tool_use", "tool": "dig"}]
    agent = InlineAgents(Registered([]), []).agent({**HEAD, "stop_conditions": conditions})
    assert len(agent.stop_conditions) == 1
