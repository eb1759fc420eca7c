"""Load users' agents from modules, files and entry points. What fails says so in one line, before anything polls."""

import importlib
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import perdure
from perdure.agents.agent import Agent, AgentDefinitionError
from perdure.agents.data import Registered
from perdure.agents.delegates import below, cycle
from perdure.agents.needs import UnmetNeedError, problems_of
from perdure.agents.tool import Tool
from perdure.agents.toolset import Toolset
from perdure.contracts.names import ENTRY_POINT_GROUP
from perdure.worker.agent_files import SUFFIXES, AgentFileError, agents_in

_OURS = {str(Path(__file__).resolve().parent), str(Path(perdure.__file__).parent)}
_NOT_OWN = (*sysconfig.get_paths().values(), *_OURS)
"""Folders of code that no user wrote: Python's, installed packages', ours."""


class AgentLoadError(AgentDefinitionError):
    """A module cannot be imported or has no usable agent; the message names the cause and the fix."""


@dataclass(frozen=True)
class Loaded:
    """What a worker has: its agents by name, and tools and servers that agents in start requests may name."""

    agents: dict[str, Agent]
    registered: Registered


def load_agents(sources: Iterable[str]) -> dict[str, Agent]:
    """The agents of these modules and files and of installed packages, by name; see :func:`load`."""
    return load(sources).agents


def load(sources: Iterable[str]) -> Loaded:
    """The agents of these modules and files and of installed packages, and their tools.

    Args:
        sources: Dotted names of modules, or paths of Python, YAML or JSON files; the working directory is on the path.

    Raises:
        AgentLoadError: A module does not import, has no agent and no tool, a file cannot be used, or two agents share
            a name.
    """
    sources = tuple(sources)
    _put_on_path(Path.cwd())
    files = [Path(name) for name in sources if Path(name).suffix in SUFFIXES]
    modules = [(_import(name), name) for name in sources if Path(name).suffix not in SUFFIXES]
    modules += [
        (_import(point.value.partition(":")[0]), point.value) for point in entry_points(group=ENTRY_POINT_GROUP)
    ]
    agents: dict[str, tuple[Agent, str]] = {}
    tools: list[Tool[..., Any]] = []
    for module, source in modules:
        found = _tools_of(module)
        tools += found
        _add(agents, _agents_of(module), source)
        if not found and not _agents_of(module):
            _refuse_agents_in_lists(module, source, ())
            msg = f"module {source!r} has no Agent at top level; write 'agent = Agent(name=…, model=…)' in it"
            raise AgentLoadError(msg)
    registered = Registered((agent for agent, _ in agents.values()), tools)
    for file in files:
        _put_on_path(file.resolve().parent)
        try:
            _add(agents, tuple(agents_in(file, registered, _import)), str(file))
        except AgentFileError as error:
            raise AgentLoadError(str(error)) from error
    if not agents:
        msg = "no agents: name a module with --agents MODULE, for example --agents examples.demo.agent"
        raise AgentLoadError(msg)
    _add_delegates(agents)
    loaded = {name: agent for name, (agent, _) in agents.items()}
    for module, source in modules:
        _refuse_agents_in_lists(module, source, loaded.values())
    return Loaded(loaded, Registered(loaded.values(), tools))


def with_delegates(given: Iterable[Agent]) -> Loaded:
    """These agents and their delegates, as :func:`load` gives those of modules.

    Raises:
        AgentLoadError: Two agents share a name, or a delegate is not there.
    """
    agents: dict[str, tuple[Agent, str]] = {}
    _add(agents, given, "the agents given here")
    _add_delegates(agents)
    loaded = {name: agent for name, (agent, _) in agents.items()}
    return Loaded(loaded, Registered(loaded.values()))


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


def _agents_of(module: ModuleType) -> tuple[Agent, ...]:
    return tuple({id(value): value for value in vars(module).values() if isinstance(value, Agent)}.values())


