"""A worker whose tool calls meet before its signal: see ``tests.workflow.agents_for_effects``."""

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

from activities.mcp.servers import McpServers
from activities.tools import ToolActivities
from perdure.contracts.tools import CallTool
from perdure.store import Store
from tests.workflow.agents_for_effects import meeting
from worker.__main__ import main

Call = Callable[..., Awaitable[Any]]

_running: ContextVar[CallTool] = ContextVar("running")


def _meet_at_the_write(name: str, write: Call) -> Call:
    async def writing(store: Store, **options: Any) -> Any:
        await meeting.wait_async(f"before {name}", options["session"], options["call_id"])
        result = await write(store, **options)
        await meeting.wait_async(f"after {name}", options["session"], options["call_id"])
        return result

    return writing


def _meet_after_the_body(run: Call) -> Call:
    async def running(activities: ToolActivities, tool: Any, attempt: Any, *arguments: Any) -> Any:
        _running.set(attempt.call)
        result = await run(activities, tool, attempt, *arguments)
        await meeting.wait_async("after the body", attempt.call.session, attempt.call.call_id)
        return result

    return running


def _meet_in_the_call_of_a_server(call: Call) -> Call:
    async def calling(*arguments: Any, **options: Any) -> Any:
        result = await call(*arguments, **options)
        await meeting.wait_async("in the body", _running.get().session, _running.get().call_id)
        return result

    return calling


if __name__ == "__main__":
    for name in ("claim_call", "finish_call"):
        setattr(Store, name, _meet_at_the_write(name, getattr(Store, name)))
    setattr(ToolActivities, "_run", _meet_after_the_body(ToolActivities._run))  # noqa: B010 - both checkers allow it
    setattr(McpServers, "call", _meet_in_the_call_of_a_server(McpServers.call))  # noqa: B010
    main()
