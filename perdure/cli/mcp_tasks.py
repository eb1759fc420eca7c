"""Tasks of MCP (SEP-2663) for ``perdure mcp``: a turn as a handle that a host polls, answers and cancels.

A host that declares the extension gets a task from ``wait`` in place of a call that lasts. The task's id is the turn's,
so this server keeps nothing, and another one, or the same after a restart, goes on with it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.extension import Extension, MethodBinding
from mcp.server.mcpserver import MCPServer
from mcp.shared.exceptions import MCPError
from mcp.types import CallToolRequestParams, CallToolResult, ElicitResult, InputRequiredResult, RequestParams
from mcp_types import CLIENT_CAPABILITIES_META_KEY, CLIENT_INFO_META_KEY
from mcp_types.jsonrpc import INVALID_PARAMS, MISSING_REQUIRED_CLIENT_CAPABILITY
from pydantic import Field

from perdure.agents.tool import Tool
from perdure.client import Client, ClientError, UnknownSessionError
from perdure.client.views import TurnView
from perdure.contracts.a2a import TaskId
from perdure.contracts.input_requests import InputRequest
from perdure.contracts.turns import RunState, StopReason
from perdure.contracts.values import JsonValue
from perdure.mcp_server import Describe, serve_tools

EXTENSION = "io.modelcontextprotocol/tasks"

VERSIONS = frozenset({"2026-07-28"})

POLL_MILLISECONDS = 2_000

Json = dict[str, JsonValue]
Context = ServerRequestContext[Any, Any]
CallTool = Callable[[str, dict[str, Any]], Awaitable[CallToolResult | InputRequiredResult]]


def with_tasks(
    *tools: Tool[..., Any],
    client: Callable[[], Awaitable[Client]],
    opening: timedelta,
    instructions: str,
    describe: Describe,
) -> MCPServer[Any]:
    """A server of the tools, one of which is ``wait``; hosts that take tasks get one from it."""

    async def call_tool(name: str, arguments: dict[str, Any]) -> CallToolResult | InputRequiredResult:
        return await server.call_tool(name, arguments)

    tasks = Tasks(client, call_tool, opening)
    server = serve_tools(
        tools, name="perdure", instructions=instructions, describe=describe, extensions=[tasks], ours=True
    )
    return server


class TaskParams(RequestParams):
    """Parameters of ``tasks/get`` and ``tasks/cancel``."""

    task_id: str


class UpdateParams(TaskParams):
    """Parameters of ``tasks/update``: replies of people, by the ids of the requests."""

    input_responses: dict[str, ElicitResult] = Field(default_factory=dict[str, ElicitResult])


class Tasks(Extension):
    """The extension, for a server whose tool ``wait`` gives the result of a turn that has ended.

    Args:
        client: The client of the cluster.
        call_tool: Calls a tool of the server.
        opening: Longest time until a started turn has its number; one without is waited for in the usual way.
    """

    identifier = EXTENSION

    def __init__(self, client: Callable[[], Awaitable[Client]], call_tool: CallTool, opening: timedelta) -> None:
        self._client = client
        self._call_tool = call_tool
        self._opening = opening

    def methods(self) -> Sequence[MethodBinding]:
        """The three methods of the extension."""
        return [
            MethodBinding("tasks/get", TaskParams, self._get, VERSIONS),
            MethodBinding("tasks/update", UpdateParams, self._update, VERSIONS),
            MethodBinding("tasks/cancel", TaskParams, self._cancel, VERSIONS),
        ]

    async def intercept_tool_call(
        self, params: CallToolRequestParams, ctx: Context, call_next: CallNext
    ) -> HandlerResult:
        """Reply to ``wait`` with a task while its turn goes on; all else goes its usual way, and so do its mistakes."""
        if params.name != "wait" or not _declares(ctx, EXTENSION):
            return await call_next(ctx)
        task = await self._find(params.arguments or {})
        if task is None:
            return await call_next(ctx)
        told = await self._describe(task, ctx)
        return await call_next(ctx) if told["status"] in {"completed", "cancelled"} else {**told, "resultType": "task"}

    async def _find(self, arguments: Mapping[str, Any]) -> TaskId | None:
        """The turn that ``wait`` is asked about; None if there is none, or it has no number yet."""
        session, turn = arguments.get("session"), arguments.get("turn")
        if not isinstance(session, str) or not (turn is None or type(turn) is int):
            return None
        client = await self._client()
        try:
            if turn is None:
                async with asyncio.timeout(self._opening.total_seconds()):
                    turn = await (await client.attach(session)).number()
            return None if turn is None else TaskId(session, (await client.turn_view(session, turn)).turn)
        except (ClientError, TimeoutError):
            return None

    async def _get(self, ctx: Context, params: TaskParams) -> HandlerResult:
        return {**await self._describe(_task(ctx, params), ctx), "resultType": "complete"}

    async def _describe(self, task: TaskId, ctx: Context) -> Json:
        """The task as it is.

        Raises:
            MCPError: There is no such turn.
        """
        client = await self._client()
        view = await _view(client, task)
        told = _task_to_json(task, view)
        if view.state is RunState.ENDED:
            if view.result is not None and view.result.stop_reason is StopReason.CANCELLED:
                return {**told, "status": "cancelled", "statusMessage": view.result.error or "the turn was cancelled"}
            return {**told, "status": "completed", "result": await self._result(task)}
        if not (requests := await _requests(client, task)):
            return told
        if not _declares(ctx, None):  # its user cannot be asked by this server: the model reads what wait says
            return {**told, "status": "completed", "result": await self._result(task)}
        asked: Json = {request.request_id: _elicit(request) for request in requests}
        return {**told, "status": "input_required", "inputRequests": asked}

    async def _result(self, task: TaskId) -> JsonValue:
        result = await self._call_tool("wait", {"session": task.session, "turn": task.turn})
        told: Json = result.model_dump(mode="json", by_alias=True, exclude_none=True)
        return told

    async def _update(self, ctx: Context, params: UpdateParams) -> HandlerResult:
        task, by = _task(ctx, params), _name_of(ctx)
        client = await self._client()
        await _view(client, task)
        open_requests = {request.request_id: request for request in await _requests(client, task)}
        for name, response in params.input_responses.items():
            if (request := open_requests.get(name)) is None:
                continue  # one that was replied to, or that nobody made
            try:
                await _reply(client, task.session, request, response, by)
            except ClientError as error:
                raise MCPError(INVALID_PARAMS, str(error)) from None
        return {"resultType": "complete"}

    async def _cancel(self, ctx: Context, params: TaskParams) -> HandlerResult:
        task = _task(ctx, params)
        client = await self._client()
        if (await _view(client, task)).state is not RunState.ENDED:
            try:
                await client.cancel(task.session, f"by {_name_of(ctx)}", task.turn)
            except ClientError as error:
                raise MCPError(INVALID_PARAMS, str(error)) from None
        return {"resultType": "complete"}


def _task(ctx: Context, params: TaskParams) -> TaskId:
    """The task that a request names.

    Raises:
        MCPError: The host has not declared the extension, or there is no such task.
    """
    if not _declares(ctx, EXTENSION):
        needed: Json = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
        raise MCPError(MISSING_REQUIRED_CLIENT_CAPABILITY, "tasks need the extension in clientCapabilities", needed)
    if (task := TaskId.parse(params.task_id)) is None:
        raise _unknown()
    return task


async def _view(client: Client, task: TaskId) -> TurnView:
    try:
        return await client.turn_view(task.session, task.turn)
    except UnknownSessionError:
        raise _unknown() from None


def _unknown() -> MCPError:
    return MCPError(INVALID_PARAMS, "there is no such task")


async def _requests(client: Client, task: TaskId) -> Sequence[InputRequest]:
    """The requests that the task's turn waits for."""
    view = await client.session_view(task.session)
    return view.requests if view.opened is not None and view.opened[1].turn == task.turn else ()


