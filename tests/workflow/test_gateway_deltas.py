"""Answers while they are written, over HTTP: beside the events, without an id, and gone when the answer is stored."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from perdure import Agent
from perdure.contracts.deltas import Delta, LiveAnswer
from perdure.testing import Script, ScriptedProvider, say
from tests.gateway import Door, gateway
from tests.house import House, eventually
from tests.sse import Sent, follow

TEXT = "The quick brown fox jumps over the lazy dog"


class Screen:
    """What a reader of the stream shows."""

    def __init__(self) -> None:
        self.answer = LiveAnswer()
        self.shown: list[str] = []
        self.ids: list[str] = []
        self.stored = ""

    async def take(self, stream: AsyncIterator[Sent]) -> None:
        async for sent in stream:
            if sent.event == "delta":
                self.answer.add(Delta.model_validate(sent.data))
                self.shown.append(self.answer.text)
                assert sent.id == ""
            elif sent.id:
                self.ids.append(sent.id)
                if sent.event == "generation_content":
                    self.stored = sent.data["content"]


@pytest.mark.parametrize("tree", [0, 1])
async def test_a_reader_with_deltas_sees_the_text_as_it_comes(house: House, tree: int) -> None:
    """S-15: deltas have no id; the first has all so far; the stored answer ends them."""
    agent = Agent(name="tester", model="openai/scripted", stream="always")
    async with ScriptedProvider(Script(replies=(say(TEXT),))) as provider, house.worker(agent), gateway(house) as door:
        house.use(provider)
        provider.hold_streams(after=4)
        handle = await house.start()
        await provider.wait_for_held_streams()
        screens = [Screen() for _ in range(3)]
        plain = Screen()
        async with asyncio.TaskGroup() as tasks:

            async def watch(screen: Screen, deltas: int) -> None:
                async with follow(door.http, house.session, tree=tree, deltas=deltas) as stream:
                    await screen.take(stream)

            for screen in screens:
                tasks.create_task(watch(screen, 1))
            tasks.create_task(watch(plain, 0))

            async def all_see_it() -> bool:
                return all("The quick brown fox " in screen.shown for screen in screens)

            await eventually(all_see_it)
            await provider.release_streams()
            await handle.result()
    for screen in screens:
        assert all(TEXT.startswith(text) for text in screen.shown)
        assert (screen.stored, screen.ids) == (TEXT, plain.ids)
    assert plain.shown == []


async def test_a_reader_with_deltas_asks_for_streams_and_one_without_does_not(house: House) -> None:
    """Who only follows events pays for no stream."""
    agent = Agent(name="tester", model="openai/scripted")
    for deltas in (0, 1):
        async with ScriptedProvider(Script(replies=(say(TEXT), say("again")))) as provider:
            async with house.worker(agent), gateway(house) as door:
                house.use(provider)
                house.session = f"{house.session}-{deltas}"
                await house.run()
                stream = follow(door.http, house.session, deltas=deltas, after=1)
                async with stream as reading:
                    await anext(reading)
                    if deltas:
                        feeds = door.app.state.gateway.hub.deltas
                        assert list(feeds._leases) == [house.session]
                        await eventually(lambda: _is_watched(house))
                    await house.client.send(house.session, "and again")
                    async for _ in reading:
                        pass
                assert await eventually(lambda: _is_left(door))
            assert [request.request.stream for request in provider.requests] == [False, bool(deltas)]


async def _is_left(door: Door) -> bool:
    return not door.app.state.gateway.hub.deltas._leases


async def _is_watched(house: House) -> bool:
    def count(connection: object) -> int:
        found = connection.exec_driver_sql("SELECT count(*) FROM watches").scalar()  # type: ignore[attr-defined]
        return int(found)

    return bool(await house.store.read("watches", count))
