"""What a POST that starts a turn costs the store: one transaction that admits it, and one that notes the outcome."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from perdure import Agent
from perdure.testing import Script, ScriptedProvider, say
from tests.gateway import Door, gateway
from tests.house import House

AGENT = Agent(name="tester", model="openai/scripted", instructions="Add.")


@asynccontextmanager
async def counted(door: Door, operations: list[str]) -> AsyncIterator[None]:
    """Collect the names of the operations of the gateway's own store, which the worker does not use."""
    store = await door.app.state.gateway.client.store()

    def observe(name: str, _: float) -> None:
        operations.append(name)

    store._observe = observe
    try:
        yield
    finally:
        store._observe = None


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/sessions", {"agent": "tester", "prompt": "1 + 1"}),
        ("/v1/sessions", {"agent": "tester", "prompt": "1 + 1", "session": "{session}"}),
        ("/v1/sessions", {"agent": "tester", "prompt": "1 + 1", "session": "{session}-new"}),
        ("/v1/sessions/{session}/messages", {"prompt": "2 + 2"}),
        ("/v1/sessions/{session}/fork", {"prompt": "2 + 2"}),
        ("/v1/sessions/{session}/resume", {"prompt": "2 + 2"}),
        ("/v1/sessions/{session}/compact", {}),
    ],
    ids=["start", "start of an old session", "start of a new name", "send", "fork", "resume", "compact"],
)
async def test_a_post_that_starts_a_turn_costs_two_transactions(house: House, path: str, body: dict[str, Any]) -> None:
    async with ScriptedProvider(Script(replies=(say("2"), say("4")))) as provider, house.worker(AGENT):
        house.use(provider)
        async with gateway(house) as door:
            await (await house.client.start("tester", "0 + 1", session=house.session)).result()
            operations: list[str] = []
            asked = {name: str(value).format(session=house.session) for name, value in body.items()}
            async with counted(door, operations):
                answer = await door.http.post(
                    path.format(session=house.session), json=asked, headers={"Idempotency-Key": house.session}
                )
            assert answer.status_code == 202, answer.text
            assert operations == ["admit", "note_outcome"]
            await (await house.client.attach(answer.json()["session"], answer.json()["turn"])).result()
