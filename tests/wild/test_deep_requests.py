"""Data that a turn was started with, 200 levels deep: the start was taken, and no worker could ever read it again.

Seen in an attack on a running gateway: Temporal's task failed for ever, and no list showed the turn.
"""

import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from pydantic import ValidationError

from perdure import Agent
from perdure.client import Client, RequestRefusedError
from perdure.contracts.json_bounds import MOST_DEPTH
from perdure.contracts.turns import Continuation, TurnRequest
from perdure.testing import ScriptedProvider, say
from tests.gateway import gateway
from tests.house import House

AGENT = Agent(name="tester", model="openai/scripted")
TOO_DEEP = re.escape(f"is more than {MOST_DEPTH} levels deep, the limit")


def nested(levels: int) -> Any:
    """So many objects and lists inside each other."""
    value: Any = 0
    for level in range(levels):
        value = {"a": value} if level % 2 else [value]
    return value


DOORS: dict[str, Callable[[Client, Any], Awaitable[object]]] = {
    "context": lambda client, deep: client.start("tester", "go", context={"a": deep}),
    "history": lambda client, deep: client.start("tester", "go", history=[{"role": "user", "content": deep}]),
    "definition": lambda client, deep: client.start("tester", "go", definition={"name": "a", "generate_params": deep}),
    "send": lambda client, deep: client.send("s", "go", context={"a": deep}),
    "fork": lambda client, deep: client.fork("s", "go", context={"a": deep}),
    "resume": lambda client, deep: client.resume("s", "go", context={"a": deep}),
    "answer": lambda client, deep: client.answer("s", "r", deep, by="ann"),
    "result": lambda client, deep: client.submit_result("s", "r", deep),
    "tools": lambda client, deep: client.start(
        "tester", "go", tools=[{"name": "a", "parameters": {"type": "object", "properties": {"a": {"default": deep}}}}]
    ),
    "schedule": lambda client, deep: client.schedules.add(
        "nightly", agent="tester", prompt="go", cron="0 3 * * *", context={"a": deep}
    ),
}


async def test_no_door_takes_json_that_no_worker_can_read(house: House) -> None:
    """In the client, where every request is made; nothing is sent."""
    await house.store.register_agents([AGENT.definition])
    for levels in (MOST_DEPTH, 200, 5_000):
        for name, ask in DOORS.items():
            with pytest.raises(RequestRefusedError, match=TOO_DEEP):
                await ask(house.client, nested(levels))
            assert name
        with pytest.raises(ValidationError, match=TOO_DEEP):
            TurnRequest.model_validate({"agent": "a", "prompt": "p", "context": {"a": nested(levels)}})
    assert await house.client.schedules.list() == ()


async def test_over_http_deep_json_is_refused_and_what_is_taken_ends(house: House) -> None:
    async with ScriptedProvider(lambda _: say("2")) as provider, house.worker(AGENT):
        house.use(provider)
        async with gateway(house) as door:
            body = {"agent": "tester", "prompt": "go", "session": "deep"}
            for path, more in (("sessions", {}), ("schedules", {"id": "deep", "cron": "0 3 * * *", "session": None})):
                asked = {**body, **more, "context": {"a": nested(200)}}
                refused = await door.http.post(f"/v1/{path}", json=asked)
                assert (refused.status_code, refused.json()["code"]) == (422, "request.invalid")
                assert re.search(TOO_DEEP, refused.json()["detail"])
            assert await house.store.tenant_of("deep") is None
            deepest = {**body, "context": {"a": nested(MOST_DEPTH - 2)}}
            taken = await door.http.post("/v1/sessions", json=deepest)
            assert taken.status_code == 202
            result = await (await house.client.attach("deep", 1)).result()
            assert result.stop_reason == "finished"


def test_a_turn_that_runs_keeps_what_it_was_given() -> None:
    """Temporal's histories hold requests from before the bound; they replay."""
    assert Continuation.model_validate({"agent": "a", "prompt": "p", "context": {"a": nested(MOST_DEPTH + 10)}}).context
