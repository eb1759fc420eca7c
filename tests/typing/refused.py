"""Calls that both type checkers must refuse. Nothing here runs: a call that a checker begins to take is an error.

Each line names what mypy and what basedpyright say of it; both warn of a comment that ignores nothing.
"""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from datetime import timedelta

from pydantic import BaseModel

from perdure import (
    Agent,
    ApprovalPolicy,
    ApprovalRule,
    Budgets,
    Fallback,
    HookContext,
    RetryPolicy,
    StdioServerConfig,
    Toolset,
    hook,
    stop,
    tool,
    tool_method,
)
from perdure.client import Client, Turn
from perdure.contracts.events import AnyEvent, Event, ToolEnd
from perdure.contracts.values import replace

M = "openai/gpt-5-mini"


class Meeting(BaseModel):
    """What a clerk finds in a letter."""

    place: str


class Notebook(Toolset):
    """Pages."""

    owner: str

    @tool_method
    def read(self, page: str) -> str:
        """Read a page."""
        return page


@tool
def count(text: str) -> int:
    """Count the words of a text."""
    return len(text.split())


def write_agents(agent: Agent) -> None:
    Agent(nam="x", max_steps="many")  # type: ignore[call-arg, arg-type]  # pyright: ignore[reportCallIssue]
    Agent(name="x")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Agent("x", M)  # type: ignore[call-arg, arg-type]  # pyright: ignore[reportCallIssue]
    Agent(name="x", model=M, max_step=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Agent(name="x", model=M, tools=[3])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    Agent(name="x", model=M, tools=count)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Agent(name="x", model=M, delegates=[3])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    Agent(name="x", model=M, tool_mode="yaml")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Agent(name="x", model=M, tags="fast")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Agent(name="x", model=M, output_schema="object")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Agent(name="x", model=M, stop_conditions=stop.never())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Agent(name="x", model=M, hooks=[count])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    agent.clone(nam="y")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    agent.clone(max_steps="many")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def write_settings() -> None:
    Budgets(cost="1")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Budgets(tool_calls="many")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    RetryPolicy(tries=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    RetryPolicy(base="fast")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Fallback(model=M, retries=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    ApprovalRule(tool="pay", decision="maybe")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    ApprovalPolicy(rules=["pay"])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    StdioServerConfig(name="files")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    stop.tool_use(3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    stop.step_count(steps=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    stop.token_usage(3, mode="all")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def write_tools(notebook: Notebook) -> None:
    tool(timeouts=timedelta(seconds=1))(len)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    tool(timeout=3)(len)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    tool_method(variant="edit")(len)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    count(3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    count.with_(nam="y")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Notebook()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Notebook(owner=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Notebook(owner="Ada", ower="x")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    notebook.read(3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def says(event: ToolEnd) -> str:
    return event.result


def takes_three(event: ToolEnd, context: HookContext, more: int) -> None: ...


def write_hooks() -> None:
    hook("tool_ends")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    hook(Meeting)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    hook("tool_end", timeouts=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    hook("tool_end")(says)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    hook("tool_end")(takes_three)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def read_event(event: AnyEvent, logged: Event) -> None:
    if event.type == "tool_end":
        print(event.stop_reason)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownArgumentType]
    if logged.type == "agent_end":
        print(logged.tool)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownArgumentType]


async def use_the_client(client: Client, turn: Turn) -> None:
    await client.start("clerk", "Read.", sesion="job-1")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await client.start("clerk", "Read.", max_steps="3")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await client.start("clerk")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await turn.extend(steps=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def change_values(event: ToolEnd) -> None:
    """Of these mypy alone knows; a change in `python_version` would blind it."""
    replace(event, results="read")  # type: ignore[call-arg]
    replace(event, seconds="many")  # type: ignore[arg-type]
