"""Agents from YAML and JSON files: one agent, or several in a list ``agents``, with the fields of ``Agent``.

Tools are ``module:name``, or names of tools that Python modules beside the file have; MCP servers stand in the file, or
are named likewise; hooks are rules, or ``module:name``; delegates are names of agents; skills are folders. A mistake is
told with file, line and field.
"""

import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import yaml
from pydantic import ValidationError

from perdure.agents.agent import Agent, AgentDefinitionError
from perdure.agents.data import AgentDataError, Finders, Registered, agent_of, delegate_of, rule_of
from perdure.agents.hooks import Hook
from perdure.agents.warned import AgentWarning
from perdure.contracts.agents import Skill
from perdure.contracts.hooks import HookRule
from perdure.contracts.mcp import AnyServerConfig, HttpServerConfig, StdioServerConfig
from perdure.contracts.values import JsonValue
from perdure.skills import skills_in
from perdure.yaml_nodes import YamlError, composed, line_of, place_of, plain

SUFFIXES = frozenset({".yaml", ".yml", ".json"})
"""What the name of a file with agents ends with."""

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
    root, value = _parsed(file, _read(file))
    reader = _Reader(file, registered, load)
    find = Finders(
        tools=reader.tool,
        mcp_servers=reader.server,
        skills=reader.skills,
        hooks=reader.hook,
        delegates=delegate_of,
    )
    for path, fields in _objects(file, root, value):
        try:
            with warnings.catch_warnings(record=True) as told:
                agent = agent_of(fields, find)
        except AgentDataError as error:
            raise AgentFileError(f"{file}:{place_of(root, (*path, *error.path))}: {error}") from error
        _warn(told, file, place_of(root, path) if path else line_of(root))
        yield agent


def _warn(told: Sequence[warnings.WarningMessage], file: Path, line: int) -> None:
    """Tell the warnings about an agent with its place in the file, and all others with their own."""
    for one in told:
        is_ours = issubclass(one.category, AgentWarning)
        where, at = (str(file), line) if is_ours else (one.filename, one.lineno)
        warnings.warn_explicit(str(one.message), one.category, where, at)


def _parsed(file: Path, text: str) -> tuple[yaml.Node, JsonValue]:
    """The nodes of a file, for their lines, and what they stand for."""
    is_json = file.suffix == ".json"
    try:
        root = composed(text.replace("\t", " ") if is_json else text)
        value = None if root is None else plain(root)
        if is_json:
            value = json.loads(text)  # of which YAML takes more
    except YamlError as error:
        raise AgentFileError(f"{file}:{error.line}: {error.cause}") from error
    except json.JSONDecodeError as error:
        raise AgentFileError(f"{file}:{error.lineno}: it is no JSON: {error.msg}") from error
    if root is None:
        msg = f"{file}: it is empty; write 'name: …' and 'model: …' of an agent"
        raise AgentFileError(msg)
    return root, value


def _read(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            data = opened.read(LONGEST_FILE + 1)
        if len(data) > LONGEST_FILE:
            msg = f"{file}: it is longer than {LONGEST_FILE:,} bytes"
            raise AgentFileError(msg)
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
        line = place_of(root, (others[0],))
        raise AgentFileError(f"{file}:{line}: {others[0]}: beside 'agents' nothing may stand; put it into an agent")
    if not isinstance(listed, list) or not listed:
        raise AgentFileError(f"{file}:{place_of(root, ('agents',))}: agents: write a list of agents")
    for at, item in enumerate(listed):
        path: tuple[int | str, ...] = ("agents", at) if several else ()
        if not isinstance(item, dict):
            line = place_of(root, path) if several else line_of(root)
            raise AgentFileError(f"{file}:{line}: an agent is an object; write 'name: …' and 'model: …'")
        yield path, item


class _Reader:
    """What the items of a file's lists stand for."""

    def __init__(self, file: Path, registered: Registered, load: Callable[[str], ModuleType]) -> None:
        self._file = file
        self._registered = registered
        self._load = load

    def tool(self, item: JsonValue) -> tuple[Any, ...]:
        """A tool, or several of a toolset: ``module:name``, or the name of one that is registered."""
        if not isinstance(item, str):
            msg = "write 'module:name', or the name of a tool of a module beside this file"
            raise AgentDefinitionError(msg)
        return (self._imported(item) if ":" in item else self._registered.tool(item),)

    def hook(self, item: JsonValue) -> tuple[Any, ...]:
        """A rule that is described here, or a function made by ``@hook``: ``module:name``."""
        rule = rule_of(item)
        if rule is not None:
            return (rule,)
        if not isinstance(item, str) or ":" not in item:
            msg = "write 'module:name' of a hook, or a rule: an object with 'name', 'on' and 'reaction'"
            raise AgentDefinitionError(msg)
        found = self._imported(item)
        if not isinstance(found, Hook | HookRule):
            msg = f"{item} is no hook; decorate the function with @hook('tool_end')"
            raise AgentDefinitionError(msg)
        return (found,)

    def _imported(self, reference: str) -> Any:  # noqa: ANN401 - whatever stands there; the agent looks at it
        module, _, name = reference.partition(":")
        found = self._load(module)
        try:
            return reduce(getattr, name.split("."), cast("Any", found))
        except AttributeError:
            msg = f"module {module!r} has no {name!r}"
            raise AgentDefinitionError(msg) from None

    def server(self, item: JsonValue) -> tuple[AnyServerConfig, ...]:
        """A server that is described here, or the name of one that is registered."""
        if isinstance(item, str):
            return (self._registered.server(item),)
        if not isinstance(item, dict) or not {"command", "url"} & item.keys():
            msg = "write the name of a server, or an object with 'name' and 'command' or 'url'"
            raise AgentDefinitionError(msg)
        kind = HttpServerConfig if "url" in item else StdioServerConfig
        if unknown := sorted(item.keys() - kind.model_fields.keys()):
            msg = f"{unknown[0]}: there is no such field; the fields are {', '.join(kind.model_fields)}"
            raise AgentDataError((unknown[0],), msg)
        try:
            return (kind.model_validate(item),)
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            field = ".".join(str(part) for part in first["loc"])
            reason = first["msg"].removeprefix("Value error, ")
            raise AgentDataError(first["loc"], f"{field}: {reason}" if field else reason) from error

    def skills(self, item: JsonValue) -> tuple[Skill, ...]:
        """The skills of a folder, which is relative to the file's."""
        if not isinstance(item, str):
            msg = "write the folder of the skills, relative to this file"
            raise AgentDefinitionError(msg)
        return skills_in(self._file.resolve().parent / item)
