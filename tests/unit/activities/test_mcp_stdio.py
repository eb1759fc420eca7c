"""Stdio servers as a worker uses them: started, asked, broken, and each fault told in a sentence."""

import asyncio
import json
import os
import re
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from perdure import AgentDefinitionError, StdioServerConfig
from perdure.activities.mcp.failures import McpError, McpUnavailableError
from perdure.contracts.errors import ReasonCode
from tests.house import eventually
from tests.unit.activities.mcp_peers import Connected, agent, peer, worker_of

pytestmark = pytest.mark.deep


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal"


async def test_its_tools_get_names_that_providers_accept_and_calls_find_their_way_back(tmp_path: Path) -> None:
    """S-75."""
    async with worker_of(peer(), folder=tmp_path) as worker:
        await worker.open()
        assert worker.tools["peer__echo"].reference == "mcp:peer/echo"
        (strange,) = [name for name in worker.tools if "strange" in name]
        assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", strange)
        assert (await worker.call(strange, a=1)).text == 'strange.name/1: {"a": 1}'
        assert worker.tools["peer__whoami"].idempotent
        assert not worker.tools["peer__echo"].idempotent


@pytest.mark.parametrize(
    ("filters", "left"),
    [
        ({"pick": ["echo", "fail"]}, {"peer__echo", "peer__fail"}),
        ({"pick": ["echo", "fail"], "omit": ["fail"]}, {"peer__echo"}),
        ({"pick": []}, set()),
    ],
)
async def test_an_allow_list_denies_everything_else(filters: dict[str, Any], left: set[str], tmp_path: Path) -> None:
    """S-75: also a tool that the server adds later."""
    async with worker_of(peer(**filters), folder=tmp_path) as worker:
        await worker.open()
        assert set(worker.tools) == left


@pytest.mark.parametrize(
    ("config", "status", "said"),
    [
        (peer(command="no-such-command"), "failed", "there is no command 'no-such-command' on the worker's PATH"),
        (peer("dies"), "failed", "it ended before it answered .*line 59\ncannot go on"),
        (peer("login"), "needs_auth", "not logged in"),
        (peer("silent", init_timeout=timedelta(seconds=0.5)), "failed", r"did not answer within 0\.5 s"),
        (
            StdioServerConfig(name="peer", command="yes", init_timeout=timedelta(seconds=0.5)),
            "failed",
            "what it prints is not MCP: 'y'",
        ),
        (peer("twice"), "failed", "lists two tools named echo"),
        (peer(pick=["nothing"]), "failed", "has no tool nothing, which pick names; it has: echo, whoami"),
        (peer(required_env=["TOKEN_OF_MINE"]), "failed", "needs TOKEN_OF_MINE in the worker's environment"),
        (peer(env={"A": "x ${TOKEN_OF_MINE}"}), "failed", "needs TOKEN_OF_MINE in the worker's environment"),
        (peer(cwd="/no/such/folder"), "failed", "its working directory '/no/such/folder' is not there"),
    ],
    ids=["no command", "dies", "login", "silent", "garbage", "twice", "pick", "required", "reference", "cwd"],
)
async def test_a_server_that_cannot_be_used_has_a_state_and_a_sentence(
    config: StdioServerConfig, status: str, said: str, tmp_path: Path
) -> None:
    """S-75, S-77, S-78."""
    async with worker_of(config, folder=tmp_path) as worker:
        with pytest.raises(McpUnavailableError, match=re.compile(said, re.DOTALL)):
            await worker.open()
        assert worker.status == status
        (line,) = worker.servers.troubles()
        assert "MCP server 'peer'" in line


async def test_every_state_of_a_server_is_reported(tmp_path: Path, journal: Path) -> None:
    """S-75: all five; a disabled one before anybody could ask for it."""
    lost = peer(name="lost", env={"MCP_JOURNAL": str(journal)})
    refused = (peer(name="gone", command="no-such-command"), peer("login", name="closed"))
    async with worker_of(peer(), lost, *refused, peer(name="off", enabled=False), folder=tmp_path) as worker:
        assert [(state.name, state.status) for state in worker.servers.states()] == [("off", "disabled")]
        with pytest.raises(McpUnavailableError):
            await worker.open()
        os.kill(int(journal.read_text().split()[1]), 9)
        states = {"peer": "connected", "lost": "disconnected", "gone": "failed", "closed": "needs_auth"}

        async def reported() -> bool:
            return {state.name: state.status for state in worker.servers.states()} == {**states, "off": "disabled"}

        await eventually(reported)


