"""A schema that takes for ever on a value: it ends its own check, and holds up nothing else on the worker."""

import asyncio
from typing import Any

import pytest

from perdure import Agent, schema_checks
from perdure.testing import Reply, ScriptedProvider, say
from perdure.testing.script import ChatRequest
from tests.house import House

AGAIN = {"$ref": "#/$defs/again"}
SLOW: dict[str, Any] = {"$defs": {"again": {"properties": {"a": {"allOf": [AGAIN, AGAIN]}}}}, **AGAIN}
"""Takes two steps for each step of the level above, and no bound on references tells it from the schema of a tree."""

DEEP = '{"a":' * 60 + "1" + "}" * 60

OTHER = Agent(name="other", model="openai/scripted")


def answer(request: ChatRequest) -> Reply:
    return say(DEEP if request.system.startswith("Slow.") else "done")


async def test_while_an_answer_is_held_to_a_slow_schema_other_turns_go_on(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-72: the check would take ages; another turn on the worker begins and ends meanwhile."""
    checking, loop = asyncio.Event(), asyncio.get_running_loop()

    class Noted(schema_checks.Clock):
        """A clock that says when a check has begun."""

        def __init__(self) -> None:
            super().__init__()
            loop.call_soon_threadsafe(checking.set)

    monkeypatch.setattr(schema_checks, "Clock", Noted)
    monkeypatch.setattr(schema_checks, "CHECK_SECONDS", 3_600.0)
    slow: dict[str, Any] = {"name": "slow", "model": "openai/scripted", "instructions": "Slow.", "output_schema": SLOW}
    async with ScriptedProvider(answer) as provider, house.worker(OTHER, inline=True):
        house.use(provider)
        try:
            turn = await house.client.start("slow", "go", definition=slow)
            async with asyncio.timeout(60):
                await checking.wait()
            other = await (await house.client.start("other", "go")).result()
            running = await house.store.turn(turn.session, 1)
        finally:
            monkeypatch.setattr(schema_checks, "CHECK_SECONDS", 0.0)
        result = await turn.result()
    assert other.output == "done"
    assert running.result is None
    assert (result.stop_reason, result.reason_code) == ("error", "llm.schema_violation")
    assert "the schema takes more than 0 s to check; simplify output_schema" in str(result.error)
