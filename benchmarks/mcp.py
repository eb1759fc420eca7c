"""``python -m benchmarks.mcp``: what a call of a kept stdio server costs beside the bare SDK, and fifty at once.

Ends with 1 when a call costs more than three times the SDK's own, or when fifty calls run one after another.
"""

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop
from mcp import Client
from mcp.client.stdio import StdioServerParameters

from perdure import Agent, StdioServerConfig
from perdure.activities.mcp.servers import McpServers
from perdure.activities.mcp.session_state import Caller

PEER = Path(__file__).parent.parent / "tests" / "mcp_peer.py"
CALLS, WARM_UP = 500, 50
PARALLEL, PAUSE = 50, 0.5
BOUND = 3.0


async def milliseconds(call: Callable[[], Awaitable[object]]) -> float:
    """The median of many calls, one after another."""
    took: list[float] = []
    for _ in range(WARM_UP + CALLS):
        began = time.perf_counter()
        await call()
        took.append(time.perf_counter() - began)
    return statistics.median(took[WARM_UP:]) * 1000


async def measured(folder: str) -> int:
    """Measure, print, and say whether the bounds hold."""
    async with Client(StdioServerParameters(command=sys.executable, args=[str(PEER)]), cache=None) as client:
        bare = await milliseconds(lambda: client.call_tool("echo", {"text": "hi"}))
    config = StdioServerConfig(name="peer", command=sys.executable, args=(str(PEER),))
    agent = Agent(name="bench", model="openai/none", mcp_servers=[config])
    servers = McpServers([agent], frozenset(), {"PATH": "/usr/bin:/bin", "PERDURE_MCP_FOLDER": folder})
    tools = {tool.name: tool for tool in await servers.declarations(agent)}

    def call(name: str, **arguments: str | float) -> Awaitable[object]:
        return servers.call(
            config, tools[name], arguments, unspoken=frozenset(), caller=Caller("s", "c"), on_progress=print
        )

    ours = await milliseconds(lambda: call("peer__echo", text="hi"))
    began = time.perf_counter()
    await asyncio.gather(*(call("peer__pause", seconds=PAUSE) for _ in range(PARALLEL)))
    together = time.perf_counter() - began
    await servers.close()
    sys.stdout.write(f"bare SDK call       {bare:6.2f} ms\n")
    sys.stdout.write(f"through a worker    {ours:6.2f} ms   {ours / bare:.2f} times (at most {BOUND:g})\n")
    alone = PARALLEL * PAUSE
    sys.stdout.write(f"{PARALLEL} calls of {PAUSE:g} s   {together:6.2f} s    (one after another: {alone:g} s)\n")
    return int(ours > BOUND * bare or together > alone / 2)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        sys.exit(uvloop.run(measured(directory)))