async def test_garbage_between_its_messages_does_no_harm(tmp_path: Path) -> None:
    """S-77."""
    async with worker_of(peer("garbage"), folder=tmp_path) as worker:
        await worker.open()
        assert (await worker.call("peer__echo")).text == "echo: {}"


async def test_it_gets_the_named_variables_and_no_others(tmp_path: Path) -> None:
    """S-78."""
    config = peer(env={"GREETING": "hello ${NAME_OF_MINE}"}, required_env=["NEEDED"])
    environment = {"NAME_OF_MINE": "you-and-me", "NEEDED": "1", "OTHER": "2", "OPENAI_API_KEY": "3"}
    async with worker_of(config, folder=tmp_path, **environment) as worker:
        await worker.open()
        seen = json.loads((await worker.call("peer__environment")).text)
    inherited = {"HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER", "LC_CTYPE"}  # the last is set by the peer's Python
    assert {name: seen[name] for name in seen.keys() - inherited} == {"GREETING": "hello you-and-me", "NEEDED": "1"}


async def test_an_error_of_the_tool_is_an_error_with_its_words(tmp_path: Path) -> None:
    """S-77."""
    async with worker_of(peer(), folder=tmp_path) as worker:
        await worker.open()
        with pytest.raises(McpError, match="it did not work") as caught:
            await worker.call("peer__fail")
    assert caught.value.code == ReasonCode.TOOL_EXECUTION_ERROR


async def test_a_call_that_takes_too_long_is_cancelled_at_the_server(tmp_path: Path, journal: Path) -> None:
    """S-75."""
    config = peer(call_timeout=timedelta(seconds=0.3), env={"MCP_JOURNAL": str(journal)})
    async with worker_of(config, folder=tmp_path) as worker:
        await worker.open()
        with pytest.raises(McpError, match=r"longer than its time-out of 0\.3 s") as caught:
            await worker.call("peer__slow")
        assert caught.value.code == ReasonCode.TOOL_TIMEOUT
        await eventually(lambda: said(journal, "cancelled"))
        assert (await worker.call("peer__echo")).text == "echo: {}"


async def test_the_server_sees_a_cancel(tmp_path: Path, journal: Path) -> None:
    """S-75."""
    async with worker_of(peer(env={"MCP_JOURNAL": str(journal)}), folder=tmp_path) as worker:
        await worker.open()
        call = asyncio.create_task(worker.call("peer__slow"))
        await eventually(lambda: said(journal, "call slow"))
        call.cancel()
        await asyncio.wait([call])
        assert call.cancelled()
        await eventually(lambda: said(journal, "cancelled"))


async def test_a_lost_connection_is_opened_again_and_an_unknown_effect_is_not_repeated(
    tmp_path: Path, journal: Path
) -> None:
    """S-77: the message has the server's last words."""
    async with worker_of(peer(env={"MCP_JOURNAL": str(journal)}), folder=tmp_path) as worker:
        await worker.open()
        first = (await worker.call("peer__whoami")).text
        with pytest.raises(McpError, match=r"its effect is unknown.*last words of the peer") as caught:
            await worker.call("peer__die")
        assert caught.value.code == ReasonCode.TOOL_NETWORK_ERROR
        assert (await worker.call("peer__whoami")).text != first
    assert journal.read_text().count("call die") == 1


async def test_a_call_that_may_be_repeated_is_sent_again_once(tmp_path: Path, journal: Path) -> None:
    """S-77: the server declares the tool idempotent."""
    async with worker_of(peer(env={"MCP_JOURNAL": str(journal)}), folder=tmp_path) as worker:
        await worker.open()
        assert (await worker.call("peer__die_once")).text == "die_once: {}"
    assert journal.read_text().count("call die_once") == 2


async def test_a_server_that_was_killed_between_calls_costs_none(tmp_path: Path) -> None:
    """S-77: nothing was sent, so the call is."""
    async with worker_of(peer(), folder=tmp_path) as worker:
        await worker.open()
        os.kill(int((await worker.call("peer__whoami")).text), 9)
        await eventually(lambda: has_status(worker, "disconnected"))
        assert (await worker.call("peer__echo")).text == "echo: {}"
        assert worker.status == "connected"