def _refuse_agents_in_lists(module: ModuleType, source: str, loaded: Iterable[Agent]) -> None:
    """Refuse agents that nobody could start, because they stand in a list only."""
    known = {id(agent) for agent in loaded}
    for variable, value in cast("dict[str, object]", vars(module)).items():
        if not isinstance(value, list | tuple | dict):
            continue
        held = cast("Iterable[object]", cast("object", value.values() if isinstance(value, dict) else value))
        for item in held:
            if isinstance(item, Agent) and id(item) not in known:
                own = re.sub(r"\W", "_", item.name)
                msg = f"module {source!r} has agent {item.name!r} only inside of {variable!r}, where no worker looks; "
                raise AgentLoadError(f"{msg}give it a name of its own at top level, such as '{own} = Agent(…)'")


def _tools_of(module: ModuleType) -> list[Tool[..., Any]]:
    """Tools at the top level of a module, those of toolsets included: agents that are data may name them."""
    found: list[Tool[..., Any]] = []
    for value in cast("dict[str, object]", vars(module)).values():
        if isinstance(value, Toolset):
            found += value.tools
        elif isinstance(value, Tool):
            found.append(cast("Tool[..., Any]", value))
    return found


def _add(agents: dict[str, tuple[Agent, str]], found: Iterable[Agent], source: str) -> None:
    for agent in found:
        other = agents.get(agent.name)
        if other is not None and other[0] is not agent:
            msg = f"two agents are named {agent.name!r}, in {other[1]} and in {source}; rename one"
            raise AgentLoadError(msg)
        agents[agent.name] = (agent, source)


def _add_delegates(agents: dict[str, tuple[Agent, str]]) -> None:
    """Load the delegates that are given as agents; refuse circles, and names of agents that are not there."""
    for agent, source in tuple(agents.values()):
        _add(agents, cast("list[Agent]", below(agent.delegates)), f"the delegates of {agent.name!r} in {source}")
    calls = {name: tuple(one.name for one in agent.delegates) for name, (agent, _) in agents.items()}
    for name, delegates in calls.items():
        if absent := sorted(set(delegates) - agents.keys()):
            msg = f"agent {name!r} has the delegate {absent[0]!r}, which no module has; name its module too"
            raise AgentLoadError(msg)
    if (circle := cycle(calls)) is not None:
        msg = f"{' calls '.join(circle)}: a circle of delegates would never come to an end; take one out"
        raise AgentLoadError(msg)


def _put_on_path(folder: Path) -> None:
    """Let modules of this folder be imported, before installed ones of the same name."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _import(name: str) -> ModuleType:
    dotted = name
    if name.endswith(".py"):
        path = Path(name).resolve()
        if not path.is_file():
            msg = f"there is no file {name!r}; give a dotted module name or the path of a Python file"
            raise AgentLoadError(msg)
        _put_on_path(path.parent)
        dotted = path.stem
    try:
        return importlib.import_module(dotted)
    except ModuleNotFoundError as error:
        missing = "" if dotted == error.name else f", which needs {error.name!r}"
        place = _place(error) if missing else ""
        msg = f"module {name!r}{missing} cannot be found{place}; run where it can be imported, or install its package"
        raise AgentLoadError(msg) from (error if missing else None)
    except Exception as error:
        text = error.msg if isinstance(error, SyntaxError) else str(error)
        msg = f"module {name!r} does not import: {type(error).__name__}: {' '.join(text.split())}{_place(error)}"
        raise AgentLoadError(msg) from error


def _place(error: Exception) -> str:
    """The last line of the user's own code behind an exception, as ``, at FILE:LINE``; empty if none is known."""
    places = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename is not None:
        places.append((error.filename, error.lineno or 1))
    own = [(Path(file), line) for file, line in places if not file.startswith(("<", *_NOT_OWN))]
    if not own:
        return ""
    file, line = own[-1]
    shown = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
    return f", at {shown}:{line}"
