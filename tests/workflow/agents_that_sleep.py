"""One tool of each kind, for a worker that is frozen while their bodies run: each ends when the test says so."""

import asyncio
import os
import sys
from pathlib import Path

from perdure import Agent, DidNotHappen, StdioServerConfig, tool
from perdure.agents.context import ToolContext

JOURNAL = os.environ.get("MCP_JOURNAL", "")


def _note(context: ToolContext, what: str) -> None:
    with Path(os.environ["EFFECTS_FILE"]).open("a", encoding="utf-8") as file:
        file.write(f"{what} {context.idempotency_key}\n")


def _told() -> bool:
    return Path(f"{JOURNAL}.go on").exists()


def _body(context: ToolContext, name: str) -> str:
    _note(context, name)
    while not _told():
        if context.wait(0.01):
            _note(context, f"stopped-{name}")
            return "stopped"
    return f"{name}: done"


async def _async_body(context: ToolContext, name: str) -> str:
    _note(context, name)
    try:
        while not _told():
            await asyncio.sleep(0.01)
    except asyncio.CancelledError:
        _note(context, f"stopped-{name}")
        raise
    return f"{name}: done"


def _look(context: ToolContext) -> DidNotHappen:
    _note(context, "asked")
    return DidNotHappen()


@tool
def pay(context: ToolContext) -> str:
    """Pay."""
    return _body(context, "pay")


@tool
async def pay_async(context: ToolContext) -> str:
    """Pay."""
    return await _async_body(context, "pay_async")


@tool(idempotent=True)
def put(context: ToolContext) -> str:
    """Put."""
    return _body(context, "put")


@tool(reconcile=_look)
async def book(context: ToolContext) -> str:
    """Book."""
    return await _async_body(context, "book")


peer = StdioServerConfig(
    name="peer",
    command=sys.executable,
    args=(str(Path(__file__).parent.parent / "mcp_peer.py"),),
    env={"MCP_JOURNAL": JOURNAL},
    pick=("hold",),
)
agent = Agent(
    name="tester",
    model="openai/scripted",
    tools=[pay, pay_async, put, book],
    mcp_servers=[peer],
    on_tool_error="feed_back",
)
