"""Clients that others generate from the OpenAPI document: they start, join, follow, approve and cancel jobs."""

import asyncio
import importlib
import json
import os
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, RetryPolicy, tool
from perdure.testing import Script, ScriptedProvider, call, say
from tests import npm_servers
from tests.gateway import Door, gateway, token_lines
from tests.house import House, eventually

pytestmark = pytest.mark.deep


@tool(requires_approval=True)
def launch(place: str) -> str:
    """Launch it."""
    return f"launched {place}"


ASKS = Agent(name="asks", model="openai/scripted", tools=[launch], retry=RetryPolicy(max_retries=0))

CONFIG = "post_hooks: []\nproject_name_override: perdure-http\npackage_name_override: perdure_http\n"

UNTYPED = ("/artifacts/{artifact} ", "/export ", "/events ")
"""Answers that are no JSON: the generator leaves them as bytes, and says so."""


async def run(*command: str, cwd: Path, **variables: str) -> str:
    """Run a program, and give what it printed."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=cwd,
        env={**os.environ, **variables},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate()
    assert process.returncode == 0, out.decode(errors="replace")[-6000:]
    return out.decode()


@asynccontextmanager
async def door_of(house: House) -> AsyncIterator[tuple[Door, str]]:
    """A gateway with a worker behind it, and a token."""
    lines, tokens = token_lines(bot=("acme", "run,read,approve"))
    replies = (call(("launch", {"place": "moon"})), say("Launched."))
    async with ScriptedProvider(Script(replies=replies)) as provider, house.worker(ASKS):
        house.use(provider)
        async with gateway(house, gateway_tokens=lines) as door:
            yield door, tokens["bot"]


async def test_a_generated_python_client_starts_follows_approves_and_cancels(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with door_of(house) as (door, token):
        (tmp_path / "config.yml").write_text(CONFIG)
        maker = str(Path(sys.executable).parent / "openapi-python-client")
        place = ("--output-path", str(tmp_path / "made"), "--config", "config.yml")
        (tmp_path / "openapi.json").write_text((await door.http.get("/openapi.json")).text)
        said = await run(maker, "generate", "--path", "openapi.json", *place, cwd=tmp_path)
        warnings = [line for line in said.splitlines() if line.startswith(("WARNING", "ERROR", "Unable"))]
        assert [line for line in warnings if not any(path in line for path in UNTYPED)] == [], said
        monkeypatch.syspath_prepend(str(tmp_path / "made"))
        made: Any = importlib.import_module("perdure_http")
        try:
            async with made.AuthenticatedClient(base_url=door.url, token=token, timeout=60) as client:
                await drive(client)
        finally:
            for name in [name for name in sys.modules if name.partition(".")[0] == "perdure_http"]:
                del sys.modules[name]


def verb(path: str) -> Any:
    """A function of the generated client."""
    return importlib.import_module(f"perdure_http.api.{path}").asyncio


async def drive(client: Any) -> None:
    """Run a job with an approval to its end, and cancel another one."""
    models: Any = importlib.import_module("perdure_http.models")

    async def start(session: str) -> Any:
        body = models.StartBody(agent="asks", prompt="go", session=session)
        return await verb("sessions.start_session")(client=client, body=body, idempotency_key=f"key-of-{session}")

    async def turn_in(session: str, state: str) -> Any:
        async def look() -> Any:
            found = await verb("turns.get_turn")(session, 1, client=client, prefer="wait=1")
            return found if found.state == state else None

        return await eventually(look)

    ticket = await start("job-1")
    assert (ticket.session, ticket.turn) == ("job-1", 1)
    assert await start("job-1") == ticket
    await turn_in("job-1", "waiting_for_input")
    (request,) = (await verb("sessions.get_session")("job-1", client=client)).requests
    reply = models.AnswerBody(action=models.AnswerBodyAction("approve"), digest=request.digest)
    receipt = await verb("people.reply_to_request")("job-1", request.request_id, client=client, body=reply)
    assert (receipt.decision, receipt.by) == ("approved", "bot")
    assert (await turn_in("job-1", "ended")).result.output == "Launched."
    async with client.get_async_httpx_client().stream(
        "GET", "/v1/sessions/job-1/events", params={"after": 0}
    ) as stream:
        numbers = [
            int(line.partition(":")[2]) for line in [line async for line in stream.aiter_lines()] if line[:3] == "id:"
        ]
    assert numbers == list(range(1, len(numbers) + 1))
    assert numbers
    await start("job-2")
    await turn_in("job-2", "waiting_for_input")
    body = models.CancelBody(reason="no longer needed")
    assert (await verb("turns.cancel_session")("job-2", client=client, body=body)).stops
    assert (await turn_in("job-2", "ended")).result.stop_reason == "cancelled"
    assert (await verb("sessions.get_session")("none", client=client)).code == "request.unknown_session"


@pytest.mark.judged("OpenAPI 3.1", "openapi-typescript 7.13.0 (npm)")
@npm_servers.makers_installed
async def test_a_generated_typescript_client_starts_follows_approves_and_cancels(house: House, tmp_path: Path) -> None:
    (tmp_path / "node_modules").symlink_to(npm_servers.FOLDER / "node_modules")
    shutil.copy(Path(__file__).parent / "generated_client.ts", tmp_path / "main.ts")
    (tmp_path / "package.json").write_text('{"type": "module"}')
    options = ("--strict", "--target", "es2022", "--module", "nodenext", "--skipLibCheck")
    async with door_of(house) as (door, token):
        made = (f"{door.url}/openapi.json", "-o", "perdure.ts")
        await run(npm_servers.program("openapi-typescript"), *made, cwd=tmp_path)
        (tmp_path / "node.d.ts").write_text("declare const process: { env: Record<string, string | undefined> };\n")
        await run(npm_servers.program("tsc"), *options, "main.ts", "node.d.ts", cwd=tmp_path)
        told = await run("node", "main.js", cwd=tmp_path, PERDURE_URL=door.url, PERDURE_TOKEN=token)
    assert json.loads(told) == {
        "output": "Launched.",
        "by": "bot",
        "gapless": True,
        "stops": True,
        "stopped": "cancelled",
        "code": "request.unknown_session",
    }
