"""S-83: one job over four doors, each of them in each role; two hundred starts at each door, each sent twice."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import timedelta

import httpx
import pytest
from mcp import Client as McpClient

from perdure import Agent, ask_user
from perdure.cli.mcp import Jobs
from perdure.client import Client
from perdure.mcp_server import as_mcp
from perdure.testing import Script, ScriptedProvider, call
from tests.gateway import gateway
from tests.house import House, eventually
from tests.workflow.doors import ANSWER, QUESTIONS, WAYS, Seen, Way, all_ways
from tests.workflow.test_mcp_door import did

pytestmark = pytest.mark.deep

ASKER = Agent(name="tester", model="openai/scripted", tools=[ask_user])

ASKS = Script(replies=tuple(call(("ask_user", {"question": question})) for question in QUESTIONS))

STEPS = (0, 3, 6, 1)
"""How far from the door that starts a job those stand that follow it, answer its question and cancel it."""


async def over_four_doors(ways: dict[str, Way], house: House, names: tuple[str, ...]) -> None:
    """Start, follow, answer and cancel a job at the doors of these names; who follows misses nothing."""
    session = "-".join(names)
    first, second, third, fourth = (ways[name] for name in names)
    seen = Seen()
    await first.start(session)
    following = asyncio.create_task(second.follow(session, seen))
    try:
        await seen.has(1, following)
        await third.answer(session)
        await seen.has(2, following)
        await fourth.cancel(session)
        assert await following == second.ended, names
    finally:
        following.cancel()
    assert list(seen) == list(QUESTIONS), names
    assert seen.numbers == list(range(1, len(seen.numbers) + 1)), names
    (turn,) = await house.client.turn_views(session)
    assert turn.result is not None
    assert turn.result.stop_reason == "cancelled", names
    results = [message.content for message in await house.client.transcript(session) if message.role == "tool"]
    assert results[0] == ANSWER, names


async def test_one_job_is_started_followed_answered_and_cancelled_at_four_doors(house: House) -> None:
    """S-83: eight orders at once, on one gateway; each door has each role once."""
    orders = [tuple(WAYS[(at + step) % len(WAYS)] for step in STEPS) for at in range(len(WAYS))]
    async with (
        ScriptedProvider(ASKS) as provider,
        house.worker(ASKER),
        gateway(house, doors=("responses", "a2a", "agui")) as door,
        all_ways(house, door) as ways,
    ):
        house.use(provider)
        ended = await asyncio.gather(*(over_four_doors(ways, house, order) for order in orders), return_exceptions=True)
        failed = {order: error for order, error in zip(orders, ended, strict=True) if error is not None}
        assert failed == {}
    assert len(await house.client.sessions()) == len(orders)


JOBS = int(os.environ.get("STARTS", "200"))
"""Jobs that each door starts; two hundred cost 4 to 8 seconds of CPU a door."""


async def start_response(http: httpx.AsyncClient, number: int) -> object:
    body = {"model": "tester", "input": f"{number}", "conversation": f"talk-{number}", "background": True}
    answer = await http.post("/openai/v1/responses", json=body, headers={"Idempotency-Key": f"job-{number}"})
    return answer.status_code, answer.json().get("id", answer.text)


async def start_task(http: httpx.AsyncClient, number: int) -> object:
    parts = [{"text": f"{number}"}]
    message = {"messageId": f"job-{number}", "contextId": f"context-{number}", "role": "ROLE_USER", "parts": parts}
    body = {"message": message, "configuration": {"returnImmediately": True}}
    answer = await http.post("/a2a/tester/message:send", json=body, headers={"A2A-Version": "1.0"})
    return answer.status_code, answer.json().get("task", {}).get("id", answer.text)


async def start_run(http: httpx.AsyncClient, number: int) -> object:
    messages = [{"id": "m", "role": "user", "content": f"{number}"}]
    body = {"threadId": f"thread-{number}", "runId": f"job-{number}", "messages": messages}
    async with http.stream("POST", "/agui/tester", json=body) as stream:
        lines = stream.aiter_lines()
        return stream.status_code, stream.headers.get("content-location", await anext(lines))


HTTP_STARTS: dict[str, Callable[[httpx.AsyncClient, int], Awaitable[object]]] = {
    "responses": start_response,
    "a2a": start_task,
    "agui": start_run,
}


async def check_jobs(house: House, told: list[object]) -> None:
    """Check that both replies to each start were the same, and that there are as many jobs as starts."""
    assert told[::2] == told[1::2]
    assert len(set(told)) == JOBS, told[:3]

    async def counted() -> bool:
        query = f'TaskQueue = "{house.settings.task_queue}"'
        found = (await house.temporal.count_workflows(query)).count
        assert found <= JOBS
        return found == JOBS

    await eventually(counted)


@pytest.mark.parametrize("name", HTTP_STARTS)
async def test_many_starts_at_once_each_sent_twice_are_as_many_jobs(house: House, name: str) -> None:
    """S-83: by two gateways. No worker is needed: a start is answered once Temporal has it."""
    await house.store.register_agents([ASKER.definition])
    settings = {"doors": ("responses", "a2a", "agui"), "gateway_max_streams": 2 * JOBS}
    async with gateway(house, **settings) as one, gateway(house, **settings) as other:
        sends = [HTTP_STARTS[name](door.http, number) for number in range(JOBS) for door in (one, other)]
        await check_jobs(house, await asyncio.gather(*sends))


@pytest.mark.parametrize("name", ["mcp", "python"])
async def test_many_starts_past_the_gateway_each_sent_twice_are_as_many_jobs(
    house: House, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-78: by two servers, or two clients, with one ``request_id`` for each start."""
    await house.store.register_agents([ASKER.definition])

    async def polls(_: Client) -> None:
        pass

    monkeypatch.setattr(Client, "check_worker", polls)
    monkeypatch.setattr("perdure.cli.mcp.OPENING", timedelta())  # nobody opens the turns
    async with AsyncExitStack() as stack:
        sends: list[Awaitable[object]] = []
        for _ in range(2):
            jobs = Jobs()
            stack.push_async_callback(jobs.close)
            mcp = await stack.enter_async_context(McpClient(as_mcp(*jobs.tools())))
            client = await stack.enter_async_context(await Client.connect(house.settings))
            by_mcp = [_start_by_mcp(mcp, number) for number in range(JOBS) if name == "mcp"]
            sends += by_mcp or [_start_by_client(client, number) for number in range(JOBS)]
        told = await asyncio.gather(*sends)
        await check_jobs(house, [reply for pair in zip(told[:JOBS], told[JOBS:], strict=True) for reply in pair])


async def _start_by_mcp(client: McpClient, number: int) -> object:
    told = await did(client, "start", agent="tester", prompt=f"{number}", request_id=f"job-{number}")
    return str(told["session"])


async def _start_by_client(client: Client, number: int) -> object:
    turn = await client.start("tester", f"{number}", session=f"py-{number}", request_id=f"job-{number}")
    return turn.session, turn.request_id
