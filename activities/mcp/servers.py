"""All MCP servers of one worker: what tools their agents get, calls, their states, and their end."""

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import cast

from mcp_types import Tool
from pydantic_core import to_json

from perdure.activities.mcp.failures import McpError, McpUnavailableError
from perdure.activities.mcp.process import LONGEST_LINE
from perdure.activities.mcp.references import own_folder
from perdure.activities.mcp.server import McpServer, Report, Surroundings, read
from perdure.activities.mcp.session_state import Caller
from perdure.activities.mcp.transports import server_of
from perdure.agents.agent import Agent
from perdure.contracts.errors import ReasonCode
from perdure.contracts.mcp import AnyServerConfig, ServerState, ServerStatus
from perdure.contracts.tools import MCP_REFERENCE, ToolDeclaration, wire_name
from perdure.contracts.values import JsonValue, replace, replace_surrogates
from perdure.llm.recorded_calls import without_secrets
from perdure.llm.tool_output import CallResult
from perdure.security.redaction import redact_text, without_known

MOST_TOOLS = 500
"""Tools of one server that an agent may use. Models take some hundred, and the workflow carries a line for each."""

LARGEST_DECLARATIONS = 500_000
"""Bytes of one server's tools, with descriptions and schemas: more than most models read, for it is in every request.

What the tools of several servers need in a turn's history stays far below the 2 MB of one Temporal payload.
"""

SHOWN = 500
"""Characters of a list of names in a message."""

logger = logging.getLogger("perdure.mcp")


class McpServers:
    """The servers of a worker's agents. Equal configurations are one server, connected when it is first needed."""

    def __init__(
        self, agents: Iterable[Agent], secrets: frozenset[str], environment: Mapping[str, str] = os.environ
    ) -> None:
        agents = tuple(agents)
        self._secrets = secrets

        def clean(text: str, unspoken: frozenset[str]) -> str:
            return redact_text(replace_surrogates(text[:LONGEST_LINE]), secrets | unspoken)

        self._around = Surroundings(environment, own_folder(environment), clean)
        self._servers: dict[str, McpServer] = {}
        self.queue: str | None = None
        """The task queue that only this worker polls, for servers that hold state."""
        if any(agent.mcp_servers for agent in agents):
            for name in ("mcp", "httpx2", "httpcore2"):  # what they log is told here, in a sentence and without secrets
                logging.getLogger(name).setLevel(logging.CRITICAL)
        for config in (config for agent in agents for config in agent.mcp_servers if not config.enabled):
            self._server(config)  # nobody asks for it, and operators are to see it

    async def declarations(
        self, agent: Agent, tell: Callable[[Sequence[str]], None] = lambda _: None
    ) -> tuple[ToolDeclaration, ...]:
        """The tools that the agent's servers offer now, as the agent may use them.

        Args:
            agent: Whose servers are asked.
            tell: Hears at once, and after each answer, which servers have not answered yet.

        Raises:
            McpUnavailableError: A server cannot be used, or what it offers does not fit its configuration.
        """
        configs = [config for config in agent.mcp_servers if config.enabled]
        silent = [config.name for config in configs]

        async def listed_by(config: AnyServerConfig) -> Sequence[Tool]:
            try:
                return await self._list_tools(config)
            finally:
                silent.remove(config.name)
                tell(silent)

        tell(silent)
        listed = await asyncio.gather(*map(listed_by, configs), return_exceptions=True)
        taken = {tool.name for tool in agent.definition.tools}
        declared: list[ToolDeclaration] = []
        for config, tools in zip(configs, listed, strict=True):
            if isinstance(tools, BaseException):
                raise tools
            declared += _declare_tools(config, tools, taken, self.queue if config.stateful else None)
        return tuple(declared)

    async def call(
        self,
        config: AnyServerConfig,
        declaration: ToolDeclaration,
        arguments: Mapping[str, JsonValue],
        *,
        caller: Caller,
        unspoken: frozenset[str],
        on_progress: Report,
    ) -> CallResult:
        """Carry out a call; ``unspoken`` is what nobody but the server may see of its arguments.

        Raises:
            McpError: It came to nothing, or the server says that it failed.
        """
        name = declaration.remote.name if declaration.remote is not None else ""
        if not _is_allowed(config, name):
            msg = f"this worker's agent may not use {name} of MCP server {config.name!r} any more"
            raise McpError(ReasonCode.TOOL_EXECUTION_ERROR, msg)
        server = self._server(config)
        server.hide(unspoken)
        result = await server.call(
            name,
            arguments,
            caller=caller,
            limit=declaration.timeout.total_seconds(),
            repeatable=declaration.idempotent,
            on_progress=on_progress,
        )
        return read(result, caller.call_id)

    def carry_over(self, session: str, before: str) -> None:
        """A session goes on from the conversation of another, and with it from what servers hold of that one."""
        for server in self._servers.values():
            server.reliance.carry_over(session, before)

    def states(self) -> tuple[ServerState, ...]:
        """The servers that have been asked for, and those that are disabled."""
        return tuple(server.state for server in self._servers.values())

    def troubles(self) -> list[str]:
        """A line for each server that cannot be used. None of it makes the worker unready: it has other work."""
        return [
            f"{state.status}: {state.error.splitlines()[0]}"
            for state in self.states()
            if state.status in {ServerStatus.FAILED, ServerStatus.NEEDS_AUTH}
        ]

    async def close(self) -> None:
        """Close every connection; the processes have ended then."""
        servers = tuple(self._servers.values())
        self._servers.clear()
        await asyncio.gather(*(server.close() for server in servers), return_exceptions=True)

    async def _list_tools(self, config: AnyServerConfig) -> Sequence[Tool]:
        server = self._server(config)
        try:
            tools = _admit_tools(config, await server.tools())
        except McpUnavailableError as error:
            server.note_failure(error)
            logger.warning("%s", error)
            raise
        server.state = ServerState(name=config.name, status=ServerStatus.CONNECTED)
        return [self._without_secrets(tool) for tool in tools]

    def _without_secrets(self, tool: Tool) -> Tool:
        """What a server says of its tool, without what it was told in confidence."""
        said = without_known(tool.description or tool.title or "", self._secrets)
        schema = _with_clean_names(without_secrets(tool.input_schema, self._secrets), self._secrets)
        return replace(tool, description=said, input_schema=cast("dict[str, JsonValue]", schema))

    def _server(self, config: AnyServerConfig) -> McpServer:
        key = config.model_dump_json()
        server = self._servers.get(key)
        if server is None:
            server = self._servers[key] = server_of(config, self._around)
        return server


