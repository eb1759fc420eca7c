"""MCP servers for tests, and one of their tools called as a worker calls it."""

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from perdure import Agent, HttpServerConfig, StdioServerConfig
from perdure.activities.mcp.questions import NOTHING_ASKED, Answering
from perdure.activities.mcp.servers import McpServers
from perdure.activities.mcp.session_state import Caller
from perdure.activities.secrets import secret_values
from perdure.contracts.tools import ToolDeclaration
from perdure.llm.tool_output import CallResult

PEER = Path(__file__).parents[2] / "mcp_peer.py"

Call = Callable[..., Awaitable[CallResult]]


def peer(fault: str = "", **settings: Any) -> StdioServerConfig:
    """A server without packages that has this fault."""
    return StdioServerConfig(**{"name": "peer", "command": sys.executable, "args": (str(PEER), fault), **settings})


def agent(*servers: StdioServerConfig | HttpServerConfig) -> Agent:
    return Agent(name="tester", model="openai/scripted", mcp_servers=servers)


class Connected:
    """A worker's servers, with the first agent's tools."""

    def __init__(self, using: Agent, environment: dict[str, str]) -> None:
        self.agent = using
        self.servers = McpServers([using], secret_values([using], environment), environment)
        self.tools: dict[str, ToolDeclaration] = {}
        self.progress: list[tuple[float, float | None, str]] = []

    async def open(self, session: str = "s") -> None:
        """List the tools, as the opening of a turn does."""
        self.tools = {tool.name: tool for tool in await self.servers.declarations(self.agent, session=session)}

    async def call(
        self,
        name: str,
        *,
        session: str = "s",
        call_id: str = "c1",
        unspoken: Collection[str] = (),
        answering: Answering | None = None,
        **arguments: Any,
    ) -> CallResult:
        """Call a tool by the name that the model knows."""
        tool = self.tools[name]
        config = next(server for server in self.agent.mcp_servers if tool.reference.startswith(f"mcp:{server.name}/"))
        return await self.servers.call(
            config,
            tool,
            arguments,
            caller=Caller(session, call_id, answering or NOTHING_ASKED),
            unspoken=frozenset(unspoken),
            on_progress=lambda *report: self.progress.append(report),
        )

    @property
    def status(self) -> str:
        (state,) = self.servers.states()
        return state.status


@asynccontextmanager
async def worker_of(
    *servers: StdioServerConfig | HttpServerConfig, folder: Path, **environment: str
) -> AsyncIterator[Connected]:
    """The servers of a worker that ends with the block; their tools are not listed yet."""
    variables = {"PATH": "/usr/bin:/bin", "PERDURE_MCP_FOLDER": str(folder / "mcp"), **environment}
    connected = Connected(agent(*servers), variables)
    try:
        yield connected
    finally:
        await connected.servers.close()
