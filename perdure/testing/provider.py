"""A scripted model provider: an OpenAI-compatible HTTP server on loopback, with faults on demand.

``python -m perdure.testing.provider --script FILE.json`` serves a script from a process of its own.
"""

import asyncio
import json
import socket
import struct
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import click
import h11

from perdure.contracts.values import Value
from perdure.testing.script import Answers, ChatRequest, Fault, Reply, Script, completion

LINGER_NOW = struct.pack("ii", 1, 0)
"""Socket option that makes closing send a TCP reset."""

WAIT_SECONDS = 30.0
"""Upper bound of every wait for something to happen."""


class RecordedRequest(Value):
    """A request that arrived.

    Attributes:
        request: What was asked; ``request.index`` is the number of the reply it chose.
        headers: As sent, with the names in lower case.
        fault: The kind of the fault it met.
    """

    request: ChatRequest
    headers: dict[str, str]
    fault: str | None


class ScriptedProvider:
    """Serve scripted answers while entered; ``url`` is what an OpenAI client takes as its base URL.

    Args:
        answers: The script of every model.
        models: Scripts of single models, by the name after the provider's prefix.
        always: A fault for every request, in place of any answer.
        port: 0 takes a free one.
    """

    def __init__(
        self,
        answers: Answers | None = None,
        *,
        models: Mapping[str, Answers] | None = None,
        always: Fault | None = None,
        port: int = 0,
    ) -> None:
        self.requests: list[RecordedRequest] = []
        self.disconnects = 0
        self._answers: Answers = answers or Script()
        self._models = dict(models or {})
        self._always = always
        self._port = port
        self._faults_used: Counter[tuple[str, str, int]] = Counter()
        self._changed = asyncio.Condition()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def request_count(self) -> int:
        """The number of requests that have arrived, those that met a fault included."""
        return len(self.requests)

    @property
    def url(self) -> str:
        """The base URL, ending in ``/v1``."""
        return f"http://127.0.0.1:{self._port}/v1"

    async def __aenter__(self) -> Self:
        """Start to listen."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close every connection."""
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def wait_for_requests(self, count: int) -> None:
        """Wait until so many requests have arrived, at most 30 s."""
        await self._wait(lambda: len(self.requests) >= count)

    async def wait_for_disconnect(self, count: int = 1) -> None:
        """Wait until so many clients have gone away before their reply, at most 30 s."""
        await self._wait(lambda: self.disconnects >= count)

    async def _wait(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_SECONDS), self._changed:
            await self._changed.wait_for(condition)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a stream server always runs its handler in a task
        self._tasks.add(task)
        try:
            with suppress(ConnectionError, h11.RemoteProtocolError, asyncio.IncompleteReadError):
                await _Connection(reader, writer, self).serve()
        except asyncio.CancelledError:
            pass  # the provider is left
        finally:
            self._tasks.discard(task)
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def answer(self, body: bytes, headers: dict[str, str]) -> tuple[Fault | None, bytes]:
        """The fault of a request, if it has one, and the body of the answer; the request is recorded.

        Raises:
            ValueError: The body is no chat request.
        """
        request = ChatRequest.model_validate_json(body)
        answers = self._models.get(request.model, self._answers)
        reply = answers.reply(request) if isinstance(answers, Script) else answers(request)
        fault = self._next_fault(request, reply)
        self.requests.append(RecordedRequest(request=request, headers=headers, fault=fault.kind if fault else None))
        await self._notify()
        return fault, json.dumps(completion(request, reply)).encode()

    def _next_fault(self, request: ChatRequest, reply: Reply) -> Fault | None:
        if self._always is not None:
            return self._always
        # The first user message tells sessions apart that share a script.
        first = next((str(message.get("content")) for message in request.messages if message.get("role") == "user"), "")
        key = (request.model, first, request.index)
        used = self._faults_used[key]
        if used >= len(reply.faults):
            return None
        self._faults_used[key] = used + 1
        return reply.faults[used]

    async def note_disconnect(self) -> None:
        """A client went away before its reply."""
        self.disconnects += 1
        await self._notify()

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