def _task_to_json(task: TaskId, view: TurnView) -> Json:
    now = datetime.now(UTC)
    return {
        "taskId": str(task),
        "status": "working",
        "createdAt": (view.started_at or now).isoformat(),
        "lastUpdatedAt": (view.ended_at or now).isoformat(),
        "ttlMs": None,
        "pollIntervalMs": POLL_MILLISECONDS,
    }


def _elicit(request: InputRequest) -> Json:
    """A request to a person as MCP asks for it."""
    message = request.question or f"{request.tool} {request.arguments}"
    schema: JsonValue = request.form
    if request.needs == "approval":
        message = f"May {request.tool} run with {request.arguments}?"
        schema = _form(("decision",), decision=["approve", "deny"], reason=None)
    elif request.needs == "result":
        message = f"Run {request.tool} with {request.arguments}, and give its result, or why it failed."
        schema = _form((), value=None, error=None)
    elif schema is None:
        schema = _form(("value",), value=[*request.options] or None)
    params: Json = {"mode": "form", "message": message, "requestedSchema": schema}
    return {"method": "elicitation/create", "params": params}


def _form(required: Sequence[str], **fields: "Sequence[str] | None") -> Json:
    """A schema of texts; each with the values that it may have, or None for any."""
    properties: Json = {
        name: {"type": "string"} if values is None else {"type": "string", "enum": [*values]}
        for name, values in fields.items()
    }
    return {"type": "object", "properties": properties, "required": [*required]}


async def _reply(client: Client, session: str, request: InputRequest, response: ElicitResult, by: str) -> None:
    """Pass on what a person has replied; a form that was closed decides nothing."""
    content = cast("Json", response.content or {})
    name = request.request_id
    if response.action == "decline":
        await client.deny(session, name, by=by, reason="declined")
    elif response.action != "accept":
        return
    elif request.needs == "answer":
        await client.answer(session, name, content if request.form is not None else content.get("value"), by=by)
    elif request.needs == "result":
        value, error = content.get("value"), content.get("error")
        await client.submit_result(
            session, name, value, error=None if error is None else str(error), by=by, digest=request.digest
        )
    elif content.get("decision") == "approve":
        await client.approve(session, name, by=by, digest=request.digest)
    elif content.get("decision") == "deny":
        await client.deny(session, name, by=by, reason=str(content.get("reason") or ""))
    else:
        raise MCPError(INVALID_PARAMS, f"{name}: decision is approve or deny")


def _declares(ctx: Context, extension: str | None) -> bool:
    """Whether the request declares an extension; without one, that its user can fill in a form."""
    declared = _object(ctx.meta, CLIENT_CAPABILITIES_META_KEY)
    if extension is None:
        return declared.get("elicitation") is not None
    return extension in _object(declared, "extensions")


def _name_of(ctx: Context) -> str:
    """The host's name, as it gives it."""
    return str(_object(ctx.meta, CLIENT_INFO_META_KEY).get("name") or "MCP host")


def _object(values: object, name: str) -> Mapping[str, object]:
    """The object under a name; an empty one if there is none."""
    found = cast("Mapping[str, object]", values).get(name) if isinstance(values, Mapping) else None
    return cast("Mapping[str, object]", found) if isinstance(found, Mapping) else {}
