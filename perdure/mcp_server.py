"""Tools served over MCP: ``as_mcp`` makes a server of them that any MCP host can start.

The one module of the library that imports the MCP SDK, and it does so only when a server is made. Long, because a call
is carried out here without a worker: its arguments, its body, its result and its errors.
"""

import asyncio
import base64
import importlib.metadata
import itertools
import json
import logging
import os
import threading
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from perdure.agents.builtin_tools import read_output
from perdure.agents.context import InvalidInputError, ToolContext, ToolDefinitionError, ToolUnavailableError
from perdure.agents.environment import UnmetNeedError, problems_of, secrets_among
from perdure.agents.files import File
from perdure.agents.parameters import ReturnValue
from perdure.agents.settings import tools_of
from perdure.agents.skills import is_skill_tool
from perdure.agents.tool import Tool
from perdure.agents.toolset import LEAVING_SECONDS, Toolset
from perdure.contracts.exceptions import print_error, print_traceback, raised_of
from perdure.contracts.plain import to_text
from perdure.contracts.tools import ToolDeclaration
from perdure.contracts.values import JsonValue, replace_surrogates
from perdure.lanes.bodies import Bodies, loops_of_process
from perdure.lanes.lanes import wait_within
from perdure.llm.tool_output import Attachment, Attachments, Part, ToolTimeoutError, head_and_tail, parts_of
from perdure.security.redaction import hidden_values_of, redact_text, without_hidden
from perdure.settings import secrets_of

if TYPE_CHECKING:
    from mcp.server.extension import Extension
    from mcp.server.mcpserver import Context, MCPServer
    from mcp.types import CallToolResult, ContentBlock, InputRequiredResult
    from mcp.types import Tool as ListedTool
    from starlette.applications import Starlette

MISSING_SDK = "the MCP SDK is not installed; install it with: pip install 'perdure[mcp]'"

ERROR_CHARACTERS = 1_500
"""Longest error text that a client reads."""

DEEPEST_STRUCTURED = 100
"""Values nested deeper are sent as text alone: clients cannot parse a message nested deeper than about 200."""

THREADS = 64
"""Sync tools of a server that may run at once."""

STOP_CHARACTERS = 500
"""Longest reason for which a tool asks to stop."""

IDLE_SECONDS = 600.0
"""Time without a request after which an HTTP session of the older protocol generation is closed. It takes 40 KB."""

MOST_SESSIONS = 500
"""Most such sessions at once, since anybody who reaches the port can open one."""

T = TypeVar("T")

Describe = Callable[[Exception], str | None]
"""The sentence for an error that is expected; None leaves it to the exception's class and text."""

logger = logging.getLogger("perdure.mcp")


class McpMissingError(ImportError):
    """The MCP SDK is not installed."""


