"""``perdure mcp``: the SDK's own client runs durable jobs, with a real server, worker and model behind it."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, MCPError, StdioServerParameters

from perdure import Agent
from perdure.cli.server import EmbeddedServer, ServerOptions
from perdure.local_ports import find_free_port
from perdure.testing import Script, ScriptedProvider, faults, say
from tests.conftest import FAST
from tests.house import WAIT_SECONDS, House, eventually

pytestmark = pytest.mark.deep

AGENT = Agent(name="tester", description="Tests things.", model="openai/scripted")
MCP = ["-m", "perdure.cli", "mcp"]
HELD = Script(replies=(say("done").after(faults.hang()),))
"""The first call of the model gets no answer; the one after it does."""


@asynccontextmanager
async def host(era: str = "auto") -> AsyncIterator[Client]:
    """An MCP host that has started ``perdure mcp`` in the environment of the test."""
    child = StdioServerParameters(command=sys.executable, args=MCP, env=dict(os.environ))
    async with Client(child, mode=era, read_timeout_seconds=WAIT_SECONDS) as client:
        yield client


async def did(client: Client, tool: str, **arguments: Any) -> Any:
    """What a tool returned."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    return result.structured_content


async def refused(client: Client, tool: str, **arguments: Any) -> str:
    """The sentence that a tool refused with."""
    result = await client.call_tool(tool, arguments)
    assert result.is_error
    (content,) = result.content
    said = str(getattr(content, "text", ""))
    assert "\n" not in said
    return said


