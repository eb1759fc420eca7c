"""A fleet's agents: those that work, which give each panel its data, and one for each fault that an alert tells of."""

import os
import sys
import time
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

from perdure import Agent, Budgets, Compaction, HookContext, RetryPolicy, StdioServerConfig, ask_user, hook, tool
from perdure.agents.context import ToolContext

PRICED = "openai/gpt-4o-mini"
"""Its prices are known."""

LIMITED = "anthropic/claude-sonnet-4-5"
"""The one whose key is limited: the calls of a limited key take turns for minutes, so nobody else uses it."""

QUICK = RetryPolicy(base=timedelta(milliseconds=100), jitter=timedelta(0))
STEADY = RetryPolicy(
    base=timedelta(seconds=1), cap=timedelta(seconds=1), jitter=timedelta(0), max_retries=1_000, max_time=None
)
NEVER = RetryPolicy(max_retries=0)
PEER = Path(__file__).parents[1] / "mcp_peer.py"


@tool(idempotent=True)
def look(place: str) -> str:
    """Look at a place."""
    return f"nothing at {place}"


@tool
def pay(amount: int, context: ToolContext) -> str:
    """Pay; the worker is killed meanwhile."""
    with Path(os.environ["PAID"]).open("a", encoding="utf-8") as file:
        file.write(f"{os.getpid()} {amount}\n")
    context.wait(600)
    return "paid"


@tool(timeout=timedelta(milliseconds=50))
def deaf(number: int) -> str:
    """Hear of no time-out."""
    time.sleep(1)
    return f"done {number}"


@hook("tool_end")
def watch(event: object, context: HookContext) -> None:
    """See each tool's end."""


PEERS = StdioServerConfig(name="peer", command=sys.executable, args=(str(PEER),))
HANGS = StdioServerConfig(name="hangs", command="sleep", args=("600",), init_timeout=timedelta(seconds=60))
DEAD = StdioServerConfig(name="dead", command="false", init_timeout=timedelta(seconds=5))

helper = Agent(name="helper", model=PRICED, instructions="Help.", description="Helps.")
writer = Agent(
    name="writer",
    model=PRICED,
    tools=[look],
    mcp_servers=[PEERS],
    delegates=[helper],
    hooks=[watch],
    budgets=Budgets(llm_calls=3, warn_at=(Decimal("0.5"),)),
    compaction=Compaction(keep=2),
)
second = Agent(name="second", model="openai/away", fallback_models=["openai/gpt-4.1-mini"], retry=NEVER)
asks = Agent(name="asks", model=PRICED, tools=[ask_user])
single = Agent(name="single", model=PRICED, tools=[ask_user], max_running=1)
storms = Agent(name="storms", model="openai/gpt-4.1-nano", retry=STEADY)
spends = Agent(name="spends", model="openai/gpt-4o")
flaky = Agent(name="flaky", model=LIMITED, retry=QUICK)
broke = Agent(name="broke", model="openai/gpt-4.1")
free = Agent(name="free", model="openai/of-our-own")
pays = Agent(name="pays", model=PRICED, tools=[pay])
deafens = Agent(name="deafens", model=PRICED, tools=[deaf])
opens = Agent(name="opens", model=PRICED, mcp_servers=[HANGS])
dead = Agent(name="dead", model=PRICED, mcp_servers=[DEAD])
