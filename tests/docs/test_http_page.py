"""The page on the HTTP gateway: its commands run as they stand there, and its tables are those of the code."""

import asyncio
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, tool
from perdure.gateway.callers import Scope
from perdure.gateway.problems import ProblemCode
from perdure.testing import Script, ScriptedProvider, call, say
from tests.gateway import gateway, token_lines
from tests.house import House, eventually

pytestmark = pytest.mark.deep

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "http.md").read_text(encoding="utf-8")
START, JOIN, FOLLOW, SEND, INBOX, APPROVE, LOOK = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)

with_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")


@tool(requires_approval=True)
def pay(amount: int) -> str:
    """Pay an amount in dollars."""
    return f"paid {amount}"


WRITER = Agent(name="writer", model="openai/scripted", tools=[pay])


async def run(block: str, **variables: str) -> list[Any]:
    """Run a block as it stands on the page; the JSON of each answer."""
    return [json.loads(line) for line in (await read(block, **variables)).splitlines() if line]


async def read(block: str, **variables: str) -> str:
    """Run a block as it stands on the page; all that it prints."""
    process = await asyncio.create_subprocess_exec(
        *("bash", "-euo", "pipefail", "-c", block.replace("\ncurl", "\necho\ncurl")),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **variables},
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode()


@with_curl
async def test_the_commands_of_the_page_run_as_they_stand_there(house: House) -> None:
    lines, tokens = token_lines(bot=("acme", "run,read,approve"))
    replies = (say("The Rhine."), call(("pay", {"amount": 5})), say("Paid."))
    async with ScriptedProvider(Script(replies=replies)) as provider, house.worker(WRITER):
        house.use(provider)
        async with gateway(house, gateway_tokens=lines) as door:
            place = {"PERDURE_URL": door.url, "PERDURE_TOKEN": tokens["bot"]}
            (ticket,) = await run(START, **place)
            assert (ticket["session"], ticket["turn"]) == ("job-1", 1)
            assert await run(START, **place) == [ticket]

            async def joined() -> bool:
                (turn,) = await run(JOIN, **place)
                return bool(turn["state"] == "ended" and turn["result"]["output"] == "The Rhine.")

            await eventually(joined)
            numbers = [int(number) for number in re.findall(r"^id: ?(\d+)$", await read(FOLLOW, **place), re.MULTILINE)]
            assert numbers == list(range(1, numbers[-1] + 1))
            (sent,) = await run(SEND, **place)
            assert sent["turn"] == 2

            async def asked() -> str | None:
                (inbox,) = await run(INBOX, **place)
                return inbox["items"][0]["request_id"] if inbox["items"] else None

            (receipt,) = await run(APPROVE, **place, REQUEST=await eventually(asked))
            assert (receipt["decision"], receipt["by"]) == ("approved", "bot")
            await (await house.client.attach("job-1", 2)).result()
            listed, stood, transcript, exported, cancelled = await run(LOOK, **place)
            assert [row["session"] for row in listed["items"]] == ["job-1"]
            assert (stood["stop_reason"], stood["turn"]) == ("finished", 2)
            assert [message["content"] for message in transcript["items"]][-1] == exported[-1]["content"] == "Paid."
            assert cancelled == {"session": "job-1", "stops": False}


async def test_the_tables_of_the_page_are_those_of_the_code(house: House) -> None:
    assert set(re.findall(r"^\| `([a-z]+\.[a-z_]+)` \| \d{3} \|", PAGE, re.MULTILINE)) == {
        code.value for code in ProblemCode
    }
    assert set(re.findall(r"^\| `(\w+)` \| ", PAGE, re.MULTILINE)) >= {scope.value for scope in Scope}
    async with gateway(house) as door:
        document = (await door.http.get("/openapi.json")).json()
    pages = "".join(page.read_text(encoding="utf-8") for page in DOCS.glob("*.md"))
    undescribed = [path for path in document["paths"] if f"/{path.removeprefix('/v1').rpartition('/')[2]}" not in pages]
    assert undescribed == []
