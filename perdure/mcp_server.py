"""Tools served over MCP: ``as_mcp`` makes a server of them that any MCP host can start.

The one module of the library that imports the MCP SDK, and it does so only when a server is made.
"""

import asyncio
import importlib.metadata
import json
import logging
import threading
import traceback
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from pydantic_core import to_json

from perdure.agents.context import ToolContext
from perdure.agents.tool import InvalidInputError, Tool, ToolDefinitionError, tool
from perdure.contracts.values import JsonValue
from perdure.engine.outputs import head_and_tail, whole_characters
from perdure.engine.redaction import hidden_values, redact_text, without_hidden
from perdure.settings import known_secrets

if TYPE_CHECKING:
    from mcp.server.mcpserver import Context, MCPServer
    from mcp.types import CallToolResult, InputRequiredResult
    from mcp.types import Tool as ListedTool

ERROR_CHARACTERS = 1_500
"""Longest error text that a client reads."""

Describe = Callable[[Exception], str | None]
"""The sentence for an error that is expected; None leaves it to the exception's class and text."""

logger = logging.getLogger("perdure.mcp")


class McpMissingError(ImportError):
    """The MCP SDK is not installed."""


class ToolTimeoutError(TimeoutError):
    """The body ran longer than the tool's time-out."""


@dataclass
class ServedCall(ToolContext):
    """The context of a call that came over MCP; its flag is set when the client cancels or the time-out is over.

    There is no turn: ``session`` is empty and ``turn`` 0. Clients do not repeat calls, so each has a key of its own.
    """

    call_id: str
    session: str = ""
    turn: int = 0
    idempotency_key: str = field(default_factory=lambda: uuid.uuid4().hex)
    stop: threading.Event = field(default_factory=threading.Event)
    report_progress: "Callable[[float, float | None, str | None], Awaitable[None]] | None" = None

    @property
    def cancelled(self) -> bool:
        """Whether the body should end."""
        return self.stop.is_set()

    def wait(self, seconds: float) -> bool:
        """Block until the flag is set, at most so long."""
        return self.stop.wait(seconds)

    async def report(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Tell the client how far the call is, if it asked to be told."""
        if self.report_progress is not None:
            await self.report_progress(progress, total, message)


@dataclass(frozen=True)
class _Outcome:
    text: str
    structured: JsonValue = None
    is_error: bool = False


def as_mcp(
    *tools: Tool[..., Any] | Callable[..., Any],
    name: str = "perdure",
    instructions: str | None = None,
    describe: Describe = lambda _: None,
) -> "MCPServer[Any]":
    """An MCP server with these tools; ``as_mcp(…).run()`` serves them over stdio.

    Names, descriptions, schemas, time-outs, ``truncate`` and ``masked`` are the tools' own. Whatever a tool raises
    becomes an error result; what its ``catch`` does not list is logged too.

    Args:
        tools: Tools, or plain functions that :func:`perdure.tool` can make tools of.
        name: What the server calls itself.
        instructions: What a host tells its model about the server.
        describe: The whole sentence for errors that are expected.

    Raises:
        McpMissingError: The MCP SDK is not installed.
        ToolDefinitionError: Something is no tool, two tools have one name, or one needs a person.
    """
    try:
        from mcp.server.mcpserver import MCPServer  # noqa: PLC0415 - see the module's docstring
        from mcp.types import CallToolResult, TextContent  # noqa: PLC0415
        from mcp.types import Tool as ListedTool  # noqa: PLC0415
    except ImportError as error:
        msg = "the MCP SDK is not installed; install it with: pip install 'perdure[mcp]'"
        raise McpMissingError(msg) from error
    served = _by_name(tools)
    secrets = known_secrets()

    class Server(MCPServer[Any]):
        """The SDK's server, with our tools before those that are added to it."""

        async def list_tools(self) -> "list[ListedTool]":
            ours = [
                ListedTool(name=each.name, description=each.description, input_schema=dict(each.parameters))
                for each in (one.declaration for one in served.values())
            ]
            return [*ours, *await super().list_tools()]

        async def call_tool(
            self, name: str, arguments: dict[str, Any], context: "Context[Any, Any] | None" = None
        ) -> "CallToolResult | InputRequiredResult":
            if name not in served:
                return await super().call_tool(name, arguments, context)
            outcome = await _carried_out(served[name], arguments, _call(context), describe, secrets)
            return CallToolResult(
                content=[TextContent(type="text", text=outcome.text)],
                structured_content=outcome.structured,
                is_error=outcome.is_error,
            )

    version = importlib.metadata.version("perdure")
    return Server(name, instructions=instructions, version=version, log_level="WARNING")


def _by_name(tools: tuple[Tool[..., Any] | Callable[..., Any], ...]) -> dict[str, Tool[..., Any]]:
    served: dict[str, Tool[..., Any]] = {}
    for each in tools:
        if not callable(each):
            msg = f"as_mcp takes tools and functions, not {each!r}"
            raise ToolDefinitionError(msg)
        one = cast("Tool[..., Any]", each if isinstance(each, Tool) else tool(each))
        if one.declaration.interactive or one.declaration.requires_approval:
            msg = f"tool {one.name!r} needs a person's answer or approval, which only a turn waits for; leave it out"
            raise ToolDefinitionError(msg)
        if one.name in served:
            msg = f"two tools are called {one.name!r}; give one another name with tool.with_(name=…)"
            raise ToolDefinitionError(msg)
        served[one.name] = one
    return served


def _call(context: "Context[Any, Any] | None") -> ServedCall:
    if context is None:  # called in Python, with no client
        return ServedCall(call_id=uuid.uuid4().hex)
    return ServedCall(call_id=context.request_id, report_progress=context.report_progress)


async def _carried_out(
    tool: Tool[..., Any], raw: dict[str, Any], call: ServedCall, describe: Describe, secrets: frozenset[str]
) -> _Outcome:
    """Run the tool; nothing that it raises leaves here, and nothing that it masks."""
    hidden = hidden_values(raw, tool.declaration.masked)
    try:
        value = await _run(tool, tool.checked(raw), call)
        text = whole_characters(value) if isinstance(value, str) else to_json(value, inf_nan_mode="constants").decode()
    except Exception as error:  # noqa: BLE001 - the edge: a server outlives its tools
        unspoken = secrets | hidden.named | hidden.guessed
        told = describe(error)
        expected = isinstance(error, InvalidInputError) or tool.declaration.catches(error)
        if told is None and not expected:
            trace = "".join(traceback.format_exception(error))
            logger.warning("tool %s raised: %s", tool.name, redact_text(whole_characters(trace), unspoken))
        text = told or f"{type(error).__name__}: {error}"
        return _Outcome(redact_text(whole_characters(text), unspoken)[:ERROR_CHARACTERS], is_error=True)
    text = without_hidden(text, hidden, secrets)
    limit = tool.declaration.truncate
    if limit is not None and len(text) > limit:
        return _Outcome(head_and_tail(text, limit))
    return _Outcome(text, None if isinstance(value, str) else _structured(text))


async def _run(tool: Tool[..., Any], arguments: dict[str, Any], call: ServedCall) -> Any:  # noqa: ANN401 - any result
    if tool.context_parameter is not None:
        arguments = {**arguments, tool.context_parameter: call}
    limit = tool.declaration.timeout.total_seconds()
    deadline = asyncio.timeout(limit)
    try:
        async with deadline:
            return await _body(tool, arguments)
    except TimeoutError as error:
        if not deadline.expired():
            raise
        msg = f"{tool.name} ran longer than its time-out of {limit:g} s; its effect is unknown"
        raise ToolTimeoutError(msg) from error
    finally:
        call.stop.set()


async def _body(tool: Tool[..., Any], arguments: dict[str, Any]) -> Any:  # noqa: ANN401 - any result
    """The tool's result. It cannot end the server: neither by an exit nor by a cancellation of its own."""
    from anyio import to_thread  # noqa: PLC0415 - comes with the SDK

    try:
        if tool.is_async:
            return await tool.function(**arguments)
        return await to_thread.run_sync(partial(tool.function, **arguments), abandon_on_cancel=True)
    except (SystemExit, KeyboardInterrupt) as error:
        msg = f"the tool tried to end the process: {error!r}"
        raise RuntimeError(msg) from error
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        msg = f"{tool.name} cancelled itself"
        raise RuntimeError(msg) from error


def _structured(text: str) -> JsonValue:
    """The result as an object, which is what clients of every age take."""
    try:
        value: JsonValue = json.loads(text)
    except ValueError:  # a mask in place of a number
        return None
    return value if isinstance(value, dict) else {"result": value}
