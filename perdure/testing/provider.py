"""A scripted model provider: an HTTP server on loopback that speaks OpenAI's and Anthropic's format, with faults.

``python -m perdure.testing --script FILE.json`` serves a script from a process of its own.
"""

import asyncio
import json
import logging
import socket
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Self

import h11

from perdure.contracts.values import JsonValue, Value, replace
from perdure.testing.connection import Connection, Response
from perdure.testing.rules import Refusal, Rulebook, providers, rulebook
from perdure.testing.script import Answers, ChatRequest, ErrorText, Fault, Reply, Script, read_answers
from perdure.testing.streams import stream_of
from perdure.testing.wires import Anthropic, OpenAI, Wire, mask_key

logger = logging.getLogger("perdure.testing")

WAIT_SECONDS = 120.0
"""Upper bound of every wait for something to happen."""

HOST = "127.0.0.1"

OPENAI, ANTHROPIC = OpenAI(), Anthropic()

WIRES: dict[str, Wire] = {wire.path: wire for wire in (OPENAI, ANTHROPIC)}
"""By the path of a request."""

AUTO = "auto"
"""Rules of the provider that the address names, or else of the one whose wire it is."""

USUAL_WINDOW = 128_000
"""Context window that an overflow names when the provider has none of its own."""

USUAL_MAX_TOOLS = 128
"""Likewise of too many tools."""


class _FunctionFailedError(Exception):
    """The script's function raised something, or returned something other than a reply."""


class RecordedRequest(Value):
    """A request that arrived.

    Attributes:
        request: What was asked; ``request.index`` is the number of the reply it chose.
        headers: As sent, with the names in lower case.
        body: As sent, in the form of its wire.
        fault: The kind of the fault it met; ``refused`` if it was over a limit or broke a rule of the provider.
        refusal: Which provider refuses it, by which rule, and why; None if it broke no rule.
    """

    request: ChatRequest
    headers: dict[str, str]
    fault: str | None
    body: JsonValue = None
    refusal: str | None = None


