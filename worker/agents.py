"""Loads users' agents from modules, files and entry points. What fails says so in one line, before anything polls.

A YAML or JSON file holds one agent, or several in a list ``agents``, with the fields of ``Agent``. Tools are
``module:name``, or names of tools that Python modules beside the file have; MCP servers stand in the file, or are named
likewise; hooks are rules, or ``module:name``; delegates are names of agents; skills are folders. A mistake is told with
file, line and field.
"""

import importlib
import json
import logging
import re
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import reduce
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import yaml
from pydantic import ValidationError

import perdure
from perdure.agents.agent import Agent, AgentDefinitionError
from perdure.agents.author_warnings import AgentWarning
from perdure.agents.data import AgentDataError, Finders, Registered, agent_of, delegate_of, described_tool, rule_of
from perdure.agents.delegates import agents_of, cycle
from perdure.agents.environment import UnmetNeedError, problems_of
from perdure.agents.hooks import Hook
from perdure.agents.tool import Tool
from perdure.agents.toolset import Toolset
from perdure.contracts.agents import Skill
from perdure.contracts.hooks import HookRule
from perdure.contracts.mcp import AnyServerConfig, HttpServerConfig, StdioServerConfig
from perdure.contracts.names import ENTRY_POINT_GROUP
from perdure.contracts.values import JsonValue, describe_mistake
from perdure.skills import skills_in
from perdure.yaml_nodes import YamlError, compose, line_of, line_of_path, to_plain

_OURS = {str(Path(__file__).resolve().parent), str(Path(perdure.__file__).parent)}
_NOT_OWN = (*sysconfig.get_paths().values(), *_OURS)
"""Folders of code that no user wrote: Python's, installed packages', ours."""

SHOWN_TOOLS = 5
"""Tools that the warning of a worker that starts names."""

logger = logging.getLogger("perdure.worker")


class AgentLoadError(AgentDefinitionError):
    """A module cannot be imported or has no usable agent; the message names the cause and the fix."""


@dataclass(frozen=True)
class Loaded:
    """Agents of a worker by name, and the tools and servers that agents in start requests may name."""

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
        for module, source in modules:
            _refuse_agents_in_lists(module, source, ())
        raise AgentLoadError("no agents: name a module with --agents MODULE, for example --agents examples.demo.agent")
    _add_delegates(agents)
    loaded = {name: agent for name, (agent, _) in agents.items()}
    for module, source in modules:
        _refuse_agents_in_lists(module, source, loaded.values())
    return Loaded(loaded, Registered(loaded.values(), tools))


def with_delegates(given: Iterable[Agent]) -> Loaded:
    """These agents and their delegates, as :func:`load` gives those of modules."""
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


def find_long_tools(agents: Iterable[Agent], grace: timedelta, task_queue: str) -> Iterator[str]:
    """Plain tools that run here and whose time-out exceeds the grace, as ``'TOOL' of 'AGENT' (300 s)``."""
    for agent in agents:
        for tool in agent.tools:
            asked = tool.declaration
            elsewhere = asked.interactive or asked.builtin is not None or asked.task_queue not in {None, task_queue}
            if not elsewhere and not asked.idempotent and tool.reconciler is None and asked.timeout > grace:
                yield f"{tool.name!r} of {agent.name!r} ({asked.timeout.total_seconds():g} s)"


def tell_long_tools(agents: Iterable[Agent], grace: timedelta, task_queue: str) -> None:
    """Log a warning if a drain may leave the effect of calls unknown, with what helps."""
    found = list(find_long_tools(agents, grace, task_queue))
    if not found:
        return
    more = f" and {len(found) - SHOWN_TOOLS} more" if len(found) > SHOWN_TOOLS else ""
    logger.warning(
        "a stop of this worker cuts off calls of plain tools after %g s, and their effect is then unknown: %s%s; make "
        "them idempotent, give them a reconciler or a shorter time-out, or raise PERDURE_SHUTDOWN_GRACE",
        *(grace.total_seconds(), ", ".join(found[:SHOWN_TOOLS]), more),
    )


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
            raise AgentLoadError(f"two agents are named {agent.name!r}, in {other[1]} and in {source}; rename one")
        agents[agent.name] = (agent, source)


