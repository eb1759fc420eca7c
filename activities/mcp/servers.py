"""All MCP servers of one worker: the tools that agents get, their calls, their states, and their closing."""

import asyncio
import dataclasses
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from mcp_types import CallToolResult, InputRequiredResult, Tool
from pydantic_core import to_json

from perdure.activities.mcp.calls import Request
from perdure.activities.mcp.failures import McpError, McpUnavailableError
from perdure.activities.mcp.listing import Listing
from perdure.activities.mcp.process import LONGEST_LINE
from perdure.activities.mcp.questions import InputNeededError, read_question, responses_to
from perdure.activities.mcp.references import own_folder
from perdure.activities.mcp.results import read_result
from perdure.activities.mcp.server import McpServer, Report, Surroundings
from perdure.activities.mcp.session_state import Caller
from perdure.activities.mcp.transports import server_of
from perdure.agents.agent import Agent
from perdure.contracts.errors import ReasonCode
from perdure.contracts.mcp import AnyServerConfig, ServerState, ServerStatus
from perdure.contracts.server_questions import ServerAnswer
from perdure.contracts.tools import MCP_REFERENCE, ToolDeclaration, wire_name
from perdure.contracts.values import JsonValue, replace, replace_surrogates
from perdure.llm.recorded_calls import without_secrets
from perdure.llm.tool_output import CallResult
from perdure.security.redaction import redact_text, without_known

MOST_TOOLS = 500
"""Most tools of one server in an agent. Models take a few hundred, and the workflow carries a line for each."""

LARGEST_DECLARATIONS = 500_000
"""Bytes of one server's tools with descriptions and schemas, which every request carries: more than most models read.

With it, the tools of several servers stay far below the 2 MB limit of a Temporal payload.
"""

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 5.0
"""Seconds before a call is sent again to a server that answered with its state alone."""

SHOWN = 500
"""Longest list of names in a message, in characters."""

logger = logging.getLogger("perdure.mcp")


@dataclass(frozen=True)
class McpTold:
    """Listeners, for metrics: ``called`` gets a server's name and a call's seconds, ``reconnected`` the name."""

    called: Callable[[str, float], None] = lambda _, __: None
    reconnected: Callable[[str], None] = lambda _: None


