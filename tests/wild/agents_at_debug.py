"""An agent for logs at ``debug``: a tool, a model by either door, and an MCP server."""

import logging
import subprocess

from perdure import Agent, tool


@tool
def look(place: str) -> str:
    """Look."""
    logging.getLogger("mine").debug("looked")
    print("printed", "by look")  # noqa: T201 - as authors do
    subprocess.run(["echo", "printed by a subprocess"], check=True)
    return f"canary-result of {place}"


direct = Agent(name="direct", model="openai/scripted", instructions="canary-instructions", tools=[look])
by_litellm = Agent(name="by-litellm", model="groq/scripted", instructions="canary-instructions", tools=[look])