def _add_delegates(agents: dict[str, tuple[Agent, str]]) -> None:
    """Load the delegates that are given as agents; refuse circles, and names of agents that are not there."""
    for agent, source in tuple(agents.values()):
        _add(agents, cast("list[Agent]", agents_of(agent.delegates)), f"the delegates of {agent.name!r} in {source}")
    calls = {name: tuple(delegate.name for delegate in agent.delegates) for name, (agent, _) in agents.items()}
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
            raise AgentLoadError(f"there is no file {name!r}; give a dotted module name or the path of a Python file")
        _put_on_path(path.parent)
        dotted = path.stem
    try:
        return importlib.import_module(dotted)
    except ModuleNotFoundError as error:
        missing = "" if dotted == error.name else f", which needs {error.name!r}"
        place = _place_of(error) if missing else ""
        msg = f"module {name!r}{missing} cannot be found{place}; run where it can be imported, or install its package"
        raise AgentLoadError(msg) from (error if missing else None)
    except Exception as error:
        text = error.msg if isinstance(error, SyntaxError) else str(error)
        msg = f"module {name!r} does not import: {type(error).__name__}: {' '.join(text.split())}{_place_of(error)}"
        raise AgentLoadError(msg) from error


def _place_of(error: Exception) -> str:
    """The last line of the user's own code in an exception, as ``, at FILE:LINE``; empty if none is known."""
    places = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename is not None:
        places.append((error.filename, error.lineno or 1))
    own = [(Path(file), line) for file, line in places if not file.startswith(("<", *_NOT_OWN))]
    if not own:
        return ""
    file, line = own[-1]
    shown = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
    return f", at {shown}:{line}"


SUFFIXES = frozenset({".yaml", ".yml", ".json"})
"""Suffixes of files with agents."""

LONGEST_FILE = 4 * 1024 * 1024
"""In bytes."""


class AgentFileError(Exception):
    """A file with agents cannot be used; the message is ``file:line: what is wrong``."""


def agents_in(file: Path, registered: Registered, load: Callable[[str], ModuleType]) -> Iterator[Agent]:
    """The agents of a file.

    Args:
        file: Its name says whether it is YAML or JSON.
        registered: Tools and servers that it may name.
        load: Imports a module by its dotted name.

    Raises:
        AgentFileError: It cannot be read, or describes no agent.
    """
    root, value = _parse_file(file, _read(file))
    reader = _Reader(file, registered, load)
    find = Finders(
        tools=reader.tool, mcp_servers=reader.server, skills=reader.skills, hooks=reader.hook, delegates=delegate_of
    )
    for path, fields in _objects(file, root, value):
        try:
            with warnings.catch_warnings(record=True) as told:
                agent = agent_of(fields, find)
        except AgentDataError as error:
            raise AgentFileError(f"{file}:{line_of_path(root, (*path, *error.path))}: {error}") from error
        # Warnings about an agent have its place in the file, and all others their own.
        for warning in told:
            where, at = warning.filename, warning.lineno
            if issubclass(warning.category, AgentWarning):
                where, at = str(file), line_of_path(root, path) if path else line_of(root)
            warnings.warn_explicit(str(warning.message), warning.category, where, at)
        yield agent


def _parse_file(file: Path, text: str) -> tuple[yaml.Node, JsonValue]:
    """The nodes of a file, for their lines, and what they stand for."""
    is_json = file.suffix == ".json"
    try:
        root = compose(text.replace("\t", " ") if is_json else text)
        value = None if root is None else to_plain(root)
        if is_json:
            value = json.loads(text)  # of which YAML takes more
    except YamlError as error:
        raise AgentFileError(f"{file}:{error.line}: {error.cause}") from error
    except json.JSONDecodeError as error:
        raise AgentFileError(f"{file}:{error.lineno}: it is no JSON: {error.msg}") from error
    if root is None:
        raise AgentFileError(f"{file}: it is empty; write 'name: …' and 'model: …' of an agent")
    return root, value


