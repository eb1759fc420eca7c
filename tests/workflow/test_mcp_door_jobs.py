"""``perdure mcp``: what may be asked of it twice, how much it says at once, and who may not ask it at all."""

import httpx2
import pytest

from perdure.cli.mcp import TRANSCRIPT_CHARACTERS
from perdure.testing import ScriptedProvider, say
from tests.house import House
from tests.workflow.test_mcp_door import AGENT, did, host, refused, serving_http, told_url

pytestmark = pytest.mark.deep


async def test_the_same_request_begins_one_job_and_another_prompt_another(house: House) -> None:
    """S-78: a host that counts its requests from one again gets no job of an earlier time."""
    async with ScriptedProvider(lambda _: say("done")) as provider, house.worker(AGENT), host() as client:
        house.use(provider)
        first, again, other = [
            await did(client, "start", agent="tester", prompt=prompt, request_id="1")
            for prompt in ("go", "go", "go elsewhere")
        ]
        assert first == again
        assert other["session"] != first["session"]
        for begun in (first, other):
            await did(client, "wait", session=begun["session"], turn=begun["turn"])
        assert len(provider.requests) == 2


async def test_a_long_transcript_is_read_in_whole_messages(house: House) -> None:
    """S-78: the last ones; how many are missing is said."""
    long = "z" * (TRANSCRIPT_CHARACTERS // 3)
    async with ScriptedProvider(lambda _: say(long)) as provider, house.worker(AGENT), host() as client:
        house.use(provider)
        await did(client, "start", agent="tester", prompt="go 1", session=house.session)
        await did(client, "wait", session=house.session, turn=1)
        for number in (2, 3, 4):
            await did(client, "send", session=house.session, prompt=f"go {number}")
            await did(client, "wait", session=house.session, turn=number)
        told = await did(client, "transcript", session=house.session)
        assert [message["content"][:5] for message in told["messages"]] == ["go 3", "zzzzz", "go 4", "zzzzz"]
        assert (told["total"], told["left_out"]) == (8, 4)


async def test_no_session_is_named_by_nothing(house: House) -> None:
    """S-78: in a sentence of ours."""
    async with house.worker(AGENT), host() as client:
        assert "session" in await refused(client, "status", session="")


@pytest.mark.parametrize(("address", "status"), [("127.0.0.1", 421), ("127.0.0.2", 403)])
async def test_a_web_page_cannot_reach_the_jobs(address: str, status: int, house: House) -> None:
    """S-78: its name leads to this machine, so that the browser takes it for the page's own server."""
    _, output = serving_http(house, address)
    url = await told_url(output)
    page = {"Host": "evil.example", "Origin": "http://evil.example"}
    asks = {"Accept": "application/json, text/event-stream"}
    params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    greeting = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    async with httpx2.AsyncClient(headers=asks) as browser:
        assert (await browser.post(url, json=greeting, headers=page)).status_code == status
        assert (await browser.post(url, json=greeting)).status_code == 200
