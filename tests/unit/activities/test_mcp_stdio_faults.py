"""Stdio servers that hang, garble, leak or misread the protocol: none is lost for good, and none tells a secret."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, StdioServerConfig, tool
from perdure.activities.mcp import server
from perdure.activities.mcp.failures import McpError, McpUnavailableError
from perdure.contracts.errors import ReasonCode
from perdure.contracts.tools import wire_name
from tests.house import eventually
from tests.unit.activities.mcp_peers import Connected, peer, worker_of

pytestmark = pytest.mark.deep

SECRET = "Zq81-very-hidden-value-99"
KEY = "\n".join(["-----BEGIN A KEY-----", *(f"{number:02}abcdefghijklmnopqrstuvwxyz" * 2 for number in range(9))])


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def noting(fault: str, journal: Path, **settings: Any) -> StdioServerConfig:
    return peer(fault, env={"MCP_JOURNAL": str(journal)}, **settings)


def confided(fault: str = "", **settings: Any) -> StdioServerConfig:
    """A server that is told a secret."""
    return peer(fault, env={"KEY": "${MY_OWN_VALUE}"}, **settings)


async def ends(worker: Connected, status: str) -> None:
    async def has_it() -> bool:
        return worker.status == status

    await eventually(has_it)


async def test_a_server_that_hangs_in_a_call_is_started_anew(
    tmp_path: Path, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-77: it does not answer a list either."""
    monkeypatch.setattr(server, "PROBE_SECONDS", 0.2)
    config = noting("hangs", journal, call_timeout=timedelta(seconds=0.3))
    async with worker_of(config, folder=tmp_path) as worker:
        await worker.open()
        with pytest.raises(McpError, match="its effect is unknown") as caught:
            await worker.call("peer__slow")
        assert caught.value.code == ReasonCode.TOOL_TIMEOUT
        await ends(worker, "disconnected")
        assert (await worker.call("peer__echo")).text == "echo: {}"
    assert journal.read_text().count("started") == 2


async def test_a_server_that_is_only_slow_is_kept(tmp_path: Path, journal: Path) -> None:
    """S-77: it answers a list, so only the call ended."""
    config = noting("", journal, call_timeout=timedelta(seconds=0.3))
    async with worker_of(config, folder=tmp_path) as worker:
        await worker.open()
        with pytest.raises(McpError, match="time-out"):
            await worker.call("peer__slow")
        await eventually(lambda: has(journal, "list", 2))
        assert worker.status == "connected"
    assert journal.read_text().count("started") == 1


async def test_a_server_that_does_not_list_its_tools_is_started_anew(tmp_path: Path, journal: Path) -> None:
    """S-75: the next turn gets them."""
    async with worker_of(noting("deaf", journal, init_timeout=timedelta(seconds=0.5)), folder=tmp_path) as worker:
        with pytest.raises(McpUnavailableError, match=r"did not list its tools within 0\.5 s"):
            await worker.open()
        assert worker.status == "failed"
        await worker.open()
        assert worker.status == "connected"


async def test_a_byte_that_is_no_text_costs_no_call(tmp_path: Path) -> None:
    """S-77."""
    async with worker_of(peer("latin"), folder=tmp_path) as worker:
        await worker.open()
        assert (await worker.call("peer__echo")).text == "caf\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    ("fault", "said"), [("session", "the browser session ended"), ("own code", r"no funds \(code -32000\)")]
)
async def test_an_error_that_reads_like_one_of_the_connection_is_the_tools_own(
    fault: str, said: str, tmp_path: Path, journal: Path
) -> None:
    """S-77: the call is not sent again."""
    async with worker_of(noting(fault, journal), folder=tmp_path) as worker:
        await worker.open()
        with pytest.raises(McpError, match=said) as caught:
            await worker.call("peer__echo")
        assert caught.value.code == ReasonCode.TOOL_EXECUTION_ERROR
        assert worker.status == "connected"
    assert journal.read_text().count("call echo") == 1


@pytest.mark.parametrize("fault", ["strict", "ignores"])
async def test_a_server_that_knows_only_the_older_greeting_is_greeted_so(
    fault: str, tmp_path: Path, journal: Path
) -> None:
    """S-75: also by the next connection, which then costs no second try."""
    async with worker_of(noting(fault, journal, init_timeout=timedelta(seconds=2)), folder=tmp_path) as worker:
        await worker.open()
        with pytest.raises(McpError, match="broke"):
            await worker.call("peer__die")
        await worker.call("peer__echo")
    assert journal.read_text().count("started") == 3


