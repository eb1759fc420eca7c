"""A connection is not used again if its provider has closed it, or has sent what nobody asked for."""

import asyncio
import gc
import socket
import threading
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import aiohttp
import pytest

from perdure.activities.models import provider_door
from perdure.activities.models.provider_door import Connector
from tests.house import eventually

REPLY = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
PATIENCE = 30.0


class Closing:
    """A server, on a thread of its own, that closes each connection behind one reply without saying so."""

    def __init__(self) -> None:
        self.closed = threading.Event()
        self.connections = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}/"
        self.go_on = threading.Event()
        self.send_stray = threading.Event()
        self.stray = b""
        threading.Thread(target=self._serve, daemon=True).start()

    def stop(self) -> None:
        self._listening.close()

    def _serve(self) -> None:
        with suppress(OSError), ExitStack() as until_stop:
            while True:
                connection = until_stop.enter_context(self._listening.accept()[0])
                self.connections += 1
                connection.recv(65_536)
                connection.sendall(REPLY)
                if self.stray and self.connections == 1 and self.send_stray.wait(PATIENCE):
                    connection.sendall(self.stray)
                    continue
                self.go_on.wait(PATIENCE)
                connection.close()
                self.closed.set()


@pytest.fixture
def server() -> Iterator[Closing]:
    server = Closing()
    yield server
    server.stop()


async def ask_twice(server: Closing, connector: aiohttp.TCPConnector) -> str:
    """The second reply; between the two the server closes, and the event loop does not get to see it."""
    async with aiohttp.ClientSession(connector=connector) as session:
        async with session.post(server.url) as reply:
            assert await reply.text() == "ok"
        server.go_on.set()
        assert server.closed.wait(PATIENCE)
        async with session.post(server.url) as reply:
            return await reply.text()


async def test_a_closed_connection_costs_no_request(server: Closing) -> None:
    assert await ask_twice(server, Connector()) == "ok"
    assert server.connections == 2


async def test_aiohttp_by_itself_loses_the_request(server: Closing) -> None:
    """The reason for a connector of our own: without one, a try would be used up that nobody has read."""
    with pytest.raises((aiohttp.ServerDisconnectedError, ConnectionError, aiohttp.ClientOSError)):
        await ask_twice(server, aiohttp.TCPConnector())


async def test_an_open_connection_is_used_again(server: Closing) -> None:
    """Looking costs no connection: the calls of a job share theirs."""
    async with aiohttp.ClientSession(connector=Connector()) as session:
        async with session.post(server.url) as reply:
            assert await reply.text() == "ok"
        assert session.connector is not None
        (kept,) = session.connector._conns.values()
        assert kept[0][0].is_connected()
        server.go_on.set()


@pytest.mark.parametrize("stray", [b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nstray", b"stray"])
async def test_a_reply_that_nobody_asked_for_is_no_reply_to_the_next_request(server: Closing, stray: bytes) -> None:
    """RFC 9112 §6.3: a client must not process what follows a reply as another reply."""
    server.stray = stray
    async with aiohttp.ClientSession(connector=Connector()) as session:
        async with session.post(server.url) as reply:
            assert await reply.text() == "ok"
        assert session.connector is not None
        (((kept, _),),) = session.connector._conns.values()
        server.send_stray.set()

        async def has_read_it() -> bool:
            return bool(kept.should_close)

        await eventually(has_read_it)
        async with session.post(server.url) as reply:
            assert await reply.text() == "ok"
        server.go_on.set()
    assert server.connections == 2


async def test_calls_are_made_over_connections_that_are_looked_at() -> None:
    session = await provider_door._session()
    assert isinstance(session.connector, Connector)


def test_connections_are_closed_with_their_event_loop() -> None:
    """Turns in memory may each have an event loop of their own, as ``asyncio.run`` makes them."""

    async def take() -> aiohttp.ClientSession:
        session = await provider_door._session()
        assert await provider_door._session() is session
        return session

    sessions = [asyncio.run(take()) for _ in range(2)]
    assert sessions[0] is not sessions[1]
    assert all(session.closed for session in sessions)
    loops = [weakref.ref(session._loop) for session in sessions]
    del sessions
    gc.collect()
    assert [loop() for loop in loops] == [None, None]
