"""The page on Chat Completions: its program runs as it stands there, and its texts name every field of the code."""

import re
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent
from perdure.gateway.doors.chat.requests import ChatBody
from perdure.testing import Script, ScriptedProvider, say
from tests.gateway import gateway
from tests.house import House

PAGE = (Path(__file__).parents[2] / "docs" / "chat.md").read_text(encoding="utf-8")
(PROGRAM,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


async def test_the_program_of_the_page_runs(house: House, capsys: pytest.CaptureFixture[str]) -> None:
    """S-89."""
    writer = Agent(name="writer", model="openai/scripted")
    async with (
        ScriptedProvider(Script(replies=(say("The Rhine"),))) as provider,
        house.worker(writer),
        gateway(house, doors=("chat",)) as door,
    ):
        house.use(provider)
        names: dict[str, Any] = {}
        exec(PROGRAM.replace("http://127.0.0.1:8234", door.url), names)
        await names["main"]()
    assert capsys.readouterr().out == "The Rhine\nThe Rhine stop\n"


def test_the_page_has_every_field() -> None:
    assert not {name for name in ChatBody.model_fields.keys() - {"longest"} if f"`{name}" not in PAGE}