@dataclass
class ServedCall(ToolContext):
    """The context of a call over MCP. Its flag is set when the client cancels, or at the timeout.

    There is no turn: ``session`` is empty and ``turn`` is 0. Clients do not repeat calls, so each call has an
    idempotency key of its own. There are no artifacts, and no turn for ``stop_turn`` to end: the result only says that
    the tool asked for it.
    """

    call_id: str
    session: str = ""
    turn: int = 0
    idempotency_key: str = field(default_factory=lambda: uuid.uuid4().hex)
    stop: threading.Event = field(default_factory=threading.Event)
    tell: "Callable[[float, float | None, str | None], Awaitable[None]] | None" = None
    loop: asyncio.AbstractEventLoop | None = None
    stop_reason: str | None = None

    @property
    def cancelled(self) -> bool:
        """Whether the body should end."""
        return self.stop.is_set()

    def wait(self, seconds: float) -> bool:
        """Block until the flag is set, at most ``seconds``; True if it is set."""
        return self.stop.wait(seconds)

    def report_progress(self, progress: float, total: float | None = None, message: str = "") -> None:
        """Send progress to the client if it asked for that; from any thread, without waiting."""
        if self.loop is not None and self.tell is not None and not self.stop.is_set():
            asyncio.run_coroutine_threadsafe(self.report(progress, total, message), self.loop)

    def stop_turn(self, reason: str) -> None:
        """Note the reason; the first one counts."""
        if self.stop_reason is None:
            self.stop_reason = to_text(reason)

    def read_artifact(self, handle: str) -> File:
        """Refuse: a call over MCP has no session with artifacts."""
        msg = f"there is no artifact {handle!r}: a call over MCP has no session that could have one"
        raise InvalidInputError(msg)

    async def report(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Send progress to the client if it asked for that."""
        if self.tell is not None:
            await self.tell(progress, total, message)


@dataclass(frozen=True)
class _Outcome:
    content: "list[ContentBlock]"
    structured: JsonValue = None
    is_error: bool = False


class _Around:
    """State that all calls of a server share."""

    def __init__(
        self, describe: Describe, environment: Mapping[str, str], tools: Iterable[Tool[..., Any]], *, ours: bool
    ) -> None:
        tools = tuple(tools)
        problems = [
            line for offered in tools for line in problems_of(f"tool {offered.name!r}", offered.needs, environment)
        ]
        if problems:
            raise UnmetNeedError("; ".join(problems))
        self.describe = describe
        self.ours = ours
        self.secrets = secrets_of(environment).union(*(secrets_among(offered.needs, environment) for offered in tools))
        self.bodies = Bodies(THREADS, environment, loops_of_process())


def as_mcp(
    *tools: Tool[..., Any] | Toolset | Callable[..., Any],
    name: str = "perdure",
    instructions: str | None = None,
    describe: Describe = lambda _: None,
    extensions: "Sequence[Extension]" = (),
) -> "MCPServer[Any]":
    """An MCP server with these tools; ``as_mcp(…).run()`` serves them over stdio.

    Names, descriptions, schemas, time-outs, ``truncate``, ``masked`` and ``idempotent`` are the tools' own. Whatever a
    tool raises becomes an error result; what its ``catch`` does not list is logged too.

    Args:
        tools: Tools, instances of toolsets, or plain functions that :func:`perdure.tool` can make tools of. What they
            need is read from the environment of this process; a toolset is left when the server ends.
        name: What the server calls itself.
        instructions: What a host tells its model about the server.
        describe: The whole sentence for errors that are expected.
        extensions: Extensions of the protocol, as the SDK has them.

    Raises:
        McpMissingError: The MCP SDK is not installed.
        ToolDefinitionError: Something is not a tool, two tools have one name, or one needs a turn or a person.
        UnmetNeedError: The environment lacks what a tool needs.
    """
    return serve_tools(
        tools, name=name, instructions=instructions, describe=describe, extensions=extensions, ours=False
    )


def serve_tools(
    tools: "Sequence[Tool[..., Any] | Toolset | Callable[..., Any]]",
    *,
    name: str,
    instructions: str | None,
    describe: Describe,
    extensions: "Sequence[Extension]",
    ours: bool,
) -> "MCPServer[Any]":
    """The server of :func:`as_mcp`; ``ours`` says that the tools are perdure's and run on the server's event loop."""
    try:
        from mcp.server.mcpserver import MCPServer  # noqa: PLC0415 - see the module's docstring
        from mcp.types import CallToolResult, ToolAnnotations  # noqa: PLC0415
        from mcp.types import Tool as ListedTool  # noqa: PLC0415
    except ImportError as error:
        raise McpMissingError(MISSING_SDK) from error
    served = _index_by_name(tools)
    around = _Around(describe, dict(os.environ), tuple(served.values()), ours=ours)

    @asynccontextmanager
    async def leaving(_: object) -> AsyncIterator[dict[str, Any]]:
        try:
            yield {}
        finally:
            await _leave(around)

    class Server(MCPServer[Any]):
        """The SDK's server, with perdure's tools before those that are added to it."""

        async def list_tools(self) -> "list[ListedTool]":
            ours = [
                ListedTool(
                    name=each.name,
                    description=each.description,
                    input_schema=dict(each.parameters),
                    annotations=ToolAnnotations(idempotent_hint=True) if each.idempotent else None,
                )
                for each in (served_tool.declaration for served_tool in served.values())
            ]
            return [*ours, *await super().list_tools()]

        async def call_tool(
            self, name: str, arguments: dict[str, Any], context: "Context[Any, Any] | None" = None
        ) -> "CallToolResult | InputRequiredResult":
            if name not in served:
                return await super().call_tool(name, arguments, context)
            outcome = await _run_tool(served[name], arguments, _call(context), around)
            return CallToolResult(
                content=outcome.content, structured_content=outcome.structured, is_error=outcome.is_error
            )

    version = importlib.metadata.version("perdure")
    return Server(
        name,
        instructions=instructions,
        version=version,
        log_level="WARNING",
        lifespan=leaving,
        extensions=extensions,
    )


def as_web_application(server: "MCPServer[Any]", host: str) -> "Starlette":
    """The server as an ASGI application over HTTP; idle sessions are closed."""
    return server.streamable_http_app(host=host, session_idle_timeout=IDLE_SECONDS, max_sessions=MOST_SESSIONS)


def _index_by_name(given: Sequence[Tool[..., Any] | Toolset | Callable[..., Any]]) -> dict[str, Tool[..., Any]]:
    served: dict[str, Tool[..., Any]] = {}
    for offered in (made for item in given for made in tools_of(item)):
        if (why := _explain_only_in_a_turn(offered.declaration)) is not None:
            msg = f"tool {offered.name!r} {why}; leave it out"
            raise ToolDefinitionError(msg)
        if offered.name in served:
            msg = f"two tools are called {offered.name!r}; give one another name with tool.with_(name=…)"
            raise ToolDefinitionError(msg)
        served[offered.name] = offered
    return served


def _explain_only_in_a_turn(declaration: ToolDeclaration) -> str | None:
    """Reason a tool could never work here; None if it may."""
    if declaration.interactive or declaration.requires_approval:
        return "needs a person's answer or approval, which only a turn waits for"
    if declaration.builtin is not None or declaration.delegate is not None or is_skill_tool(declaration):
        return "is carried out by the turn that it is called in, and over MCP there is none"
    if declaration.reference == read_output.declaration.reference:
        return "reads the artifacts of a session, and over MCP there is none"
    return None


def _call(context: "Context[Any, Any] | None") -> ServedCall:
    if context is None:  # called in Python, with no client
        return ServedCall(call_id=uuid.uuid4().hex)
    return ServedCall(call_id=context.request_id, tell=context.report_progress, loop=asyncio.get_running_loop())


async def _run_tool(tool: Tool[..., Any], raw: dict[str, Any], call: ServedCall, around: _Around) -> _Outcome:
    """Run the tool. Whatever it raises becomes an error result, without the values that it masks."""
    hidden = hidden_values_of(raw, tool.declaration.masked)
    unspoken = around.secrets | hidden.named | hidden.guessed
    try:
        parts = await _run(tool, raw, call, around)
    except Exception as error:  # noqa: BLE001 - the edge: a server outlives its tools
        told, raised = _describe(error, around), raised_of(error)
        expected = isinstance(error, InvalidInputError | ToolUnavailableError) or tool.declaration.catches(raised)
        if told is None and not expected:
            trace = print_traceback(raised)
            logger.warning("tool %s raised: %s", tool.name, redact_text(replace_surrogates(trace), unspoken))
        text = told or print_error(error)
        text = redact_text(replace_surrogates(text), unspoken)[:ERROR_CHARACTERS]
        return _Outcome([_text(text)], is_error=True)
    outcome = _outcome_of(tool.declaration, parts, call, lambda text: without_hidden(text, hidden, around.secrets))
    if call.stop_reason is None:
        return outcome
    reason = redact_text(replace_surrogates(" ".join(call.stop_reason.split())), unspoken)[:STOP_CHARACTERS]
    return _Outcome([*outcome.content, _text(f"[{tool.name} asks you to stop here: {reason}]")])


def _describe(error: Exception, around: _Around) -> str | None:
    """The author's sentence for an error; None without one, or if that fails."""
    try:
        told = around.describe(error)
        return None if told is None else to_text(told)
    except BaseException as problem:  # noqa: BLE001 - the edge: it is the author's code
        logger.warning("the sentence for an error could not be made: %s", print_error(problem))
        return None


def _outcome_of(
    declaration: ToolDeclaration, parts: Sequence[Part], call: ServedCall, shown: Callable[[str], str]
) -> _Outcome:
    """The content blocks of a result, in order; if its text is cut, the text comes before images and files.

    A value that is JSON and nothing else is structured content too. Others are not: many hosts read nothing beside it.
    """
    parts = [replace(part, text=shown(part.text)) for part in parts]
    limit = declaration.truncate
    text = "\n".join(part.text for part in parts if part.kind != "attachment")
    if limit is not None and len(text) > limit:
        attached = tuple(attachment for part in parts for attachment in part.attachments)
        parts = [Part("text", head_and_tail(text, limit), attached)]
    numbers = itertools.count(1)
    content: list[ContentBlock] = []
    for part in parts:
        if part.kind != "attachment":
            content.append(_text(part.text))
        content += [
            _block(attachment, f"perdure://calls/{call.idempotency_key}/{next(numbers)}", shown)
            for attachment in part.attachments
        ]
    structured = _structured(parts[0].text) if len(content) == 1 and parts[0].kind == "json" else None
    return _Outcome(content, structured)


def _text(text: str) -> "ContentBlock":
    from mcp.types import TextContent  # noqa: PLC0415 - see the module's docstring

    return TextContent(text=text)


def _block(attachment: Attachment, address: str, shown: Callable[[str], str]) -> "ContentBlock":
    """An image, or a file as an embedded resource with this address; a text file as text."""
    from mcp.types import (  # noqa: PLC0415 - see the module's docstring
        BlobResourceContents,
        EmbeddedResource,
        ImageContent,
        TextResourceContents,
    )

    if attachment.file is None:
        return ImageContent(data=base64.b64encode(attachment.data).decode(), mime_type=attachment.media_type)
    address = f"{address}/{quote(shown(replace_surrogates(attachment.file)), safe='')}"
    try:
        text = File(attachment.file, attachment.data, attachment.media_type).text
    except ValueError:
        blob = base64.b64encode(attachment.data).decode()
        return EmbeddedResource(resource=BlobResourceContents(uri=address, mime_type=attachment.media_type, blob=blob))
    return EmbeddedResource(
        resource=TextResourceContents(uri=address, mime_type=attachment.media_type, text=shown(text))
    )


async def _run(tool: Tool[..., Any], raw: dict[str, Any], call: ServedCall, around: _Around) -> list[Part]:
    """Check the arguments, run the tool and read its result, within its timeout.

    Raises:
        Exception: Whatever the tool raises, or that its result cannot be sent.
    """
    limit = tool.declaration.timeout.total_seconds()
    late = ToolTimeoutError(f"{tool.name} ran longer than its time-out of {limit:g} s; its effect is unknown")
    try:
        if around.ours:
            return await _run_here(tool, raw, call, late)
        body = around.bodies.start(
            tool, lambda: tool.check_arguments(raw), call, lambda value: _read(value, tool.returns)
        )
        parts: list[Part] = await wait_within(body, limit, who=tool.name, late=late, give_up=call.stop.set)
        return parts
    finally:
        call.stop.set()


async def _run_here(tool: Tool[..., Any], raw: dict[str, Any], call: ServedCall, late: TimeoutError) -> list[Part]:
    """Run an async tool of perdure's own, whose client belongs to this event loop."""
    arguments = tool.check_arguments(raw)
    if tool.context_parameter is not None:
        arguments[tool.context_parameter] = call
    deadline = asyncio.timeout(tool.declaration.timeout.total_seconds())
    try:
        async with deadline:
            return _read(await tool.function(**arguments), tool.returns)
    except TimeoutError:
        if deadline.expired():
            raise late from None
        raise


async def _leave(around: _Around) -> None:
    """Leave the toolsets, even if the server is cancelled."""
    from anyio import move_on_after, to_thread  # noqa: PLC0415 - comes with the SDK

    with move_on_after(LEAVING_SECONDS, shield=True):
        for problem in await to_thread.run_sync(around.bodies.leave_toolsets, abandon_on_cancel=True):
            logger.warning("%s", redact_text(replace_surrogates(problem), around.secrets))


def _read(value: object, annotated: ReturnValue | None) -> list[Part]:
    attachments = Attachments()
    parts = parts_of(value, attachments, annotated)
    attachments.check()
    return parts


def _structured(text: str) -> JsonValue:
    """The result as a JSON object, as all versions of the protocol want it; None if clients could not read it."""
    try:
        value: JsonValue = json.loads(text)
    except (ValueError, RecursionError):  # for example a mask in place of a number
        return None
    if _is_deep(value):
        return None
    return value if isinstance(value, dict) else {"result": value}


def _is_deep(value: JsonValue) -> bool:
    level = [value]
    for _ in range(DEEPEST_STRUCTURED + 1):
        level = [inner for item in level for inner in _parts_of(item)]
    return bool(level)


def _parts_of(value: JsonValue) -> Iterable[JsonValue]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
