"""One MCP server on one worker: connected on first use, and once more when the connection breaks in a call.

The subclasses in ``transports`` connect it. A request goes through ``list_tools`` or ``call``, which ask, and ask once
more if the connection broke, then through ``_ask``, which takes a client and says why a connection broke.
"""

import asyncio
import contextlib
import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from mcp import Client, MCPError
from mcp_types import CallToolResult, ListToolsResult, Tool
from pydantic import ValidationError

from perdure.activities.mcp.connection import Owner
from perdure.activities.mcp.failures import (
    ENDS_WITH,
    ConnectionLostError,
    McpError,
    McpUnavailableError,
    call_failures,
    describe_failure,
)
from perdure.activities.mcp.results import check_output
from perdure.activities.mcp.session_state import Caller, SessionStakes, Use
from perdure.contracts.agents import SHORTEST_SECRET
from perdure.contracts.errors import ReasonCode
from perdure.contracts.mcp import McpServerConfig, ServerState, ServerStatus
from perdure.contracts.values import replace

RECONNECT_PAUSE = 1.0
"""Seconds before a connection that broke is opened again. Source: Dreadnode's MCP client."""

MOST_PAGES = 100
"""Pages of a list of tools that are read, so that a server with endless pages cannot hang a turn."""

LONGEST_LISTING = 540.0
"""Seconds for a list of tools with all tries to connect: ``open_turn`` has ten minutes."""

PROBE_SECONDS = 5.0
"""Seconds to answer a probe after a call's timeout; a server that does not is taken for hung."""

SURPLUS = 10.0
"""Seconds beyond a call's timeout after which the call is given up whatever the SDK does."""

HIDDEN_CALLS = 100
"""Latest calls whose masked arguments are kept out of a server's log: it may log them after the call's end."""

FORGOT = "was started anew: what it held is gone. The call was not carried out; call again if it can do without"
"""What the model reads once a stateful server has been restarted."""

_LOGIN = re.compile(
    r"\b(401|unauthori[sz]ed|unauthenticated|not logged in|log ?in required|authentication (?:failed|required)"
    r"|(?:invalid|missing) (?:api[ _-]?key|token|credentials))\b",
    re.IGNORECASE,
)

Report = Callable[[float, float | None, str], None]
"""Takes the progress of a call: how far it is, its total if that is known, and a message."""

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Surroundings:
    """What a server needs of its worker: environment, folder, and ``clean``, which masks secrets and given values."""

    environment: Mapping[str, str]
    folder: Path
    clean: Callable[[str, frozenset[str]], str]
    reconnected: Callable[[str], None] = lambda _: None
    """Called with the name of a server that has a new connection in place of a broken one."""


