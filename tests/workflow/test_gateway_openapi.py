"""The OpenAPI document of the gateway: requests of every kind, made from it, meet no surprise."""

import asyncio
import sys
from pathlib import Path

import pytest

from perdure import Agent, RetryPolicy
from perdure.testing import Script, ScriptedProvider, say
from tests.gateway import Door, gateway, token_lines
from tests.house import House

pytestmark = [pytest.mark.deep, pytest.mark.judged("OpenAPI 3.1", "schemathesis")]

AGENT = Agent(name="tester", model="openai/scripted", instructions="Add.", retry=RetryPolicy(max_retries=0))

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "ignored_auth",
)


STREAM = "follow_session"
"""Lasts as long as its session has a turn that runs or waits."""


async def fuzz(door: Door, token: str, folder: Path, config: str, examples: int, *choice: str) -> None:
    """Have schemathesis make requests, of all routes or of those chosen, and fail with what it found."""
    (folder / "schemathesis.toml").write_text(config, encoding="utf-8")
    process = await asyncio.create_subprocess_exec(
        *(str(Path(sys.executable).parent / "schemathesis"), "--config-file", str(folder / "schemathesis.toml")),
        *("run", f"{door.url}/openapi.json", "--checks", ",".join(CHECKS), "--seed", "15", *choice),
        *(
            "--max-examples",
            str(examples),
            "--no-shrink",
            "--continue-on-failure",
            "--phases",
            "examples,coverage,fuzzing",
        ),
        *("--header", f"Authorization: Bearer {token}", "--request-timeout", "60", "--suppress-health-check", "all"),
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    if process.returncode != 0:
        pytest.fail(said.decode(errors="replace")[-12_000:])


@pytest.mark.timeout(600)  # some 3,000 requests, which a busy machine answers slowly
async def test_requests_of_every_kind_are_answered_as_the_document_says(house: House, tmp_path: Path) -> None:
    lines, tokens = token_lines(ann=("acme", "admin"))
    one, two = say("2"), say("4")
    async with ScriptedProvider(Script(replies=(one, two))) as provider, house.worker(AGENT):
        house.use(provider)
        async with (
            gateway(house, gateway_tokens=lines, gateway_max_requests=0) as door,
            door.holder(tokens["ann"]) as http,
        ):
            started = await http.post("/v1/sessions", json={"agent": "tester", "prompt": "1 + 1", "session": "known"})
            assert started.status_code == 202, started.text
            await (await house.client.attach("known", 1)).result()
            known = '[parameters]\n"path.session" = "known"\n'
            await fuzz(door, tokens["ann"], tmp_path, known, 4, f"--include-operation-id={STREAM}")
            await fuzz(door, tokens["ann"], tmp_path, known, 2, f"--exclude-operation-id={STREAM}")
