"""A worker whose tool calls meet before its signal: see ``tests.workflow.agents_for_effects``."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from perdure.activities.mcp.servers import McpServers
from perdure.activities.tools import ToolActivities
from perdure.contracts.tools import CallTool
from perdure.store import Store
from perdure.worker.__main__ import main
from tests.workflow.agents_for_effects import meeting, meets

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
    async def running(activities: ToolActivities, attempt: Any) -> Any:
        _running.set(attempt.call)
        result = await run(activities, attempt)
        await meeting.wait_async("after the body", attempt.call.session, attempt.call.call_id)
        return result

    return running


def _meet_in_the_call_of_a_server(call: Call) -> Call:
    """The server holds the call: it has begun there, and has no answer, when all have met."""

    async def calling(*arguments: Any, **options: Any) -> Any:
        session, call_id = _running.get().session, _running.get().call_id
        if not meets(session, "in the body"):
            return await call(*arguments, **options)
        running = asyncio.ensure_future(call(*arguments, **options))
        journal = Path(os.environ["MCP_JOURNAL"])
        while f"call whoami {session}" not in journal.read_text(encoding="utf-8").splitlines():
            await asyncio.sleep(0.01)
        assert not running.done()
        await meeting.wait_async("in the body", session, call_id)
        return await running

    return calling


if __name__ == "__main__":
    for name in ("claim_call", "finish_call"):
        setattr(Store, name, _meet_at_the_write(name, getattr(Store, name)))
    setattr(ToolActivities, "_run", _meet_after_the_body(ToolActivities._run))  # noqa: B010 - both checkers allow it
    setattr(McpServers, "call", _meet_in_the_call_of_a_server(McpServers.call))  # noqa: B010
    main()
