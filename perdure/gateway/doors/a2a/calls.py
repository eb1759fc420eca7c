"""The operations of this door. Both bindings do the same, and say it in their own forms."""

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from perdure.client.pushes import Pushes
from perdure.contracts.a2a import MEDIA_TYPE, TaskId
from perdure.contracts.errors import ReasonCode
from perdure.contracts.turns import RunState
from perdure.gateway.access import Gateway, act_for
from perdure.gateway.callers import Caller, Scope
from perdure.gateway.doors.a2a import pushes
from perdure.gateway.doors.a2a.card import EXTENDED_CARD, PUSH, STREAMING, VERSION, find_agent, make_card
from perdure.gateway.doors.a2a.carrying import Carried, Carrier
from perdure.gateway.doors.a2a.errors import A2AError, Reason, describe_rest_error, describe_rpc_error
from perdure.gateway.doors.a2a.following import follow, own_task, read_task, wait_for_client
from perdure.gateway.doors.a2a.listing import list_tasks as list_page
from perdure.gateway.doors.a2a.objects import Object
from perdure.gateway.doors.a2a.requests import (
    Ask,
    GetTask,
    ListPushes,
    ListTasks,
    NewPush,
    OfTask,
    Push,
    PushAsk,
    SendMessage,
    TaskAsk,
)
from perdure.gateway.following import cancel_turn
from perdure.gateway.problems import ProblemCode, ProblemError
from perdure.gateway.sse import PING, Chunks, EventStream

CANCEL_SECONDS = 10
"""Longest time that a cancel waits for the end of the turn."""

_SWITCHED_OFF = {
    STREAMING: (Reason.UNSUPPORTED_OPERATION, "send SendMessage, and GetTask until the task has ended"),
    PUSH: (Reason.PUSH_NOTIFICATION_NOT_SUPPORTED, "send GetTask until the task has ended"),
    EXTENDED_CARD: (Reason.UNSUPPORTED_OPERATION, "the card has all that there is"),
}

Wrap = Callable[[Object], Object]
"""Makes of a result what a binding sends: for JSON-RPC an answer to the request."""


