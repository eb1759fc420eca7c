"""Agents as data: what an agent in a file and one in a start request have in common, and how the second is read.

Both are objects with the fields of :class:`Agent`. They hold no code: tools, servers and skills are named, and whoever
reads the object says what a name stands for. For a start request that is what the worker has registered.
"""

import hashlib
import json
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from perdure.agents.agent import Agent, AgentDefinitionError
from perdure.agents.author_warnings import AgentWarning
from perdure.agents.context import ToolDefinitionError
from perdure.agents.delegates import Delegate
from perdure.agents.schemas import check_expressions, check_size
from perdure.agents.tool import Tool, caller_tool_of
from perdure.contracts.agents import PARAMETERS
from perdure.contracts.hooks import HookRule
from perdure.contracts.mcp import AnyServerConfig
from perdure.contracts.retries import check_no_address
from perdure.contracts.values import SYNONYMS, JsonValue

T = TypeVar("T")

Kind = Literal["tool", "server"]
_KINDS: Mapping[Kind, str] = {"tool": "tool", "server": "MCP server"}

Path = tuple[int | str, ...]
"""Position in an object: names of fields, and numbers of items."""


class AgentDataError(AgentDefinitionError):
    """An object does not describe an agent; ``path`` is where it goes wrong, as far as that is known."""

    def __init__(self, path: Path, message: str) -> None:
        super().__init__(message)
        self.path = path


class UnregisteredError(AgentDefinitionError):
    """A request names a tool or an MCP server that this worker has not registered; another worker may have."""

    def __init__(self, kind: Kind, name: str, known: Iterable[str]) -> None:
        super().__init__(f"this worker has no {_KINDS[kind]} {name!r}; it has: {', '.join(sorted(known)) or 'none'}")
        self.kind: Kind = kind
        self.name = name


Found = Callable[[JsonValue], Iterable[Any]]
"""Function that resolves an item of a list.

Raises:
    AgentDefinitionError: Nothing; the message is one line.
"""


@dataclass(frozen=True)
class Finders:
    """Functions that resolve the items of an object's lists."""

    tools: Found
    mcp_servers: Found
    skills: Found
    hooks: Found
    delegates: Found


def agent_of(fields: Mapping[str, JsonValue], find: Finders) -> Agent:
    """The agent that an object describes.

    Raises:
        AgentDataError: It describes none; the message names agent and field.
    """
    called = f"agent {fields.get('name', '?')!r}"
    made: dict[str, Any] = {}
    for name, value in fields.items():
        if name not in Agent.model_fields and name not in SYNONYMS["Agent"]:
            known = ", ".join(Agent.model_fields)
            raise AgentDataError((name,), f"{called}: {name}: there is no such setting; the settings are {known}")
        finder = getattr(find, name, None)
        made[name] = value if finder is None else _find_all(called, name, value, finder)
    try:
        agent = Agent(**made)
    except AgentDefinitionError as error:
        cause = error.__cause__
        path = _path_in({**fields}, cause.errors()[0]) if isinstance(cause, ValidationError) else ()
        raise AgentDataError(path, str(error)) from error
    for name in (fields.keys() & Agent.model_fields.keys()) - Finders.__dataclass_fields__.keys():
        _refuse_unknown(called, (name,), fields[name], getattr(agent, name))
    return agent


def rule_of(item: JsonValue) -> HookRule | None:
    """The hook rule that an object describes; None of anything but an object."""
    if not isinstance(item, dict):
        return None
    try:
        rule = HookRule.model_validate(item)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = _path_in(item, first)
        raise AgentDataError(path, f"{'.'.join(map(str, path))}: {_describe_mistake(first)}") from error
    _refuse_unknown("a hook", (), item, rule)
    return rule


def _path_in(given: JsonValue, mistake: ErrorDetails) -> Path:
    """Position of the mistake in the object: pydantic also names the kinds of values that a ``type`` has chosen."""
    path: list[int | str] = []
    at: JsonValue = given
    for part in mistake["loc"]:
        if isinstance(at, dict) and isinstance(part, str) and part in at:  # noqa: SIM114 - else nobody knows the type
            at = at[part]
        elif isinstance(at, list) and isinstance(part, int) and part < len(at):
            at = at[part]
        elif mistake["type"] != "missing" or part != mistake["loc"][-1]:
            continue
        path.append(part)
    return tuple(path)


