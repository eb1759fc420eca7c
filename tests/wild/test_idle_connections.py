"""Connections that send nothing: a thousand of them, without a token, and the gateway took no other.

Seen in an attack on a running gateway with a limit of 1,024 open files.
"""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from types import SimpleNamespace

import pytest
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from perdure.gateway.connections import CONNECTION, RESERVED_FILES, Room, count_room, owner_by_address
from perdure.gateway.serve import GatewayServer, bind
from tests.house import WAIT_SECONDS, eventually

LONG = timedelta(seconds=WAIT_SECONDS)
GET = b"GET /%s HTTP/1.1\r\nHost: localhost\r\n\r\n"
HALF = b"POST /body%s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nhalf"
DONE, REFUSED = b"HTTP/1.1 204 No Content\r\n", b"HTTP/1.1 429 Too Many Requests\r\n"


@dataclass
class Door:
    """A server with bounded connections."""

    port: int
    release: asyncio.Event
    stack: AsyncExitStack
    entered: list[None] = field(default_factory=list)

    async def open(self, source: str = "127.0.0.1") -> "Wire":
        """A connection from an address of this machine."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, local_addr=(source, 0))
        self.stack.callback(writer.close)
        return Wire(reader, writer)


@dataclass
class Wire:
    """A connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def ask(self, path: bytes) -> bytes:
        """The first line of the answer; empty if the connection was closed."""
        self.writer.write(GET % path)
        async with asyncio.timeout(WAIT_SECONDS):
            line = await self.reader.readline()
            if line:
                await self.reader.readuntil(b"\r\n\r\n")
            return line

    async def closed(self) -> bool:
        """Whether the server closes the connection."""
        async with asyncio.timeout(WAIT_SECONDS):
            try:
                return await self.reader.read(1) == b""
            except ConnectionError:
                return True

    @property
    def is_open(self) -> bool:
        """Whether it was not closed so far."""
        return not self.reader.at_eof()


@asynccontextmanager
async def serving(most: int, head_time: timedelta = LONG) -> AsyncIterator[Door]:
    """A server of two routes: one answers, one holds its answer until it is released."""
    app = FastAPI()
    app.state.gateway = SimpleNamespace(stopping=asyncio.Event())
    release, entered = asyncio.Event(), list[None]()

    @app.get("/")
    async def answer() -> Response:
        return Response(status_code=204)

    @app.get("/proven")
    async def prove(request: Request, tenant: str = "", held: str = "") -> Response:
        has_room = request.scope["state"][CONNECTION].prove(tenant)
        if held:
            entered.append(None)
            await release.wait()
        return Response(status_code=204 if has_room else 429)

    @app.post("/body")
    async def read(request: Request, tenant: str | None = None) -> Response:
        if tenant is not None:
            request.scope["state"][CONNECTION].prove(tenant)
        entered.append(None)
        await request.body()
        return Response(status_code=204)

    @app.get("/held")
    async def hold() -> Response:
        entered.append(None)
        await release.wait()
        return Response(status_code=204)

    listener = bind("127.0.0.1:0", has_tokens=False)
    server = GatewayServer(app, grace=1, room=Room(most, head_time))
    serving = asyncio.create_task(server.serve([listener]))
    try:
        async with AsyncExitStack() as stack:
            while not server.started:
                await asyncio.sleep(0.01)
            yield Door(listener.getsockname()[1], release, stack, entered)
    finally:
        release.set()
        server.should_exit = True
        await serving
        listener.close()


async def test_a_head_that_does_not_come_closes_the_connection() -> None:
    """T-12: Nothing, a part of a head, and a part of the second head."""
    async with serving(0, timedelta(seconds=0.2)) as door:
        silent, slow, second, held = [await door.open() for _ in range(4)]
        slow.writer.write(GET[:10])
        assert await second.ask(b"") == b"HTTP/1.1 204 No Content\r\n"
        second.writer.write(GET[:10])
        waiting = asyncio.create_task(held.ask(b"held"))
        assert [await wire.closed() for wire in (silent, slow, second)] == [True, True, True]
        assert not waiting.done()
        door.release.set()
        assert await waiting == b"HTTP/1.1 204 No Content\r\n"


async def test_idle_connections_give_way_to_new_ones_and_those_that_work_do_not() -> None:
    """T-12."""
    async with serving(10) as door:
        held = await door.open()
        waiting = asyncio.create_task(held.ask(b"held"))
        await eventually(lambda: _true(door.entered))
        idle = [await door.open("127.0.0.2") for _ in range(30)]
        late = await door.open("127.0.0.3")
        assert await late.ask(b"") == b"HTTP/1.1 204 No Content\r\n"
        assert all([await wire.closed() for wire in idle[:20]])
        assert not waiting.done()
        door.release.set()
        assert await waiting == b"HTTP/1.1 204 No Content\r\n"


async def _true(value: object) -> object:
    return value


