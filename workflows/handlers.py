"""The message handlers of the workflow: they read what callers send, and hand it to the mail of the turn."""

import contextlib
import json
from collections.abc import Sequence
from typing import Literal, TypeVar

from pydantic import BaseModel, ValidationError
from temporalio import workflow
from temporalio.exceptions import ApplicationError

from perdure.contracts.budgets import LIMITS, ExtendRequest
from perdure.contracts.errors import ReasonCode
from perdure.contracts.input_requests import (
    AnswerRequest,
    ApproveRequest,
    DenyRequest,
    InputReceipt,
    ReplyBody,
    ResultRequest,
)
from perdure.contracts.names import Query, Signal, Update
from perdure.contracts.sends import SendReceipt, SendRequest
from perdure.contracts.turns import BudgetStatus, CancelReceipt, CancelRequest, TurnStatus
from perdure.contracts.values import JsonValue, is_visible, replace
from perdure.contracts.waits import PauseReceipt, PauseRequest
from perdure.workflows.mail import TurnMail, refuse

Input = TypeVar("Input", bound=BaseModel)


def read_input(
    given: Sequence[JsonValue], model: type[Input], *, what: str, send: str, extra: Literal["forbid"] | None = None
) -> Input:
    """Parse the input of a request, a signal or an update, which has to be one object; callers may send anything.

    Raises:
        ApplicationError: The input is not one such object; non-retryable.
    """
    if len(given) != 1:
        count = "no argument" if not given else "two arguments" if len(given) == 2 else f"{len(given)} arguments"
        raise unreadable(f"{count} came, and one object is needed", what=what, send=send)
    if not isinstance(given[0], dict):
        raise unreadable(f"{_kind_of(given[0])} came, and an object is needed", what=what, send=send)
    try:
        return model.model_validate(given[0], extra=extra)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        problem = first["msg"].removeprefix("Value error, ")
        raise unreadable(f"{field}: {problem}" if field else problem, what=what, send=send) from None


def unreadable(problem: str, *, what: str, send: str) -> ApplicationError:
    """The failure of input that is not what its receiver reads."""
    return refuse(ReasonCode.REQUEST_INVALID, f"the input is no {what}: {problem}; send {send}")


def _or_nothing(given: Sequence[JsonValue]) -> Sequence[JsonValue]:
    """The input, or an empty object if there is none: for messages without required fields."""
    return given if any(given) else ({},)


def _kind_of(value: JsonValue) -> str:
    if value is None:
        return "null"
    if isinstance(value, str):
        return "a string"
    return "a list" if isinstance(value, list) else "a number or a truth value"


