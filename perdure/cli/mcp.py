"""``perdure mcp``: the workers' agents as durable jobs, for any MCP host: to start, await, steer, answer, cancel."""

import asyncio
import contextlib
import ipaddress
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import click
from pydantic import Field
from pydantic_core import to_json

from perdure.agents.context import ToolContext
from perdure.agents.files import File
from perdure.agents.tool import Tool, tool
from perdure.cli.connection import connect, describe
from perdure.cli.errors import MistakeError, UnreachableError
from perdure.client import Client, ClientError, RequestRefusedError, SessionIdleError, Turn
from perdure.client.requests import Content
from perdure.contracts.files import InlineFile
from perdure.contracts.ids import Signed, slug_of
from perdure.contracts.input_requests import InputReceipt
from perdure.contracts.sends import WhenBusy
from perdure.contracts.turns import RunState, TurnResult, TurnStatus
from perdure.contracts.values import JsonValue
from perdure.mcp_server import MISSING_SDK, ServedCall, as_web_application
from perdure.settings import load_settings
from perdure.store.errors import StoreError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

OPENING = timedelta(seconds=10)
"""Longest time until a started turn has its number; without one, it is waited for by its session."""

SHORTEST_PAUSE = timedelta(milliseconds=250)
LONGEST_PAUSE = timedelta(seconds=5)
"""Between two reports of progress."""

LONGEST_WAIT = timedelta(hours=1)

TRANSCRIPT_CHARACTERS = 200_000
"""Longest transcript that a client reads at once, in whole messages."""

INSTRUCTIONS = (
    "Runs LLM agents as durable jobs. list_agents says which there are, start begins a turn and returns at once, wait "
    "returns its result. A job goes on when this server, its client or a worker ends: wait again with its session. "
    "If wait returns requests, a person has to decide: answer, approve or deny each as they say, then wait again."
)

Session = Annotated[str, Field(min_length=1), "The session's id, from start."]
AnyTurn = Annotated[int | None, Field(ge=1), "The turn's number; without it, the running or last one."]
RequestId = Annotated[str | None, "Any id of your own: asked again with it, this returns the turn it has begun."]
Attached = Annotated[
    Sequence[InlineFile], "Images, PDFs and texts that go with the prompt, each with its name and its bytes as base64."
]
Busy = Annotated[
    WhenBusy,
    "While a turn runs: refuse the message; let it wait for its turn; have the running turn read it before its next "
    "model call; cancel the running turn and those that wait, and be the next; or also begin where that turn began.",
]
RequestOfPeople = Annotated[str, "The request_id of one of the requests that wait or status returned."]
Decider = Annotated[str, Field(min_length=1), "Who decides, by name; it is kept."]
Json = dict[str, JsonValue]


