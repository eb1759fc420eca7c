"""``perdure mcp`` before it serves anything: what it refuses, and what it says."""

import socket
import sys
from typing import cast

import pytest

from perdure.cli import mcp
from tests.unit.cli.invoked import assert_one_line, perdure

pytestmark = pytest.mark.usefixtures("store_url")


@pytest.mark.parametrize("address", ["8765", ":8765", "127.0.0.1", "127.0.0.1:http"])
def test_what_is_no_address_is_named(address: str) -> None:
    assert_one_line(perdure("mcp", "--http", address), 2, f"{address!r} is no HOST:PORT", "127.0.0.1:8765")


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0"])
def test_an_address_for_other_machines_is_refused_unless_it_is_asked_for(address: str) -> None:
    assert_one_line(perdure("mcp", "--http", address), 2, address, "--allow-remote")
    if ":" not in address.rpartition(":")[0] or socket.has_dualstack_ipv6():
        mcp.bind_socket(address, allow_remote=True).close()


def test_a_port_that_is_taken_is_one_line() -> None:
    with mcp.bind_socket("localhost:0", allow_remote=False) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert_one_line(perdure("mcp", "--http", address), 8, address, "choose another address")


def test_a_setting_that_cannot_be_used_is_named_before_a_host_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_TOOL_THREADS", "many")
    assert_one_line(perdure("mcp"), 2, "PERDURE_TOOL_THREADS")


def test_without_the_sdk_the_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cast("dict[str, object]", sys.modules), "mcp.server.mcpserver", None)
    monkeypatch.delitem(sys.modules, "perdure.cli.mcp_tasks", raising=False)  # another test may have imported it
    assert_one_line(perdure("mcp"), 2, "the MCP SDK is not installed", "pip install 'perdure[mcp]'")