class McpServer(ABC):
    """A server; a subclass for each transport connects it."""

    def __init__(self, config: McpServerConfig, around: Surroundings) -> None:
        self.config = config
        self.around = around
        self.state = ServerState(
            name=config.name, status=ServerStatus.DISCONNECTED if config.enabled else ServerStatus.DISABLED
        )
        """What operators see."""
        self.stakes = SessionStakes()
        """The sessions that rely on the server's state, if it is stateful."""
        self._connection: asyncio.Task[tuple[Client, Owner]] | None = None
        """Makes the kept connection, or has made it."""
        self._owner: Owner | None = None
        """Of the kept connection, once it is made."""
        self._broke = False
        """Whether the last connection broke and no other one was made since."""
        self._background: set[asyncio.Task[None]] = set()
        self._listed: dict[str, Tool] = {}
        self._running_calls = 0
        self._hidden: deque[frozenset[str]] = deque(maxlen=HIDDEN_CALLS)

    @abstractmethod
    async def connect(self) -> Owner:
        """Try once to connect, within ``init_timeout``.

        Raises:
            McpUnavailableError: The server cannot be connected.
        """

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[tuple[Client, Owner]]:
        """A client for one request: the kept one, unless a transport needs its own."""
        yield await self.get_kept_client()

    def describe_break(self, why: str) -> str:
        """Why a connection broke, with the server's last output if the transport has it."""
        return why

    async def list_tools(self) -> list[Tool]:
        """The tools that the server offers now.

        Raises:
            McpUnavailableError: The server cannot be used, refuses, or does not answer in time.
        """
        seconds = self.config.init_timeout.total_seconds()
        try:
            async with asyncio.timeout(LONGEST_LISTING):
                tools = await self.ask_for_tools(seconds)
        except TimeoutError:
            if self._owner is not None and not self._is_needed():  # if a running call times out, a probe follows
                self.note_break(self._owner)
            msg = f"MCP server {self.config.name!r} did not list its tools within {seconds:g} s"
            raise McpUnavailableError(msg) from None
        except McpUnavailableError:
            raise
        except McpError as error:
            raise McpUnavailableError(self.clean(str(error))) from None
        self._listed = {tool.name: tool for tool in tools}
        return tools

    async def ask_for_tools(self, seconds: float) -> list[Tool]:
        """Ask for the tools, and once more if the connection breaks. ``seconds`` bound each try."""

        async def ask(client: Client) -> list[Tool]:
            async with asyncio.timeout(seconds):
                return await _list_all_pages(client, self.config.name)

        return await self._ask_again_if_broken(lambda: self._ask(ask), what="its list of tools", repeatable=True)

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        caller: Caller,
        limit: float,
        repeatable: bool,
        on_progress: Report,
    ) -> CallToolResult:
        """Call a tool, with a timeout of ``limit`` seconds.

        If the connection breaks, the call is sent again only if it was certainly not carried out, or is repeatable.

        Raises:
            McpError: The call failed.
        """

        async def attempt() -> CallToolResult:
            with Use(self.stakes, caller) as use:

                async def ask(client: Client) -> CallToolResult:
                    if self.config.stateful and not use.begin():
                        raise McpError(ReasonCode.TOOL_STATE_LOST, f"MCP server {self.config.name!r} {FORGOT}")
                    return await self._send_call(client, tool, arguments, limit, on_progress)

                return await self._ask(ask)

        self._running_calls += 1
        try:
            return await self._ask_again_if_broken(attempt, what=tool, repeatable=repeatable)
        finally:
            self._running_calls -= 1

    async def _send_call(
        self, client: Client, tool: str, arguments: Mapping[str, Any], limit: float, on_progress: Report
    ) -> CallToolResult:
        async def report(progress: float, total: float | None, message: str | None) -> None:
            on_progress(progress, total, message or "")

        _seed(client, self._listed.get(tool) or Tool(name=tool, input_schema={"type": "object"}))
        try:
            with call_failures(self.config.name, tool, limit):
                async with asyncio.timeout(limit + SURPLUS):
                    result = await client.call_tool(
                        tool, dict(arguments), read_timeout_seconds=limit, progress_callback=report
                    )
                await check_output(self._listed.get(tool), result)
                return result
        except TimeoutError:
            msg = f"{tool} of MCP server {self.config.name!r} ran longer than its time-out of {limit:g} s"
            raise McpError(ReasonCode.TOOL_TIMEOUT, f"{msg}; its effect is unknown") from None

    async def _ask_again_if_broken(
        self, ask: Callable[[], Awaitable[Answer]], *, what: str, repeatable: bool
    ) -> Answer:
        """Ask; if the connection breaks, connect anew and ask once more, but only if that can do no harm."""
        try:
            return await ask()
        except McpUnavailableError as error:
            if not error.again:
                raise
        except ConnectionLostError as error:
            if not (error.unsent or repeatable):
                raise self._broke_during(what, error) from None
        await asyncio.sleep(RECONNECT_PAUSE)
        try:
            return await ask()
        except ConnectionLostError as error:
            raise self._broke_during(what, error) from None

    def _broke_during(self, what: str, error: ConnectionLostError) -> McpError:
        effect = "the call was not carried out" if error.unsent else "its effect is unknown"
        msg = f"the connection to MCP server {self.config.name!r} broke during {what}, {effect}: {error}"
        return McpError(ReasonCode.TOOL_NETWORK_ERROR, self.clean(msg))

    async def _ask(self, ask: Callable[[Client], Awaitable[Answer]]) -> Answer:
        """Ask once. A connection that broke is given up; after a timeout a probe asks whether the server hangs."""
        async with self.client() as (client, owner):
            try:
                return await ask(client)
            except ConnectionLostError as error:
                await owner.close()
                self.note_break(owner)
                raise ConnectionLostError(
                    self.describe_break(describe_failure(owner.failure or error)), unsent=error.unsent
                ) from None
            except McpError as error:
                if error.code == ReasonCode.TOOL_TIMEOUT and owner is self._owner:
                    self._run_in_background(self._probe(client, owner))
                raise

    async def _probe(self, client: Client, owner: Owner) -> None:
        """Give up the connection if the server answers nothing any more.

        A server that is busy with another call, or holds state in use, is left alone.
        """
        if self._is_needed():
            return
        with contextlib.suppress(MCPError, ValidationError):  # an error is an answer too, or the connection is gone
            try:
                async with asyncio.timeout(PROBE_SECONDS):
                    await client.list_tools()
            except TimeoutError:
                if not self._is_needed():
                    self.note_break(owner)

    def _is_needed(self) -> bool:
        """Whether calls run, or sessions rely on the server's state: then it is not given up for being silent."""
        return bool(self._running_calls) or self.stakes.is_in_use()

    async def get_kept_client(self) -> tuple[Client, Owner]:
        """The kept client, connected if there is none. Concurrent callers wait for the same attempt to connect."""
        if self._owner is not None and self._owner.ended:
            self.note_break(self._owner)
        if self._connection is None:
            self._connection = asyncio.create_task(self._connect())
            self._connection.add_done_callback(lambda task: task.cancelled() or task.exception())
        connection = self._connection
        try:
            return await asyncio.shield(connection)
        finally:
            if connection.done() and self._connection is connection and self._owner is None:
                self._connection = None  # it failed; the next call tries again

    async def _connect(self) -> tuple[Client, Owner]:
        if not self.config.enabled:
            msg = f"MCP server {self.config.name!r} is disabled (enabled=False)"
            raise McpUnavailableError(msg, ServerStatus.DISABLED)
        try:
            owner = await self.connect()
        except McpUnavailableError as error:
            raise self.note_failure(error) from None
        self._owner = owner
        self.note_status(ServerStatus.CONNECTED)
        if self._broke:
            self._broke = False
            self.around.reconnected(self.config.name)
        return await owner.client(0), owner

    def note_break(self, owner: Owner) -> None:
        """Drop the kept connection because it broke, and with it the server's state.

        Nothing happens if ``owner`` holds another connection: one of a single request, or one that was replaced.
        """
        if owner is self._owner:
            self._broke = True
            self.stakes.note_loss()
            self.drop()

    def drop(self) -> None:
        """Close the kept connection in the background."""
        owner, self._owner, self._connection = self._owner, None, None
        if owner is not None:
            self.close_in_background(owner)
            self.note_status(ServerStatus.DISCONNECTED)

    def close_in_background(self, owner: Owner) -> None:
        """Close a client in the background; :meth:`close` waits for that."""
        self._run_in_background(owner.close())

    def _run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def close(self) -> None:
        """Close the connection, and wait for those that are closing."""
        if self._connection is not None:
            self._connection.cancel()
            await asyncio.wait([self._connection])
        self.drop()
        if self._background:
            await asyncio.wait(self._background)

    def note_status(self, status: ServerStatus, error: str = "") -> None:
        """Show operators whether the server can be used."""
        self.state = ServerState(name=self.config.name, status=status, error=error)

    def note_failure(self, error: McpUnavailableError) -> McpUnavailableError:
        """Show operators why the server cannot be used; returns the error."""
        self.note_status(error.status, str(error))
        return error

    def unavailable(self, why: str, said: str = "", *, again: bool = False) -> McpUnavailableError:
        """The failure to connect, with the server's last output; words in it such as "log in" make it one of login."""
        needs_login = bool(_LOGIN.search(said))
        tail = f"{ENDS_WITH}{said}" if said else ""
        msg = self.clean(f"MCP server {self.config.name!r} cannot be used: {why}{tail}")
        status = ServerStatus.NEEDS_AUTH if needs_login else ServerStatus.FAILED
        return McpUnavailableError(msg, status, again=again and not needs_login)

    def hide(self, unspoken: frozenset[str]) -> None:
        """Mask these values of a call's arguments in the server's messages and log, now and later."""
        if unspoken:
            lines = (line.strip() for value in unspoken for line in value.splitlines())
            self._hidden.append(unspoken | {line for line in lines if len(line) >= SHORTEST_SECRET})

    def clean(self, text: str) -> str:
        """A text of the server without the worker's secrets and the masked arguments of its latest calls."""
        return self.around.clean(text, frozenset[str]().union(*self._hidden))


def _seed(client: Client, tool: Tool) -> None:
    """Put the tool into the SDK's cache, or it would list all tools after the call, which may lose the result.

    The output schema is left out: the SDK would check it without a time limit. ``check_output`` does that.
    """
    shown = replace(tool, output_schema=None)
    known = ListToolsResult(tools=[shown], ttl_ms=0, cache_scope="private")
    client.session._absorb_tool_listing(known, complete=False)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


async def _list_all_pages(client: Client, server: str) -> list[Tool]:
    tools: list[Tool] = []
    cursor: str | None = None
    for _ in range(MOST_PAGES):
        with call_failures(server, "tools/list", 0):
            page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if cursor is None:
            break
    return tools
