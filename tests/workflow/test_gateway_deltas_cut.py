"""Answers over HTTP while models write them: beside the events, without ids, and never two attempts in one text."""

import asyncio
from typing import Any

import httpx
import pytest

from perdure.contracts.deltas import Delta, LiveAnswer
from perdure.gateway import sse
from perdure.testing import Reply, Script, ScriptedProvider, say
from tests.gateway import Door, gateway
from tests.house import WAIT_SECONDS, House, eventually
from tests.sse import follow
from tests.workflow.test_streaming import TEXT, agent

pytestmark = pytest.mark.deep


class Screen:
    """Somebody who shows what a stream brings, by the rules of the contract; cut off now and then."""

    def __init__(self, cut_after: int = 0) -> None:
        self.answer = LiveAnswer()
        self.shown: list[str] = []
        self.stored: list[str] = []
        self.numbers: list[int] = []
        self._cut_after = cut_after

    async def follow(self, door: Door, http: httpx.AsyncClient, session: str, **query: int) -> None:
        """Follow to the end, from behind the last event that came, however often the stream is cut."""
        while True:
            left = self._cut_after or -1
            last = str(self.numbers[-1]) if self.numbers else "0"
            async with follow(http, session, last, deltas=1, **query) as stream:
                async for sent in stream:
                    if sent.event == sse.END:
                        return
                    self._take(sent.event, sent.id, sent.data)
                    left -= 1
                    if left == 0:
                        break

    def _take(self, event: str, place: str, data: dict[str, Any]) -> None:
        if event == "delta":
            assert place == ""
            self.answer.add(Delta.model_validate(data))
            self.shown.append(self.answer.text)
            return
        self.numbers.append(int(place.partition(".")[0]))
        if event == "generation_content":
            self.answer.clear()
            self.stored.append(data["content"])

    async def has(self, text: str) -> None:
        async def there() -> bool:
            return text in self.shown

        await eventually(there)


async def test_readers_see_an_answer_as_it_comes_and_come_back_by_events_alone(house: House) -> None:
    """S-15 S-47: also who is cut off after each piece, and in a tree."""
    async with (
        ScriptedProvider(Script(replies=(say(TEXT),))) as provider,
        house.worker(agent()),
        gateway(house) as door,
    ):
        house.use(provider)
        provider.hold_streams(after=5)
        await house.store.watch(house.session)
        handle = await house.start()
        await provider.wait_for_held_streams()
        screens = [Screen(), Screen(cut_after=1), Screen()]
        queries: list[dict[str, int]] = [{}, {}, {"tree": 1}]
        tasks = [
            asyncio.create_task(screen.follow(door, door.http, house.session, **query))
            for screen, query in zip(screens, queries, strict=True)
        ]
        for screen in screens:
            await screen.has("The quick brown fox jumps ")
        await provider.release_streams()
        await handle.result()
        async with asyncio.timeout(WAIT_SECONDS):
            await asyncio.gather(*tasks)
        last = len(await house.events())
        hub = door.app.state.gateway.hub

        async def idle() -> bool:
            return not hub.sessions

        await eventually(idle)
    for screen in screens:
        assert screen.numbers == list(range(1, last + 1))
        assert screen.stored == [TEXT]
        assert all(TEXT.startswith(text) for text in screen.shown)


async def test_a_worker_killed_in_mid_stream_mixes_no_text_over_http(house: House) -> None:
    """S-15 S-17: three readers; the second attempt begins anew on every screen."""

    def answers(_: Any) -> Reply:
        return say(first if provider.request_count == 0 else second)

    first, second = "aaaa bbbb cccc dddd eeee", "1111 2222 3333 4444 5555"
    async with ScriptedProvider(answers) as provider, gateway(house) as door:
        house.use(provider)
        killed = house.spawn_worker("tests.workflow.agents_that_stream")
        await killed.polling()
        provider.hold_streams(after=3)
        await house.store.watch(house.session)
        handle = await house.start()
        await provider.wait_for_held_streams()
        screens = [Screen() for _ in range(3)]
        tasks = [asyncio.create_task(screen.follow(door, door.http, house.session)) for screen in screens]
        for screen in screens:
            await screen.has("aaaa bbbb cccc ")
        killed.kill()
        await provider.release_streams()
        other = house.spawn_worker("tests.workflow.agents_that_stream")
        await other.polling()
        async with asyncio.timeout(WAIT_SECONDS):
            await handle.result()
            await asyncio.gather(*tasks)
        last = len(await house.events())
    for screen in screens:
        assert screen.numbers == list(range(1, last + 1))
        assert screen.stored == [second]
        assert all(first.startswith(text) or second.startswith(text) for text in screen.shown)
