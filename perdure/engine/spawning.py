"""The five types of sub-agents that ``spawn_agent`` clones its caller into. Source: Dreadnode's sub-agents."""

from typing import get_args

from perdure.contracts.agents import AgentDefinition
from perdure.contracts.tools import AgentType
from perdure.contracts.values import JsonValue, Value


class SubAgent(Value):
    """A type of sub-agents: what it is told, and how many steps it may use at most."""

    instructions: str
    max_steps: int


SUB_AGENTS: dict[str, SubAgent] = {
    "explore": SubAgent(
        instructions="""\
You explore: find out what the task asks for and report it. Look in several places, follow what you find, and change
nothing. Answer with what you found and where, in a form that somebody who saw none of it can use.""",
        max_steps=20,
    ),
    "plan": SubAgent(
        instructions="""\
You plan: work out how the task can be done and change nothing. Look at what is there first. Answer with numbered steps,
each small enough to be checked, what each depends on, and what may go wrong.""",
        max_steps=15,
    ),
    "test": SubAgent(
        instructions="""\
You test: find out whether what the task names works. Run what there is to run, try the edges, and take nothing for
granted. Answer with what you ran, what passed, and for each failure how to see it again.""",
        max_steps=25,
    ),
    "review": SubAgent(
        instructions="""\
You review: read what the task names with care and change nothing. Answer with what is wrong or risky, the worst first,
each with its place and a reason, and say so plainly if there is nothing.""",
        max_steps=15,
    ),
    "general": SubAgent(
        instructions="""\
You carry out one task on behalf of another agent. You know only what the task says. Do all of it, then answer with the
result and with what the other agent has to know.""",
        max_steps=30,
    ),
}
"""What each type is told, and its cap."""


def spawned(caller: AgentDefinition, arguments: dict[str, JsonValue]) -> AgentDefinition:
    """The caller as a sub-agent: with other instructions and a cap, and ended by text; it cannot spawn.

    Raises:
        ValueError: There is no such type.
    """
    kind, custom = str(arguments.get("agent_type") or "general"), str(arguments.get("custom_instructions") or "")
    if kind not in SUB_AGENTS:
        msg = f"there is no agent_type {kind!r}; the types are {', '.join(get_args(AgentType))}"
        raise ValueError(msg)
    one = SUB_AGENTS[kind]
    fresh = AgentDefinition(name=caller.name, model=caller.model)
    tools = tuple(tool for tool in caller.tools if tool.delegate is None or not tool.delegate.spawns)
    if not any(tool.delegate is not None and tool.delegate.background for tool in tools):  # nothing to wait for
        tools = tuple(tool for tool in tools if tool.builtin != "await_delegate")
    return caller.model_copy(
        update={
            "instructions": f"{one.instructions}\n\n{custom}".strip(),
            "max_steps": one.max_steps,
            "tools": tools,
            **{name: getattr(fresh, name) for name in _ITS_OWN if name in AgentDefinition.model_fields},
        }
    )


_ITS_OWN = (
    *("stop_conditions", "finish_tool", "completion", "max_tool_turns"),
    *("output_schema", "output_corrections", "interactive"),
)
"""How the caller's work ends and is asked about: a sub-agent's is another. Hooks stay, as approvals do: they guard."""
