"""Carrying out what a message asks for, by the client's verbs: a task begins, hears a message, or gets a reply."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from starlette.requests import Request

from perdure.client import RequestRefusedError, TurnOptions
from perdure.client.asks import Ask, Send, Start
from perdure.client.requests import SendOptions, validate
from perdure.client.views import TurnView
from perdure.contracts.a2a import TaskId
from perdure.contracts.ids import refusal_of_request
from perdure.contracts.input_requests import (
    AnswerRequest,
    ApproveRequest,
    DenyRequest,
    InputRequest,
    ReplyBody,
    ResultRequest,
)
from perdure.contracts.turns import RunState
from perdure.gateway.access import Gateway
from perdure.gateway.callers import Caller, Scope
from perdure.gateway.doors.a2a.errors import A2AError, Reason
from perdure.gateway.doors.a2a.events import TaskFold
from perdure.gateway.doors.a2a.following import own_task, read_task
from perdure.gateway.doors.a2a.requests import Message, Reply, read_prompt, read_replies, reply_with_text
from perdure.gateway.following import own_view
from perdure.gateway.problems import ProblemCode, ProblemError
from perdure.gateway.starts import Starting, start_once


@dataclass(frozen=True)
class Carried:
    """Outcome of a message.

    Attributes:
        task: The task that has it.
        beyond: Requests that it replies to.
        waits_on: Whether the task waits for other replies too.
    """

    task: TaskId
    beyond: Sequence[str] = ()
    waits_on: bool = False


class Carrier:
    """Carries out the messages of one request to an agent."""

    def __init__(self, gateway: Gateway, caller: Caller, request: Request, agent: str) -> None:
        self._gateway = gateway
        self._caller = caller
        self._request = request
        self._agent = agent

    async def carry_out(self, message: Message) -> Carried:
        """Do what the message asks for, once: the same message is found again by its id.

        Raises:
            A2AError: It names a task that there is not, or one that has ended.
            ProblemError: It conflicts with what has happened.
            ClientError: As the client raises it.
        """
        if (refused := refusal_of_request(message.message_id)) is not None:
            raise RequestRefusedError(f"message.messageId: {refused}")
        if message.task_id:
            return await self._continue(message)
        if read_replies(message):
            raise RequestRefusedError("message.taskId: is needed by a reply, which is for a task that waits")
        return Carried(await self._begin(message))

    # A new task

    async def _begin(self, message: Message) -> TaskId:
        prompt, by = read_prompt(message), self._caller.name
        session = message.context_id
        ask: Ask = Start(agent=self._agent, prompt=prompt, session=session, options=cast("TurnOptions", {"by": by}))
        if session is not None:
            self._request.state.session = session
            if await self._is_busy(session):
                sent = Send(session=session, prompt=prompt, options=SendOptions(by=by))
                return await self._start(message, sent)
        return await self._start(message, ask)

    async def _is_busy(self, session: str) -> bool:
        """Whether a turn of the context runs, so that the new one waits for its end.

        Raises:
            RequestRefusedError: The context is another agent's.
        """
        view = await own_view(self._gateway, self._caller, session)
        if view is None:
            return False
        if view.agent not in {None, self._agent}:
            raise RequestRefusedError(f"message.contextId: is a context of the agent {view.agent!r}; send it there")
        return view.state is not RunState.ENDED

    async def _start(self, message: Message, ask: Ask, action: str = "message") -> TaskId:
        """Start or send, once: a repeat is the same action, whether the context has become busy meanwhile or not."""
        is_named = isinstance(ask, Start) and ask.session is not None
        starting = Starting(
            action=f"{action} {self._agent}",
            ask=ask,
            body=message,
            key=f"a2a:{self._agent}:{message.message_id}",
            request_id=message.message_id,
            is_named=is_named,
        )
        try:
            ticket = await start_once(self._gateway, self._caller, self._request, starting)
        except ProblemError as error:
            if error.code == ProblemCode.KEY_REUSED:
                msg = "the messageId came before, with another message; use a new one for each"
                raise ProblemError(error.status, error.code, msg) from None
            raise
        return TaskId(ticket.session, ticket.turn or 1)

    # A task that goes on

    async def _continue(self, message: Message) -> Carried:
        gateway = self._gateway
        task, view = await own_task(gateway, self._caller, self._agent, message.task_id)
        self._request.state.session = task.session
        if message.context_id not in {None, task.session}:
            raise RequestRefusedError("message.contextId: is not that of the task; leave it out")
        replies = read_replies(message)
        fold = await read_task(gateway, task, view)
        known = {*fold.asked, *fold.decided}
        if fold.state.is_terminal and not (replies and all(one.request in known for one in replies)):
            msg = f"the task has ended ({fold.state.value}); send a message with its contextId for a new one"
            raise A2AError(Reason.UNSUPPORTED_OPERATION, msg)
        if not replies and not fold.is_interrupted:
            return Carried(await self._steer(message, task, view))
        asked = [*fold.asked.values()]
        return await self._reply(task, fold, replies or [reply_with_text(message, asked)])

    async def _steer(self, message: Message, task: TaskId, view: TurnView) -> TaskId:
        if view.state is RunState.QUEUED:
            msg = "the task has not begun; wait until it works, or send a message with its contextId for a new one"
            raise A2AError(Reason.UNSUPPORTED_OPERATION, msg)
        options = SendOptions(by=self._caller.name)
        ask = Send(session=task.session, prompt=read_prompt(message), when_busy="steer", options=options)
        return await self._start(message, ask, "steer")

    async def _reply(self, task: TaskId, fold: TaskFold, replies: Sequence[Reply]) -> Carried:
        known: Mapping[str, InputRequest | None] = {**dict.fromkeys(fold.decided), **fold.asked}
        for one in replies:  # all of them, before any is carried out
            if one.request not in known:
                raise RequestRefusedError(
                    f"message.parts: the task asks for no {one.request!r}; it asks for {[*fold.asked]}"
                )
            asked = known[one.request]
            if asked is not None and one.needs != asked.needs:
                raise RequestRefusedError(f"message.parts: {one.request!r} needs an {asked.needs!r}, not {one.needs!r}")
        bodies = [_body_of(one, self._caller.name) for one in replies]
        self._check_scopes(replies)
        try:
            replied = await self._gateway.client.reply(task.session, bodies)
        except RequestRefusedError as error:
            raise ProblemError(409, ProblemCode.CONFLICT, str(error)) from error
        if replied.turn is not None:
            return Carried(TaskId(task.session, replied.turn))
        told = [one.request for one in replies]
        # It may have stopped since it was read, so that the next turn has taken the replies.
        if fold.has_stopped or (await read_task(self._gateway, task)).has_stopped:
            return Carried(TaskId(task.session, task.turn + 1))
        return Carried(task, told, waits_on=any(request not in told for request in fold.asked))

    def _check_scopes(self, replies: Sequence[Reply]) -> None:
        if any(one.needs != "result" for one in replies) and not self._caller.may(Scope.APPROVE):
            msg = f"the token {self._caller.name!r} lacks the scope 'approve'; use one that has it"
            raise ProblemError(403, ProblemCode.FORBIDDEN, msg)


def _body_of(one: Reply, by: str) -> ReplyBody:
    """A reply as the client takes it.

    Raises:
        RequestRefusedError: It is too long, for example.
    """
    fields: dict[str, object] = {"request": one.request, "by": by}
    if one.needs == "approval" and one.approve:
        return validate(ApproveRequest, {**fields, "digest": one.digest})
    if one.needs == "approval":
        return validate(DenyRequest, {**fields, "reason": one.reason})
    if one.needs == "result":
        return validate(ResultRequest, {**fields, "value": one.value, "digest": one.digest})
    return validate(AnswerRequest, {**fields, "value": one.value})
