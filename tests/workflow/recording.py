"""Turns that are recorded, and replayed with nobody behind them."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from perdure import Agent
from perdure.contracts.values import JsonValue
from perdure.llm.recorded_calls import CallNumbers, canonical
from perdure.testing import ChatRequest, Reply, Script, ScriptedProvider
from tests.house import House


def recordings(house: House, mode: str) -> Path:
    """Let the next worker record or replay."""
    folder = house.folder.parent / house.folder.name.removesuffix("-again") / "recordings"
    house.settings = house.settings.model_copy(update={"recordings": folder, "recording_mode": mode})
    return folder


async def recorded(
    house: House, script: Script | Callable[[ChatRequest], Reply], *agents: Agent, **request: Any
) -> dict[str, Any]:
    """The result of a recorded turn of the first of these agents."""
    recordings(house, "record")
    async with ScriptedProvider(script) as provider, house.worker(*agents):
        house.use(provider)
        return await house.run(agent=agents[0].name, **request)


@asynccontextmanager
async def replaying(house: House, *agents: Agent) -> AsyncIterator[House]:
    """A fresh store and a fresh session, a worker that replays, no key, and nobody at the provider's address."""
    folder = house.folder.with_name(f"{house.folder.name}-again")
    folder.mkdir()
    house.environment.delenv("OPENAI_API_KEY")
    async with House.built(
        name="replayed", server=house.server, temporal=house.temporal, environment=house.environment, folder=folder
    ) as again:
        recordings(again, "replay")
        async with again.worker(*agents):
            yield again


async def told(house: House) -> JsonValue:
    """The transcript without what is the session's own."""
    transcript: list[JsonValue] = [
        message.model_dump(mode="json") for message in await house.store.transcript(house.session)
    ]
    return CallNumbers(canonical(transcript)).hide(transcript)
