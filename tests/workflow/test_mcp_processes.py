"""Workers with MCP servers as processes: what is left of a server, what operators see, and where secrets are."""

import asyncio
import re
import sys
import urllib.request
from collections.abc import Iterable
from pathlib import Path

import pytest

from perdure import Agent, StdioServerConfig
from perdure.local_ports import find_free_port
from perdure.testing import Script, ScriptedProvider, call, say
from tests.faults import everywhere
from tests.house import House, WorkerProcess, eventually

pytestmark = pytest.mark.deep

AGENTS = "tests.workflow.agents_with_servers"
PEER = Path(__file__).parent.parent / "mcp_peer.py"
SECRET = "plain-words-of-a-service-7"
USED = Script(replies=(call(("peer__environment", {})), say("done")))


async def worker(house: House, **environment: str) -> tuple[WorkerProcess, Path]:
    """A worker that polls, and the journal of its server."""
    journal = house.folder / "journal"
    spawned = house.spawn_worker(AGENTS, MCP_JOURNAL=str(journal), SERVICE_PASS=SECRET, **environment)
    await spawned.polling()
    return spawned, journal


def ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


async def have_ended(pids: Iterable[int]) -> bool:
    return all(ended(pid) for pid in pids)


async def both(journal: Path) -> list[int]:
    """The server's process, and the one that it left behind, once both have said so."""
    pids = re.findall(r"^(?:started|left) (\d+)\n", journal.read_text(), re.MULTILINE)
    return [int(pid) for pid in pids] if len(pids) == 2 else []


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
@pytest.mark.parametrize("fault", ["", "stubborn"])
@pytest.mark.parametrize("end", ["kill -9", "SIGTERM"])
async def test_no_server_outlives_its_worker(house: House, end: str, fault: str) -> None:
    """Also none that was started by a shell, left its process group, or ignores signals and the end of its input."""
    async with ScriptedProvider(USED) as provider:
        house.use(provider)
        spawned, journal = await worker(house, PEER_FAULT=fault)
        await house.run()
    pids = await eventually(lambda: both(journal))
    assert not any(ended(pid) for pid in pids)
    if end == "kill -9":
        spawned.kill()
    else:
        assert await spawned.stop() == 0
    await eventually(lambda: have_ended(pids))


async def test_a_secret_by_reference_is_nowhere_but_at_the_server(house: House) -> None:
    """S-78: the tool gives it back, and still it is in no history, store, event, log or view."""
    async with ScriptedProvider(USED) as provider:
        house.use(provider)
        spawned, _ = await worker(house)
        result = await house.run()
        assert result["stop_reason"] == "finished"
        read = str(provider.requests[-1].request.messages)
        assert "Bearer ***" in read
        assert SECRET not in read
        assert await spawned.stop() == 0
    left = {**await everywhere.temporal(house, house.session), **everywhere.rows(house), **everywhere.files(house)}
    left |= await everywhere.views([house.session])
    assert [place for place, text in left.items() if SECRET.encode() in text] == []
    assert any(b"peer__environment" in text for text in left.values())
    assert b"reaches its service with Bearer ***\n" in left["mcp/logs/peer.log"]


def wordy(then: str) -> Agent:
    """An agent whose server writes 60 lines of 84 characters each, and then does something else."""
    script = f"for i in $(seq -w 60); do printf '%s %081d\\n' $i 0 >&2; done; {then}"
    server = StdioServerConfig(name="peer", command="sh", args=("-c", script))
    return Agent(name="tester", model="openai/scripted", mcp_servers=[server])


def lines_of(text: str) -> list[int]:
    """The numbers of a wordy server's lines."""
    return [int(number) for number in re.findall(r"(\d\d) 0{81}", text)]


async def test_the_model_reads_the_last_fifty_lines_of_a_server_that_broke(house: House) -> None:
    """S-77: and people as many of the newest as fit."""
    script = Script(replies=(call(("peer__die", {})), say("done")))
    async with ScriptedProvider(script) as provider, house.worker(wordy(f"exec {sys.executable} {PEER}")):
        house.use(provider)
        assert (await house.run())["stop_reason"] == "finished"
        read = str(provider.requests[-1].request.messages)
    assert lines_of(read) == list(range(12, 61))
    assert "the last words of the peer" in read
    (end,) = await house.events("tool_end")
    told = end["error"]["message"]
    assert lines_of(told) == list(range(61 - len(lines_of(told)), 61))
    assert len(told) <= 1_500
    assert told.endswith("the last words of the peer")


async def test_a_refused_turns_failure_has_the_last_fifty_lines(house: House) -> None:
    """S-77: beside its message, which has as many of the newest as fit."""
    async with house.worker(wordy("exit 1")):
        refused = await house.run()
    assert lines_of(refused["error"]) == list(range(61 - len(lines_of(refused["error"])), 61))
    assert 0 < len(lines_of(refused["error"])) < 50
    history = await house.temporal.get_workflow_handle(house.session).fetch_history()
    (failed,) = [event for event in history.events if event.HasField("activity_task_failed_event_attributes")]
    info = failed.activity_task_failed_event_attributes.failure.application_failure_info
    _, lines = info.details.payloads
    assert lines_of(lines.data.decode()) == list(range(11, 61))


async def test_readyz_names_a_server_that_cannot_be_used_and_the_worker_stays_ready(house: House) -> None:
    """S-75: it has other agents to serve."""
    address = f"127.0.0.1:{find_free_port()}"
    await worker(house, PERDURE_METRICS_ADDRESS=address)
    refused = await house.run("broken")
    assert refused["reason_code"] == "runtime.mcp_unavailable"
    page = await asyncio.to_thread(lambda: urllib.request.urlopen(f"http://{address}/readyz").read().decode())
    ready, trouble = page.splitlines()
    assert ready == "ready"
    assert trouble.startswith("failed: MCP server 'absent' cannot be used: there is no command 'no-such-command'")
