"""Agents for workers that are killed: each run of a tool's body leaves a line in the world outside."""

import os
from datetime import timedelta
from pathlib import Path

from perdure import Agent, tool
from perdure.agents.context import ToolContext
from perdure.contracts.retries import RetryPolicy


def _leave_a_line(context: ToolContext, tool_name: str) -> None:
    with Path(os.environ["EFFECTS_FILE"]).open("a", encoding="utf-8") as file:
        file.write(f"{tool_name} {context.idempotency_key}\n")
    if os.environ.get("HOLD"):
        context.wait(600)


@tool
def pay(context: ToolContext) -> str:
    """Pay, which must never happen twice."""
    _leave_a_line(context, "pay")
    return "paid"


@tool(idempotent=True)
def put(context: ToolContext) -> str:
    """Put, which may happen twice."""
    _leave_a_line(context, "put")
    return "put"


agent = Agent(
    name="tester",
    model="openai/scripted",
    tools=[pay, put],
    retry=RetryPolicy(max_retries=2, base=timedelta(milliseconds=10), jitter=timedelta(0)),
)

planner = Agent(name="planner", model="openai/scripted", completion="attempt_completion")

told = Agent(
    name="told",
    model="openai/scripted",
    retry=RetryPolicy(max_retries=2, base=timedelta(seconds=1), jitter=timedelta(0), on_retry="tell_model"),
)

brief = Agent(
    name="brief",
    model="openai/scripted",
    retry=RetryPolicy(
        max_retries=4, base=timedelta(milliseconds=10), jitter=timedelta(0), max_time=timedelta(seconds=3)
    ),
)
"""Gives up soon: an outage of six seconds is longer than all that it may wait."""

patient = Agent(name="patient", model="openai/scripted", retry=RetryPolicy())
