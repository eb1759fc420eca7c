"""Delegates as an author gives them to an agent: other agents as tools, and clones of the agent itself.

The workflow carries out the calls of both tools; their bodies never run.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from inspect import cleandoc
from types import FunctionType
from typing import Annotated, Protocol, get_args

from pydantic import Field

from perdure.agents.tool import Tool, tool
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.budgets import Budgets
from perdure.contracts.tools import (
    MAX_AWAITED,
    RUN_IN_BACKGROUND,
    AgentType,
    DelegateSettings,
    ToolDeclaration,
    tool_name_of,
)
from perdure.contracts.values import JsonValue

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

_QUERY: dict[str, JsonValue] = {
    "query": {
        "type": "string",
        "minLength": 1,
        "description": "The task, with everything that is needed for it: the agent reads nothing else.",
    }
}


class Named(Protocol):
    """An agent, as far as its callers look at it."""

    @property
    def name(self) -> str:
        """Name of the tool."""
        ...

    @property
    def description(self) -> str:
        """Purpose of the tool."""
        ...

    @property
    def delegates(self) -> "tuple[Delegate, ...]":
        """The delegates it has itself."""
        ...


@dataclass(frozen=True)
class Delegate:
    """An agent that another one may call as a tool: a call is a turn of its own, which reads only the query.

    Attributes:
        agent: The agent, or the name of one that the same workers have.
        description: What the calling model reads of it; the agent's own description by default.
        interactive: Whether it may ask people and wait for approvals; otherwise its model is told that nobody is there.
        requires_approval: Whether a call waits for somebody's approval, unless a rule of the caller says otherwise.
        background: Whether the calling model may let it work in the background and wait for it later.
    """

    agent: "Named | str"
    description: str = ""
    interactive: bool = False
    requires_approval: bool = False
    background: bool = False

    def __post_init__(self) -> None:
        """Refuse anything but an agent, or a wrong setting."""
        if isinstance(self.agent, str):
            if not _NAME.fullmatch(self.agent):
                raise ValueError(f"delegates: {self.agent!r} is no name of an agent")
        elif not hasattr(self.agent, "delegates"):
            raise ValueError(_describe_missing_agent(self.agent))
        for setting in ("interactive", "requires_approval", "background"):
            if not isinstance(getattr(self, setting), bool):
                msg = f"delegates: {setting} is either true or false (got {getattr(self, setting)!r})"
                raise ValueError(msg)  # noqa: TRY004 - taken for a mistake of the author, as any other

    @property
    def name(self) -> str:
        """The agent's name."""
        return self.agent if isinstance(self.agent, str) else self.agent.name

    @property
    def declaration(self) -> ToolDeclaration:
        """The agent as the calling model sees it."""
        own = "" if isinstance(self.agent, str) else self.agent.description
        return ToolDeclaration(
            name=tool_name_of(self.name),
            description=cleandoc(self.description or own) or f"Have the agent {self.name} carry out a task.",
            parameters={
                "type": "object",
                "properties": {**_QUERY, **(RUN_IN_BACKGROUND if self.background else {})},
                "required": ["query"],
                "additionalProperties": False,
            },
            reference=f"agent:{self.name}",
            requires_approval=self.requires_approval,
            delegate=DelegateSettings(agent=self.name, interactive=self.interactive, background=self.background),
        )


def _describe_missing_agent(given: object) -> str:
    if isinstance(given, Tool):
        return f"the tool {given.name!r} stands among the delegates; write tools=[…]"
    kind = "class" if isinstance(given, type) else type(given).__name__
    shown = f"the {kind} {given.__name__}" if isinstance(given, type | FunctionType) else repr(given)
    return f"delegates: give an agent, its name or Delegate(…) (got {shown})"


@tool
def spawn_agent(
    task: Annotated[
        str, Field(min_length=1), "The task, with everything that is needed for it: the agent reads nothing else"
    ],
    agent_type: Annotated[
        AgentType,
        "explore finds things out, plan works out steps, test tries whether things work, review looks for mistakes, "
        "general does any task",
    ] = "general",
    custom_instructions: Annotated[str, "Further instructions, beside those of the type"] = "",
) -> str:
    """Have another agent, with your tools and a fresh memory, carry out a task, and read its result.

    Several calls in one answer work at the same time.
    """
    raise NotImplementedError


@tool
def await_delegate(
    sessions: Annotated[
        list[str],
        Field(max_length=MAX_AWAITED),
        "The sessions to wait for; without any, all whose results you have not read",
    ] = [],  # noqa: B006 - the body never runs
) -> str:
    """Wait for agents that work in the background, and read their results."""
    raise NotImplementedError


def await_tool_of(tools: Sequence[ToolDeclaration]) -> tuple[ToolDeclaration, ...]:
    """The tool that waits for delegates, if one of these may work in the background."""
    some = any(tool.delegate is not None and tool.delegate.background for tool in tools)
    return (await_delegate.declaration,) if some else ()


