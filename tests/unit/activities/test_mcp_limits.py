"""Servers that say too much of their tools: refused in one line, before anything else is done with what they say."""

from pathlib import Path

import pytest
from mcp_types import Tool

from perdure.activities.mcp import servers
from perdure.activities.mcp.failures import McpUnavailableError
from perdure.activities.mcp.listing import Listing
from perdure.activities.mcp.servers import LARGEST_DECLARATIONS, MOST_TOOLS, _admit_tools
from tests.unit.activities.mcp_peers import peer, worker_of


@pytest.mark.deep
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (
            "many",
            "MCP server 'peer' offers 30000 tools, and an agent may use 500 of one server; name those that it needs in "
            "pick, or leave some out with omit",
        ),
        ("wordy", "the largest is echo with 10000054: leave such out with omit, or name those that the agent needs"),
    ],
)
async def test_a_server_that_says_too_much_is_refused_in_a_line_that_names_the_limit_and_the_fix(
    fault: str, said: str, tmp_path: Path
) -> None:
    """S-75: 30,000 tools, and a description of ten megabytes."""
    async with worker_of(peer(fault), folder=tmp_path) as worker:
        with pytest.raises(McpUnavailableError) as caught:
            await worker.open()
        assert said in str(caught.value)
        assert len(str(caught.value).splitlines()) == 1
        assert worker.status == "failed"


@pytest.mark.deep
async def test_the_filters_come_before_the_limits(tmp_path: Path) -> None:
    """S-75: they are the way out."""
    async with worker_of(peer("wordy", omit=["echo"]), folder=tmp_path) as worker:
        await worker.open()
        assert "peer__whoami" in worker.tools
        assert worker.status == "connected"
    assert [tool.name for tool in _admit_tools(peer(pick=["tool_7"]), tools(30_000))] == ["tool_7"]


def tools(count: int, size: int = 0) -> Listing:
    schema = {"type": "object", "properties": {"a": {"enum": ["x" * size]}}}
    return Listing([Tool(name=f"tool_{number}", input_schema=schema) for number in range(count)])


def test_as_many_tools_as_are_allowed_are() -> None:
    config = peer()
    assert len(_admit_tools(config, tools(MOST_TOOLS))) == MOST_TOOLS
    with pytest.raises(McpUnavailableError, match="offers 501 tools"):
        _admit_tools(config, tools(MOST_TOOLS + 1))


def test_the_bytes_of_a_servers_tools_count_together_and_with_their_schemas() -> None:
    config, half = peer(), LARGEST_DECLARATIONS // 2
    assert len(_admit_tools(config, tools(2, half - 100))) == 2
    with pytest.raises(McpUnavailableError, match="describes its tools in 500132 bytes, and one server may use 500000"):
        _admit_tools(config, tools(2, half))


def test_a_message_never_has_all_names_of_a_long_list() -> None:
    with pytest.raises(McpUnavailableError, match=r"has no tool nothing.*tool_1, .*… \(30000 in all\)$") as caught:
        _admit_tools(peer(pick=["nothing"]), tools(30_000))
    assert len(str(caught.value)) < 2 * servers.SHOWN