def _describe_mistake(mistake: ErrorDetails) -> str:
    """The mistake in a person's words."""
    words = _WORDS.get(mistake["type"], mistake["msg"].removeprefix("Value error, "))
    if mistake["type"] == "literal_error":
        words += f" (got {mistake['input']!r})"
    return words.format_map(mistake.get("ctx", {})) if mistake["type"] in _WORDS else words


_WORDS = {
    "extra_forbidden": "there is no such field",
    "model_attributes_type": "write an object with its 'type'",
    "union_tag_invalid": "there is no type {tag!r}; the types are {expected_tags}",
    "union_tag_not_found": "write its 'type'",
}
"""Our words for kinds of mistakes that pydantic describes in Python's terms."""


def delegate_of(item: JsonValue) -> tuple[Delegate]:
    """The delegate that a name stands for, or that an object describes, whose ``agent`` is a name."""
    fields = item if isinstance(item, dict) else {"agent": item}
    known = Delegate.__dataclass_fields__
    if unknown := sorted(fields.keys() - known.keys()):
        raise AgentDataError((unknown[0],), f"there is no field {unknown[0]!r}; the fields are {', '.join(known)}")
    if not isinstance(fields.get("agent"), str):
        raise AgentDataError((), "write the name of an agent, or an object with 'agent', its name")
    try:
        return (Delegate(**cast("dict[str, Any]", fields)),)
    except ValueError as error:
        raise AgentDataError(("agent",), str(error)) from error


def described_tool(fields: Mapping[str, JsonValue]) -> Tool[..., Any]:
    """The tool that an object with a name, a description and a schema describes, which the caller runs."""
    try:
        return caller_tool_of(fields)
    except ToolDefinitionError as error:
        raise AgentDataError((), str(error)) from error


def _find_all(called: str, name: str, value: JsonValue, finder: Found) -> list[Any]:
    if not isinstance(value, list):
        raise AgentDataError((name,), f"{called}: {name}: write a list")
    found: list[Any] = []
    for at, item in enumerate(value):
        try:
            found += finder(item)
        except AgentDefinitionError as error:
            below = error.path if isinstance(error, AgentDataError) else ()
            raise AgentDataError((name, at, *below), f"{called}: {name}.{at}: {error}") from error
    return found


def _refuse_unknown(called: str, path: Path, given: JsonValue, made: object) -> None:
    """Refuse a name that the value does not have: reading goes past it, but whoever wrote it meant something."""
    if isinstance(made, BaseModel) and isinstance(given, dict):
        words = SYNONYMS.get(type(made).__name__, {})
        for name, value in given.items():
            if name in words:
                continue
            if name not in type(made).model_fields:
                fields = ", ".join(type(made).model_fields)
                where = "".join(f"{part}: " for part in (".".join(map(str, path)),) if part)
                message = f"{called}: {where}there is no field {name!r}; the fields are {fields}"
                raise AgentDataError((*path, name), message)
            _refuse_unknown(called, (*path, name), value, getattr(made, name))
    elif isinstance(made, tuple) and isinstance(given, list):
        for at, (item, read) in enumerate(zip(given, cast("tuple[object, ...]", made), strict=False)):
            _refuse_unknown(called, (*path, at), item, read)


class Registered:
    """Tools and MCP servers of a worker by their names, for agents that are data."""

    def __init__(self, agents: Iterable[Agent], tools: Iterable[Tool[..., Any]] = ()) -> None:
        self._tools: dict[str, list[Tool[..., Any]]] = {}
        self._servers: dict[str, list[AnyServerConfig]] = {}
        agents = tuple(agents)
        for tool in (*tools, *(tool for agent in agents for tool in agent.tools)):
            known = self._tools.setdefault(tool.name, [])
            if not any(other.function == tool.function and other.declaration == tool.declaration for other in known):
                known.append(tool)
        for server in (server for agent in agents for server in agent.mcp_servers):
            same = self._servers.setdefault(server.name, [])
            if server not in same:
                same.append(server)

    def tool(self, name: str) -> Tool[..., Any]:
        """The tool of that name.

        Raises:
            UnregisteredError: There is none.
            AgentDefinitionError: There is more than one.
        """
        return _take_only(name, "tool", self._tools)

    def server(self, name: str) -> AnyServerConfig:
        """The MCP server of that name."""
        return _take_only(name, "server", self._servers)

    @property
    def digest(self) -> str:
        """Digest of the names: of two workers with the same one, either can make an agent or neither."""
        return hashlib.sha256(json.dumps([sorted(self._tools), sorted(self._servers)]).encode()).hexdigest()[:16]


