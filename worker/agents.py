"""Load users' agents from modules and entry points. A module that fails says so in one line, before anything polls."""

import importlib
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from perdure.agents.agent import Agent
from perdure.agents.needs import UnmetNeedError, problems_of
from perdure.contracts.names import ENTRY_POINT_GROUP


class AgentLoadError(Exception):
    """A module cannot be imported or has no usable agent; the message names the cause and the fix."""


def load_agents(modules: Iterable[str]) -> dict[str, Agent]:
    """The agents of these modules and of installed packages, by name.

    Args:
        modules: Dotted names, or paths of Python files; the working directory is on the path.

    Raises:
        AgentLoadError: A module does not import, has no agent, or two agents share a name.
    """
    agents: dict[str, tuple[Agent, str]] = {}
    for name in modules:
        _add(agents, _import(name), name, required=True)
    for point in entry_points(group=ENTRY_POINT_GROUP):
        _add(agents, _import(point.value.partition(":")[0]), point.value, required=True)
    if not agents:
        msg = "no agents: name a module with --agents MODULE, for example --agents examples.demo.agent"
        raise AgentLoadError(msg)
    return {name: agent for name, (agent, _) in agents.items()}


def check_needs(agents: Iterable[Agent], task_queue: str, environment: Mapping[str, str]) -> None:
    """Refuse an environment that lacks what a tool needs; one with another task queue does not run here.

    Raises:
        UnmetNeedError: A variable is not set, or cannot be used; the message names every tool and variable.
    """
    problems = [
        problem
        for agent in agents
        for tool in agent.tools
        if tool.declaration.task_queue in {None, task_queue}
        for problem in problems_of(f"tool {tool.name!r} of agent {agent.name!r}", tool.needs, environment)
    ]
    if problems:
        raise UnmetNeedError("; ".join(problems))


def _add(agents: dict[str, tuple[Agent, str]], module: ModuleType, source: str, *, required: bool) -> None:
    found = {id(value): value for value in vars(module).values() if isinstance(value, Agent)}
    if required and not found:
        msg = f"module {source!r} has no Agent at top level; write 'agent = Agent(name=…, model=…)' in it"
        raise AgentLoadError(msg)
    for agent in found.values():
        other = agents.get(agent.name)
        if other is not None and other[0] is not agent:
            msg = f"two agents are named {agent.name!r}, in {other[1]} and in {source}; rename one"
            raise AgentLoadError(msg)
        agents[agent.name] = (agent, source)


def _import(name: str) -> ModuleType:
    directory, dotted = str(Path.cwd()), name
    if name.endswith(".py"):
        path = Path(name).resolve()
        if not path.is_file():
            msg = f"there is no file {name!r}; give a dotted module name or the path of a Python file"
            raise AgentLoadError(msg)
        directory, dotted = str(path.parent), path.stem
    if directory not in sys.path:
        sys.path.insert(0, directory)
    try:
        return importlib.import_module(dotted)
    except ModuleNotFoundError as error:
        missing = "" if dotted == error.name else f", which needs {error.name!r}"
        msg = f"module {name!r}{missing} cannot be found; run where it can be imported, or install its package"
        raise AgentLoadError(msg) from error
    except Exception as error:
        msg = f"module {name!r} does not import: {type(error).__name__}: {' '.join(str(error).split())}"
        raise AgentLoadError(msg) from error