class Call:
    """One call of an operation.

    Args:
        agent: Name of the agent.
        wrap: Makes of each result what the binding sends.
    """

    def __init__(
        self, gateway: Gateway, caller: Caller, request: Request, agent: str, wrap: Wrap | None = None
    ) -> None:
        self._gateway = gateway
        self._caller = caller
        self._request = request
        self._agent = agent
        self._wrap = wrap

    # Operations

    async def send_message(self, asked: SendMessage) -> Response:
        """``SendMessage``: do what the message asks for, and answer when the task has ended or waits, or at once."""
        carried = await self._carry_out(asked)
        if not (asked.configuration.return_immediately or carried.waits_on):
            await self._wait(carried)
        fold = await read_task(self._gateway, carried.task)
        return self._answer({"task": fold.describe(asked.configuration.history_length)})

    async def stream_message(self, asked: SendMessage) -> Response:
        """``SendStreamingMessage``: the same, answered with the task and its updates."""
        self._need(STREAMING)
        carried = await self._carry_out(asked)
        beyond = () if carried.waits_on else tuple(carried.beyond)
        return await self._stream(carried.task, beyond, asked.configuration.history_length)

    async def get_task(self, asked: GetTask) -> Response:
        """``GetTask``: a task as it is now."""
        task, view = await self._own(asked, Scope.READ)
        return self._answer((await read_task(self._gateway, task, view)).describe(asked.history_length))

    async def list_tasks(self, asked: ListTasks) -> Response:
        """``ListTasks``: the tasks of the agent, the latest change first."""
        await self._check(asked, Scope.READ)
        return self._answer(await list_page(self._gateway, self._caller, self._agent, asked))

    async def cancel_task(self, asked: TaskAsk) -> Response:
        """``CancelTask``: cancel the turn, and answer when it has ended."""
        task, view = await self._own(asked, Scope.RUN, Scope.READ)
        fold = await read_task(self._gateway, task, view)
        if fold.has_ended or view.state is RunState.ENDED:
            raise A2AError(Reason.TASK_NOT_CANCELABLE, f"the task has ended ({fold.state.value})")
        await cancel_turn(self._gateway, self._caller, self._request, task.session, task.turn)
        return self._answer((await read_task(self._gateway, task)).describe())

    async def subscribe(self, asked: TaskAsk) -> Response:
        """``SubscribeToTask``: a task that has not ended, and its updates."""
        self._need(STREAMING)
        task, view = await self._own(asked, Scope.READ)
        fold = await read_task(self._gateway, task, view)
        if fold.state.is_terminal:
            msg = f"the task has ended ({fold.state.value}), and nothing more comes; GetTask gives it"
            raise A2AError(Reason.UNSUPPORTED_OPERATION, msg)
        return await self._stream(task, tuple(fold.asked))

    async def add_push(self, asked: NewPush) -> Response:
        """``CreateTaskPushNotificationConfig``: have the task's waits and its end sent to an address."""
        self._need(PUSH)
        task, _ = await self._own(asked, Scope.RUN, Scope.READ)
        return self._answer(await self._add_push(task, asked))

    async def get_push(self, asked: PushAsk) -> Response:
        """``GetTaskPushNotificationConfig``: a configuration, without its credentials."""
        self._need(PUSH)
        task, _ = await self._own(asked, Scope.READ)
        return self._answer(await pushes.find(await self._client_of(task), task, asked.id))

    async def list_pushes(self, asked: ListPushes) -> Response:
        """``ListTaskPushNotificationConfigs``: all configurations of a task, on one page."""
        self._need(PUSH)
        task, _ = await self._own(asked, Scope.READ)
        return self._answer(await pushes.list_all(await self._client_of(task), task))

    async def remove_push(self, asked: PushAsk) -> Response:
        """``DeleteTaskPushNotificationConfig``: remove a configuration, if it is there."""
        self._need(PUSH)
        task, _ = await self._own(asked, Scope.RUN, Scope.READ)
        await (await self._client_of(task)).remove(task.session, task.turn, asked.id)
        return self._answer({})

    async def get_extended_card(self, asked: Ask) -> Response:
        """``GetExtendedAgentCard``: the card with the agent's tools."""
        self._need(EXTENDED_CARD)
        await self._check(asked, Scope.READ)
        definition = await find_agent(self._gateway, self._agent)
        return self._answer(await make_card(self._gateway, self._request, definition, extended=True))

    # What they share

    def _need(self, capability: str) -> None:
        """Refuse what the operator has switched off, as the card says."""
        if capability not in self._gateway.client.settings.a2a_capabilities:
            reason, instead = _SWITCHED_OFF[capability]
            raise A2AError(reason, f"this gateway has no {capability}, as the card says; {instead}")

    async def _check(self, asked: Ask, *scopes: Scope) -> None:
        check_version(self._request)
        self._check_extensions()
        for scope in scopes:
            if not self._caller.may(scope):
                msg = f"the token {self._caller.name!r} lacks the scope {scope.value!r}; use one that has it"
                raise ProblemError(403, ProblemCode.FORBIDDEN, msg)
        if asked.tenant and asked.tenant != self._caller.tenant:
            raise ProblemError(422, ReasonCode.REQUEST_INVALID, "tenant: is the token's to say; leave it out")
        await find_agent(self._gateway, self._agent)

    def _check_extensions(self) -> None:
        """Refuse a client that does not declare what the operator wants clients to follow."""
        headers = self._request.headers.getlist("a2a-extensions")
        declared = {uri.strip() for header in headers for uri in header.split(",")}
        for uri in self._gateway.client.settings.a2a_extensions:
            if uri not in declared:
                msg = f"the extension {uri} is needed, as the card says; declare it in the header A2A-Extensions"
                raise A2AError(Reason.EXTENSION_SUPPORT_REQUIRED, msg)

    async def _own(self, asked: TaskAsk | OfTask, *scopes: Scope) -> tuple[TaskId, Any]:
        await self._check(asked, *scopes)
        named = asked.id if isinstance(asked, TaskAsk) else asked.task_id
        task, view = await own_task(self._gateway, self._caller, self._agent, named)
        self._request.state.session = task.session
        return task, view

    async def _carry_out(self, asked: SendMessage) -> Carried:
        await self._check(asked, Scope.RUN, Scope.READ)
        push = asked.configuration.task_push_notification_config
        if push is not None:  # before anything begins
            self._need(PUSH)
            self._gateway.client.webhooks.pushes.check(push.url)
            await self._gateway.limits.check_pushes(self._gateway.client, self._caller.tenant)
        carrier = Carrier(self._gateway, self._caller, self._request, self._agent)
        carried = await carrier.carry_out(asked.message)
        if push is not None:
            await self._add_push(carried.task, push)
        return carried

    async def _client_of(self, task: TaskId) -> Pushes:
        caller = await act_for(self._gateway, self._caller, task.session)
        return self._gateway.client.webhooks.of(caller.tenant).pushes

    async def _add_push(self, task: TaskId, push: Push) -> Object:
        client = await self._client_of(task)
        known = [webhook.push for webhook in await client.list(task.session, task.turn) if webhook.push is not None]
        if pushes.name_of(task, push) not in {one.id for one in known}:
            caller = await act_for(self._gateway, self._caller, task.session)
            await self._gateway.limits.check_pushes(self._gateway.client, caller.tenant)
        return await pushes.add(client, task, push)

    def _answer(self, result: Object) -> Response:
        if self._wrap is not None:
            return JSONResponse(self._wrap(result))
        return JSONResponse(result, media_type=MEDIA_TYPE)

    async def _wait(self, carried: Carried, seconds: float | None = None) -> None:
        """Wait until the task has ended or waits for its client, who may go, or until the gateway stops."""
        gateway, task = self._gateway, carried.task
        caller = await act_for(gateway, self._caller, task.session)
        with gateway.limits.stream(caller.tenant), gateway.hold(caller) as gone:
            ends = (gateway.stopping.wait(), gone.wait(), _wait_until_gone(self._request))
            await wait_for_client(gateway, task, ends, carried.beyond, seconds)
        gateway.check(caller)

    async def _stream(self, task: TaskId, beyond: tuple[str, ...], history: int | None = None) -> Response:
        gateway = self._gateway
        caller = await act_for(gateway, self._caller, task.session)
        async with AsyncExitStack() as stack:
            stack.enter_context(gateway.limits.stream(caller.tenant))
            ends = gateway.ends(stack.enter_context(gateway.hold(caller)))
            feed = await stack.enter_async_context(gateway.hub.deltas.follow(task.session))
            chunks = self._encode(follow(gateway, task, beyond, feed, history))
            return EventStream(chunks, place="", ends=ends, closing=stack.pop_all(), farewell=self._say_why)

    async def _encode(self, following: AsyncGenerator[list[Object], None]) -> Chunks:
        wrap: Wrap = self._wrap or _as_it_is
        async with aclosing(following):
            async for updates in following:
                told = (json.dumps(wrap(update)).encode() for update in updates)
                yield b"".join(b"data: %s\n\n" % one for one in told) or PING, ""

    def _say_why(self, problem: ProblemError, _: str) -> bytes:
        """The end of a stream whose task goes on, which a client reads again."""
        if self._wrap is None:
            told: Object = describe_rest_error(problem)
        else:
            told = {**self._wrap({}), "error": describe_rpc_error(problem)}
            told.pop("result")
        return b"data: %s\n\n" % json.dumps(told).encode()


def _as_it_is(result: Object) -> Object:
    return result


def check_version(request: Request) -> None:
    """Check that the request is in the version that this door speaks; none is 0.3, as the protocol says.

    Raises:
        A2AError: It is in another one.
    """
    told = request.headers.get("a2a-version") or request.query_params.get("A2A-Version") or "0.3"
    if ".".join(told.strip().split(".")[:2]) != VERSION:
        msg = f"this agent speaks A2A {VERSION}, not {told[:20]!r}; send the header 'A2A-Version: {VERSION}'"
        raise A2AError(Reason.VERSION_NOT_SUPPORTED, msg)


async def _wait_until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