def _take_only(name: str, kind: Kind, known: Mapping[str, list[T]]) -> T:
    found = known.get(name, [])
    if len(found) == 1:
        return found[0]
    if found:
        many = f"this worker has {len(found)} different {_KINDS[kind]}s named {name!r}; rename all but one"
        raise AgentDefinitionError(many)
    raise UnregisteredError(kind, name, known)


INLINE = "agents of requests:"
NO_INLINE = f"{INLINE} none"
"""Mark of a worker that makes none; no agent has such a name."""


class InlineAgents:
    """Agents of start requests, as a worker makes them.

    Args:
        registered: What they may use.
        names: Names of agents that are the worker's own.
    """

    def __init__(self, registered: Registered, names: Collection[str]) -> None:
        self._registered = registered
        self._names = frozenset(names)
        self._find = Finders(
            tools=self._tool, mcp_servers=self._server, skills=_refuse_skills, hooks=_rule, delegates=delegate_of
        )

    @property
    def mark(self) -> str:
        """Name by which workers tell each other what they make agents of."""
        return f"{INLINE} {self._registered.digest}"

    def agent(self, fields: Mapping[str, JsonValue]) -> Agent:
        """The agent that the object describes.

        Raises:
            AgentDefinitionError: It describes none that this worker may run; the message is one line.
        """
        called = f"agent {fields.get('name', '?')!r}"
        for field in ("output_schema", "approvals", "tools"):  # first, for even to read an expression can take long
            try:
                check_size([fields.get(field)])
                if field != "tools":  # of which the caller checks what cannot be checked here
                    check_expressions(fields.get(field))
            except ValueError as error:
                raise AgentDataError((field,), f"{called}: {field}: {error}") from None
        with warnings.catch_warnings():  # nobody at the worker can mend what they are about
            warnings.simplefilter("ignore", AgentWarning)
            agent = agent_of(fields, self._find)
        if agent.name in self._names:
            msg = f"{called}: name: this worker has an agent of that name; start that one, or choose another name"
            raise AgentDataError(("name",), msg)
        for field, params in _parameters(agent):
            if odd := sorted(params.keys() - PARAMETERS):
                known = ", ".join(sorted(PARAMETERS))
                msg = f"{called}: {field}: {', '.join(odd)} may not come in a request; what may: {known}"
                raise AgentDataError((field,), msg)
        for model in (*agent.models, *([agent.compaction.model] if agent.compaction.model else [])):
            try:
                check_no_address(model)
            except ValueError as error:
                raise AgentDataError(("model",), f"{called}: {error}") from None
        for rule in agent.approvals.rules:
            guarded = [
                tool.name for tool in agent.definition.tools if tool.requires_approval and rule.matches(tool.name)
            ]
            if rule.decision == "allow" and guarded:
                msg = f"{called}: approvals: {guarded[0]} asks for an approval by itself, which a request may not waive"
                raise AgentDataError(("approvals",), msg)
        return agent

    def _tool(self, item: JsonValue) -> tuple[Tool[..., Any], ...]:
        if isinstance(item, dict) and "name" in item:
            return (described_tool(item),)
        return (self._registered.tool(_name(item, "a tool")),)

    def _server(self, item: JsonValue) -> tuple[AnyServerConfig, ...]:
        return (self._registered.server(_name(item, "an MCP server")),)


def _parameters(agent: Agent) -> Iterator[tuple[str, dict[str, JsonValue]]]:
    yield "generate_params", agent.generate_params
    for fallback in agent.fallback_models:
        yield "fallback_models", fallback.generate_params or {}


def _name(item: JsonValue, kind: str) -> str:
    if isinstance(item, str):
        return item
    raise AgentDefinitionError(f"write the name of {kind} that the worker has registered")


def _rule(item: JsonValue) -> tuple[HookRule]:
    rule = rule_of(item)
    if rule is None:
        raise AgentDefinitionError(
            "a hook of a request is a rule, an object with 'name', 'on' and 'reaction'; functions are the worker's own"
        )
    return (rule,)


def _refuse_skills(_: JsonValue) -> tuple[Any, ...]:
    raise AgentDefinitionError("skills are read from folders of the worker; no request may bring them")
