"""Workers with MCP servers as processes: what is left of a server, what operators see, and where secrets are."""

import asyncio
import urllib.request
from pathlib import Path

import pytest

from perdure.cli.server import free_port
from perdure.testing import Script, ScriptedProvider, call, say
from tests.faults import everywhere
from tests.house import House, WorkerProcess, eventually

AGENTS = "tests.workflow.agents_with_servers"
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


async def has_ended(pid: int) -> bool:
    return ended(pid)


def server_pid(journal: Path) -> int:
    (line,) = [line for line in journal.read_text().splitlines() if line.startswith("started")]
    return int(line.split()[1])


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
@pytest.mark.parametrize("fault", ["", "stubborn"])
@pytest.mark.parametrize("end", ["kill -9", "SIGTERM"])
async def test_no_server_outlives_its_worker(house: House, end: str, fault: str) -> None:
    """Also none that was started by a shell, and ignores signals and the end of its input."""
    async with ScriptedProvider(USED) as provider:
        house.use(provider)
        spawned, journal = await worker(house, PEER_FAULT=fault)
        await house.run()
    pid = server_pid(journal)
    assert not ended(pid)
    if end == "kill -9":
        spawned.kill()
    else:
        assert await spawned.stop() == 0
    await eventually(lambda: has_ended(pid))


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


async def test_readyz_names_a_server_that_cannot_be_used_and_the_worker_stays_ready(house: House) -> None:
    """S-75: it has other agents to serve."""
    address = f"127.0.0.1:{free_port()}"
    await worker(house, PERDURE_METRICS_ADDRESS=address)
    refused = await house.run("broken")
    assert refused["reason_code"] == "runtime.mcp_unavailable"
    page = await asyncio.to_thread(lambda: urllib.request.urlopen(f"http://{address}/readyz").read().decode())
    ready, trouble = page.splitlines()
    assert ready == "ready"
    assert trouble.startswith("failed: MCP server 'absent' cannot be used: there is no command 'no-such-command'")
