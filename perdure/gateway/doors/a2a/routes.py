"""The routes of this door: one for JSON-RPC, those of the REST binding, and the card. Both bindings do the same."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any

from fastapi import Depends, Path
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from perdure.contracts.errors import PerdureError, ReasonCode
from perdure.contracts.values import JsonValue
from perdure.gateway.access import GatewayOf, sender_of
from perdure.gateway.bodies import BodyRoute, Handler, Router
from perdure.gateway.callers import Caller, Scope
from perdure.gateway.doors import Door
from perdure.gateway.doors.a2a import errors
from perdure.gateway.doors.a2a.calls import Call, check_version
from perdure.gateway.doors.a2a.card import PREFIX, find_agent, make_card
from perdure.gateway.doors.a2a.errors import (
    A2AError,
    write_error,
    write_rest,
    write_rpc,
)
from perdure.gateway.doors.a2a.objects import Object
from perdure.gateway.doors.a2a.requests import (
    Ask,
    AskBody,
    GetTask,
    ListPushes,
    ListTasks,
    NewPush,
    PushAsk,
    PushBody,
    RpcBody,
    SendBody,
    SendMessage,
    TaskAsk,
    read_params,
)
from perdure.gateway.doors.a2a.signing import load_signer
from perdure.gateway.problems import ProblemCode, ProblemError, problem_of


class RestRoute(BodyRoute):
    """A route of the REST binding: a refusal keeps the protocol's reason."""

    def get_route_handler(self) -> Handler:
        """FastAPI's handler, whose refusals with a reason are answered here; the gateway answers others."""
        handle = super().get_route_handler()

        async def handle_rest(request: Request) -> Response:
            try:
                return await handle(request)
            except A2AError as error:
                request.state.problem = str(error.code)  # for the audit log
                return write_rest(error)

        return handle_rest


router = Router(prefix=f"{PREFIX}/{{agent}}", include_in_schema=False)
router.route_class = RestRoute

AgentPath = Annotated[str, Path(max_length=200)]
TaskPath = Annotated[str, Path(max_length=500)]
PushPath = Annotated[str, Path(max_length=500)]
Sender = Annotated[Caller, Depends(sender_of)]
"""Who asks. Each operation looks at the scopes that it needs."""

_Operation = Callable[[Call, Any], Awaitable[Response]]

METHODS: Mapping[str, tuple[type[Ask], _Operation]] = {
    "SendMessage": (SendMessage, Call.send_message),
    "SendStreamingMessage": (SendMessage, Call.stream_message),
    "GetTask": (GetTask, Call.get_task),
    "ListTasks": (ListTasks, Call.list_tasks),
    "CancelTask": (TaskAsk, Call.cancel_task),
    "SubscribeToTask": (TaskAsk, Call.subscribe),
    "CreateTaskPushNotificationConfig": (NewPush, Call.add_push),
    "GetTaskPushNotificationConfig": (PushAsk, Call.get_push),
    "ListTaskPushNotificationConfigs": (ListPushes, Call.list_pushes),
    "DeleteTaskPushNotificationConfig": (PushAsk, Call.remove_push),
    "GetExtendedAgentCard": (Ask, Call.get_extended_card),
}
"""The methods of JSON-RPC, with their parameters."""


class RpcRoute(BodyRoute):
    """The route of JSON-RPC: a refusal is an answer to the request, also where its body cannot be read."""

    def get_route_handler(self) -> Handler:
        """FastAPI's handler, whose refusals are answered here."""
        handle = super().get_route_handler()

        async def handle_rpc(request: Request) -> Response:
            try:
                return await handle(request)
            except RequestValidationError:
                refused: ProblemError | None = getattr(request.state, "refused_body", None)
                error = refused or ProblemError(422, ReasonCode.REQUEST_INVALID, "the body is no request of JSON-RPC")
                code = None if error.code == ProblemCode.BAD_JSON else errors.INVALID_REQUEST
                return _refuse(request, error, code)
            except HTTPException as error:
                if error.status_code != 413:
                    raise
                return _refuse(request, ProblemError(413, ReasonCode.REQUEST_TOO_LARGE, str(error.detail)))

        return handle_rpc