class McpServers:
    """The servers of a worker's agents. Equal configurations share one server, connected when first needed."""

    def __init__(
        self,
        agents: Iterable[Agent],
        secrets: frozenset[str],
        environment: Mapping[str, str] = os.environ,
        told: McpTold | None = None,
    ) -> None:
        agents = tuple(agents)
        self._secrets = secrets

        def clean(text: str, unspoken: frozenset[str]) -> str:
            return redact_text(replace_surrogates(text[:LONGEST_LINE]), secrets | unspoken)

        self._told = told or McpTold()
        self._around = Surroundings(environment, own_folder(environment), clean, self._told.reconnected)
        self._servers: dict[str, McpServer] = {}
        self.queue: str | None = None
        """The task queue that only this worker polls, for servers that hold state."""
        if any(agent.mcp_servers for agent in agents):
            for name in ("mcp", "httpx2", "httpcore2"):  # their failures are logged here, in a sentence without secrets
                logging.getLogger(name).setLevel(logging.CRITICAL)
        for config in (config for agent in agents for config in agent.mcp_servers if not config.enabled):
            self._server(config)  # listed for operators, although no agent uses it

    async def declarations(
        self, agent: Agent, tell: Callable[[Sequence[str]], None] = lambda _: None, *, session: str = ""
    ) -> tuple[ToolDeclaration, ...]:
        """The tools that the agent's servers offer now, as the agent may use them.

        Args:
            agent: The agent whose servers are asked.
            tell: Called at once and after each answer with the names of the servers that have not answered yet.
            session: The session whose turn opens.

        Raises:
            McpUnavailableError: A server cannot be used, or its tools do not fit its configuration or the limits.
        """
        configs = [config for config in agent.mcp_servers if config.enabled]
        silent = [config.name for config in configs]

        async def listed_by(config: AnyServerConfig) -> Sequence[Tool]:
            try:
                return await self._list_tools(config, session)
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
        """Carry out a call.

        Args:
            config: The server.
            declaration: The tool, as it is frozen with the agent.
            arguments: The arguments.
            caller: Who calls, and what the call's server asked before.
            unspoken: Values of the arguments that only the server may see.
            on_progress: Takes the call's progress.

        Raises:
            McpError: The call failed, or the server says so.
            InputNeededError: The server asks something first.
        """
        name = declaration.remote.name if declaration.remote is not None else ""
        if not _is_allowed(config, name):
            msg = f"this worker's agent may not use {name} of MCP server {config.name!r} any more"
            raise McpError(ReasonCode.TOOL_EXECUTION_ERROR, msg)
        server = self._server(config)
        server.hide(unspoken)

        async def send(responses: dict[str, Any] | None, state: str | None) -> CallToolResult | InputRequiredResult:
            began = time.monotonic()
            try:
                return await server.call(
                    Request(name, arguments, responses, state),
                    caller=caller,
                    limit=declaration.timeout.total_seconds(),
                    repeatable=declaration.idempotent,
                    on_progress=on_progress,
                )
            finally:
                self._told.called(config.name, time.monotonic() - began)

        server.changes.note_call(caller.session)
        try:
            result, number = await send(*caller.answering.response()), caller.answering.number
            while isinstance(result, InputRequiredResult):
                number += 1
                asked = read_question(config.name, result, number, server.clean)
                if asked.forms or asked.pages:
                    if caller.answering.has_people:
                        raise InputNeededError(asked)
                    result = await send(responses_to(asked, ServerAnswer(number=number, action="cancel")), asked.state)
                else:  # the server only wants to be asked again
                    await asyncio.sleep(min(FIRST_PAUSE * 2**number, LONGEST_PAUSE))
                    result = await send(None, asked.state)
            read = read_result(result, caller.call_id)
        except McpError as error:
            if server.changes.is_news(caller.session):
                error.args = (f"{error}\n{_changed(config.name)}",)
            raise
        if server.changes.is_news(caller.session):
            text = f"{read.text}\n" if read.text else ""
            return dataclasses.replace(read, text=f"{text}{_changed(config.name)}")
        return read

    def carry_over(self, session: str, before: str) -> None:
        """Let ``session``, which goes on from the conversation of ``before``, rely on the same state of servers."""
        for server in self._servers.values():
            server.stakes.carry_over(session, before)

    def states(self) -> tuple[ServerState, ...]:
        """The states of the servers that were needed so far, and of the disabled ones."""
        return tuple(server.state for server in self._servers.values())

    def usable(self) -> list[tuple[str, bool]]:
        """Names of servers with True if connected, False if they cannot be used; others are left out."""
        known = {ServerStatus.CONNECTED, ServerStatus.FAILED, ServerStatus.NEEDS_AUTH}
        return [
            (state.name, state.status is ServerStatus.CONNECTED) for state in self.states() if state.status in known
        ]

    def troubles(self) -> list[str]:
        """A line for each server that cannot be used. The worker stays ready: it has other work."""
        return [
            f"{state.status}: {state.error.splitlines()[0]}"
            for state in self.states()
            if state.status in {ServerStatus.FAILED, ServerStatus.NEEDS_AUTH}
        ]

    async def close(self) -> None:
        """Close every connection, and wait until the servers' processes have ended."""
        servers = tuple(self._servers.values())
        self._servers.clear()
        await asyncio.gather(*(server.close() for server in servers), return_exceptions=True)

    async def _list_tools(self, config: AnyServerConfig, session: str) -> Sequence[Tool]:
        server = self._server(config)
        server.changes.note_listed(session)
        try:
            listing = await server.list_tools()
            tools = _admit_tools(config, listing)
        except McpUnavailableError as error:
            server.note_failure(error)
            logger.warning("%s", error)
            raise
        server.note_status(ServerStatus.CONNECTED)
        left_out = {name: why for name, why in listing.left_out.items() if _is_allowed(config, name)}
        server.warn([*listing.flaws, *(f"its tool {name!r} cannot be used: {why}" for name, why in left_out.items())])
        return [self._without_secrets(tool) for tool in tools]

    def _without_secrets(self, tool: Tool) -> Tool:
        """The tool, with the worker's secrets masked in its description and schema."""
        said = without_known(tool.description or tool.title or "", self._secrets)
        schema = _with_clean_names(without_secrets(tool.input_schema, self._secrets), self._secrets)
        return replace(tool, description=said, input_schema=cast("dict[str, JsonValue]", schema))

    def _server(self, config: AnyServerConfig) -> McpServer:
        key = config.model_dump_json()
        server = self._servers.get(key)
        if server is None:
            server = self._servers[key] = server_of(config, self._around)
        return server


def _changed(server: str) -> str:
    """The line by which the model learns that a server has other tools now."""
    return f"[MCP server {server!r} has changed its list of tools; the new list is yours from the next turn on]"


def _with_clean_names(value: JsonValue, secrets: Collection[str]) -> JsonValue:
    """A schema without secrets in property names, and in lists of these names such as ``required``."""
    if isinstance(value, dict):
        return {without_known(name, secrets): _with_clean_names(inner, secrets) for name, inner in value.items()}
    return [_with_clean_names(inner, secrets) for inner in value] if isinstance(value, list) else value


def _admit_tools(config: AnyServerConfig, listing: Listing) -> list[Tool]:
    """The tools of the server that the agent may use, within ``MOST_TOOLS`` and ``LARGEST_DECLARATIONS``."""
    tools = listing.tools
    offered = [tool.name for tool in tools]
    if absent := sorted(set(config.pick or ()).difference(offered)):
        whys = [f"{name!r} cannot be used: {listing.left_out[name]}; " for name in absent if name in listing.left_out]
        msg = f"has no tool {', '.join(absent)}, which pick names; {''.join(whys)}it has: {_format_names(offered)}"
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
    """Describe why the tools' names, descriptions and schemas are too large together; empty if they are not."""
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
    """The names on one line, cut to ``SHOWN`` characters."""
    text = " ".join(", ".join(names).split())
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}… ({len(names)} in all)"


def _is_allowed(config: AnyServerConfig, tool: str) -> bool:
    return tool not in config.omit and (config.pick is None or tool in config.pick)


def _declare_tools(
    config: AnyServerConfig, tools: Sequence[Tool], taken: set[str], queue: str | None
) -> list[ToolDeclaration]:
    """The declarations of the tools, sorted, so that the definition's hash does not depend on the server's order."""
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
