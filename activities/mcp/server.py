"""One MCP server on one worker: connected on first use, and once more when the connection breaks in a call.

The subclasses in ``transports`` connect it. A request goes through ``list_tools`` or ``call``, which ask, and ask once
more if the connection broke, then through ``_ask``, which takes a client and says why a connection broke.
"""

import asyncio
import contextlib
import logging
import re
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from mcp import Client, MCPError
from mcp_types import CallToolResult, InputRequiredResult, Tool
from pydantic import ValidationError

from perdure.activities.mcp.calls import Request, call_tool, seed_tool
from perdure.activities.mcp.connection import Owner
from perdure.activities.mcp.failures import (
    ENDS_WITH,
    ConnectionLostError,
    McpError,
    McpUnavailableError,
    call_failures,
    describe_failure,
)
from perdure.activities.mcp.listing import Listing, list_all_pages
from perdure.activities.mcp.results import mark_unstructured
from perdure.activities.mcp.session_state import Caller, ListChanges, SessionStakes, Use
from perdure.contracts.agents import SHORTEST_SECRET
from perdure.contracts.errors import ReasonCode
from perdure.contracts.mcp import McpServerConfig, ServerState, ServerStatus

RECONNECT_PAUSE = 1.0
"""Seconds before a connection that broke is opened again. Source: Dreadnode's MCP client."""

LONGEST_LISTING = 540.0
"""Seconds for a list of tools with all tries to connect: ``open_turn`` has ten minutes."""

PROBE_SECONDS = 5.0
"""Seconds to answer a probe after a call's timeout; a server that does not is taken for hung."""

SURPLUS = 10.0
"""Seconds beyond a call's timeout after which the call is given up whatever the SDK does."""

HIDDEN_CALLS = 100
"""Latest calls whose masked arguments are kept out of a server's log: it may log them after the call's end."""

FORGOT = "was started anew: what it held is gone. The call was not carried out; call again if it can do without"
"""Message to the model once a stateful server has been restarted."""

_LOGIN = re.compile(
    r"\b(401|unauthori[sz]ed|unauthenticated|not logged in|log ?in required|authentication (?:failed|required)"
    r"|(?:invalid|missing) (?:api[ _-]?key|token|credentials))\b",
    re.IGNORECASE,
)

logger = logging.getLogger("perdure.mcp")