def check(name: str, delegates: Sequence[Delegate], spawns: bool, budgets: Budgets) -> None:
    """Refuse what could never work, as far as the definition of the agent itself shows it.

    Raises:
        ValueError: The settings contradict each other.
    """
    for dimension in ("depth", "behavior_calls", "tool_calls"):
        if getattr(budgets, dimension) == 0 and (delegates or spawns):
            msg = f"budgets: {dimension}=0 allows no delegates, and there are some; leave it out, or the delegates"
            raise ValueError(msg)
    known = {name: tuple(delegate.name for delegate in delegates), **callers_of(delegates)}
    circle = cycle(known)
    if circle is not None:
        msg = f"delegates: {' calls '.join(circle)}: a circle of agents would never come to an end; take one out"
        raise ValueError(msg)


def callers_of(delegates: Iterable[Delegate]) -> dict[str, tuple[str, ...]]:
    """Who calls whom among the agents that are given as such, down to the last."""
    return {agent.name: tuple(delegate.name for delegate in agent.delegates) for agent in agents_of(delegates)}


def agents_of(delegates: Iterable[Delegate]) -> list[Named]:
    """The agents that are given as such, and their delegates, each once."""
    found: dict[int, Named] = {}
    left = [delegate.agent for delegate in delegates if not isinstance(delegate.agent, str)]
    while left:
        agent = left.pop()
        if id(agent) not in found:
            found[id(agent)] = agent
            left += [delegate.agent for delegate in agent.delegates if not isinstance(delegate.agent, str)]
    return list(found.values())


def cycle(calls: Mapping[str, Sequence[str]]) -> list[str] | None:
    """The names along a circle of agents that call each other, the first one at both ends; None without a circle."""
    done: set[str] = set()

    def look(name: str, path: list[str]) -> list[str] | None:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return None
        for other in calls.get(name, ()):
            found = look(other, [*path, name])
            if found is not None:
                return found
        done.add(name)
        return None

    return next((found for name in calls if (found := look(name, [])) is not None), None)


@dataclass(frozen=True, kw_only=True)
class CloneType:
    """A type of sub-agents: its instructions and its largest number of steps."""

    instructions: str
    max_steps: int


CLONE_TYPES: dict[str, CloneType] = {
    "explore": CloneType(
        instructions="""\
You explore: find out what the task asks for and report it. Look in several places, follow what you find, and change
nothing. Answer with what you found and where, in a form that somebody who saw none of it can use.""",
        max_steps=20,
    ),
    "plan": CloneType(
        instructions="""\
You plan: work out how the task can be done and change nothing. Look at what is there first. Answer with numbered steps,
each small enough to be checked, what each depends on, and what may go wrong.""",
        max_steps=15,
    ),
    "test": CloneType(
        instructions="""\
You test: find out whether what the task names works. Run what there is to run, try the edges, and take nothing for
granted. Answer with what you ran, what passed, and for each failure how to see it again.""",
        max_steps=25,
    ),
    "review": CloneType(
        instructions="""\
You review: read what the task names with care and change nothing. Answer with what is wrong or risky, the worst first,
each with its place and a reason, and say so plainly if there is nothing.""",
        max_steps=15,
    ),
    "general": CloneType(
        instructions="""\
You carry out one task on behalf of another agent. You know only what the task says. Do all of it, then answer with the
result and with what the other agent has to know.""",
        max_steps=30,
    ),
}
"""Instructions of each type, and its cap."""


_ITS_OWN = (
    *("stop_conditions", "finish_tool", "completion", "max_tool_turns"),
    *("output_schema", "output_corrections", "interactive"),
)
"""Settings of how the caller's work ends and is asked about: a sub-agent's is another. Hooks stay, as approvals do:
they guard.
"""


def clone_agent(caller: AgentDefinition, arguments: dict[str, JsonValue]) -> AgentDefinition:
    """The caller as a sub-agent: with other instructions and a cap, and ended by text; it cannot spawn.

    Raises:
        ValueError: There is no such type.
    """
    kind, custom = str(arguments.get("agent_type") or "general"), str(arguments.get("custom_instructions") or "")
    if kind not in CLONE_TYPES:
        msg = f"there is no agent_type {kind!r}; the types are {', '.join(get_args(AgentType))}"
        raise ValueError(msg)
    clone_type = CLONE_TYPES[kind]
    fresh = AgentDefinition(name=caller.name, model=caller.model)
    tools = tuple(tool for tool in caller.tools if tool.delegate is None or not tool.delegate.spawns)
    if not any(tool.delegate is not None and tool.delegate.background for tool in tools):  # nothing to wait for
        tools = tuple(tool for tool in tools if tool.builtin != "await_delegate")
    return caller.model_copy(
        update={
            "instructions": f"{clone_type.instructions}\n\n{custom}".strip(),
            "max_steps": clone_type.max_steps,
            "tools": tools,
            **{name: getattr(fresh, name) for name in _ITS_OWN if name in AgentDefinition.model_fields},
        }
    )
