"""All MCP servers of one worker: what tools their agents get, calls, their states, and their end."""

import asyncio
import logging
import os
from collections.abc import Iterable, Mapping, Sequence

from mcp_types import Tool

from activities.failures import redact
from activities.mcp.failures import McpError, McpUnavailableError
from activities.mcp.references import own_folder
from activities.mcp.results import read
from activities.mcp.server import McpServer, Report, Surroundings
from activities.mcp.transports import server_of
from activities.outputs import CallResult
from activities.secrets import secret_values
from perdure.agents.agent import Agent
from perdure.contracts.errors import ReasonCode
from perdure.contracts.mcp import AnyServerConfig, ServerState, ServerStatus
from perdure.contracts.tools import ToolDeclaration, wire_name
from perdure.contracts.values import JsonValue
from perdure.engine.fixtures import without_secrets
from perdure.engine.redaction import without_known

REFERENCE = "mcp:"
"""``mcp:server/tool`` stands in a declaration where a Python tool has the name of its function."""

logger = logging.getLogger("perdure.mcp")


class McpServers:
    """The servers of a worker's agents. Equal configurations are one server, connected when it is first needed."""

    def __init__(self, agents: Iterable[Agent] = (), environment: Mapping[str, str] = os.environ) -> None:
        agents = tuple(agents)
        self._secrets = secrets = secret_values(agents, environment)
        self._around = Surroundings(environment, own_folder(environment), lambda text: redact(text, secrets))
        self._servers: dict[str, McpServer] = {}
        self.queue: str | None = None
        """The task queue that only this worker polls, for servers that hold state."""
        if any(agent.mcp_servers for agent in agents):
            for name in ("mcp", "httpx2", "httpcore2"):  # what they log is told here, in a sentence and without secrets
                logging.getLogger(name).setLevel(logging.CRITICAL)

    async def declarations(self, agent: Agent) -> tuple[ToolDeclaration, ...]:
        """The tools that the agent's servers offer now, as the agent may use them.

        Raises:
            McpUnavailableError: A server cannot be used, or what it offers does not fit its configuration.
        """
        configs = [config for config in agent.mcp_servers if config.enabled]
        listed = await asyncio.gather(*(self._listed(config) for config in configs), return_exceptions=True)
        taken = {tool.name for tool in agent.definition.tools}
        declared: list[ToolDeclaration] = []
        for config, tools in zip(configs, listed, strict=True):
            if isinstance(tools, BaseException):
                raise tools
            declared += _declared(config, tools, taken, self.queue if config.stateful else None)
        return tuple(declared)

    async def call(
        self,
        config: AnyServerConfig,
        declaration: ToolDeclaration,
        arguments: Mapping[str, JsonValue],
        *,
        call_id: str,
        on_progress: Report,
    ) -> CallResult:
        """Carry out a call.

        Raises:
            McpError: It came to nothing, or the server says that it failed.
        """
        if not _allowed(config, remote_name(declaration)):
            msg = f"this worker's agent may not use {remote_name(declaration)} of MCP server {config.name!r} any more"
            raise McpError(ReasonCode.TOOL_EXECUTION_ERROR, msg)
        result = await self._server(config).call(
            remote_name(declaration),
            arguments,
            limit=declaration.timeout.total_seconds(),
            repeatable=declaration.idempotent,
            on_progress=on_progress,
        )
        return read(result, call_id)

    def states(self) -> tuple[ServerState, ...]:
        """The servers that have been asked for."""
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

    async def _listed(self, config: AnyServerConfig) -> Sequence[Tool]:
        server = self._server(config)
        try:
            tools = await server.tools()
            _check(config, tools)
        except McpUnavailableError as error:
            server.failed(error)
            logger.warning("%s", error)
            raise
        server.state = ServerState(name=config.name, status=ServerStatus.CONNECTED)
        return [self._without_secrets(tool) for tool in tools if _allowed(config, tool.name)]

    def _without_secrets(self, tool: Tool) -> Tool:
        """What a server says of its tool, without what it was told in confidence."""
        said = without_known(tool.description or tool.title or "", self._secrets)
        schema = without_secrets(tool.input_schema, self._secrets)
        return tool.model_copy(update={"description": said, "input_schema": schema})

    def _server(self, config: AnyServerConfig) -> McpServer:
        key = config.model_dump_json()
        server = self._servers.get(key)
        if server is None:
            server = self._servers[key] = server_of(config, self._around)
        return server


def is_remote(declaration: ToolDeclaration) -> bool:
    """Whether a tool is one of an MCP server."""
    return declaration.reference.startswith(REFERENCE)


def server_name(declaration: ToolDeclaration) -> str:
    """The server of a remote tool."""
    return declaration.reference.removeprefix(REFERENCE).partition("/")[0]


def remote_name(declaration: ToolDeclaration) -> str:
    """The tool's name on its server."""
    return declaration.reference.removeprefix(REFERENCE).partition("/")[2]


def _check(config: AnyServerConfig, tools: Sequence[Tool]) -> None:
    names = [tool.name for tool in tools]
    twice = sorted({name for name in names if names.count(name) > 1 and _allowed(config, name)})
    if twice:
        msg = (
            f"MCP server {config.name!r} lists two tools named {', '.join(twice)}; omit them, or have the server fixed"
        )
        raise McpUnavailableError(msg)
    absent = sorted(set(config.pick or ()) - set(names))
    if absent:
        msg = (
            f"MCP server {config.name!r} has no tool {', '.join(absent)}, which pick names; it has: {', '.join(names)}"
        )
        raise McpUnavailableError(msg)


def _allowed(config: AnyServerConfig, tool: str) -> bool:
    return tool not in config.omit and (config.pick is None or tool in config.pick)


def _declared(
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
                reference=f"{REFERENCE}{config.name}/{tool.name}",
                timeout=config.call_timeout,
                idempotent=bool(hints and (hints.idempotent_hint or hints.read_only_hint)),
                task_queue=queue,
                pinned=queue is not None,
            )
        )
    return declared