async def test_fifty_calls_run_side_by_side(tmp_path: Path, journal: Path) -> None:
    """The server has begun all of them before any ends."""
    async with worker_of(peer(env={"MCP_JOURNAL": str(journal)}), folder=tmp_path) as worker:
        await worker.open()
        calls = [asyncio.create_task(worker.call("peer__slow")) for _ in range(50)]
        await eventually(lambda: said(journal, "call slow", 50))
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)


async def test_ten_megabytes_arrive(tmp_path: Path) -> None:
    """The store takes them as an artifact, see the workflow tests."""
    async with worker_of(peer(), folder=tmp_path) as worker:
        await worker.open()
        assert len((await worker.call("peer__big", size=10_000_000)).text) == 10_000_000


async def test_images_and_files_are_attachments_that_the_text_names(tmp_path: Path) -> None:
    """S-77."""
    async with worker_of(peer(), folder=tmp_path) as worker:
        await worker.open()
        result = await worker.call("peer__files")
    assert result.text.splitlines() == [
        "two files",
        "[image, image/png, 5 bytes: artifact art_c1_1]",
        "[resource file:///a.bin, application/x-a, 5 bytes: artifact art_c1_2]",
        "[resource file:///a.txt]",
        "some text",
    ]
    assert [(attachment.media_type, attachment.data) for attachment in result.attachments] == [
        ("image/png", b"hello"),
        ("application/x-a", b"world"),
    ]


async def test_progress_is_reported(tmp_path: Path) -> None:
    """The worker writes it at the heartbeat and into the event log."""
    async with worker_of(peer(), folder=tmp_path) as worker:
        await worker.open()
        await worker.call("peer__progress")
        assert worker.progress == [(1, 2, "half a step"), (2, 2, "half a step")]


async def test_all_that_it_writes_to_its_standard_error_is_in_a_file_without_secrets(tmp_path: Path) -> None:
    """S-77."""
    shell = "for i in $(seq 1 200); do echo line $i $KEY >&2; done; exit 1"
    config = StdioServerConfig(name="peer", command="sh", args=("-c", shell), env={"KEY": "${SECRET_WORD}"})
    async with worker_of(config, folder=tmp_path, SECRET_WORD="abra-cadabra-42") as worker:
        with pytest.raises(McpUnavailableError, match=r"line 200 \*\*\*") as caught:
            await worker.open()
    log = (tmp_path / "mcp" / "logs" / "peer.log").read_text()
    assert log.count("line 1 ***") == 2  # it was started twice
    assert "abra" not in log + str(caught.value)


@pytest.mark.parametrize(
    ("fault", "run"),
    [("", "{}; true"), ("stubborn", "{}; true"), ("stubborn", "exec {}")],
    ids=["by a shell", "stubborn by a shell", "stubborn"],
)
async def test_no_process_is_left_when_the_worker_closes(fault: str, run: str, tmp_path: Path) -> None:
    """Also none that ignores signals, that a shell started, or that left the server's process group."""
    left = tmp_path / "left"
    leaves = f"setsid sh -c 'echo process $$ > {left}; exec sleep 1000'" if sys.platform == "linux" else "true"
    command = f"{leaves} & {run.format(f'{sys.executable} {peer().args[0]} {fault}')}"
    async with worker_of(peer(command="sh", args=("-c", command)), folder=tmp_path) as worker:
        await worker.open()
        pids = [int((await worker.call("peer__whoami")).text)]
        if sys.platform == "linux":
            await eventually(lambda: said(left, "\n"))
            pids.append(int(left.read_text().split()[1]))
        assert all(alive(pid) for pid in pids)
    assert not any(alive(pid) for pid in pids)


def test_two_servers_of_one_name_and_a_bad_url_are_refused_where_the_agent_is_defined() -> None:
    """One clear line."""
    with pytest.raises(AgentDefinitionError, match="two servers are named peer; rename one"):
        agent(peer(), peer("twice"))


async def said(journal: Path, text: str, times: int = 1) -> bool:
    return journal.exists() and journal.read_text().count(text) >= times


async def has_status(worker: Connected, status: str) -> bool:
    return worker.status == status
