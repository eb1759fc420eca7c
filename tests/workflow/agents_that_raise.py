"""An agent with a tool, a hook and a log line that fail or hold values of Python."""

import logging
from datetime import UTC, datetime, timedelta

from perdure import Agent, RetryPolicy, hook, tool
from perdure.contracts.events import Event


class OddError(Exception):
    """An exception of the agent's own module."""


@tool
def pay(amount: int) -> str:
    """Pay."""
    held = {"at": datetime.now(UTC), "for": timedelta(seconds=amount), "who": object(), "error": OddError("no")}
    logging.getLogger("shop").warning("paying %s", object(), extra={"held": held, "seen": {1, 2}})
    raise OddError({"amount": amount})


@hook("generation_step")
def watch(_: Event) -> None:
    """Look at each step."""
    raise OddError


agent = Agent(
    name="tester",
    model="openai/scripted",
    tools=[pay],
    hooks=[watch],
    on_hook_error="ignore",
    on_tool_error="feed_back",
    retry=RetryPolicy(base=timedelta(milliseconds=10)),
)
