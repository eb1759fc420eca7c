"""The page on streamed answers: what it shows is run."""

import asyncio
import re
from pathlib import Path
from typing import Any

from perdure import Agent
from perdure.contracts.deltas import Delta
from perdure.testing import Script, ScriptedProvider, say
from tests.house import House, eventually

PAGE = (Path(__file__).parents[2] / "docs" / "streaming.md").read_text(encoding="utf-8")
(BLOCK,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
TEXT = "one two three four five"


def test_the_page_names_each_field_of_a_delta() -> None:
    for name in Delta.model_fields:
        assert f"`{name}`" in PAGE or name == "session", name


async def test_the_screen_of_the_page_shows_the_text_as_it_comes_and_the_stored_answer_in_the_end(house: House) -> None:
    """S-15."""
    names: dict[str, Any] = {}
    exec(BLOCK, names)
    agent = Agent(name="tester", model="openai/scripted", stream="always")
    async with ScriptedProvider(Script(replies=(say(TEXT),))) as provider, house.worker(agent):
        house.use(provider)
        provider.hold_streams(after=3)
        handle = await house.start()
        await provider.wait_for_held_streams()
        showing = asyncio.create_task(names["show"](house.client, house.session))
        feeds = (await house.client.store()).live._feeds

        async def follows() -> bool:
            return house.session in feeds and feeds[house.session].place > (1, 1, 0, 0)

        await eventually(follows)
        await asyncio.sleep(0)
        await provider.release_streams()
        await handle.result()
        screen = await showing
    assert screen[-1] == TEXT
    assert all(TEXT.startswith(text) for text in screen)
    assert len(screen) > 1
