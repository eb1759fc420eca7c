"""An agent whose MCP server holds state, for workers of their own."""

import sys
from pathlib import Path

from perdure import Agent, StdioServerConfig

peer = StdioServerConfig(
    name="peer",
    command=sys.executable,
    args=(str(Path(__file__).parent.parent / "mcp_peer.py"), ""),
    stateful=True,
)
agent = Agent(name="tester", model="openai/scripted", mcp_servers=[peer])
