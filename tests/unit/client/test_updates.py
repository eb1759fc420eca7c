"""What is left behind by a message that was not delivered: nothing that asyncio would print."""

import asyncio
import gc
from datetime import timedelta
from typing import Any

import pytest

from perdure.client import Client, NoWorkerError, updates
from perdure.client.errors import RequestRefusedError


@pytest.fixture
async def complaints() -> list[str]:
    """What asyncio would print on stderr, such as "Future exception was never retrieved"."""
    heard: list[str] = []
    gc.collect()  # what earlier tests left behind complains of itself

    def hear(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        heard.append(str(context["message"]))

    asyncio.get_running_loop().set_exception_handler(hear)
    return heard


async def test_a_message_that_nobody_takes_leaves_no_traceback(
    client: Client, complaints: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(updates, "TIMEOUT", timedelta(seconds=0.2))
    turn = await client.start("writer", "go")
    with pytest.raises(NoWorkerError):
        await client.send(turn.session, "anybody?")
    gc.collect()
    assert complaints == []
    await client.temporal.get_workflow_handle(turn.session).terminate()


@pytest.mark.usefixtures("worker")
async def test_a_message_that_is_refused_leaves_no_traceback(client: Client, complaints: list[str]) -> None:
    turn = await client.start("writer", "hold")
    with pytest.raises(RequestRefusedError):
        await client.send(turn.session, "too much")
    gc.collect()
    assert complaints == []
    await turn.cancel()
