"""The agent of the chaos runs: each run of a tool's body leaves a line in the world outside, with its key."""

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from perdure import Agent, Compaction, RetryPolicy, tool
from perdure.agents.context import ToolContext

EFFECTS = "effects"
"""The file below ``CHAOS_FOLDER`` with a line for each effect."""

at_boundary: list[Callable[[str, str], None]] = []
"""Told when a body comes to a boundary; filled in a chaos worker."""


def _effect(context: ToolContext, name: str) -> None:
    for reached in at_boundary:
        reached("before effect", context.call_id)
    with (Path(os.environ["CHAOS_FOLDER"]) / EFFECTS).open("a", encoding="utf-8") as file:
        file.write(f"{name} {context.idempotency_key}\n")
    for reached in at_boundary:
        reached("after effect", context.call_id)


@tool
def pay(context: ToolContext, amount: int) -> str:
    """Pay, which must never happen twice."""
    _effect(context, "pay")
    return f"paid {amount}"


@tool(idempotent=True)
def put(context: ToolContext, text: str) -> str:
    """Put, which may happen twice."""
    _effect(context, "put")
    return f"put {text}"


@tool(idempotent=True)
def fail(context: ToolContext) -> str:
    """Do something and then fail in a way that nobody foresaw."""
    _effect(context, "fail")
    raise ArithmeticError("not foreseen")


@tool(catch=[ValueError])
def refuse(context: ToolContext) -> str:
    """Do something and then say that it cannot be done."""
    _effect(context, "refuse")
    raise ValueError("not possible")


# A model with a price, so that the cost is compared too. Retries for those that a worker sends which was frozen.
agent = Agent(
    name="chaos",
    model="openai/gpt-4o-mini",
    instructions="Work.",
    tools=[pay, put, fail, refuse],
    compaction=Compaction(keep=2),
    retry=RetryPolicy(max_retries=50, base=timedelta(milliseconds=10), jitter=timedelta(0)),
)