class ScriptedProvider:
    """Serve scripted answers while entered, to clients of OpenAI at ``url`` and of Anthropic at ``anthropic_url``.

    A request that the real provider refuses is refused here too, with its status and words, and the id of the rule:
    OpenAI's rules at ``url``, Anthropic's at ``anthropic_url``, those of another provider at ``url_of(name)``.

    Args:
        answers: The answers of every model: a list of replies, a script, or a function from a request to a reply.
        models: Scripts of single models, by the name after the provider's prefix.
        always: A fault for every request, in place of any answer.
        window: Tokens a prompt may have, at four characters a token; a longer one is refused as context overflow.
        max_tools: Tools a request may have; more are refused.
        plays: The provider by whose rules requests are refused, such as ``mistral``; ``auto`` goes by the address, and
            None refuses none.
        port: 0 takes a free one.

    Raises:
        ValueError: There are no rules of this provider.
    """

    def __init__(  # noqa: PLR0913 - each is a word of its own
        self,
        answers: Answers | None = None,
        *,
        models: Mapping[str, Answers] | None = None,
        always: Fault | None = None,
        window: int | None = None,
        max_tools: int | None = None,
        plays: str | None = AUTO,
        port: int = 0,
    ) -> None:
        if plays is not None and plays != AUTO:
            rulebook(plays)  # it is said here if there are none
        self.requests: list[RecordedRequest] = []
        self.connection_count = 0
        self.disconnects = 0
        self._answers = read_answers(answers or Script())
        self._models = {name: read_answers(answers) for name, answers in (models or {}).items()}
        self._always = always
        self._window = window
        self._max_tools = max_tools
        self.plays = plays
        self._port = port
        self._faults_used: Counter[tuple[str, str, int]] = Counter()
        self._changed = asyncio.Condition()
        self._held_after: int | None = None
        self._held = 0
        self._bound: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def request_count(self) -> int:
        """The number of requests that have arrived, those that met a fault included."""
        return len(self.requests)

    @property
    def url(self) -> str:
        """The base URL that an OpenAI client takes, ending in ``/v1``."""
        return f"{self.anthropic_url}/v1"

    @property
    def anthropic_url(self) -> str:
        """The base URL that an Anthropic client takes."""
        return f"http://{HOST}:{self._port}"

    def url_of(self, provider: str) -> str:
        """The base URL at which a client of OpenAI's format is refused as by this provider, such as ``mistral``.

        Raises:
            ValueError: There are no rules of this provider.
        """
        rulebook(provider)
        return f"{self.anthropic_url}/{provider}/v1"

    @property
    def refusals(self) -> list[str]:
        """Which provider refused a request, by which rule and why; a sentence for each request that broke a rule."""
        return [request.refusal for request in self.requests if request.refusal]

    async def __aenter__(self) -> Self:
        """Start to listen."""
        self._hold_the_port()
        await self.accept()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close every connection."""
        await self._close()
        if self._bound is not None:
            self._bound.close()

    async def refuse(self) -> None:
        """Close every connection and refuse new ones, until :meth:`accept`. The port stays the provider's."""
        await self._close()
        self._hold_the_port()

    async def accept(self) -> None:
        """Take connections again."""
        if self._bound is not None:
            self._server, self._bound = await asyncio.start_server(self._serve, sock=self._bound), None

    async def wait_for_requests(self, count: int) -> None:
        """Wait until so many requests have arrived, at most 120 s."""
        await self._wait(lambda: len(self.requests) >= count)

    async def wait_for_disconnect(self, count: int = 1) -> None:
        """Wait until so many clients have gone away before their reply, at most 120 s."""
        await self._wait(lambda: self.disconnects >= count)

    async def _wait(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_SECONDS), self._changed:
            await self._changed.wait_for(condition)

    def _hold_the_port(self) -> None:
        """Bind a socket that does not listen: a client that connects is refused."""
        self._bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._bound.bind((HOST, self._port))
        self._port = self._bound.getsockname()[1]

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connection_count += 1
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a stream server always runs its handler in a task
        self._tasks.add(task)
        try:
            with suppress(ConnectionError, h11.RemoteProtocolError, asyncio.IncompleteReadError):
                await Connection(reader, writer, self.respond, self._note_disconnect).serve()
        except asyncio.CancelledError:
            pass  # the provider is left
        finally:
            self._tasks.discard(task)
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def respond(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Response:
        """The response to an HTTP request, whatever it is."""
        if (method, path) == ("GET", "/healthz"):
            return _json(200, {"status": "ok"})
        wire = _wire_at(path)
        if wire is None or method != "POST":
            paths = ", ".join(f"POST {known}" for known in WIRES)
            return _json(404, {"error": {"message": f"there is only {paths} and GET /healthz", "type": "scripted"}})
        return await self.respond_on(wire, headers, body)

    async def respond_on(self, wire: Wire, headers: dict[str, str], body: bytes) -> Response:
        """The response to a request of a wire; an error's, if it is none, or the script has no answer for it."""
        try:
            return await self.answer(wire, body, headers)
        except _FunctionFailedError as failed:
            text = str(failed)
        except Exception as error:  # noqa: BLE001 - a connection dropped for it would be retried, and say nothing
            text = f"no request of this wire, or no answer for it: {error!r}"
        return _json(400, wire.error(400, ErrorText(message=text, type="scripted")))

    def rules_of(self, wire: Wire) -> Rulebook | None:
        """The rules of requests on a wire: of the provider that the test names, if it speaks it, or of the wire's."""
        if self.plays is None or wire.provider is None:
            return None
        named = rulebook(wire.provider if self.plays == AUTO else self.plays)
        return named if named.file.wire == wire.name else rulebook(wire.owner)

    async def answer(self, wire: Wire, body: bytes, headers: dict[str, str]) -> Response:
        """Answer a request, with what goes wrong on the way; the request is recorded.

        Raises:
            Exception: The body is not a request of the wire, or the script has no answer for it.
        """
        sent: JsonValue = json.loads(body)
        rules = self.rules_of(wire)
        refusal = rules.refuse(sent) if rules is not None and isinstance(sent, dict) else None
        request = _request_of(wire, body, refusal)
        refused, reply = self._answer_or_refuse(request, refusal)
        fault = refused
        if fault is None:
            fault = self._fault_ahead(request, reply)
            self._faults_used[_conversation(request)] += 1
        response = self._response(wire, request, reply, fault, headers)
        kind = "refused" if refused else fault.kind if fault else None
        self._record(RecordedRequest(request=request, headers=headers, fault=kind, body=sent), refusal)
        await self._notify()
        return response

    def refuse_at_once(self, request: ChatRequest, body: dict[str, JsonValue], refusal: Refusal) -> Response:
        """The refusal of a request that came without HTTP; the request is recorded."""
        self._record(RecordedRequest(request=request, headers={}, fault="refused", body=body), refusal)
        return _json(refusal.status, refusal.body, refusal.headers)

    def answer_at_once(
        self, wire: Wire, request: ChatRequest, body: dict[str, JsonValue]
    ) -> tuple[dict[str, JsonValue] | None, Fault | None]:
        """The answer to a request as an object, without HTTP; or else the fault that the request is about to meet."""
        refused, reply = self._answer_or_refuse(request, None)
        fault = refused or self._fault_ahead(request, reply)
        if fault is not None:
            return None, fault
        recorded = RecordedRequest(request=request, headers={}, fault=None)
        self.requests.append(recorded.model_copy(update={"body": body}))  # a long conversation is not read once more
        return wire.answer(request, reply), None

    def _record(self, request: RecordedRequest, refusal: Refusal | None) -> None:
        if refusal is not None:
            logger.warning("%s", refusal.sentence)
            request = replace(request, refusal=refusal.sentence)
        self.requests.append(request)

    def _answer_or_refuse(self, request: ChatRequest, refusal: Refusal | None) -> tuple[Fault | None, Reply]:
        """Fault that refuses the request, if any, and the script's reply to it."""
        refused: Fault | None = None
        if self._max_tools is not None and len(request.tools) > self._max_tools:
            refused = Fault(kind="status", known="too_many_tools")
        elif self._window is not None and request.tokens > self._window:
            refused = Fault(kind="status", known="context_overflow")
        elif refusal is not None:
            refused = Fault(kind="status", status=refusal.status, body=refusal.body, headers=refusal.headers)
        return refused, Reply() if refused else self._reply(request)

    def _response(
        self, wire: Wire, request: ChatRequest, reply: Reply, fault: Fault | None, headers: Mapping[str, str]
    ) -> Response:
        """Response to a request, with what goes wrong on the way."""
        if fault is not None and fault.kind == "status":
            window, max_tools = self._window or USUAL_WINDOW, self._max_tools or USUAL_MAX_TOOLS
            status, body = wire.refusal(
                fault,
                {
                    "model": request.model,
                    "key": mask_key(headers),
                    "window": window,
                    "tokens": request.tokens if self._window else window + request.tokens,
                    "max_tools": max_tools,
                    "tools": max(len(request.tools), max_tools + 1),
                },
            )
            return _json(status, body, fault.headers)
        if fault is not None and fault.kind == "garbage":
            return Response(200, b"this is no JSON")
        given = fault.reply if fault and fault.reply else reply
        answer = wire.answer(request, given)
        if fault is not None and fault.kind == "empty_choices":
            answer = wire.without_answer(answer)
        elif request.stream:
            stream = stream_of([*wire.frames(request, answer, given)], fault)
            streamed, head = b"".join(frame.data for frame in stream.frames), {"content-type": "text/event-stream"}
            return Response(200, streamed, head, fault=fault, stream=stream, hold=self._hold)
        return Response(200, json.dumps(answer).encode(), fault=fault)

    def hold_streams(self, after: int) -> None:
        """Have every stream stand still once it has sent so many pieces, until :meth:`release_streams`."""
        self._held_after, self._held = after, 0

    async def release_streams(self) -> None:
        """Let the streams that stand still go on."""
        self._held_after = None
        await self._notify()

    async def wait_for_held_streams(self, count: int = 1) -> None:
        """Wait until so many streams have stood still, at most 120 s."""
        await self._wait(lambda: self._held >= count)

    def _hold(self, sent: int) -> Coroutine[object, object, None] | None:
        """Wait that holds the stream after so many pieces, if streams are held there."""
        return self._wait_while_held() if sent == self._held_after else None

    async def _wait_while_held(self) -> None:
        self._held += 1
        async with self._changed:
            self._changed.notify_all()
            await self._changed.wait_for(lambda: self._held_after is None)

    def _reply(self, request: ChatRequest) -> Reply:
        answers = self._models.get(request.model, self._answers)
        if isinstance(answers, Script):
            return answers.reply(request)
        try:
            return Reply.model_validate(answers(request))
        except Exception as error:
            msg = f"the script's function failed: {error!r}"
            raise _FunctionFailedError(msg) from error

    def _fault_ahead(self, request: ChatRequest, reply: Reply) -> Fault | None:
        """The fault that the request meets, which stays ahead of the next one."""
        if self._always is not None:
            return self._always
        used = self._faults_used[_conversation(request)]
        return reply.faults[used] if used < len(reply.faults) else None

    async def _note_disconnect(self) -> None:
        self.disconnects += 1
        await self._notify()

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


def _wire_at(path: str) -> Wire | None:
    """The wire of a path, as the provider speaks it that the path begins with, if it begins with one."""
    for wire in WIRES.values():
        base = path.removesuffix(wire.path).strip("/")
        if path.endswith(wire.path) and (not base or base in providers()):
            return type(wire)(base) if base else wire
    return None


def _request_of(wire: Wire, body: bytes, refusal: Refusal | None) -> ChatRequest:
    """The request of a body; without its messages if they cannot be read, and it is refused."""
    try:
        return wire.request(body)
    except ValueError:
        if refusal is None:
            raise
        return ChatRequest(model=str(json.loads(body).get("model", "")), messages=())


def _conversation(request: ChatRequest) -> tuple[str, str, int]:
    """Key under which faults are counted. The first user message tells sessions apart that share a script."""
    first = next((str(message.get("content")) for message in request.messages if message.get("role") == "user"), "")
    return request.model, first, request.index


def _json(status: int, body: JsonValue, headers: Mapping[str, str] | None = None) -> Response:
    """A text is sent as it is."""
    raw = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    return Response(status, raw, headers or {})
