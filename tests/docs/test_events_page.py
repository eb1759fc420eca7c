"""The page on events: its readers run as they stand there, and its tables are those of the code."""

import asyncio
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from perdure import Agent
from perdure.gateway import hub, sse
from perdure.testing import Script, ScriptedProvider, say
from tests.gateway import gateway, token_lines
from tests.house import House

pytestmark = pytest.mark.deep

PAGE = (Path(__file__).parents[2] / "docs" / "events.md").read_text(encoding="utf-8")
(CURL,) = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
(READER, _) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
WRITER = Agent(name="writer", model="openai/scripted")


async def run(*command: str, **variables: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, env={**os.environ, **variables}
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    return out.decode()


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
async def test_the_readers_of_the_page_get_every_event_to_the_end(house: House) -> None:
    """S-47: with curl and with Python, as they stand there."""
    lines, tokens = token_lines(bot=("acme", "run,read"))
    async with ScriptedProvider(Script(replies=(say("The Rhine."),))) as provider, house.worker(WRITER):
        house.use(provider)
        async with gateway(house, gateway_tokens=lines) as door, door.holder(tokens["bot"]) as http:
            body = {"agent": "writer", "prompt": "go", "session": "job-1"}
            assert (await http.post("/v1/sessions", json=body)).status_code == 202
            place = {"PERDURE_URL": door.url, "PERDURE_TOKEN": tokens["bot"]}
            by_curl = run("bash", "-c", CURL, **place)
            shown, read = await asyncio.gather(by_curl, run(sys.executable, "-c", READER, **place))
        last = (await house.store.session("job-1")).last_seq
    assert re.findall(r"^id: (\d+)$", shown, re.MULTILINE) == [str(number) for number in range(1, last + 1)]
    *events, end = [line.partition(" ") for line in read.splitlines()]
    assert [kind for kind, _, _ in events] == re.findall(r"^event: (?!end)(\w+)$", shown, re.MULTILINE)
    assert end[0] == "end"


def test_the_tables_of_the_page_are_those_of_the_code() -> None:
    for name in (sse.END, sse.DROPPED, sse.RESYNC):
        assert f"| `{name}` |" in PAGE
    assert f"more than {hub.MOST_FRAMES} events behind" in PAGE
    assert f"keeps the last {hub.MOST_FRAMES} events" in PAGE
    assert f"after {sse.PING_EVERY.total_seconds():.0f} s without an event" in PAGE
    assert f"took nothing for {sse.STALL.total_seconds():.0f} s" in PAGE
