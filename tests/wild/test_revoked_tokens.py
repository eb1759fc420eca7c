"""A token whose line is taken out of the file: soon nobody gets in with it, and nobody stays in."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import httpx
import pytest

from perdure import Agent, tool
from perdure.gateway.callers import Caller
from perdure.gateway.tokens import load_tokens
from perdure.settings import Settings
from perdure.testing import Script, ScriptedProvider, call, say
from tests.gateway import Door, gateway, token_lines
from tests.house import WAIT_SECONDS, House, eventually

GATE = threading.Event()


@tool
def hold() -> str:
    """Hold until the test lets go."""
    GATE.wait(WAIT_SECONDS)
    return "held"


AGENT = Agent(name="writer", model="openai/scripted", tools=[hold])
READS = 'perdure_http_token_reads_total{outcome="%s"}'


async def status(http: httpx.AsyncClient) -> int:
    return (await http.get("/v1/agents")).status_code


def answers(http: httpx.AsyncClient, expected: int) -> Callable[[], Awaitable[bool]]:
    async def met() -> bool:
        return await status(http) == expected

    return met


async def counted(door: Door, outcome: str) -> float:
    page = (await door.http.get("/metrics")).text
    return next((float(row.split()[-1]) for row in page.splitlines() if row.startswith(READS % outcome)), 0.0)


def replace(path: Path, text: str) -> None:
    """As operators and orchestrators do it: a whole file in the place of another."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)


@pytest.mark.deep
async def test_lines_that_come_and_go_count_without_a_restart(house: House, tmp_path: Path) -> None:
    """T-09."""
    lines, tokens = token_lines(ann=("acme", "read"), eve=("evil", "read"))
    of_ann, of_eve = lines.splitlines()
    path = tmp_path / "tokens"
    path.write_text(of_eve, encoding="utf-8")
    async with (
        gateway(house, gateway_tokens_file=path) as door,
        door.holder(tokens["ann"]) as ann,
        door.holder(tokens["eve"]) as eve,
    ):
        assert (await status(ann), await status(eve)) == (401, 200)
        replace(path, f"# our people\n{of_ann}\n")
        await eventually(answers(ann, 200))
        assert await status(eve) == 401
        assert await counted(door, "changed") == 1
        path.write_text(f"{of_ann}\n{of_eve}\n", encoding="utf-8")  # in place
        await eventually(answers(eve, 200))
        replace(path, "# nobody\n")
        await eventually(answers(eve, 401))
        assert await status(ann) == 401
        assert (await door.http.post("/ui/login", json={"token": tokens["ann"]})).status_code == 401


@pytest.mark.deep
@pytest.mark.parametrize("broken", ["{", '{"name": "x"}', None, "twice", b"\xff\xfe"])
async def test_a_broken_file_keeps_the_last_good_one_and_is_told_and_counted(
    house: House, tmp_path: Path, broken: str | bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "perdure.gateway")
    lines, tokens = token_lines(ann=("acme", "read"))
    path = tmp_path / "tokens"
    path.write_text(lines, encoding="utf-8")
    async with gateway(house, gateway_tokens_file=path) as door, door.holder(tokens["ann"]) as ann:
        if broken is None:
            path.unlink()
        elif isinstance(broken, bytes):
            path.write_bytes(broken)
        else:
            replace(path, f"{lines}\n{lines}" if broken == "twice" else broken)

        async def told() -> bool:
            return await counted(door, "failed") >= 2

        await eventually(told)
        assert await status(ann) == 200
        said = [record.getMessage() for record in caplog.records if "tokens" in record.getMessage()]
        assert len(said) == 1  # once, however often it is looked at
        assert said[0].endswith("; the tokens stay as they were")
        assert tokens["ann"] not in said[0]
        replace(path, "")
        await eventually(answers(ann, 401))


async def read_on(stream: AsyncIterator[str]) -> list[str]:
    return [line async for line in stream if line]


async def test_streams_and_waits_of_a_token_end_with_it_and_no_others(house: House, tmp_path: Path) -> None:
    """T-09."""
    lines, tokens = token_lines(ann=("acme", "run,read"), bob=("acme", "run,read"))
    path = tmp_path / "tokens"
    path.write_text(lines, encoding="utf-8")
    async with (
        ScriptedProvider(Script(replies=(call(("hold", {})), say("done")))) as provider,
        house.worker(AGENT),
        gateway(house, gateway_tokens_file=path) as door,
        door.holder(tokens["ann"]) as ann,
        door.holder(tokens["bob"]) as bob,
    ):
        house.use(provider)
        await ann.post("/v1/sessions", json={"agent": "writer", "prompt": "go", "session": house.session})
        url = f"/v1/sessions/{house.session}/events"
        async with ann.stream("GET", url) as of_ann, bob.stream("GET", url) as of_bob:
            reading = asyncio.create_task(read_on(of_ann.aiter_lines()))
            other = asyncio.create_task(read_on(of_bob.aiter_lines()))
            waiting = asyncio.create_task(
                ann.get(f"/v1/sessions/{house.session}/turns/1", headers={"Prefer": "wait=60"})
            )
            await house.wait_for_event("tool_start")
            assert "perdure_http_streams 2.0" in (await door.http.get("/metrics")).text
            replace(path, lines.splitlines()[1])
            last = (await asyncio.wait_for(reading, 120))[-2:]
            assert last[0] == "event: dropped"
            assert (await asyncio.wait_for(waiting, 120)).status_code == 401
            GATE.set()
            assert "event: end" in await other

        async def all_closed() -> bool:
            return "perdure_http_streams 0.0" in (await door.http.get("/metrics")).text

        await eventually(all_closed)


def test_a_token_that_is_exchanged_under_its_name_is_another(tmp_path: Path) -> None:
    """With the same name, tenant and scopes: who came with the old one does not stay."""
    path = tmp_path / "tokens"
    (old, old_tokens), (new, _) = token_lines(ann=("acme", "read")), token_lines(ann=("acme", "read"))
    path.write_text(old, encoding="utf-8")
    tokens = load_tokens(Settings(gateway_tokens_file=path))
    assert tokens is not None
    caller = tokens.find(old_tokens["ann"])
    assert isinstance(caller, Caller)
    assert tokens.has(caller)
    path.write_text(new, encoding="utf-8")
    other = load_tokens(Settings(gateway_tokens_file=path))
    assert other is not None
    with tokens.hold(caller) as gone:
        tokens.take_over(other)
        assert gone.is_set()
    assert not tokens.has(caller)
    with tokens.hold(caller) as gone:  # who comes while it happens
        assert gone.is_set()


async def test_a_body_that_comes_after_its_token_has_gone_does_nothing(house: House, tmp_path: Path) -> None:
    """T-09."""
    lines, tokens = token_lines(ann=("acme", "run,read"), bob=("acme", "run,read"))
    path = tmp_path / "tokens"
    path.write_text(lines, encoding="utf-8")
    async with gateway(house, gateway_tokens_file=path) as door, door.holder(tokens["ann"]) as ann:

        async def slowly() -> AsyncIterator[bytes]:
            yield b'{"agent": "writer", '
            replace(path, lines.splitlines()[1])
            await eventually(answers(ann, 401))
            yield b'"prompt": "go", "session": "late"}'

        refused = await ann.post("/v1/sessions", content=slowly())
        assert (refused.status_code, refused.json()["code"]) == (401, "request.unauthenticated")
        assert await house.store.tenant_of("late") is None
