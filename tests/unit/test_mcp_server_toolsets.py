"""Toolsets, and tools that need something, over MCP."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from mcp import Client
from mcp.types import TextContent
from pydantic import PrivateAttr

from perdure import Secret, Setting, ToolDefinitionError, Toolset, tool, tool_method
from perdure.agents.environment import UnmetNeedError
from perdure.mcp_server import as_mcp


class Notes(Toolset):
    failures: int = 0
    stuck: bool = False
    _log: list[str] = PrivateAttr(default_factory=list[str])

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        self._log.append("entering")
        if len(self._log) <= self.failures:
            raise ConnectionError("no notes")
        yield
        self._log.append("left")
        if self.stuck:
            raise OSError("stuck with planted-0need")

    @tool_method
    async def add(self, note: str) -> str:
        """Add."""
        self._log.append(note)
        return note

    @tool_method(variants=["read"])
    def read(self) -> str:
        """Read, on a thread."""
        return ",".join(self._log)


@tool(needs={"token": Secret("PLANTED_NEED"), "tries": Setting("PLANTED_TRIES", default=3)}, catch=True)
def fetch(path: str, token: str, tries: int) -> str:
    """Fetch."""
    if path == "fails":
        raise ValueError(f"refused {token}")
    return f"{path} with {token}, {tries} tries"


def text(result: Any) -> str:
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text


@pytest.fixture(autouse=True)
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANTED_NEED", "planted-0need")


async def test_a_toolset_is_entered_by_its_first_call_and_left_when_the_server_ends() -> None:
    """S-29 S-28."""
    notes = Notes(name="notes")
    async with Client(as_mcp(notes)) as client:
        listed = [listed_tool.name for listed_tool in (await client.list_tools()).tools]
        assert notes._log == []
        said = [
            text(await client.call_tool("notes__add", {"note": "one"})),
            text(await client.call_tool("notes__read", {})),
        ]
    assert listed == ["notes__add", "notes__read"]
    assert said == ["one", "entering,one"]
    assert notes._log == ["entering", "one", "left"]


async def test_a_toolset_that_cannot_be_entered_is_an_error_result_and_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Client(as_mcp(Notes(failures=1))) as client:
        first = await client.call_tool("add", {"note": "one"})
        second = await client.call_tool("add", {"note": "two"})
    assert first.is_error
    assert "the toolset Notes could not be entered: ConnectionError: no notes" in text(first)
    assert (second.is_error, text(second)) == (False, "two")
    assert "Traceback" not in caplog.text


async def test_one_that_cannot_be_left_is_logged_without_secrets(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        async with Client(as_mcp(Notes(stuck=True), fetch)) as client:
            await client.call_tool("add", {"note": "one"})
    assert "the toolset Notes could not be left: OSError: stuck with ***" in caplog.text


@pytest.mark.parametrize(
    ("path", "answer"), [("works", "works with ***, 3 tries"), ("fails", "ValueError: refused ***")]
)
async def test_a_tool_gets_what_it_needs_from_the_environment_of_the_server(path: str, answer: str) -> None:
    async with Client(as_mcp(fetch)) as client:
        (listed,) = (await client.list_tools()).tools
        assert list(listed.input_schema["properties"]) == ["path"]
        assert text(await client.call_tool("fetch", {"path": path})) == answer
        refused = await client.call_tool("fetch", {"path": path, "token": "mine"})
    assert refused.is_error


def test_a_server_without_what_its_tools_need_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PLANTED_NEED")
    with pytest.raises(UnmetNeedError, match="tool 'fetch' cannot run here: it needs the variable PLANTED_NEED"):
        as_mcp(fetch)


def test_two_toolsets_without_names_are_told_apart_by_names() -> None:
    with pytest.raises(ToolDefinitionError, match="two tools are called 'add'"):
        as_mcp(Notes(), Notes())
    as_mcp(Notes(), Notes(name="other"))