class _Connection:
    """One HTTP connection; h11 knows the protocol, this class moves the bytes and carries out the faults."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, provider: ScriptedProvider) -> None:
        self._reader = reader
        self._writer = writer
        self._provider = provider
        self._http = h11.Connection(h11.SERVER)

    async def serve(self) -> None:
        """Answer requests until the connection ends."""
        while True:
            event = await self._event()
            if isinstance(event, h11.ConnectionClosed):
                return
            if not isinstance(event, h11.Request):
                continue
            body = bytearray()
            while not isinstance(event_in_body := await self._event(), h11.EndOfMessage):
                if isinstance(event_in_body, h11.Data):
                    body += event_in_body.data
            if not await self._respond(event, bytes(body)):
                return
            if self._http.our_state is h11.MUST_CLOSE:
                return
            self._http.start_next_cycle()

    async def _event(self) -> object:
        while True:
            event = self._http.next_event()
            if event is not h11.NEED_DATA:
                return event
            self._http.receive_data(await self._reader.read(65_536))

    async def _respond(self, request: h11.Request, body: bytes) -> bool:
        """Send the reply or the fault; False when the connection is over."""
        match request.method, request.target.partition(b"?")[0]:
            case b"GET", b"/healthz":
                await self._send(200, {}, b'{"status": "ok"}')
                return True
            case b"POST", b"/v1/chat/completions":
                pass
            case _:
                await self._refuse(404, "there is only POST /v1/chat/completions and GET /healthz")
                return True
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers}
        try:
            fault, reply = await self._provider.answer(body, headers)
        except (ValueError, LookupError, TypeError) as error:
            await self._refuse(400, f"no chat request, or the script's function failed: {error!r}")
            return True
        if fault is None:
            await self._send(200, {}, reply)
            return True
        return await self._carry_out(fault, reply)

    async def _refuse(self, status: int, message: str) -> None:
        await self._send(status, {}, json.dumps({"error": {"message": message, "type": "scripted"}}).encode())

    async def _carry_out(self, fault: Fault, reply: bytes) -> bool:
        match fault.kind:
            case "status":
                error = fault.body or {"error": {"message": f"scripted status {fault.status}", "type": "scripted"}}
                body = error.encode() if isinstance(error, str) else json.dumps(error).encode()
                await self._send(fault.status, dict(fault.headers), body)
            case "garbage":
                await self._send(200, {}, b"<html>this is no JSON</html>")
            case "empty_choices":
                await self._send(200, {}, json.dumps({**json.loads(reply), "choices": []}).encode())
            case "delay":
                return await self._unless_gone(asyncio.sleep(fault.seconds)) and await self._sent(reply)
            case "drip":
                return await self._drip(reply, fault.seconds)
            case "hang":
                await self._unless_gone(asyncio.Event().wait())
                return False
            case "cut":
                self._begin(200, {}, len(reply))
                self._write(h11.Data(data=reply[: len(reply) // 2]))
                await self._writer.drain()
                return False
            case "reset":
                raw: socket.socket = self._writer.get_extra_info("socket")
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NOW)
                self._writer.transport.abort()
                return False
            case "close":
                return False
        return True

    async def _sent(self, reply: bytes) -> bool:
        await self._send(200, {}, reply)
        return True

    async def _drip(self, reply: bytes, seconds: float) -> bool:
        self._begin(200, {}, len(reply))
        for index in range(len(reply)):
            # Before each byte: after the last one the client may already send its next request.
            if not await self._unless_gone(asyncio.sleep(seconds)):
                return False
            self._write(h11.Data(data=reply[index : index + 1]))
        self._write(h11.EndOfMessage())
        return True

    async def _unless_gone(self, waiting: Coroutine[object, object, object]) -> bool:
        """Wait, but notice a client that closes its connection meanwhile."""
        done, gone = asyncio.create_task(waiting), asyncio.create_task(self._reader.read(1))
        try:
            await asyncio.wait([done, gone], return_when=asyncio.FIRST_COMPLETED)
            if done.done():
                return True
            await self._provider.note_disconnect()
            return False
        finally:
            done.cancel()
            gone.cancel()
            await asyncio.gather(done, gone, return_exceptions=True)

    async def _send(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self._begin(status, headers, len(body))
        self._write(h11.Data(data=body))
        self._write(h11.EndOfMessage())
        await self._writer.drain()

    def _begin(self, status: int, headers: dict[str, str], length: int) -> None:
        fields = {"content-type": "application/json", "content-length": str(length), **headers}
        self._write(h11.Response(status_code=status, headers=list(fields.items())))

    def _write(self, event: h11.Event) -> None:
        self._writer.write(self._http.send(event) or b"")


@click.command()
@click.option("--script", "path", required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--port", default=0, show_default="a free one")
def main(path: Path, port: int) -> None:
    """Serve the script of a JSON file; the first line printed is the base URL."""
    script = Script.model_validate_json(path.read_bytes())

    async def serve() -> None:
        async with ScriptedProvider(script, port=port) as provider:
            sys.stdout.write(provider.url + "\n")
            sys.stdout.flush()
            await asyncio.Event().wait()

    with suppress(KeyboardInterrupt):
        asyncio.run(serve())


if __name__ == "__main__":
    main()