def _with_clean_names(value: JsonValue, secrets: Collection[str]) -> JsonValue:
    """A schema without secrets in the names of its properties, also where it lists them as texts."""
    if isinstance(value, dict):
        return {without_known(name, secrets): _with_clean_names(inner, secrets) for name, inner in value.items()}
    return [_with_clean_names(inner, secrets) for inner in value] if isinstance(value, list) else value


def _admit_tools(config: AnyServerConfig, tools: Sequence[Tool]) -> list[Tool]:
    """The tools of the server that the agent may use; the limits of a list hold for them."""
    offered = [tool.name for tool in tools]
    if absent := sorted(set(config.pick or ()).difference(offered)):
        msg = f"has no tool {', '.join(absent)}, which pick names; it has: {_format_names(offered)}"
        raise McpUnavailableError(f"MCP server {config.name!r} {msg}")
    admitted = [tool for tool in tools if _is_allowed(config, tool.name)]
    if problem := _problem([tool.name for tool in admitted]) or _size_problem(admitted):
        raise McpUnavailableError(f"MCP server {config.name!r} {problem}")
    return admitted


def _problem(names: Sequence[str]) -> str:
    if len(names) > MOST_TOOLS:
        return (
            f"offers {len(names)} tools, and an agent may use {MOST_TOOLS} of one server; name those that it needs in "
            "pick, or leave some out with omit"
        )
    twice = sorted(name for name, times in Counter(names).items() if times > 1)
    return f"lists two tools named {_format_names(twice)}; omit them, or have the server fixed" if twice else ""


def _size_problem(tools: Sequence[Tool]) -> str:
    """Bytes of names, descriptions and schemas, which a turn keeps of its tools."""
    sizes = {tool.name: len(to_json((tool.name, tool.description or tool.title, tool.input_schema))) for tool in tools}
    if sum(sizes.values()) <= LARGEST_DECLARATIONS:
        return ""
    largest = max(sizes, key=lambda name: sizes[name])
    return (
        f"describes its tools in {sum(sizes.values())} bytes, and one server may use {LARGEST_DECLARATIONS}; the "
        f"largest is {_format_names([largest])} with {sizes[largest]}: leave such out with omit, or name those that "
        "the agent needs in pick"
    )


def _format_names(names: Sequence[str]) -> str:
    """The names, as far as one line has room."""
    text = " ".join(", ".join(names).split())
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}… ({len(names)} in all)"


def _is_allowed(config: AnyServerConfig, tool: str) -> bool:
    return tool not in config.omit and (config.pick is None or tool in config.pick)


def _declare_tools(
    config: AnyServerConfig, tools: Sequence[Tool], taken: set[str], queue: str | None
) -> list[ToolDeclaration]:
    """The tools, sorted: a definition's hash does not depend on their order."""
    declared: list[ToolDeclaration] = []
    for tool in sorted(tools, key=lambda tool: tool.name):
        name = wire_name(config.name, tool.name, taken)
        if name in taken:
            msg = f"MCP server {config.name!r} has a tool {tool.name!r} whose name {name!r} another tool has; omit it"
            raise McpUnavailableError(msg)
        taken.add(name)
        hints = tool.annotations
        declared.append(
            ToolDeclaration(
                name=name,
                description=tool.description or "",
                parameters={"type": "object", "properties": {}, **tool.input_schema},
                reference=f"{MCP_REFERENCE}{config.name}/{tool.name}",
                timeout=config.call_timeout,
                idempotent=bool(hints and (hints.idempotent_hint or hints.read_only_hint)),
                task_queue=queue,
                pinned=queue is not None,
            )
        )
    return declared