class Jobs:
    """The tools of the MCP server. The first tool call connects to the cluster, so a host may start before it."""

    def __init__(self, connect: Callable[[], AbstractAsyncContextManager[Client]] = connect) -> None:
        self._connect = connect
        self._connecting = asyncio.Lock()
        self._stack = AsyncExitStack()
        self._client: Client | None = None

    def tools(self) -> list[Tool[..., Any]]:
        """All of them, as they are listed."""
        waiting = tool(timeout=LONGEST_WAIT + timedelta(minutes=1))
        return [
            tool(self.list_agents),
            tool(self.start),
            waiting(self.wait),
            tool(self.status),
            tool(self.send),
            tool(self.answer),
            tool(self.approve),
            tool(self.deny),
            tool(self.submit_result),
            tool(self.cancel),
            tool(self.transcript),
        ]

    async def close(self) -> None:
        """Leave the cluster."""
        await self._stack.aclose()

    async def list_agents(self) -> Json:
        """List the agents that can be started, with what each is for."""
        client = await self.get_client()
        about = {"name", "description", "model", "tools"}
        return {"agents": [agent.model_dump(mode="json", include=about) for agent in await client.agents()]}

    async def start(
        self,
        agent: Annotated[str, "The agent's name, from list_agents."],
        prompt: Annotated[str, "What it is to do."],
        session: Annotated[
            str | None, "Id of the session to go on with, or of a new session to begin; by default a new id."
        ] = None,
        request_id: RequestId = None,
        files: Attached = (),
    ) -> Json:
        """Start a durable job: one turn of an agent. Returns its session and turn at once; wait returns the result."""
        client = await self.get_client()
        await client.check_worker()
        if session is None and request_id is not None:
            # The same request has the same id, so that asking again begins no second job; another prompt is another.
            store = await client.store()
            session = await store.sign_id(Signed.KEY, "", slug_of(agent), (request_id, prompt))
        turn = await client.start(agent, _with_files(prompt, files), session=session, request_id=request_id)
        return await _begun_to_json(turn)

    async def wait(
        self,
        session: Session,
        context: ToolContext,
        turn: AnyTurn = None,
        timeout_seconds: Annotated[float, Field(ge=1, le=LONGEST_WAIT.total_seconds()), "How long to wait."] = 50,
    ) -> Json:
        """Wait for a turn's end. state is "ended", with the result, or "running" if the time was up: then wait again.

        state "waiting_for_input" comes with requests: a person has to decide about them before the turn goes on. The
        result says why the turn ended (stop_reason) and what the agent answered (output, or value). The job goes on
        even if you stop waiting.
        """
        client = await self.get_client()
        awaited = await client.attach(session, turn)
        clock = asyncio.get_running_loop().time
        began, pause = clock(), SHORTEST_PAUSE.total_seconds()
        async with _wait_in_task(awaited) as result:
            while True:
                left = timeout_seconds - (clock() - began)
                await asyncio.wait({result}, timeout=max(min(left, pause), 0))
                if result.done():
                    return _result_to_json(session, result.result())
                status, activity = await _look(client, session)
                if left <= pause or _needs_people(status, awaited.turn):
                    return _running_to_json(session, awaited.turn, status, activity)
                if isinstance(context, ServedCall):
                    await context.report(clock() - began, timeout_seconds, activity)
                pause = min(pause * 2, LONGEST_PAUSE.total_seconds())

    async def status(self, session: Session) -> Json:
        """Status of a session: the running turn's step, activity and requests, or the last turn's result."""
        client = await self.get_client()
        try:
            status = await client.status(session)
        except SessionIdleError:
            turn = await client.attach(session)
            if turn.turn is None:  # it runs, and no worker holds it
                raise
            return _result_to_json(session, await turn.result())
        return _running_to_json(session, status.turn, status, status.activity)

    async def send(
        self,
        session: Session,
        prompt: Annotated[str, "The message."],
        when_busy: Busy = "queue",
        request_id: RequestId = None,
        files: Attached = (),
    ) -> Json:
        """Send a message to a session. An idle one begins its next turn; a busy one does as when_busy says."""
        client = await self.get_client()
        await client.check_worker()
        turn = await client.send(session, _with_files(prompt, files), when_busy=when_busy, request_id=request_id)
        return await _begun_to_json(turn)

    async def answer(
        self,
        session: Session,
        request: RequestOfPeople,
        value: Annotated[
            JsonValue, "The answer: text, one of the request's options, or other JSON if that is asked for."
        ],
        by: Decider,
    ) -> Json:
        """Answer a question (needs: answer) that a session waits for. Then call wait again."""
        client = await self.get_client()
        return _receipt(session, await client.answer(session, request, value, by=by))

    async def approve(
        self,
        session: Session,
        request: RequestOfPeople,
        by: Decider,
        digest: Annotated[str, "The request's digest: the call then runs only if it still is what was shown."] = "",
    ) -> Json:
        """Let a tool call run (needs: approval). Only when a person has said so. Then call wait again."""
        client = await self.get_client()
        return _receipt(session, await client.approve(session, request, by=by, digest=digest))

    async def deny(
        self,
        session: Session,
        request: RequestOfPeople,
        by: Decider,
        reason: Annotated[str, "Why; the agent reads it."] = "",
    ) -> Json:
        """Refuse a tool call, or decline a question: the agent reads why and goes on. Then call wait again."""
        client = await self.get_client()
        return _receipt(session, await client.deny(session, request, by=by, reason=reason))

    async def submit_result(
        self,
        session: Session,
        request: RequestOfPeople,
        by: Decider,
        value: Annotated[JsonValue, "The result: text, or other JSON."] = None,
        error: Annotated[str | None, "In place of a value: why the call failed; the agent reads it."] = None,
        digest: Annotated[str, "The request's digest: the result then counts for that call only."] = "",
    ) -> Json:
        """Submit the result of a tool call that you run (needs: result), with its arguments. Then call wait again."""
        client = await self.get_client()
        receipt = await client.submit_result(session, request, value, error=error, by=by, digest=digest)
        return _receipt(session, receipt)

    async def cancel(
        self,
        session: Session,
        turn: Annotated[int | None, Field(ge=1), "This turn, which runs or waits; any other is refused."] = None,
        reason: Annotated[str, "Why; it is kept with the turn."] = "",
        drop_queue: Annotated[bool, "Whether messages that wait for later turns are dropped too."] = False,
    ) -> Json:
        """Cancel the running turn of a session. sent is false if none runs; wait then gives how it ended."""
        client = await self.get_client()
        return {"session": session, "sent": await client.cancel(session, reason, turn, drop_queue=drop_queue)}

    async def transcript(
        self,
        session: Session,
        turn: Annotated[int | None, Field(ge=1), "As it was at the end of this turn; by default as it is now."] = None,
        last: Annotated[int, Field(ge=1, le=1000), "Number of messages, counted from the end."] = 20,
    ) -> Json:
        """Read the conversation of a session: prompts, answers, tool calls and their results.

        left_out counts the earlier messages that are not returned: those before the last ones, or too long to return.
        """
        client = await self.get_client()
        messages = await client.transcript(session, turn)
        shown, characters = list[JsonValue](), 0
        for message in reversed(messages[-last:]):
            body = message.model_dump(mode="json")
            characters += len(to_json(body).decode())
            if characters > TRANSCRIPT_CHARACTERS:
                break
            shown.insert(0, body)
        return {"session": session, "total": len(messages), "left_out": len(messages) - len(shown), "messages": shown}

    async def get_client(self) -> Client:
        """The client of the cluster, which the first call connects."""
        async with self._connecting:
            if self._client is None:
                self._client = await self._stack.enter_async_context(self._connect())
            return self._client


