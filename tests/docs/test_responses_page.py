"""The page on OpenAI's Responses API: its program runs as it stands there, and its table of fields is the code's."""

import re
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent
from perdure.gateway.doors.responses.requests import ResponseBody
from perdure.testing import Script, ScriptedProvider, say
from tests.gateway import gateway
from tests.house import House

PAGE = (Path(__file__).parents[2] / "docs" / "responses.md").read_text(encoding="utf-8")
(PROGRAM,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


async def test_the_program_of_the_page_runs(house: House, capsys: pytest.CaptureFixture[str]) -> None:
    """S-83."""
    writer = Agent(name="writer", model="openai/scripted")
    script = Script(replies=(say("The Rhine"), say("In the Alps")))
    async with (
        ScriptedProvider(script) as provider,
        house.worker(writer),
        gateway(house, doors=("responses",)) as door,
    ):
        house.use(provider)
        names: dict[str, Any] = {}
        exec(PROGRAM.replace("http://127.0.0.1:8234", door.url), names)
        await names["main"]()
    assert capsys.readouterr().out == "The Rhinecompleted {'stop_reason': 'finished'}\nIn the Alps\n"


def test_the_tables_have_every_field() -> None:
    names = ResponseBody.model_fields.keys() - {"image", "stream", "background", "longest"}
    assert not {name for name in names if f"`{name}" not in PAGE and not name.startswith("prompt_cache_")}
