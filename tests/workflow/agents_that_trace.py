"""Agents of a job with a delegate, an MCP server and tools, for workers of their own."""

import logging
import os
import sys
from datetime import timedelta
from pathlib import Path

from perdure import Agent, RetryPolicy, StdioServerConfig, tool
from perdure.agents.context import ToolContext
from tests.workflow.delegating import agent

_PEER = str(Path(__file__).parent.parent / "mcp_peer.py")

peer = StdioServerConfig(
    name="peer", command=sys.executable, args=(_PEER,), env={"MCP_JOURNAL": os.environ.get("MCP_JOURNAL", "")}
)


@tool(idempotent=True)
def note_down(context: ToolContext, text: str) -> str:
    """Write a line into the log; the first time it waits for a long time."""
    logging.getLogger("notes").warning("noted")
    lines = os.environ.get("EFFECTS_FILE")
    if lines is not None:
        with Path(lines).open("a", encoding="utf-8") as file:
            file.write(f"{os.getpid()}\n")
        if os.environ.get("HOLD"):
            context.wait(600)
    return f"noted {text}"


helper = agent("helper", description="Helps.", mcp_servers=[peer])
lead: Agent = agent(
    "tester",
    delegates=[helper],
    tools=[note_down],
    mcp_servers=[peer],
    retry=RetryPolicy(max_retries=2, base=timedelta(milliseconds=10), jitter=timedelta(0)),
)