async def test_one_address_has_half_of_the_room_until_a_token_was_good() -> None:
    async with serving(8) as door:
        others = [await door.open("127.0.0.3") for _ in range(3)]
        proven = [await door.open("127.0.0.2") for _ in range(2)]
        assert [await wire.ask(b"proven") for wire in proven] == [b"HTTP/1.1 204 No Content\r\n"] * 2
        flood = [await door.open("127.0.0.2") for _ in range(40)]
        assert all([await wire.closed() for wire in flood[:36]])
        assert [await wire.ask(b"") for wire in (*others, proven[0])] == [b"HTTP/1.1 204 No Content\r\n"] * 4


async def test_a_new_connection_is_closed_if_all_others_work() -> None:
    async with serving(2) as door:
        waiting = [asyncio.create_task((await door.open(f"127.0.0.{at}")).ask(b"held")) for at in (2, 3)]
        await eventually(lambda: _true(len(door.entered) == 2))
        assert await (await door.open("127.0.0.4")).closed()
        door.release.set()
        assert [await asked for asked in waiting] == [b"HTTP/1.1 204 No Content\r\n"] * 2
        assert await (await door.open("127.0.0.4")).ask(b"") == b"HTTP/1.1 204 No Content\r\n"


async def test_half_of_a_body_holds_no_place_without_a_token() -> None:
    """T-12: from as many addresses as it takes, each below its share."""
    async with serving(4) as door:
        slow = [await door.open(f"127.0.0.{at}") for at in (2, 2, 3, 3)]
        for wire in slow:
            wire.writer.write(HALF % b"")
        await eventually(lambda: _true(len(door.entered) == 4))
        assert await (await door.open("127.0.0.4")).ask(b"") == DONE
        assert await slow[0].closed()
        slow[3].writer.write(b"-body.")
        assert await slow[3].reader.readline() == DONE


async def test_half_of_a_body_with_a_good_token_keeps_its_place() -> None:
    async with serving(2) as door:
        slow = [await door.open(f"127.0.0.{at}") for at in (2, 3)]
        for wire in slow:
            wire.writer.write(HALF % b"?tenant=a")
        await eventually(lambda: _true(len(door.entered) == 2))
        assert await (await door.open("127.0.0.4")).closed()
        slow[0].writer.write(b"-body.")
        assert await slow[0].reader.readline() == DONE


async def test_a_tenant_has_half_of_the_room_and_its_idle_connections_give_way_to_its_own() -> None:
    async with serving(8) as door:
        mine = [await door.open("127.0.0.2") for _ in range(2)] + [await door.open("127.0.0.3") for _ in range(2)]
        assert [await wire.ask(b"proven?tenant=a") for wire in mine] == [DONE] * 4
        assert await (await door.open("127.0.0.4")).ask(b"proven?tenant=a") == DONE
        assert await mine[0].closed()
        others = [await door.open("127.0.0.5") for _ in range(4)]
        assert [await wire.ask(b"proven?tenant=b") for wire in others] == [DONE] * 4
        assert await mine[3].ask(b"") == DONE


async def test_a_tenant_whose_share_works_is_refused_and_callers_without_a_tenant_have_no_share() -> None:
    async with serving(4) as door:
        for tenant, answer in ((b"a", REFUSED), (b"", DONE)):
            door.entered.clear()
            held = [await door.open("127.0.0.2") for _ in range(2)]
            waiting = [asyncio.create_task(wire.ask(b"proven?held=1&tenant=" + tenant)) for wire in held]
            await eventually(lambda: _true(len(door.entered) == 2))
            assert await (await door.open("127.0.0.3")).ask(b"proven?tenant=" + tenant) == answer
            door.release.set()
            assert [await asked for asked in waiting] == [DONE] * 2
            door.release.clear()
            for wire in held:
                wire.writer.close()


@pytest.mark.parametrize(
    ("host", "owner"),
    [
        ("127.0.0.1", "address 127.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "network 2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::1", "network 2001:db8:1:2::/64"),
        ("", "a socket"),
    ],
)
def test_callers_are_told_apart_by_address_and_in_ipv6_by_network(host: str, owner: str) -> None:
    assert owner_by_address(host) == owner


@pytest.mark.parametrize(
    ("most", "files", "room"),
    [(0, 0, 0), (10, 0, 10), (0, 1_024, 1_024 - RESERVED_FILES), (10_000, 4_096, 3_840), (0, 100, 50)],
)
def test_the_room_is_what_setting_and_files_allow(most: int, files: int, room: int) -> None:
    assert count_room(most, files) == room


@pytest.mark.deep
def test_the_limit_of_files_is_raised_and_logged() -> None:
    """In a process of its own, as the limit is the process's."""
    program = """
import logging, resource
logging.basicConfig(level=logging.INFO)
hard = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 900)
resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
from perdure.gateway.connections import raise_file_limit
print(raise_file_limit(), resource.getrlimit(resource.RLIMIT_NOFILE)[0], raise_file_limit())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["900", "900", "900"]
    assert "the limit of open files is 900, raised from 200" in done.stderr
