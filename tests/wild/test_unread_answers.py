"""What a caller without a token costs who reads no answer, sends many requests at once, or a body in crumbs.

Seen in an attack on a running gateway: 1,500 connections with twelve unread documents each took 700 MB of it and 1.5 GB
of the system; two addresses kept a good token out for as long as they liked; 25 MB in chunks of one byte, answered with
401 at once, cost eleven seconds of its processor.
"""

import asyncio
import socket
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import cast

import pytest
from starlette.types import Message, Receive, Scope, Send

from perdure.gateway.access import Gateway
from perdure.gateway.connections import PATIENCE, PATIENCE_WITH_STRANGERS, PIECES_AT_ONCE, BoundedProtocol
from perdure.gateway.guard import CRUMBS, KNOWN_AT_ONCE, PART, STRANGE_AT_ONCE, Guard
from perdure.gateway.metrics import HttpMetrics
from perdure.gateway.tokens import Tokens
from tests.bare_gateway import DOCUMENT, DONE, GET, Wire, serving, was_closed
from tests.gateway import gateway, token_lines
from tests.house import WAIT_SECONDS, House, eventually

MB = 1_000_000
CHUNKED = b"POST /%s HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"


async def _is(value: object) -> object:
    return value


def chunked(body: bytes, size: int) -> bytes:
    """A body in chunks of so many bytes."""
    parts = (body[place : place + size] for place in range(0, len(body), size))
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + LAST


async def read_head(wire: Wire) -> bytes:
    """The head of an answer; its body is left where it is."""
    async with asyncio.timeout(WAIT_SECONDS):
        return await wire.reader.readuntil(b"\r\n\r\n")


async def test_what_strangers_leave_unread_has_a_bound_over_all_of_them() -> None:
    """T-12: those that have left it for longest go; who reads, and who has shown a good token, gets all of it."""
    async with serving(most_held=2 * MB) as door:
        proven = await door.plug("127.0.0.2", GET % b"document?tenant=a")
        await eventually(lambda: _is(door.entered))
        unread = [await door.plug(f"127.0.1.{at}", GET % b"document") for at in range(1, 13)]
        await eventually(lambda: _is(sum(map(was_closed, unread)) >= 7))
        assert all(map(was_closed, unread[:7])), "the oldest go first"
        assert not any(map(was_closed, unread[9:]))
        reading = await door.open("127.0.0.3")
        assert (await reading.ask(b"document")).startswith(b"HTTP/1.1 200")
        assert len(await reading.reader.readexactly(DOCUMENT)) == DOCUMENT
        got = 0
        async with asyncio.timeout(WAIT_SECONDS):
            while got < DOCUMENT:
                got += len(await asyncio.get_running_loop().sock_recv(proven, MB))


async def test_whoever_reads_nothing_gives_way_to_a_good_token_and_to_a_probe() -> None:
    """T-12: two addresses and more, which keep on for as long as they like."""
    async with serving(40) as door:
        sent = GET % b"document" * 25
        plugged = [await door.plug(f"127.0.0.{2 + at % 4}", sent) for at in range(60)]
        for at in range(5):
            late = await door.open(f"127.0.1.{1 + at}")
            assert await late.ask(b"proven?tenant=a") == DONE
            assert await (await door.open("127.0.2.1")).ask(b"") == DONE
            plugged += [await door.plug(f"127.0.0.{2 + other % 4}", sent) for other in range(20)]
        assert not all(map(was_closed, plugged))


@pytest.mark.parametrize("path", [b"document", b"parts"])
async def test_an_answer_that_is_not_read_gives_way_before_a_good_token_at_rest(path: bytes) -> None:
    async with serving(10) as door:
        known = [await door.open(f"127.0.1.{at}") for at in (1, 2)]
        assert [await wire.ask(b"proven?tenant=a") for wire in known] == [DONE] * 2
        plugged = [await door.plug(f"127.0.2.{at}", GET % path) for at in range(1, 9)]
        await eventually(lambda: _is(len(door.room._held) == 8))
        assert await (await door.open("127.0.3.1")).ask(b"") == DONE
        assert sum(map(was_closed, plugged)) == 1
        assert all(wire.is_open for wire in known)