def sentence(error: Exception) -> str | None:
    """The line that the command line prints for an expected error; None for any other."""
    described = describe(error)
    return None if described is None else described.message


def _with_files(prompt: str, files: Sequence[InlineFile]) -> Content:
    try:
        return [prompt, *(File(file.name, file.decoded) for file in files)] if files else prompt
    except ValueError as error:
        raise MistakeError(f"files: {error}") from None


async def _begun_to_json(turn: Turn) -> Json:
    number: int | None = None
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(OPENING.total_seconds()):
            number = await turn.number()
            if number is None:
                refused = await turn.result()
                raise RequestRefusedError(refused.error or f"the request was refused: {refused.reason_code}")
    return {"session": turn.session, "turn": number, "request_id": turn.request_id}


@contextlib.asynccontextmanager
async def _wait_in_task(turn: Turn) -> AsyncIterator["asyncio.Task[TurnResult]"]:
    task = asyncio.create_task(turn.result())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _look(client: Client, session: str) -> tuple[TurnStatus | None, str]:
    """Status of the session, and in words; only in words if nobody answers."""
    try:
        status = await client.status(session)
    except (ClientError, StoreError) as error:
        return None, str(error)
    return status, status.activity


def _needs_people(status: TurnStatus | None, turn: int | None) -> bool:
    """Whether the turn, or one before it, waits for a person; of one that came after it, it has ended meanwhile."""
    if status is None or status.state is not RunState.WAITING_FOR_INPUT:
        return False
    return turn is None or status.turn is None or status.turn <= turn


def _running_to_json(session: str, turn: int | None, status: TurnStatus | None, activity: str) -> Json:
    about = None if status is None else status.model_dump(mode="json", exclude={"session", "requests"})
    told: Json = {"state": "running", "session": session, "turn": turn, "activity": activity, "status": about}
    if status is None or not status.requests:
        return told
    asked: list[JsonValue] = [request.model_dump(mode="json") for request in status.requests]
    return {**told, "state": RunState.WAITING_FOR_INPUT, "turn": status.turn, "requests": asked}


def _receipt(session: str, receipt: InputReceipt) -> Json:
    return {"session": session, **receipt.model_dump(mode="json", exclude={"digest"})}