def _refuse(request: Request, error: ProblemError, code: int | None = None, number: JsonValue = None) -> Response:
    request.state.problem = str(error.code)  # for the audit log
    return write_rpc(error, number, code)


async def call_method(
    agent: AgentPath, caller: Sender, request: Request, body: RpcBody, gateway: GatewayOf
) -> Response:
    """The route of JSON-RPC."""
    number = body.id
    if isinstance(number, bool) or not isinstance(number, str | int | float | None):
        number = None
    if body.jsonrpc != "2.0" or not isinstance(body.method, str) or number != body.id:
        msg = 'the body is no request of JSON-RPC; send {"jsonrpc": "2.0", "id": …, "method": …, "params": {…}}'
        return _refuse(request, ProblemError(422, ReasonCode.REQUEST_INVALID, msg), errors.INVALID_REQUEST, number)
    if body.method not in METHODS:
        msg = f"there is no method {body.method[:100]!r}; the methods are {', '.join(METHODS)}"
        return _refuse(request, ProblemError(404, ProblemCode.NOT_FOUND, msg), errors.METHOD_NOT_FOUND, number)
    model, operation = METHODS[body.method]

    def wrap(result: Object) -> Object:
        return {"jsonrpc": "2.0", "id": number, "result": result}

    try:
        check_version(request)
        return await operation(Call(gateway, caller, request, agent, wrap), read_params(model, body.params))
    except (PerdureError, ProblemError) as error:
        problem = problem_of(error)
        if problem is None:
            raise
        return _refuse(request, problem, number=number)


for _path in ("", "/"):  # clients with a base address send to the one with a slash
    router.add_api_route(
        _path,
        call_method,
        methods=["POST"],
        operation_id="call_a2a_method",
        route_class_override=RpcRoute,
        response_model=None,
    )


@router.get("/.well-known/agent-card.json", operation_id="get_agent_card")
async def get_agent_card(agent: AgentPath, caller: Sender, request: Request, gateway: GatewayOf) -> Response:
    """The card of the agent."""
    if not caller.may(Scope.READ):
        msg = f"the token {caller.name!r} lacks the scope 'read'; use one that has it"
        raise ProblemError(403, ProblemCode.FORBIDDEN, msg)
    definition = await find_agent(gateway, agent)
    headers = {"Cache-Control": "private, max-age=60", "ETag": f'"{definition.digest()}"'}
    return JSONResponse(await make_card(gateway, request, definition), headers=headers)


@router.post("/message:send", operation_id="send_a2a_message")
async def send_message(
    agent: AgentPath, caller: Sender, request: Request, body: SendBody, gateway: GatewayOf
) -> Response:
    """``SendMessage``."""
    check_version(request)
    asked = read_params(SendMessage, body.model_dump(exclude_unset=True))
    return await Call(gateway, caller, request, agent).send_message(asked)


@router.post("/message:stream", operation_id="stream_a2a_message")
async def stream_message(
    agent: AgentPath, caller: Sender, request: Request, body: SendBody, gateway: GatewayOf
) -> Response:
    """``SendStreamingMessage``."""
    check_version(request)
    asked = read_params(SendMessage, body.model_dump(exclude_unset=True))
    return await Call(gateway, caller, request, agent).stream_message(asked)


@router.get("/tasks", operation_id="list_a2a_tasks")
async def list_tasks(agent: AgentPath, caller: Sender, request: Request, gateway: GatewayOf) -> Response:
    """``ListTasks``."""
    check_version(request)
    return await Call(gateway, caller, request, agent).list_tasks(read_params(ListTasks, _query_of(request)))