async def test_of_requests_that_come_together_without_a_token_one_is_answered() -> None:
    """T-12: the connection then ends; with a good token all are."""
    async with serving() as door:
        wire = await door.open()
        wire.writer.write(GET % b"" * 12)
        head = await read_head(wire)
        assert head.startswith(DONE)
        assert b"connection: close" in head
        assert await wire.closed()
        assert [await (await door.open()).ask(b"proven"), await wire.reader.read()] == [DONE, b""]
        known = await door.open()
        known.writer.write(GET % b"proven" * 12)
        heads = [await read_head(known) for _ in range(12)]
        assert all(head.startswith(DONE) and b"close" not in head for head in heads)
        after = await door.open()
        assert [await after.ask(b""), await after.ask(b"")] == [DONE, DONE], "one after another"


async def test_the_next_request_waits_until_the_answer_before_it_was_taken() -> None:
    async with serving() as door:
        plugged = await door.plug("127.0.0.2", GET % b"document?tenant=a" * 3)
        await eventually(lambda: _is(door.entered))
        assert await (await door.open()).ask(b"") == DONE
        assert len(door.entered) == 1
        plugged.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, MB)
        got = 0
        async with asyncio.timeout(WAIT_SECONDS):
            while got < 3 * DOCUMENT:
                got += len(await asyncio.get_running_loop().sock_recv(plugged, MB))
        assert len(door.entered) == 3


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[BoundedProtocol]:
    """The connections that were made."""
    made: list[BoundedProtocol] = []
    admit = BoundedProtocol.connection_made

    def note(self: BoundedProtocol, transport: asyncio.Transport) -> None:
        made.append(self)
        admit(self, transport)

    monkeypatch.setattr(BoundedProtocol, "connection_made", note)
    return made


@pytest.mark.parametrize("size", [1, 7, 100, 16_000])
async def test_what_comes_behind_an_answer_is_not_parsed_and_the_answer_arrives(
    size: int, parsed: list[BoundedProtocol]
) -> None:
    """RFC 9112 §9.6: the connection says that it ends, and ends once the caller is done."""
    async with serving() as door:
        wire = await door.open()
        wire.writer.write(CHUNKED % b"refused" + chunked(b"x" * MB, size))
        head = await read_head(wire)
        assert head.startswith(b"HTTP/1.1 401")
        assert b"connection: close" in head
        assert await wire.reader.readexactly(2) == b"no"
        assert await wire.closed()
        assert parsed[0].conn.pieces <= PIECES_AT_ONCE
        assert len(door.entered) == 1
        wire.writer.close()


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(CHUNKED % b"refused", id="no body"),
        pytest.param(CHUNKED % b"refused" + b"zz\r\nnot a chunk", id="a broken chunk"),
        pytest.param(CHUNKED % b"refused" + b"1\r\nx", id="half of a chunk"),
        pytest.param(b"POST /refused HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nx", id="a part"),
        pytest.param(b"POST /missing HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nx", id="no such route"),
        pytest.param(b"PUT /refused HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nx", id="no such method"),
        pytest.param(b"GET /\r\nnothing of HTTP\r\n\r\n" + b"x" * 1000, id="no request"),
    ],
)
async def test_an_answer_before_the_end_of_its_request_is_the_last(
    sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as door:
        wire = await door.open()
        wire.writer.write(sent)
        head = await read_head(wire)
        assert head.startswith((b"HTTP/1.1 40", b"HTTP/1.1 422"))
        assert b"connection: close" in head.lower()
        wire.writer.write(b"more of it, which nobody reads")
        assert await wire.reader.read() is not None
        assert wire.reader.at_eof()
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.parametrize("size", [1, 7, 100, 7_000, 400_000])
async def test_a_body_that_is_asked_for_comes_whole(size: int) -> None:
    """In pieces of any length, with a request behind it."""
    body = bytes(range(256)) * 400
    async with serving() as door:
        wire = await door.open()
        assert await wire.ask(b"proven?tenant=a") == DONE
        wire.writer.write(CHUNKED % b"echo" + chunked(body, size) + GET % b"")
        assert (await read_head(wire)).startswith(b"HTTP/1.1 200")
        async with asyncio.timeout(WAIT_SECONDS):
            assert await wire.reader.readexactly(len(body)) == body
        assert (await read_head(wire)).startswith(DONE)


async def test_a_caller_that_waits_for_the_word_sends_its_body_then() -> None:
    """Expect: 100-continue; a refusal comes instead of the word."""
    ask = b"POST /%s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n"
    async with serving() as door:
        wire, refused = await door.open(), await door.open()
        wire.writer.write(ask % b"echo")
        assert (await read_head(wire)).startswith(b"HTTP/1.1 100")
        wire.writer.write(b"body")
        assert (await read_head(wire)).startswith(b"HTTP/1.1 200")
        assert await wire.reader.readexactly(4) == b"body"
        refused.writer.write(ask % b"refused")
        assert (await read_head(refused)).startswith(b"HTTP/1.1 401")
        assert await refused.reader.read() == b"no"


async def test_the_system_is_less_patient_with_strangers(parsed: list[BoundedProtocol]) -> None:
    """An answer of which nothing is taken ends its connection, by the system's own clock."""
    async with serving() as door:
        wire = await door.open()
        assert await wire.ask(b"") == DONE
        connection = parsed[0]._transport.get_extra_info("socket")
        told = [connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)]
        assert await wire.ask(b"proven?tenant=a") == DONE
        told.append(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))
        assert told == [patience.total_seconds() * 1000 for patience in (PATIENCE_WITH_STRANGERS, PATIENCE)]


