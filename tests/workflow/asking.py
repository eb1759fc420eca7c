"""Turns that need a person: agents that ask, and what a person does about it, with plain Temporal."""

from collections.abc import Mapping
from typing import Any, Literal

import pytest
from temporalio.client import WorkflowHandle, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError

from perdure import Agent, ask_user, tool
from perdure.testing import Reply, call, say
from tests.house import House, eventually

PAID: list[int] = []
"""What the tool ``pay`` has paid, in the test that runs."""


@tool(requires_approval=True)
def pay(amount: int, password: str = "") -> str:
    """Pay an amount."""
    PAID.append(amount)
    return f"paid {amount}" + ("" if not password else " with a password")


@tool
def look(at: str) -> str:
    """Look at something."""
    return f"{at} looks good"


@tool(interactive=True)
def choose(what: str) -> Literal["red", "blue"]:
    """Which colour shall it be?"""
    raise NotImplementedError


@tool(interactive=True)
def count(question: str) -> int:
    """How many?"""
    raise NotImplementedError


COLOUR = call(("ask_user", {"question": "Which colour?", "options": ["red", "blue"]}))
PAY = call(("pay", {"amount": 7}))
DONE = say("done")


def asker(**settings: Any) -> Agent:
    """An agent that may ask, pay and look."""
    fields: dict[str, Any] = {
        "name": "tester",
        "model": "openai/scripted",
        "tools": [ask_user, pay, look, choose, count],
    }
    return Agent(**{**fields, **settings})


def several(*replies: Reply) -> Reply:
    """All calls of these answers in one."""
    return call(*(tool_call for reply in replies for tool_call in reply.calls))


async def waiting(house: House, count: int = 1) -> list[dict[str, Any]]:
    """Wait until the turn waits for so many people's decisions, and give the requests."""
    handle = house.temporal.get_workflow_handle(house.session)

    async def there() -> list[dict[str, Any]] | None:
        try:
            status: dict[str, Any] = await handle.query("status")
        except Exception:  # noqa: BLE001 - not opened yet, or no worker
            return None
        waits = status["state"] == "waiting_for_input"
        return status["requests"] if waits and len(status["requests"]) == count else None

    requests: list[dict[str, Any]] = await eventually(there)
    return requests


async def update(house: House, name: str, **fields: Any) -> dict[str, Any]:
    """The receipt of an update."""
    handle: WorkflowHandle[Any, Any] = house.temporal.get_workflow_handle(house.session)
    receipt: dict[str, Any] = await handle.execute_update(name, fields)
    return receipt


async def refusal(house: House, name: str, *, code: str = "request.invalid", **fields: Any) -> str:
    """Why an update is refused."""
    with pytest.raises(WorkflowUpdateFailedError) as caught:
        await update(house, name, **fields)
    cause = caught.value.cause
    assert isinstance(cause, ApplicationError)
    assert cause.type == code
    return cause.message


def results(messages: tuple[Mapping[str, Any], ...]) -> list[str]:
    """What the model read as results of its calls."""
    return [str(message["content"]) for message in messages if message["role"] == "tool"]