@router.post("/tasks/{task}:cancel", operation_id="cancel_a2a_task")
async def cancel_task(
    agent: AgentPath, task: TaskPath, caller: Sender, request: Request, gateway: GatewayOf, body: AskBody | None = None
) -> Response:
    """``CancelTask``."""
    check_version(request)
    fields = {} if body is None else body.model_dump(exclude_unset=True)
    asked = read_params(TaskAsk, {**fields, "id": task})
    return await Call(gateway, caller, request, agent).cancel_task(asked)


async def subscribe(agent: AgentPath, task: TaskPath, caller: Sender, request: Request, gateway: GatewayOf) -> Response:
    """``SubscribeToTask``."""
    check_version(request)
    asked = read_params(TaskAsk, {**_query_of(request), "id": task})
    return await Call(gateway, caller, request, agent).subscribe(asked)


for _method in ("GET", "POST"):  # the proto says the one, the text of the specification the other
    router.add_api_route(
        "/tasks/{task}:subscribe",
        subscribe,
        methods=[_method],
        operation_id=f"subscribe_a2a_task_{_method.lower()}",
        response_model=None,
    )


@router.get("/tasks/{task}", operation_id="get_a2a_task")
async def get_task(agent: AgentPath, task: TaskPath, caller: Sender, request: Request, gateway: GatewayOf) -> Response:
    """``GetTask``."""
    check_version(request)
    asked = read_params(GetTask, {**_query_of(request), "id": task})
    return await Call(gateway, caller, request, agent).get_task(asked)


@router.post("/tasks/{task}/pushNotificationConfigs", operation_id="create_a2a_push")
async def add_push(
    agent: AgentPath, task: TaskPath, caller: Sender, request: Request, body: PushBody, gateway: GatewayOf
) -> Response:
    """``CreateTaskPushNotificationConfig``."""
    check_version(request)
    asked = read_params(NewPush, {**body.model_dump(exclude_unset=True), "taskId": task})
    return await Call(gateway, caller, request, agent).add_push(asked)


@router.get("/tasks/{task}/pushNotificationConfigs", operation_id="list_a2a_pushes")
async def list_pushes(
    agent: AgentPath, task: TaskPath, caller: Sender, request: Request, gateway: GatewayOf
) -> Response:
    """``ListTaskPushNotificationConfigs``."""
    check_version(request)
    asked = read_params(ListPushes, {**_query_of(request), "taskId": task})
    return await Call(gateway, caller, request, agent).list_pushes(asked)


@router.get("/tasks/{task}/pushNotificationConfigs/{config}", operation_id="get_a2a_push")
async def get_push(
    agent: AgentPath, task: TaskPath, config: PushPath, caller: Sender, request: Request, gateway: GatewayOf
) -> Response:
    """``GetTaskPushNotificationConfig``."""
    check_version(request)
    asked = read_params(PushAsk, {**_query_of(request), "taskId": task, "id": config})
    return await Call(gateway, caller, request, agent).get_push(asked)


@router.delete("/tasks/{task}/pushNotificationConfigs/{config}", operation_id="delete_a2a_push")
async def remove_push(
    agent: AgentPath, task: TaskPath, config: PushPath, caller: Sender, request: Request, gateway: GatewayOf
) -> Response:
    """``DeleteTaskPushNotificationConfig``."""
    check_version(request)
    asked = read_params(PushAsk, {**_query_of(request), "taskId": task, "id": config})
    return await Call(gateway, caller, request, agent).remove_push(asked)


@router.get("/extendedAgentCard", operation_id="get_extended_agent_card")
async def get_extended_card(agent: AgentPath, caller: Sender, request: Request, gateway: GatewayOf) -> Response:
    """``GetExtendedAgentCard``."""
    check_version(request)
    return await Call(gateway, caller, request, agent).get_extended_card(read_params(Ask, _query_of(request)))


def _query_of(request: Request) -> dict[str, JsonValue]:
    return {name: value for name, value in request.query_params.items() if value}


DOOR = Door(prefix=f"{PREFIX}/", router=router, form=write_error, check=load_signer)
