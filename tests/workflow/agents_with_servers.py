"""Agents with MCP servers, for workers of their own."""

import os
import sys
from pathlib import Path

from perdure import Agent, StdioServerConfig

_PEER = str(Path(__file__).parent.parent / "mcp_peer.py")
_FAULT = os.environ.get("PEER_FAULT", "")
_SAYS = 'echo "reaches its service with $API" >&2'
_LEAVES = "setsid sh -c 'echo left $$ >> \"$MCP_JOURNAL\"; exec sleep 1000'"
"""Starts a process that is in no group of the server's."""

peer = StdioServerConfig(
    name="peer",
    command="sh",  # the server is then not the process that the worker starts
    args=("-c", f"{_SAYS}; {_LEAVES} & {sys.executable} {_PEER} {_FAULT}; true"),
    env={"MCP_JOURNAL": os.environ.get("MCP_JOURNAL", ""), "API": "Bearer ${SERVICE_PASS}"},
)
absent = StdioServerConfig(name="absent", command="no-such-command")

agent = Agent(name="tester", model="openai/scripted", mcp_servers=[peer])
broken = Agent(name="broken", model="openai/scripted", mcp_servers=[absent])