def _read(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            data = opened.read(LONGEST_FILE + 1)
        if len(data) > LONGEST_FILE:
            raise AgentFileError(f"{file}: it is longer than {LONGEST_FILE:,} bytes")
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise AgentFileError(f"{file}: it is not UTF-8; save it as UTF-8") from error
    except OSError as error:
        raise AgentFileError(f"{file}: it cannot be read: {error.strerror}") from error


def _objects(
    file: Path, root: yaml.Node, value: JsonValue
) -> Iterator[tuple[tuple[int | str, ...], dict[str, JsonValue]]]:
    """Each agent of the file, and where it stands."""
    several = isinstance(value, dict) and "agents" in value
    listed = value["agents"] if isinstance(value, dict) and several else [value]
    if isinstance(value, dict) and several and (others := sorted(value.keys() - {"agents"})):
        line = line_of_path(root, (others[0],))
        raise AgentFileError(f"{file}:{line}: {others[0]}: beside 'agents' nothing may stand; put it into an agent")
    if not isinstance(listed, list) or not listed:
        raise AgentFileError(f"{file}:{line_of_path(root, ('agents',))}: agents: write a list of agents")
    for at, item in enumerate(listed):
        path: tuple[int | str, ...] = ("agents", at) if several else ()
        if not isinstance(item, dict):
            line = line_of_path(root, path) if several else line_of(root)
            raise AgentFileError(f"{file}:{line}: an agent is an object; write 'name: …' and 'model: …'")
        yield path, item


class _Reader:
    """Reader of a file's lists: it resolves their items."""

    def __init__(self, file: Path, registered: Registered, load: Callable[[str], ModuleType]) -> None:
        self._file = file
        self._registered = registered
        self._load = load

    def tool(self, item: JsonValue) -> tuple[Any, ...]:
        """A tool, or several of a toolset: ``module:name``, a registered name, or an object that the caller runs."""
        if isinstance(item, dict) and "name" in item:
            return (described_tool(item),)
        if not isinstance(item, str):
            raise AgentDefinitionError("write 'module:name', or the name of a tool of a module beside this file")
        return (self._import(item) if ":" in item else self._registered.tool(item),)

    def hook(self, item: JsonValue) -> tuple[Any, ...]:
        """A rule that is described here, or a function made by ``@hook``: ``module:name``."""
        rule = rule_of(item)
        if rule is not None:
            return (rule,)
        if not isinstance(item, str) or ":" not in item:
            msg = "write 'module:name' of a hook, or a rule: an object with 'name', 'on' and 'reaction'"
            raise AgentDefinitionError(msg)
        found = self._import(item)
        if not isinstance(found, Hook | HookRule):
            raise AgentDefinitionError(f"{item} is no hook; decorate the function with @hook('tool_end')")
        return (found,)

    def _import(self, reference: str) -> Any:  # noqa: ANN401 - whatever stands there; the agent looks at it
        module, _, name = reference.partition(":")
        found = self._load(module)
        try:
            return reduce(getattr, name.split("."), cast("Any", found))
        except AttributeError:
            raise AgentDefinitionError(f"module {module!r} has no {name!r}") from None

    def server(self, item: JsonValue) -> tuple[AnyServerConfig, ...]:
        """A server that is described here, or the name of one that is registered."""
        if isinstance(item, str):
            return (self._registered.server(item),)
        if not isinstance(item, dict) or not {"command", "url"} & item.keys():
            raise AgentDefinitionError("write the name of a server, or an object with 'name' and 'command' or 'url'")
        kind = HttpServerConfig if "url" in item else StdioServerConfig
        if unknown := sorted(item.keys() - kind.model_fields.keys()):
            msg = f"{unknown[0]}: there is no such field; the fields are {', '.join(kind.model_fields)}"
            raise AgentDataError((unknown[0],), msg)
        try:
            return (kind.model_validate(item),)
        except ValidationError as error:
            raise AgentDataError(error.errors()[0]["loc"], describe_mistake(error)) from error

    def skills(self, item: JsonValue) -> tuple[Skill, ...]:
        """The skills of a folder, which is relative to the file's."""
        if not isinstance(item, str):
            raise AgentDefinitionError("write the folder of the skills, relative to this file")
        return skills_in(self._file.resolve().parent / item)
