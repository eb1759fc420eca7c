"""S-83: at each door a reply to an agent that stops for its requests goes on in the next turn, whenever that stops."""

from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from perdure import Agent, tool
from perdure.gateway.doors.a2a import carrying as a2a
from perdure.gateway.doors.agui import carrying as agui
from perdure.gateway.doors.responses import lookup as responses
from perdure.testing import Script, ScriptedProvider, call, say
from tests.gateway import gateway
from tests.house import House


@tool(requires_approval=True)
def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


AGENT = Agent(name="tester", model="openai/scripted", tools=[pay], interactive="stop")


async def post(http: httpx.AsyncClient, path: str, body: dict[str, Any]) -> httpx.Response:
    answered = await http.post(path, json=body, headers={"A2A-Version": "1.0"})
    assert answered.status_code == 200, answered.text
    return answered


async def through_responses(http: httpx.AsyncClient) -> str:
    first = (await post(http, "/openai/v1/responses", {"model": "tester", "input": "go"})).json()
    reply = {"type": "mcp_approval_response", "approval_request_id": first["output"][-1]["id"], "approve": True}
    body = {"input": [reply], "previous_response_id": first["id"]}
    return (await post(http, "/openai/v1/responses", body)).text


async def through_agui(http: httpx.AsyncClient) -> str:
    user = {"id": "m1", "role": "user", "content": "go"}
    body = {"threadId": "t1", "messages": [user], "state": {}, "tools": [], "context": [], "forwardedProps": {}}
    lines = (await post(http, "/agui/tester", {**body, "runId": "r1"})).text
    request = next(part for part in lines.split('"') if part.startswith("call_"))
    resume = {"interruptId": request, "status": "resolved", "payload": {"approved": True}}
    return (await post(http, "/agui/tester", {**body, "runId": "r2", "resume": [resume]})).text


async def through_a2a(http: httpx.AsyncClient) -> str:
    asked = {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": "go"}]}
    first = (await post(http, "/a2a/tester/message:send", {"message": asked})).json()["task"]
    (request,) = [part["data"] for part in first["status"]["message"]["parts"] if "data" in part]
    approval = {"data": {"request": request["request"], "approve": True, "digest": request["digest"]}}
    reply = {"messageId": "m2", "role": "ROLE_USER", "taskId": first["id"], "parts": [approval]}
    return (await post(http, "/a2a/tester/message:send", {"message": reply})).text


def read_too_early(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> None:
    """Have the door's first reading of the log end before the turn does."""
    read = getattr(module, name)

    async def early(*args: Any) -> Any:
        monkeypatch.setattr(module, name, read)
        fold = await read(*args)
        fold.has_ended = fold.has_stopped = False  # of the two, each door reads one
        return fold

    monkeypatch.setattr(module, name, early)


@pytest.mark.parametrize(
    ("ask", "module", "reading"),
    [
        (through_responses, responses, "read_turn"),
        (through_agui, agui, "read_turn"),
        (through_a2a, a2a, "read_task"),
    ],
    ids=["responses", "agui", "a2a"],
)
async def test_a_reply_is_answered_by_the_turn_that_takes_it(
    house: House,
    monkeypatch: pytest.MonkeyPatch,
    ask: Callable[[httpx.AsyncClient], Awaitable[str]],
    module: Any,
    reading: str,
) -> None:
    async with (
        ScriptedProvider(Script(replies=(call(("pay", {"amount": 7})), say("all done")))) as provider,
        house.worker(AGENT),
        gateway(house, doors=("responses", "agui", "a2a")) as door,
    ):
        house.use(provider)
        read_too_early(monkeypatch, module, reading)
        assert "all done" in await ask(door.http)
