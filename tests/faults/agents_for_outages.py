"""An agent that pays once and then asks its model again, which may be away by then."""

import os
from datetime import timedelta
from pathlib import Path

from perdure import Agent, RetryPolicy, ToolContext, tool


@tool
def pay(context: ToolContext) -> str:
    """Pay."""
    with Path(os.environ["PAID"]).open("a", encoding="utf-8") as paid:
        paid.write(f"{context.session}\n")
    return "paid"


payer = Agent(
    name="payer",
    model="openai/scripted",
    tools=[pay],
    retry=RetryPolicy(max_retries=5, cap=timedelta(seconds=8)),
)