async def test_an_error_of_a_list_names_the_server_and_no_secret(tmp_path: Path) -> None:
    """S-78."""
    async with worker_of(confided("refuses"), folder=tmp_path, MY_OWN_VALUE=SECRET) as worker:
        with pytest.raises(McpUnavailableError, match=r"MCP server 'peer': bad credential \*\*\*") as caught:
            await worker.open()
        assert SECRET not in str(caught.value)
        assert worker.status == "failed"
        (line,) = worker.servers.troubles()
        assert "bad credential ***" in line


async def test_what_a_server_says_of_its_tools_holds_no_secret(tmp_path: Path) -> None:
    """S-78: it would stand in definitions, and models would read it."""
    async with worker_of(confided("tells"), folder=tmp_path, MY_OWN_VALUE=SECRET) as worker:
        await worker.open()
    declared = worker.tools["peer__echo"]
    assert declared.description == "uses ***"
    assert declared.parameters == {
        "type": "object",
        "properties": {"a": {"type": "string", "default": "with ***"}, "for ***": {"type": "string"}},
        "required": ["for ***"],
    }


@pytest.mark.parametrize(
    ("script", "value"),
    [
        (f"head -c {1995} /dev/zero | tr '\\0' y >&2; echo \"$KEY\" >&2; exit 1", SECRET),
        (f"head -c {190} /dev/zero | tr '\\0' y; echo \"$KEY\"; sleep 60", SECRET),
        ('echo "$KEY" >&2; exit 1', KEY),
        ('echo "$MY_OWN_VALUE" >&2; exit 1', SECRET),
    ],
    ids=["end of a long line", "garbage", "several lines", "required"],
)
async def test_no_part_of_a_secret_stays_where_a_text_is_cut(script: str, value: str, tmp_path: Path) -> None:
    """S-78."""
    config = StdioServerConfig(
        name="peer",
        command="sh",
        args=("-c", script),
        env={} if "MY_OWN_VALUE" in script else {"KEY": "${MY_OWN_VALUE}"},
        required_env=("MY_OWN_VALUE",),
        init_timeout=timedelta(seconds=1),
    )
    async with worker_of(config, folder=tmp_path, MY_OWN_VALUE=value) as worker:
        with pytest.raises(McpUnavailableError) as caught:
            await worker.open()
    log = tmp_path / "mcp" / "logs" / "peer.log"
    told = str(caught.value) + (log.read_text() if log.exists() else "")
    assert "***" in told
    parts = [line[:9] for line in value.splitlines() if not line.startswith("-----")]
    assert [part for part in [*parts, value[:4]] if part in told and not part.startswith("---")] == []


async def test_two_tools_never_get_one_name(tmp_path: Path) -> None:
    """S-75: names that had to be changed are told apart by server and tool, and a clash is refused."""
    taken: set[str] = set()
    for owner, name in (
        ("a", "b__c__d"),
        ("a__b", "c__d"),
        ("a__b__c", "d"),
        ("a", "b__" + "x" * 70),
        ("a__b", "x" * 70),
    ):
        taken.add(wire_name(owner, name, taken))
    assert len(taken) == 5

    @tool(name=wire_name("peer", "strange.name/1"))
    def mine() -> str:
        """Clash with a server's tool."""
        return ""

    async with worker_of(peer(), folder=tmp_path) as worker:
        worker.agent = Agent(name="tester", model="openai/scripted", tools=[mine], mcp_servers=[peer()])
        with pytest.raises(McpUnavailableError, match=r"'strange\.name/1' whose name .* another tool has; omit it"):
            await worker.open()


async def test_a_tool_that_is_listed_twice_does_no_harm_to_those_that_are_picked(tmp_path: Path) -> None:
    """S-75."""
    async with worker_of(peer("twice", pick=["whoami"]), folder=tmp_path) as worker:
        await worker.open()
        assert set(worker.tools) == {"peer__whoami"}


async def test_a_filter_that_became_stricter_holds_for_turns_that_run(tmp_path: Path) -> None:
    """S-75: the turn began when the tool was still allowed."""
    async with worker_of(peer(), folder=tmp_path) as worker:
        await worker.open()
        worker.agent = Agent(name="tester", model="openai/scripted", mcp_servers=[peer(omit=["echo"])])
        with pytest.raises(McpError, match="may not use echo of MCP server 'peer' any more"):
            await worker.call("peer__echo")


async def test_a_list_ends_in_time_however_often_it_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S-75: the opening of a turn waits for it."""
    monkeypatch.setattr(server, "LONGEST_LISTING", 0.5)
    async with worker_of(peer("silent"), folder=tmp_path) as worker, asyncio.timeout(120):
        with pytest.raises(McpUnavailableError, match="did not list its tools"):
            await worker.open()


async def has(journal: Path, text: str, times: int) -> bool:
    return journal.read_text().count(text) >= times