class Progress:
    """What a host is told while it waits."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        assert total is not None
        assert 0 < progress < total
        self.messages.append(message or "")

    async def says(self, part: str) -> None:
        async def there() -> bool:
            return any(part in message for message in self.messages)

        await eventually(there)


def waiting(client: Client, session: str, progress: Progress | None = None) -> "asyncio.Task[Any]":
    """A call of ``wait`` that goes on."""
    arguments = {"session": session, "timeout_seconds": WAIT_SECONDS}
    return asyncio.create_task(client.call_tool("wait", arguments, progress_callback=progress))


@pytest.mark.parametrize("era", ["legacy", "auto"])
async def test_a_stock_host_starts_a_job_and_gets_its_result(house: House, era: str) -> None:
    """S-78: in both generations of the protocol."""
    async with ScriptedProvider(lambda _: say("done")) as provider, house.worker(AGENT), host(era) as client:
        house.use(provider)
        tools = {tool.name for tool in (await client.list_tools()).tools}
        people = {"answer", "approve", "deny", "submit_result"}
        assert tools == {"list_agents", "start", "wait", "status", "send", *people, "cancel", "transcript"}
        (agent,) = (await did(client, "list_agents"))["agents"]
        assert (agent["name"], agent["description"]) == ("tester", "Tests things.")

        begun = await did(client, "start", agent="tester", prompt="go", session=house.session)
        assert (begun["session"], begun["turn"]) == (house.session, 1)
        ended = await did(client, "wait", session=house.session, turn=1)
        assert (ended["state"], ended["turn"]) == ("ended", 1)
        assert (ended["result"]["stop_reason"], ended["result"]["output"]) == ("finished", "done")
        assert await did(client, "status", session=house.session) == ended

        sent = await did(client, "send", session=house.session, prompt="more")
        assert sent["turn"] == 2
        assert (await did(client, "wait", session=house.session, turn=2))["result"]["output"] == "done"
        told = await did(client, "transcript", session=house.session, last=2)
        assert told["total"] == 4
        assert [message["content"] for message in told["messages"]] == ["more", "done"]
        await house.temporal.get_workflow_handle(house.session).result()  # the store has a turn's end first
        assert await did(client, "cancel", session=house.session) == {"session": house.session, "sent": False}


async def test_the_same_request_id_is_the_same_job(house: House) -> None:
    async with ScriptedProvider(lambda _: say("done")) as provider, house.worker(AGENT), host() as client:
        house.use(provider)
        first = await did(client, "start", agent="tester", prompt="go", request_id=house.session)
        again = await did(client, "start", agent="tester", prompt="go", request_id=house.session)
        other = await did(client, "start", agent="tester", prompt="go", request_id=house.session + "-2")
        await did(client, "wait", session=first["session"])
        late = await did(client, "start", agent="tester", prompt="go", request_id=house.session)
        await did(client, "wait", session=other["session"])
    assert first == again == late
    assert other["session"] != first["session"]
    assert provider.request_count == 2


async def test_to_stop_waiting_leaves_the_job_alone_and_cancel_ends_it(house: House) -> None:
    async with ScriptedProvider(always=faults.hang()) as provider, house.worker(AGENT), host() as client:
        house.use(provider)
        await did(client, "start", agent="tester", prompt="go", session=house.session)
        progress = Progress()
        wait = waiting(client, house.session, progress)
        await progress.says("generate, step 1")
        wait.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await wait

        running = await did(client, "wait", session=house.session, timeout_seconds=1)
        assert (running["state"], running["activity"]) == ("running", "generate, step 1")
        status = await did(client, "status", session=house.session)
        assert (status["state"], status["turn"], status["status"]["cancelling"]) == ("running", 1, False)
        assert "is running turn 1" in await refused(client, "start", agent="tester", prompt="x", session=house.session)

        assert await did(client, "cancel", session=house.session, reason="enough") == {
            "session": house.session,
            "sent": True,
        }
        ended = await did(client, "wait", session=house.session)
        assert ended["result"]["stop_reason"] == "cancelled"


async def test_a_host_that_is_closed_leaves_the_job_alone_and_the_next_one_waits_for_it(house: House) -> None:
    async with ScriptedProvider(HELD) as provider, house.worker(AGENT):
        house.use(provider)
        async with host() as client:
            await did(client, "start", agent="tester", prompt="go", session=house.session)
            progress = Progress()
            wait = waiting(client, house.session, progress)
            await progress.says("generate")
        with pytest.raises((MCPError, asyncio.CancelledError)):
            await wait
        async with host() as client:
            progress = Progress()
            wait = waiting(client, house.session, progress)
            await progress.says("generate")
            assert provider.disconnects == 0
            await provider.refuse()
            await provider.accept()
            assert (await wait).structured_content["result"]["output"] == "done"


async def test_what_cannot_be_done_is_a_sentence_with_its_fix(house: House) -> None:
    async with host() as client:
        said = await refused(client, "start", agent="tester", prompt="go")
        assert "no worker polls the task queue" in said
        assert "'perdure worker --agents MODULE'" in said
        async with house.worker(AGENT):
            said = await refused(client, "start", agent="nobody", prompt="go")
            assert said.startswith(
                "no worker has an agent 'nobody'; there are: tester; correct the name, or start a worker"
            )
            for tool in ("wait", "status", "cancel", "transcript"):
                assert "no session 'nowhere'" in await refused(client, tool, session="nowhere")
            assert "no session id" in await refused(client, "start", agent="tester", prompt="go", session="a b")
            said = await refused(client, "start", agent="tester", prompt="")
            assert said.startswith("prompt: ")
            assert "timeout_seconds" in await refused(client, "wait", session="x", timeout_seconds=0)


async def test_a_server_that_is_not_there_is_a_sentence_and_the_host_may_try_again(house: House) -> None:
    house.environment.setenv("TEMPORAL_ADDRESS", f"127.0.0.1:{(port := find_free_port())}")
    async with host() as client:
        said = await refused(client, "start", agent="tester", prompt="go")
        assert str(port) in said
        assert "perdure dev" in said
        async with EmbeddedServer(ServerOptions(port=port, dynamic_config=FAST)):
            assert "no worker polls" in await refused(client, "start", agent="tester", prompt="go")


async def test_a_store_that_is_not_there_is_a_sentence(house: House, tmp_path: Path) -> None:
    house.environment.setenv("PERDURE_STORE_URL", f"sqlite:///{tmp_path / 'nowhere' / 'store.db'}")
    async with host() as client:
        said = await refused(client, "list_agents")
        assert "there is no transcript store at" in said
        assert "PERDURE_STORE_URL" in said


async def test_a_wait_sits_out_a_server_that_is_killed_and_started_again(lasting: House) -> None:
    async with ScriptedProvider(HELD) as provider, lasting.worker(AGENT), host() as client:
        lasting.use(provider)
        await did(client, "start", agent="tester", prompt="go", session=lasting.session)
        progress = Progress()
        wait = waiting(client, lasting.session, progress)
        await progress.says("generate")
        os.kill(lasting.server.pid or 0, signal.SIGKILL)
        await lasting.server.wait()
        await progress.says("the Temporal server does not answer")
        await lasting.server.start()
        await provider.refuse()  # the attempt may have outlived the server, and hangs
        await provider.accept()
        assert (await wait).structured_content["result"]["output"] == "done"


def serving_http(house: House, address: str = "127.0.0.1") -> "tuple[subprocess.Popen[bytes], Path]":
    """``perdure mcp`` on any port, and where its stdout and stderr go."""
    output = house.folder / "mcp.log"
    with output.open("wb") as log:
        process = subprocess.Popen([sys.executable, *MCP, "--http", f"{address}:0"], stdout=log, stderr=log)
    house.processes.append(process)
    return process, output


async def told_url(output: Path) -> str:
    """Where it says that it is to be reached."""

    async def told() -> str:
        return output.read_text() if output.read_text().endswith("\n") else ""

    line: str = await eventually(told)
    return line.removeprefix("perdure: MCP at ").strip()


async def test_a_stock_client_reaches_the_jobs_over_http(house: House) -> None:
    """S-78: in both generations of the protocol."""
    process, output = serving_http(house)
    url = await told_url(output)
    async with ScriptedProvider(lambda _: say("done")) as provider, house.worker(AGENT):
        house.use(provider)
        for number, era in enumerate(["legacy", "auto"], start=1):
            async with Client(url, mode=era) as client:
                begun = await did(client, "start", agent="tester", prompt="go", session=house.session)
                assert begun["turn"] == number
                assert (await did(client, "wait", session=house.session))["result"]["output"] == "done"
    process.terminate()
    await asyncio.to_thread(process.wait, WAIT_SECONDS)
    assert output.read_text() == f"perdure: MCP at {url}\n"
