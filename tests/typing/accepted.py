"""Calls that both type checkers must accept. Nothing here runs: the checkers read it, mypy and basedpyright strict."""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from decimal import Decimal
from typing import assert_type

from pydantic import BaseModel, PrivateAttr

from perdure import (
    Agent,
    ApprovalPolicy,
    ApprovalRule,
    Budgets,
    Continue,
    Delegate,
    Fallback,
    HookContext,
    HookRule,
    HttpServerConfig,
    Retention,
    RetryPolicy,
    StdioServerConfig,
    Toolset,
    hook,
    stop,
    tool,
    tool_method,
)
from perdure.client import Client
from perdure.contracts.events import AgentEnd, AnyEvent, GenerationRetry, ToolEnd


class Meeting(BaseModel):
    """What a clerk finds in a letter."""

    place: str


@tool
def count(text: str) -> int:
    """Count the words of a text."""
    return len(text.split())


@tool(name="find", timeout=timedelta(seconds=3), catch=[OSError], masked=["token"])
async def look(query: str, token: str = "") -> list[str]:
    """Look something up."""
    return [query, token]


class Notebook(Toolset):
    """Pages."""

    owner: str
    _pages: dict[str, str] = PrivateAttr(default_factory=dict[str, str])

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        yield

    @tool_method(variants=["edit"])
    def write(self, page: str, text: str) -> int:
        """Write a page."""
        self._pages[page] = text
        return len(text)


@hook("tool_end", "tool_error", tool="find", timeout=timedelta(seconds=1))
async def told(event: ToolEnd, context: HookContext) -> Continue | None:
    return Continue("look again") if event.error and context.step < 3 else None


@hook(AgentEnd)
def noted(event: AgentEnd) -> None:
    print(event.output)


def write_agents() -> None:
    notebook = Notebook(owner="Ada", name="notes", variant="edit")
    assert_type(count("two words"), int)
    assert_type(notebook.write("title", "text"), int)
    assert_type(count.with_(timeout=timedelta(minutes=1))("text"), int)
    found = Agent(name="scout", model="openai/gpt-5-mini", description="Finds things.", label="Scout", tags=["fast"])
    agent = Agent(
        name="clerk",
        model="openai/gpt-5-mini",
        instructions=["Be brief.", "Be kind."],
        tools=[count, look, notebook, len],
        delegates=[found, Delegate(found, background=True), "bookkeeper"],
        mcp_servers=[
            StdioServerConfig(name="files", command="npx", args=["-y"], omit=["write"]),
            HttpServerConfig(name="tickets", url="https://tickets.example/mcp", pick=["search"]),
        ],
        generation_timeout=None,
        idle_timeout=timedelta(minutes=20),
        stream_idle_timeout=60,
        generate_params={"temperature": 0, "stop": ["END"]},
        retry=RetryPolicy(max_retries=3, base=timedelta(seconds=2), max_time=None),
        stop_conditions={"done": stop.tool_use("find") & ~stop.tool_error(), "long": stop.step_count(50)},
        hooks=[told, noted, HookRule(name="more", on=["step_end"], reaction=Continue("go on"), times=2)],
        budgets=Budgets(cost_usd="2.00", seconds=600, depth=2, warn_at=[0.5, Decimal("0.9")]),
        output_schema=Meeting,
        approvals=ApprovalPolicy(rules=[ApprovalRule(tool="write*", decision="ask")], expires=timedelta(days=1)),
        fallback_models=["openai/gpt-5", Fallback(model="anthropic/claude-sonnet-4-5", also_on=["llm.refused"])],
        retention=Retention(events="30d", artifacts=timedelta(days=30), transcript="1y", keep_latest=True),
    )
    assert_type(agent.clone(name="copy", max_steps=3), Agent)
    Agent(name="lists", model="openai/gpt-5-mini", output_schema=list[int])
    Agent(name="unions", model="openai/gpt-5-mini", output_schema=int | str)
    Agent(name="schemas", model="openai/gpt-5-mini", output_schema={"type": "object", "required": ["place"]})
    Agent(name="words", model="openai/gpt-5-mini", maxSteps=3, backoff_max_tries=2, max_cost_usd=0.5)
    # What an agent has is what another one takes.
    Agent(
        name=agent.name,
        model=agent.model,
        instructions=agent.instructions,
        description=agent.description,
        label=agent.label,
        tags=agent.tags,
        tools=agent.tools,
        delegates=agent.delegates,
        on_child_error=agent.on_child_error,
        mcp_servers=agent.mcp_servers,
        max_steps=agent.max_steps,
        generation_timeout=agent.generation_timeout,
        idle_timeout=agent.idle_timeout,
        stream_idle_timeout=agent.stream_idle_timeout,
        generate_params=agent.generate_params,
        retry=agent.retry,
        on_tool_error=agent.on_tool_error,
        on_unknown_tool=agent.on_unknown_tool,
        finish_tool=agent.finish_tool,
        completion=agent.completion,
        max_tool_turns=agent.max_tool_turns,
        stop_conditions=agent.stop_conditions,
        hooks=agent.hooks,
        on_hook_error=agent.on_hook_error,
        tool_mode=agent.tool_mode,
        budgets=agent.budgets,
        compaction=agent.compaction,
        output_schema=agent.output_schema,
        output_corrections=agent.output_corrections,
        interactive=agent.interactive,
        approvals=agent.approvals,
        skills=agent.skills,
        fallback_models=agent.fallback_models,
        retention=agent.retention,
        max_running=agent.max_running,
        cache=agent.cache,
        stream=agent.stream,
        stream_thinking=agent.stream_thinking,
    )


def read_event(event: AnyEvent) -> str:
    """The type of an event tells a checker its class."""
    if event.type == "tool_end":
        assert_type(event, ToolEnd)
        return event.result
    if event.type == "generation_retry":
        assert_type(event, GenerationRetry)
        return f"{event.attempt} of {event.max_attempts}"
    if event.type == "unknown":
        return f"{event.name} {event.body}"
    return event.stop_reason if event.type == "agent_end" else ""


async def use_the_client() -> None:
    async with await Client.connect() as client:
        turn = await client.start("clerk", "Read the letter.", session="job-1", max_steps=3, tenant="ada", turn=1)
        async for envelope in turn.events(types=["tool_end"]):
            if envelope.event.type == "tool_end":
                print(envelope.event.tool, envelope.event.seconds)
        await turn.extend(cost_usd="3.00", seconds=600)
