"""The pages of the gateway's doors: each program runs as it stands there, and the texts have each field of the code."""

import re
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent
from perdure.gateway.doors.chat.requests import ChatBody
from perdure.gateway.doors.responses.requests import ResponseBody
from perdure.testing import Script, ScriptedProvider, say
from tests.gateway import gateway
from tests.house import House

PRINTED = {
    "agui": "The Rhine success finished\n",
    "chat": "The Rhine\nThe Rhine stop\n",
    "responses": "The Rhinecompleted {'stop_reason': 'finished'}\nIn the Alps\n",
}
"""What the program of each page prints."""

LEFT_OUT = {
    ChatBody: {"longest"},
    ResponseBody: {"longest", "image", "stream", "background"},
}
"""Fields that a page says otherwise, or has in its text."""


def page_of(door: str) -> str:
    return (Path(__file__).parents[2] / "docs" / f"{door}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("door", PRINTED)
async def test_the_program_of_a_page_runs(door: str, house: House, capsys: pytest.CaptureFixture[str]) -> None:
    """S-83, S-89."""
    (program,) = re.findall(r"```python\n(.*?)```", page_of(door), re.DOTALL)
    writer = Agent(name="writer", model="openai/scripted")
    async with (
        ScriptedProvider(Script(replies=(say("The Rhine"), say("In the Alps")))) as provider,
        house.worker(writer),
        gateway(house, doors=(door,)) as opened,
    ):
        house.use(provider)
        names: dict[str, Any] = {}
        exec(program.replace("http://127.0.0.1:8234", opened.url), names)
        await names["main"]()
    assert capsys.readouterr().out == PRINTED[door]


@pytest.mark.parametrize(("door", "body"), [("chat", ChatBody), ("responses", ResponseBody)])
def test_a_page_has_every_field(door: str, body: type[ChatBody | ResponseBody]) -> None:
    page = page_of(door)
    assert not {name for name in body.model_fields.keys() - LEFT_OUT[body] if f"`{name}" not in page}