class Handlers:
    """The signals, updates and queries of a turn. What they do stands in :class:`TurnMail`."""

    def __init__(self, mail: TurnMail) -> None:
        self._mail = mail

    @workflow.signal(name=Signal.CANCEL)
    async def cancel_by_signal(self, *given: JsonValue) -> None:
        """Cancel a turn. A request that names no turn of this session is ignored: a signal cannot be refused."""
        request = given[0] if len(given) == 1 else list(given)
        try:
            asked = CancelRequest.model_validate(request or {})
        except ValidationError:  # whatever it says, its sender wants the turn to stop
            reason = request if isinstance(request, str) else json.dumps(request, ensure_ascii=False)
            asked = CancelRequest(reason=reason[:200])
        with contextlib.suppress(ApplicationError):
            await self._mail.cancel(asked)

    @workflow.update(name=Update.CANCEL)
    async def cancel(self, *given: JsonValue) -> CancelReceipt:
        """Cancel the running turn or a waiting one, or all of them; a request that names another turn is refused."""
        return await self._mail.cancel(_cancel_request(given))

    @cancel.validator
    def _check_cancel(self, *given: JsonValue) -> None:
        self._mail.check_cancel(_cancel_request(given))

    @workflow.update(name=Update.SEND)
    async def send(self, *given: JsonValue) -> SendReceipt:
        """Take a message for the running turn or a later one. The same request id twice is the same message."""
        asked = _message(given)
        return await self._mail.send(asked, asked.request_id or _update_id())

    @send.validator
    def _check_send(self, *given: JsonValue) -> None:
        asked = _message(given)
        if not is_visible(asked.prompt):  # here only: a handler that replays has to take what it took
            raise unreadable("prompt: has no visible character", what="message", send='{"prompt": "text"}')
        self._mail.check_send(asked, asked.request_id or _update_id())

    @workflow.update(name=Update.ANSWER)
    async def answer(self, *given: JsonValue) -> InputReceipt:
        """Take an answer to a question."""
        return await self._reply(_answer(given))

    @answer.validator
    def _check_answer(self, *given: JsonValue) -> None:
        self._check(_answer(given))

    @workflow.update(name=Update.APPROVE)
    async def approve(self, *given: JsonValue) -> InputReceipt:
        """Let a tool call run."""
        return await self._reply(_approval(given))

    @approve.validator
    def _check_approve(self, *given: JsonValue) -> None:
        self._check(_approval(given))

    @workflow.update(name=Update.DENY)
    async def deny(self, *given: JsonValue) -> InputReceipt:
        """Deny a tool call, or decline a question: the model gets an error result."""
        return await self._reply(_denial(given))

    @deny.validator
    def _check_deny(self, *given: JsonValue) -> None:
        self._check(_denial(given))

    @workflow.update(name=Update.SUBMIT_RESULT)
    async def submit_result(self, *given: JsonValue) -> InputReceipt:
        """Take the result of a tool call that the caller has run."""
        return await self._reply(_submitted(given))

    @submit_result.validator
    def _check_submit_result(self, *given: JsonValue) -> None:
        self._check(_submitted(given))

    async def _reply(self, asked: ReplyBody) -> InputReceipt:
        message = asked.message
        if message is not None and not message.request_id:
            message = replace(message, request_id=_update_id())
        return await self._mail.reply(asked.reply(), message)

    def _check(self, asked: ReplyBody) -> None:
        if asked.message is not None and not is_visible(asked.message.prompt):
            raise unreadable("message: has no visible character", what="reply", send='{"prompt": "text"}')
        self._mail.check_reply(asked.reply(), asked.message)

    @workflow.update(name=Update.EXTEND)
    async def extend(self, *given: JsonValue) -> BudgetStatus:
        """Set limits. Limits that the request does not name stay."""
        return await self._mail.extend(_extend_request(given))

    @extend.validator
    def _check_extend(self, *given: JsonValue) -> None:
        self._mail.check_extend(_extend_request(given))

    @workflow.update(name=Update.PAUSE)
    async def pause(self, *given: JsonValue) -> PauseReceipt:
        """Pause the session: nothing new begins, what runs finishes. Turns of waiting messages are paused too."""
        return await self._mail.pause(_pause_request(given))

    @pause.validator
    def _check_pause(self, *given: JsonValue) -> None:
        _pause_request(given)

    @workflow.update(name=Update.UNPAUSE)
    async def unpause(self, *given: JsonValue) -> PauseReceipt:
        """Take the pause of the session back."""
        _pause_request(given)
        return await self._mail.unpause()

    @unpause.validator
    def _check_unpause(self, *given: JsonValue) -> None:
        _pause_request(given)

    @workflow.query(name=Query.STATUS)
    def status(self) -> TurnStatus:
        """Status of the turn."""
        return self._mail.status()

    @workflow.query(name=Query.BUDGET)
    def budget(self) -> BudgetStatus:
        """Budget of the turn, with what it has spent."""
        return self._mail.budget()


def _message(given: Sequence[JsonValue]) -> SendRequest:
    return read_input(given, SendRequest, what="message", send='{"prompt": "text"}')


def _pause_request(given: Sequence[JsonValue]) -> PauseRequest:
    return read_input(_or_nothing(given), PauseRequest, what="pause", send='{"reason": "why", "by": "who"}, or {}')


def _cancel_request(given: Sequence[JsonValue]) -> CancelRequest:
    send = '{"reason": "why", "turn": 1}, or {}'
    asked = read_input(_or_nothing(given), CancelRequest, what="cancel", send=send, extra="forbid")
    if asked.turn is not None and asked.request_id is not None:
        raise refuse(ReasonCode.REQUEST_INVALID, "turn, request_id: name the one or the other")
    return asked


def _update_id() -> str:
    info = workflow.current_update_info()
    return info.id if info is not None else ""


def _answer(given: Sequence[JsonValue]) -> AnswerRequest:
    send = '{"request": "id", "value": "the answer"}'
    return read_input(given, AnswerRequest, what="reply", send=send)


def _approval(given: Sequence[JsonValue]) -> ApproveRequest:
    return read_input(given, ApproveRequest, what="reply", send='{"request": "id", "by": "who"}')


def _denial(given: Sequence[JsonValue]) -> DenyRequest:
    send = '{"request": "id", "by": "who", "reason": "why"}'
    return read_input(given, DenyRequest, what="reply", send=send)


def _submitted(given: Sequence[JsonValue]) -> ResultRequest:
    send = '{"request": "id", "value": "the result"}, or {"request": "id", "error": "why there is none"}'
    return read_input(given, ResultRequest, what="result", send=send)


def _extend_request(given: Sequence[JsonValue]) -> ExtendRequest:
    known = ", ".join(LIMITS)
    send = f'{{"max_steps": 50}}; the limits are {known}'
    asked = read_input(_or_nothing(given), ExtendRequest, what="change of limits", send=send)
    if not asked.limits:
        message = f'name at least one limit, as in {{"max_steps": 50}}; there are {known}'
        raise refuse(ReasonCode.REQUEST_INVALID, message)
    return asked