async def _crumbs(count: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield b" "


async def test_a_body_in_crumbs_is_refused_and_says_why(house: House) -> None:
    """T-12: with a token that may only read, too."""
    lines, tokens = token_lines(reader=("a", "read"))
    async with gateway(house, gateway_tokens=lines) as door, door.holder(tokens["reader"]) as reader:
        few, many = [await reader.post("/v1/sessions", content=_crumbs(count)) for count in (1_000, 10_000)]
        assert few.status_code != 413
        assert (many.status_code, many.json()["detail"]) == (413, CRUMBS)
        assert (await reader.get("/v1/whoami")).status_code == 200


async def test_a_long_answer_is_held_once_and_counts_until_it_was_read(
    house: House, parsed: list[BoundedProtocol]
) -> None:
    """T-12: the document that anybody may ask for."""
    async with gateway(house) as door:
        whole = await door.http.get("/openapi.json")
        document = whole.content
        assert int(whole.headers["content-length"]) == len(document) > 3 * PART
        with socket.socket() as stranger:
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stranger.connect(("127.0.0.1", int(door.url.rpartition(":")[2])))
            stranger.sendall(GET % b"openapi.json")
            await eventually(lambda: _is(len(parsed) == 2 and parsed[1].unsent))
            room, buffered = parsed[1]._room, parsed[1]._transport.get_write_buffer_size()
            assert buffered <= PART
            assert buffered + parsed[1].unsent <= room._held[parsed[1]] <= len(document)
            assert room._held[parsed[1]] > len(document) // 2
            stranger.setblocking(False)
            got = bytearray()
            async with asyncio.timeout(WAIT_SECONDS):
                while not got.endswith(document[-100:]):
                    got += await asyncio.get_running_loop().sock_recv(stranger, MB)
            assert got.partition(b"\r\n\r\n")[2] == document
        await eventually(lambda: _is(not room._held))


@pytest.mark.parametrize("has_token", [True, False])
async def test_few_of_many_requests_begin_at_once_and_a_probe_waits_for_none(has_token: bool) -> None:
    """T-12: five hundred followers that begin in one moment held a probe up for a second."""
    began: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        began.append(scope["path"])
        await asyncio.Event().wait()

    tokens = Tokens([]) if not has_token else None
    parts = SimpleNamespace(
        tokens=tokens,
        tracing=None,
        limits=SimpleNamespace(take_request=lambda tenant: None),
        client=SimpleNamespace(settings=SimpleNamespace(codec_origins=())),
    )
    guard = Guard(app, cast("Gateway", parts), HttpMetrics(build_id=""), 1_000)

    def ask(path: str) -> asyncio.Task[None]:
        headers = [(b"host", b"localhost")]
        scope = {"type": "http", "method": "GET", "path": path, "headers": headers, "query_string": b"", "state": {}}
        return asyncio.create_task(guard(scope, _nothing, _nowhere))

    asking = [ask("/v1/sessions" if has_token else "/ui/page") for _ in range(100)] + [ask("/healthz")]
    turns = 0
    while len(began) < 101:
        before = len(began)
        await asyncio.sleep(0)
        turns += 1
        assert len(began) - before <= (KNOWN_AT_ONCE if has_token else STRANGE_AT_ONCE) + 1
    assert began.index("/healthz") == 0
    assert turns >= 100 // KNOWN_AT_ONCE
    for task in asking:
        task.cancel()
    await asyncio.gather(*asking, return_exceptions=True)


async def _nothing() -> Message:
    return {"type": "http.disconnect"}


async def _nowhere(message: Message) -> None:
    del message
