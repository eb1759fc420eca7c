"""The page on streamed answers: what it shows is run."""

import asyncio
import re
from typing import Any

from perdure import Agent
from perdure.contracts.deltas import Delta, LiveAnswer
from perdure.testing import Script, ScriptedProvider, say
from tests.docs.sections import section
from tests.house import WAIT_SECONDS, House

PAGE = section("events", "Answers while they are written")
(BLOCK,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
TEXT = "one two three four five"


def test_the_page_names_each_field_of_a_delta() -> None:
    for name in Delta.model_fields:
        assert f"`{name}`" in PAGE or name == "session", name


async def test_the_screen_of_the_page_shows_the_text_as_it_comes_and_the_stored_answer_in_the_end(house: House) -> None:
    """S-15."""
    names: dict[str, Any] = {}
    exec(BLOCK, names)
    shown = asyncio.Event()

    class Watched(LiveAnswer):
        def add(self, delta: Delta) -> bool:
            shown.set()
            return super().add(delta)

    names["LiveAnswer"] = Watched
    agent = Agent(name="tester", model="openai/scripted", stream="always")
    async with ScriptedProvider(Script(replies=(say(TEXT),))) as provider, house.worker(agent):
        house.use(provider)
        provider.hold_streams(after=3)
        handle = await house.start()
        await provider.wait_for_held_streams()
        showing = asyncio.create_task(names["show"](house.client, house.session))
        async with asyncio.timeout(WAIT_SECONDS):
            await shown.wait()
        await provider.release_streams()
        await handle.result()
        screen = await showing
    assert screen[-1] == TEXT
    assert all(TEXT.startswith(text) for text in screen)
    assert len(screen) > 1
