"""Callers whose delegates may work in the background, and what their models answer."""

import json
from collections.abc import Callable
from typing import Any

from temporalio.client import WorkflowExecutionStatus, WorkflowHandle

from perdure import Agent, Delegate, tool
from perdure.contracts.values import JsonValue
from perdure.contracts.waits import WAITS_FOR_A_SHARE
from perdure.testing import ChatRequest, Reply, call, faults, say
from tests.house import House, eventually
from tests.workflow.delegating import agent, children, results_in


@tool
def look() -> str:
    """Look."""
    return "looked"


HANGING = say("late").after(faults.hang())


def starts(*queries: str, tool: str = "helper") -> Reply:
    """An answer that starts a delegate in the background with each of these queries."""
    made: list[tuple[str, JsonValue]] = [(tool, {"query": query, "run_in_background": True}) for query in queries]
    return call(*made)


def lead(**settings: Any) -> Agent:
    """A caller whose helper may work in the background."""
    return agent("tester", **{"delegates": [Delegate("helper", background=True)], "tools": [look], **settings})


def awaiting(*places: int) -> Callable[[ChatRequest], Reply]:
    """An answer that waits for those of the delegates started so far, by their places; for all if none is named."""

    def answer(request: ChatRequest) -> Reply:
        return call(("await_delegate", {"sessions": [sessions_in(request)[place] for place in places]}))

    return answer


def sessions_in(request: ChatRequest) -> list[str]:
    """The sessions that the model was told of when it started delegates."""
    told = [json.loads(text) for text in results_in(request) if text.startswith('{"session"')]
    return [delegate["session"] for delegate in told]


def steps(*answers: Reply | Callable[[ChatRequest], Reply]) -> Callable[[ChatRequest], Reply]:
    """One answer after the other; some look at what they are asked."""

    def answer(request: ChatRequest) -> Reply:
        reply = answers[request.index]
        return reply if isinstance(reply, Reply) else reply(request)

    return answer


async def statuses(house: House) -> list[WorkflowExecutionStatus | None]:
    """How the workflows of the delegates stand."""
    handles = [house.temporal.get_workflow_handle(child.session) for child, _ in await children(house)]
    return [(await handle.describe()).status for handle in handles]


async def waits_for_delegates(handle: WorkflowHandle[Any, Any]) -> None:
    """Wait until the turn does nothing but wait for delegates."""

    async def waits() -> bool:
        status: dict[str, Any] = await handle.query("status")
        return str(status["activity"]).startswith(("waiting for delegates", WAITS_FOR_A_SHARE))

    await eventually(waits)
