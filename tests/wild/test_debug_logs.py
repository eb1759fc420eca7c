"""Logs at ``debug`` of worker and gateway: no level may show a conversation.

Seen with Temporal's SDK, whose worker logs each activation with its payloads, and with HTTP clients, which log bodies.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from perdure.local_ports import find_free_port
from perdure.testing import ScriptedProvider, call, say
from tests.house import House, eventually

pytestmark = pytest.mark.deep

AGENTS = "tests.wild.agents_at_debug"


@asynccontextmanager
async def gateway_at_debug(log: Path) -> AsyncIterator[str]:
    """A gateway in a process of its own that logs to this file; its address."""
    address = f"127.0.0.1:{find_free_port()}"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "perdure.cli", "gateway", "--address", address),
            env={**os.environ, "PERDURE_LOG_LEVEL": "debug"},
            stdout=output,
            stderr=output,
        )
    try:
        async with httpx.AsyncClient(base_url=f"http://{address}") as http:

            async def ready() -> bool:
                try:
                    return (await http.get("/healthz")).is_success
                except httpx.TransportError:
                    return False

            await eventually(ready)
        yield f"http://{address}"
    finally:
        process.terminate()
        await process.wait()


@pytest.mark.parametrize("agent", ["direct", "by-litellm"])
async def test_no_level_of_a_log_shows_a_conversation(house: House, agent: str) -> None:
    """Prompt, instructions, arguments, results and answers stand in the store and in Temporal alone."""
    answers = [call(("look", {"place": "canary-argument"}), text="canary-thought"), say("canary-answer")]
    log = house.folder / "gateway.log"
    async with ScriptedProvider(lambda request: answers[request.index]) as provider:
        house.use(provider)
        house.environment.setenv("GROQ_API_KEY", "sk-scripted-0123456789")
        house.environment.setenv("GROQ_API_BASE", provider.url)
        worker = house.spawn_worker(AGENTS, PERDURE_LOG_LEVEL="debug")
        try:
            async with gateway_at_debug(log) as url, httpx.AsyncClient(base_url=url, timeout=60) as http:
                await worker.polling()
                body = {"agent": agent, "prompt": "canary-prompt", "session": house.session}
                assert (await http.post("/v1/sessions", json=body)).status_code == 202

                async def ended() -> bool:
                    return bool((await http.get(f"/v1/sessions/{house.session}")).json().get("stop_reason"))

                await eventually(ended)
                said = (await http.get(f"/v1/sessions/{house.session}/transcript")).text
        finally:
            await worker.stop()
    assert "canary-answer" in said
    (line,) = [line for line in worker.log.read_text().splitlines() if '"looked"' in line]
    own = json.loads(line)
    assert (own["logger"], own["workflow"], own["activity"]) == ("mine", house.session, "look"), "an author's own line"
    (printed,) = [json.loads(line) for line in worker.log.read_text().splitlines() if '"printed by look"' in line]
    assert (printed["logger"], printed["workflow"], printed["activity"]) == ("stdout", house.session, "look")
    assert "\nprinted by a subprocess\n" in worker.log.read_text()
    for written in (log, worker.log):
        lines = [line for line in written.read_text(errors="replace").splitlines() if "canary" in line]
        assert not lines, lines[0][:500]
