"""The agent that is measured: one tool of 2 KB a step, as `python -m perdure.worker` loads it."""

import asyncio
import time
from datetime import timedelta
from typing import Any

from perdure import Agent, Compaction, Tool, ToolContext, tool


@tool
def read_page(page: int, size: int = 2_000) -> str:
    """Read a page."""
    return f"page {page}: ".ljust(size, "x")


@tool
async def wait_for(seconds: float) -> str:
    """Wait."""
    await asyncio.sleep(seconds)
    return "waited"


@tool
def block_for(seconds: float, context: ToolContext) -> str:
    """Block a thread."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and not context.wait(0.05):
        pass
    return "blocked"


@tool(requires_approval=True)
def sign(seconds: float) -> str:
    """Sign, once a person has approved it."""
    return f"signed after {seconds}"


TOOLS: list[Tool[..., Any]] = [read_page, wait_for, block_for, sign]

WHOLE = Compaction(threshold=None)
"""What grows is measured as it grows: nothing is summarised."""

agent = Agent(
    name="bench", model="openai/gpt-4o-mini", instructions="Read.", max_steps=10_000, tools=TOOLS, compaction=WHOLE
)

instructed = Agent(
    name="instructed",
    model="openai/gpt-4o-mini",
    instructions="Read each page. ".ljust(200_000, "."),
    max_steps=10_000,
    tools=TOOLS,
    compaction=WHOLE,
)

windowed = Agent(
    name="windowed",
    model="openai/gpt-4o-mini",
    instructions="Read.",
    max_steps=10_000,
    tools=TOOLS,
    compaction=Compaction(window=64_000),
)

patient = Agent(
    name="patient",
    model="openai/gpt-4o-mini",
    instructions="Wait.",
    generation_timeout=timedelta(hours=2),
    tools=TOOLS,
)

off, watched, always = (
    Agent(name=mode, model="openai/gpt-4o-mini", instructions="Write.", stream=mode)
    for mode in ("off", "watched", "always")
)
