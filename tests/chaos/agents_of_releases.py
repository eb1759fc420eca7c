"""Two releases of a team's agents: B has one more tool, one more agent, and calls that agent as a delegate.

``RELEASE`` is A or B. Each body leaves a line of what it did for whom, so that work that is done again is seen under
whatever key.
"""

import asyncio
import os
from pathlib import Path

from perdure import Agent, Delegate, ToolContext, tool
from tests.chaos.agents import EFFECTS

IS_NEW = os.environ.get("RELEASE", "A") == "B"


def _effect(context: ToolContext, name: str, order: str) -> None:
    with (Path(os.environ["CHAOS_FOLDER"]) / EFFECTS).open("a", encoding="utf-8") as file:
        file.write(f"{name} {order} {context.idempotency_key}\n")


@tool
def pay(context: ToolContext, order: str) -> str:
    """Pay, which must never happen twice."""
    _effect(context, "pay", order)
    return f"paid {order}"


@tool
def refund(context: ToolContext, order: str) -> str:
    """Pay back, which must never happen twice."""
    _effect(context, "refund", order)
    return f"refunded {order}"


@tool
async def ship(context: ToolContext, order: str, seconds: float) -> str:
    """Ship, which must never happen twice, and takes its time."""
    _effect(context, "ship", order)
    await asyncio.sleep(seconds)
    return f"shipped {order}"


@tool(idempotent=True)
def put(context: ToolContext, order: str) -> str:
    """Put, which may happen twice."""
    _effect(context, "put", order)
    return f"put {order}"


chaos = Agent(
    name="chaos",
    model="openai/gpt-4o-mini",
    instructions="Work.",
    tools=[pay, put, ship, *([refund] if IS_NEW else [])],
    delegates=[Delegate("courier")] if IS_NEW else [],
)
if IS_NEW:
    courier = Agent(name="courier", model="openai/gpt-4o-mini", instructions="Carry.", tools=[pay, put])
