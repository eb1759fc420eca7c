"""An agent for workers that are killed: each call of its hooks leaves a line in the world outside."""

import os
from pathlib import Path
from typing import Any

from perdure import Agent, Continue, HookContext, HookRule, RetryWithFeedback, hook, tool


def _leave_a_line(name: str, event: Any) -> None:
    with Path(os.environ["EFFECTS_FILE"]).open("a", encoding="utf-8") as file:
        file.write(f"{name} {event.type}\n")


@tool
def work() -> str:
    """Do some work."""
    return "did it"


@hook("generation_end", "tool_end")
def first(event: Any, context: HookContext) -> RetryWithFeedback | None:
    """Say once that the answer is to be better, and hold the worker if it is told to."""
    _leave_a_line("first", event)
    if os.environ.get("HOLD"):
        context.wait(600)
    said = [message.content for message in context.messages()]
    return RetryWithFeedback("better") if event.type == "tool_end" and "better" not in said else None


@hook("tool_end")
async def second(event: Any) -> Continue:
    """Say something that the first hook's reaction comes before."""
    _leave_a_line("second", event)
    return Continue("never read")


agent = Agent(
    name="tester",
    model="openai/scripted",
    tools=[work],
    hooks=[first, second, HookRule(name="brief", on="agent_start", reaction=Continue("be brief"))],
)