def _result_to_json(session: str, result: TurnResult) -> Json:
    about = result.model_dump(mode="json", exclude={"session", "turn"})
    return {"state": "ended", "session": session, "turn": result.turn, "result": about}


SHUTDOWN_SECONDS = 3
"""Time for requests to end after a signal; the jobs they are about go on."""


@click.command("mcp")
@click.option("--http", metavar="HOST:PORT", help="Serve streamable HTTP at http://HOST:PORT/mcp instead of stdio.")
@click.option(
    "--allow-remote",
    is_flag=True,
    help="Allow a HOST that other machines can reach; there is no login, so anybody there can run agents.",
)
def mcp_command(*, http: str | None, allow_remote: bool) -> None:
    """Serve the registered agents to an MCP host, as tools that start, await, steer, answer and cancel turns.

    Put 'perdure mcp' into the configuration of the host as a stdio server; the host starts it. The tools are
    list_agents, start, wait, status, send, answer, approve, deny, submit_result, cancel and transcript.
    TEMPORAL_ADDRESS or a Temporal profile names the Temporal server, PERDURE_STORE_URL the store.
    """
    load_settings()
    try:
        from perdure.cli.mcp_tasks import with_tasks  # noqa: PLC0415 - imports the MCP SDK, which is an extra
    except ModuleNotFoundError as error:
        raise MistakeError(MISSING_SDK) from error
    listener = None if http is None else bind_socket(http, allow_remote=allow_remote)

    async def main() -> None:
        jobs = Jobs()
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(jobs.close)
            server = with_tasks(
                *jobs.tools(), client=jobs.get_client, opening=OPENING, instructions=INSTRUCTIONS, describe=sentence
            )
            if listener is None:
                # The SDK reads stdin on a thread, which keeps an interrupted event loop from ending.
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                if sys.stdin.isatty():
                    hint = "an MCP host starts this itself; Ctrl+C ends it"
                    click.echo(f"perdure: MCP server on stdin and stdout; {hint}", err=True)
                await server.run_stdio_async()
            else:
                host = str(listener.getsockname()[0])
                await _serve(protect_app(as_web_application(server, host), host), listener)

    asyncio.run(main())


def protect_app(app: "ASGIApp", host: str) -> "ASGIApp":
    """The application behind a check that refuses web pages, whose host name may resolve to this address.

    On 127.0.0.1 and ::1 the MCP SDK checks host names itself. On other addresses, any request with an ``Origin`` header
    is refused: only pages in a browser send one.
    """
    from starlette.responses import PlainTextResponse  # noqa: PLC0415 - comes with the MCP SDK, which is an extra

    async def checked(scope: "Scope", receive: "Receive", send: "Send") -> None:
        if scope["type"] == "http" and any(name == b"origin" for name, _ in scope["headers"]):
            await PlainTextResponse("requests from web pages are refused", 403)(scope, receive, send)
            return
        await app(scope, receive, send)

    return app if host in {"127.0.0.1", "::1"} else checked


async def _serve(app: "ASGIApp", listener: socket.socket) -> None:
    import uvicorn  # noqa: PLC0415 - comes with the MCP SDK, which is an extra

    host, port = listener.getsockname()[:2]
    click.echo(f"perdure: MCP at http://{f'[{host}]' if ':' in host else host}:{port}/mcp", err=True)
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=SHUTDOWN_SECONDS)
    await uvicorn.Server(config).serve(sockets=[listener])


def bind_socket(address: str, *, allow_remote: bool) -> socket.socket:
    """A listening socket for ``HOST:PORT``."""
    host, _, digits = address.rpartition(":")
    host = host.strip("[]")
    if not host or not digits.isdigit():
        raise MistakeError(f"--http {address!r} is no HOST:PORT, for example 127.0.0.1:8765")
    try:
        family, _, _, _, place = socket.getaddrinfo(host, int(digits), type=socket.SOCK_STREAM)[0]
        if not (allow_remote or ipaddress.ip_address(place[0]).is_loopback):
            raise MistakeError(
                f"--http {address} is reachable from other machines, and anybody there could run agents; "
                "use 127.0.0.1, or add --allow-remote if a proxy in front of it asks for a login"
            )
        listener = socket.create_server(place[:2], family=family)
    except (OSError, OverflowError) as error:
        raise UnreachableError(f"--http {address} cannot be used ({error}); choose another address") from error
    return listener