Report = Callable[[float, float | None, str], None]
"""Takes the progress of a call: how far it is, its total if that is known, and a message."""

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Surroundings:
    """Surroundings of a server: environment, folder, and ``clean``, which masks secrets and given values."""

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
        """State of the server, as operators see it."""
        self.stakes = SessionStakes()
        """The sessions that rely on the server's state, if it is stateful."""
        self.changes = ListChanges()
        """Changes of the list of tools, and the sessions that know them."""
        self._connection: asyncio.Task[tuple[Client, Owner]] | None = None
        """Makes the kept connection, or has made it."""
        self._owner: Owner | None = None
        """Of the kept connection, once it is made."""
        self._broke = False
        """Whether the last connection broke and no other one was made since."""
        self._uses: Counter[Owner] = Counter()
        """The requests that run in each session."""
        self._retired: set[Owner] = set()
        """Sessions that are closed when the last request in them ends."""
        self._background: set[asyncio.Task[Any]] = set()
        self._listed: dict[str, Tool] = {}
        self._flaws = frozenset[str]()
        """Flaws of the last list."""
        self._running_calls = 0
        self._hidden: deque[frozenset[str]] = deque(maxlen=HIDDEN_CALLS)

    @abstractmethod
    async def connect(self) -> Owner:
        """Try once to connect, within ``init_timeout``.

        Raises:
            McpUnavailableError: The server cannot be connected.
        """

    @contextlib.asynccontextmanager
    async def client(self, *, is_call: bool) -> AsyncIterator[tuple[Client, Owner]]:
        """A client for one request, a call or a list: the kept one, unless a transport needs its own."""
        del is_call
        yield await self.get_kept_client()

    def describe_break(self, why: str) -> str:
        """Describe why a connection broke, with the server's last output if the transport has it."""
        return why

    async def list_tools(self) -> Listing:
        """The tools that the server offers now; asked once more over a new session if the kept one did not list them.

        Raises:
            McpUnavailableError: The server cannot be used, refuses, or does not answer in time.
        """
        seconds = self.config.init_timeout.total_seconds()
        try:
            async with asyncio.timeout(LONGEST_LISTING):
                listing = await self._ask_for_tools(seconds)
        except TimeoutError:
            if self._owner is not None and not self._is_needed():  # if a running call times out, a probe follows
                self.note_break(self._owner)
            msg = f"MCP server {self.config.name!r} did not list its tools within {seconds:g} s"
            raise McpUnavailableError(msg) from None
        except McpUnavailableError:
            raise
        except McpError as error:
            raise McpUnavailableError(self.clean(str(error))) from None
        self._listed = {tool.name: tool for tool in listing.tools}
        return listing

    async def _ask_for_tools(self, seconds: float) -> Listing:
        """Ask for the tools, and once more over a new session. ``seconds`` bound each try."""

        async def ask(client: Client) -> Listing:
            async with asyncio.timeout(seconds):
                return await list_all_pages(client, self.config.name)

        kept = self._owner
        try:
            return await self._ask(ask, is_call=False)
        except McpUnavailableError as error:
            if not error.again:
                raise
        except ConnectionLostError:
            pass
        except (McpError, TimeoutError) as error:
            if not self.leave_session(kept, error):
                raise
        await asyncio.sleep(RECONNECT_PAUSE)
        try:
            return await self._ask(ask, is_call=False)
        except ConnectionLostError as error:
            msg = f"the connection to MCP server {self.config.name!r} broke during its list of tools: {error}"
            raise McpError(ReasonCode.TOOL_NETWORK_ERROR, self.clean(msg)) from None

    def leave_session(self, kept: Owner | None, error: McpError | TimeoutError) -> bool:
        """Give up the session that did not list its tools; False if a new one would not help, or others rely on it.

        Args:
            kept: The connection that was kept from before, if there was one.
            error: Why the list did not come.
        """
        stays = kept is None or kept is not self._owner or isinstance(error, TimeoutError) or self._is_needed()
        if not stays:
            self.note_break(cast("Owner", kept))
        return not stays

    async def call(
        self, request: Request, *, caller: Caller, limit: float, repeatable: bool, on_progress: Report
    ) -> CallToolResult | InputRequiredResult:
        """Call a tool, with a timeout of ``limit`` seconds.

        If the connection breaks, the call is sent again only if it was certainly not carried out, or is repeatable.

        Raises:
            McpError: The call failed.
        """

        async def attempt() -> CallToolResult | InputRequiredResult:
            with Use(self.stakes, caller) as use:

                async def ask(client: Client) -> CallToolResult | InputRequiredResult:
                    if self.config.stateful and not use.begin():
                        raise McpError(ReasonCode.TOOL_STATE_LOST, f"MCP server {self.config.name!r} {FORGOT}")
                    return await self._send_call(client, request, limit, on_progress)

                return await self._ask(ask, is_call=True)

        self._running_calls += 1
        try:
            return await self._ask_again_if_broken(attempt, what=request.tool, repeatable=repeatable)
        finally:
            self._running_calls -= 1

    async def _send_call(
        self, client: Client, request: Request, limit: float, on_progress: Report
    ) -> CallToolResult | InputRequiredResult:
        tool = request.tool

        async def report(progress: float, total: float | None, message: str | None) -> None:
            on_progress(progress, total, message or "")

        seed_tool(client, self._listed.get(tool) or Tool(name=tool, input_schema={"type": "object"}))
        try:
            with call_failures(self.config.name, tool, limit):
                async with asyncio.timeout(limit + SURPLUS):
                    result = await call_tool(client, request, limit, report)
                if isinstance(result, InputRequiredResult):
                    return result
                return await mark_unstructured(self._listed.get(tool), result)
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

    async def _ask(self, ask: Callable[[Client], Awaitable[Answer]], *, is_call: bool) -> Answer:
        """Ask once. A connection that broke is given up; after a timeout a probe asks whether the server hangs."""
        async with self.client(is_call=is_call) as (client, owner):
            try:
                with self._use(owner):
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

    @contextlib.contextmanager
    def _use(self, owner: Owner) -> Iterator[None]:
        """Keep a session open for this request, also if it is retired meanwhile."""
        self._uses[owner] += 1
        try:
            yield
        finally:
            self._uses[owner] -= 1
            if not self._uses[owner]:
                del self._uses[owner]
                if owner in self._retired:
                    self._retired.remove(owner)
                    self.close_in_background(owner)

    def retire(self, owner: Owner) -> None:
        """Give up a session that the server does not know any more; what runs in it may end."""
        if owner is not self._owner:
            return
        self._broke = True
        self.stakes.note_loss()
        self._owner = self._connection = None
        self.note_status(ServerStatus.DISCONNECTED)
        if self._uses[owner]:
            self._retired.add(owner)
        else:
            del self._uses[owner]
            self.close_in_background(owner)

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
        for owner in self._retired:
            self.close_in_background(owner)
        self._retired.clear()
        if self._background:
            await asyncio.wait(self._background)

    def note_status(self, status: ServerStatus, error: str = "") -> None:
        """Show operators whether the server can be used."""
        self.state = ServerState(name=self.config.name, status=status, error=error)

    def warn(self, flaws: Sequence[str]) -> None:
        """Log what is wrong with the server's list of tools, once for each flaw."""
        for flaw in flaws:
            if flaw not in self._flaws:
                logger.warning("MCP server %r: %s", self.config.name, self.clean(flaw))
        self._flaws = frozenset(flaws)

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
