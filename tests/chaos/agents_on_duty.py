"""The agent of the incidents: it pays and puts as that of the chaos runs, with the retries that an agent has by itself.

``INCIDENT=changed`` gives its tool ``put`` one more argument, as a deploy does.
"""

import os
import signal

from perdure import Agent, ToolContext, tool
from tests.chaos.agents import _effect, pay, put

CHANGED = "changed"


@tool(name="put", idempotent=True)
def put_elsewhere(context: ToolContext, text: str, place: str) -> str:
    """Put, which may happen twice, in a place."""
    _effect(context, "put")
    return f"put {text} at {place}"


@tool
def poison(context: ToolContext) -> str:
    """Kill the process that runs this."""
    _effect(context, "poison")
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"


agent = Agent(
    name="chaos",
    model="openai/gpt-4o-mini",
    instructions="Work.",
    tools=[pay, put_elsewhere if os.environ.get("INCIDENT") == CHANGED else put, poison],
)
