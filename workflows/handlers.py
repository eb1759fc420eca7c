"""The message handlers of a running turn: what clients, operators and people send, and the turn's time limit.

The handlers only write into the mailbox, and the turn reads it. So a handler never waits for the turn's work.

Long, because Temporal wants the handlers of a workflow in its class, each with its validator.
"""

import asyncio
import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, TypeVar

from pydantic import BaseModel, ValidationError
from temporalio import workflow
from temporalio.exceptions import ApplicationError

from perdure.contracts.budgets import LIMITS, ExtendRequest
from perdure.contracts.errors import ErrorDetail, ReasonCode
from perdure.contracts.input_requests import AnswerRequest, ApproveRequest, DenyRequest, InputReceipt, Reply
from perdure.contracts.names import Query, Signal, Update
from perdure.contracts.turns import (
    MAX_WAITING_BYTES,
    MAX_WAITING_MESSAGES,
    BudgetStatus,
    CancelReceipt,
    CancelRequest,
    QueuedMessage,
    RunState,
    SendReceipt,
    SendRequest,
    TurnStatus,
)
from perdure.contracts.values import JsonValue, replace
from perdure.contracts.waits import Pause, PauseReceipt, PauseRequest
from perdure.engine import input_requests, limits, messages
from perdure.engine.limits import ExtendError, RunningTurn, extend
from perdure.engine.state import Mailbox, TurnState
from perdure.engine.turn import Turn

Input = TypeVar("Input", bound=BaseModel)


def refuse(code: ReasonCode, message: str) -> ApplicationError:
    """A failure that no retry can help, with the facts for machines beside the sentence for people."""
    detail = ErrorDetail(code=code, title="runtime", message=message)
    return ApplicationError(message, detail, type=code, non_retryable=True)


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


def or_nothing(given: Sequence[JsonValue]) -> Sequence[JsonValue]:
    """The input, or an empty object if there is none: for messages without required fields."""
    return given if any(given) else ({},)


def unreadable(problem: str, *, what: str, send: str) -> ApplicationError:
    """The failure of input that is not what its receiver reads."""
    return refuse(ReasonCode.REQUEST_INVALID, f"the input is no {what}: {problem}; send {send}")


def _kind_of(value: JsonValue) -> str:
    if value is None:
        return "null"
    if isinstance(value, str):
        return "a string"
    return "a list" if isinstance(value, list) else "a number or a truth value"


@dataclass(frozen=True)
class Opened:
    """The turn has its number.

    ``last_turn`` is the session's highest number: higher than ``turn`` if the request was carried out before.
    """

    turn: int
    request_id: str
    last_turn: int


@dataclass(frozen=True)
class Refused:
    """The request never became a turn."""

    error: ErrorDetail


PAUSED = "paused"
"""The ``doing`` of a paused turn in the status query."""


class Deadline:
    """Watches the time budget; ``past`` is true once it is used up. The clock stops while a reason holds it."""

    def __init__(self) -> None:
        self.past = False
        self._watching: asyncio.Task[None] | None = None
        self._counts = False
        self._holds = limits.Holds()

    def watch(self, state: TurnState) -> None:
        """Count from the turn's beginning, less the time in which it waited for people or was paused."""
        self._counts = True
        limit = state.policy.budgets.seconds
        if limit is None or self._holds.any:
            return

        async def watch() -> None:
            left = state.origin.started_at + state.waited + limit - workflow.now()
            await workflow.sleep(max(left, timedelta(0)))
            self.past = True

        self._watching = asyncio.create_task(watch())

    def apply_limit(self, state: TurnState) -> None:
        """Count to the limit that the state has now, unless the clock is held."""
        if self._counts:
            self._stop_watching()
            self.watch(state)

    def hold(self, reason: limits.HoldReason) -> None:
        """Stop the clock, for one more reason."""
        self._holds.hold(reason, workflow.now())
        self._stop_watching()

    def release(self, reason: limits.HoldReason, state: TurnState) -> timedelta:
        """Take a reason back; once none is left, run the clock again and return the time that it was held."""
        held = self._holds.release(reason, workflow.now())
        if self._watching is None and self._counts:
            self.watch(replace(state, waited=state.waited + held))
        return held

    def settle(self) -> timedelta:
        """Return the time that the clock was held and that the state does not have yet."""
        return self._holds.settle(workflow.now())

    def stop(self) -> None:
        """Stop counting for good."""
        self._counts = False
        self._stop_watching()

    def _stop_watching(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None


class Handlers:
    """The message handlers of a turn, and the mailbox they fill. Each may receive the same message twice."""

    def __init__(self) -> None:
        self.mail: Mailbox = Mailbox()
        self.turn: Turn | None = None
        self.opened: Opened | Refused | None = None
        self.request_id = ""
        self.activity = "open_turn"
        self.shown_state = RunState.RUNNING
        self._deadline = Deadline()

    @property
    def state(self) -> TurnState | None:
        """Where the turn stands, once it is open."""
        return None if self.turn is None else self.turn.state

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
            await self._cancel(asked)

    @workflow.update(name=Update.CANCEL)
    async def cancel(self, *given: JsonValue) -> CancelReceipt:
        """Cancel the running turn or a waiting one, or all of them; a request that names another turn is refused."""
        return await self._cancel(_cancel_request(given))

    @cancel.validator
    def _check_cancel(self, *given: JsonValue) -> None:
        asked = _cancel_request(given)
        if isinstance(self.opened, Opened):
            self._take_cancel(asked, self.opened, workflow.now())

    async def _cancel(self, asked: CancelRequest) -> CancelReceipt:
        came_at = workflow.now()
        # Without a number, or with this turn's request id, it means the running turn, even before that has its number.
        if self.opened is None and asked.turn is None and self._means_this_request(asked.request_id):
            self.mail = limits.stop(self.mail, asked, came_at)
        opened = await self._wait_opened()
        self.mail, receipt = self._take_cancel(asked, opened, came_at)
        return receipt

    def _means_this_request(self, request_id: str | None) -> bool:
        if request_id is None:
            return True
        return request_id == self.request_id and workflow.patched("stop-before-opening")

    def _take_cancel(self, asked: CancelRequest, opened: Opened, came_at: datetime) -> tuple[Mailbox, CancelReceipt]:
        try:
            return limits.cancel(self.mail, asked, self._running(opened), came_at)
        except limits.WrongTurnError as error:
            raise refuse(ReasonCode.REQUEST_TURN_MISMATCH, str(error)) from None

    def _running(self, opened: Opened) -> RunningTurn:
        """The running turn. It counts as ending while its state is not set up, which may be for good."""
        return RunningTurn(
            turn=opened.turn,
            request_id=opened.request_id,
            last_turn=opened.last_turn,
            ending=self.state is None or self.state.ending is not None,
            takes_steering=self.state is not None and self.state.takes_steering,
            delegated=self.state is not None and self.state.origin.delegated is not None,
        )

    @workflow.update(name=Update.SEND)
    async def send(self, *given: JsonValue) -> SendReceipt:
        """Take a message for the running turn or a later one. The same request id twice is the same message."""
        asked = _message(given)
        request_id = asked.request_id or _update_id()
        # The receipt names a turn, and this turn's number is known only after open_turn.
        opened = await self._wait_opened()
        running, message = (
            self._running(opened),
            QueuedMessage.model_validate({**dict(asked), "request_id": request_id}),
        )
        turn = messages.find_turn_of(self.mail, request_id, running)
        if turn is None:
            self._need_room_for(message)
            self._check_message(message, running)
            self.mail, turn = messages.take_message(self.mail, message, running, workflow.now())
        return SendReceipt(turn=turn)

    @send.validator
    def _check_send(self, *given: JsonValue) -> None:
        asked = _message(given)
        self._need_room_for(asked)
        if isinstance(self.opened, Opened):
            running, request_id = self._running(self.opened), asked.request_id or _update_id()
            if messages.find_turn_of(self.mail, request_id, running) is None:
                self._check_message(asked, running)

    def _check_message(self, asked: SendRequest, running: RunningTurn) -> None:
        try:
            messages.check_message(asked, running)
        except messages.MessageRefusedError as error:
            raise refuse(error.code, str(error)) from None

    def _need_room_for(self, asked: SendRequest) -> None:
        """Refuse a message if too many wait. Checked twice: by the validator, and where it is taken, after others."""
        waiting = (*self.mail.queued, *self.mail.steered, asked)
        # The mailbox goes into the next run's input; a payload that is too large would keep the turn from going on.
        size = sum(len(message.model_dump_json().encode()) for message in waiting)
        if len(waiting) > MAX_WAITING_MESSAGES or size > MAX_WAITING_BYTES:
            message = f"{len(waiting) - 1} messages wait already; send this one when a turn has ended"
            raise refuse(ReasonCode.REQUEST_TOO_LARGE, message)

    @workflow.update(name=Update.ANSWER)
    async def answer(self, *given: JsonValue) -> InputReceipt:
        """Take an answer to a question."""
        return await self._take(_answer(given))

    @answer.validator
    def _check_answer(self, *given: JsonValue) -> None:
        self._check(_answer(given))

    @workflow.update(name=Update.APPROVE)
    async def approve(self, *given: JsonValue) -> InputReceipt:
        """Let a tool call run."""
        return await self._take(_approval(given))

    @approve.validator
    def _check_approve(self, *given: JsonValue) -> None:
        self._check(_approval(given))

    @workflow.update(name=Update.DENY)
    async def deny(self, *given: JsonValue) -> InputReceipt:
        """Deny a tool call, or decline a question: the model gets an error result."""
        return await self._take(_denial(given))

    @deny.validator
    def _check_deny(self, *given: JsonValue) -> None:
        self._check(_denial(given))

    def _check(self, reply: Reply) -> None:
        """Refuse a reply before it enters the history. A turn that has just rotated may not be set up for that yet."""
        if self.state is not None:
            self._accept_reply(reply)

    async def _take(self, reply: Reply) -> InputReceipt:
        await workflow.wait_condition(lambda: self.opened is not None)
        if self.state is None or not isinstance(self.opened, Opened):
            raise refuse(ReasonCode.REQUEST_INVALID, f"nothing waits for {reply.request!r}")
        self.mail, receipt = self._accept_reply(reply)
        return receipt

    def _accept_reply(self, reply: Reply) -> tuple[Mailbox, InputReceipt]:
        assert self.state is not None, "the turn is open"  # noqa: S101 - narrows the type
        try:
            return input_requests.accept_reply(self.state, self.mail, reply, workflow.now())
        except input_requests.TooEarlyError as error:
            raise refuse(ReasonCode.REQUEST_TOO_EARLY, str(error)) from None
        except input_requests.ReplyError as error:
            raise refuse(ReasonCode.REQUEST_INVALID, str(error)) from None

    @workflow.update(name=Update.EXTEND)
    async def extend(self, *given: JsonValue) -> BudgetStatus:
        """Set limits. Limits that the request does not name stay."""
        asked = _extend_request(given)
        await workflow.wait_condition(lambda: self.opened is not None)
        # No await from here to the assignment, or a change that the turn makes meanwhile would be lost.
        extended_turn = self._with_new_limits(asked)
        assert self.turn is not None, "the turn is open"  # noqa: S101 - narrows the type
        self.turn.state = extended_turn
        self._deadline.apply_limit(extended_turn)
        return budget_of(extended_turn)

    @extend.validator
    def _check_extend(self, *given: JsonValue) -> None:
        asked = _extend_request(given)
        if self.state is not None:
            self._with_new_limits(asked)

    def _with_new_limits(self, asked: ExtendRequest) -> TurnState:
        if self.state is None:
            raise refuse(ReasonCode.REQUEST_INVALID, "no turn runs whose limits could be changed")
        if self._deadline.past or self.mail.cancel is not None:
            raise refuse(
                ReasonCode.REQUEST_INVALID, f"turn {self.state.origin.turn} is ending; the next message begins another"
            )
        try:
            return extend(self.state, asked, workflow.now())
        except ExtendError as error:
            raise refuse(ReasonCode.REQUEST_INVALID, str(error)) from None

    @workflow.update(name=Update.PAUSE)
    async def pause_session(self, *given: JsonValue) -> PauseReceipt:
        """Pause the session: nothing new begins, what runs finishes. Turns of waiting messages are paused too."""
        asked, opened = _pause_request(given), await self._wait_opened()
        changed = self.mail.paused is None
        if changed:
            self.mail = replace(self.mail, paused=Pause(since=workflow.now(), reason=asked.reason, by=asked.by))
            self._deadline.hold("pause")
        return PauseReceipt(turn=opened.turn, changed=changed)

    @pause_session.validator
    def _check_pause(self, *given: JsonValue) -> None:
        _pause_request(given)

    @workflow.update(name=Update.UNPAUSE)
    async def unpause_session(self, *given: JsonValue) -> PauseReceipt:
        """Take the pause of the session back."""
        _pause_request(given)
        opened = await self._wait_opened()
        changed = self.mail.paused is not None
        self.mail = replace(self.mail, paused=None)
        if self.turn is not None and changed:
            # No await from here to the assignment, or a change that the turn makes meanwhile would be lost.
            state = self.turn.state
            self.turn.state = replace(state, waited=state.waited + self._deadline.release("pause", state))
        return PauseReceipt(turn=opened.turn, changed=changed)

    @unpause_session.validator
    def _check_unpause(self, *given: JsonValue) -> None:
        _pause_request(given)

    async def _wait_opened(self) -> Opened:
        """Wait until the turn has its number. Raises the turn's refusal if it was refused."""
        await workflow.wait_condition(lambda: self.opened is not None)
        if not isinstance(opened := self.opened, Opened):
            error = opened.error if opened is not None else None
            blocked = error is not None and error.code == ReasonCode.REQUEST_BLOCKED
            code = ReasonCode.REQUEST_BLOCKED if blocked else ReasonCode.REQUEST_INVALID
            raise refuse(code, error.message if error is not None else "the turn was refused")
        return opened

    @workflow.query(name=Query.STATUS)
    def status(self) -> TurnStatus:
        """Where the turn stands."""
        state = self.state
        if state is None:
            raise refuse(ReasonCode.REQUEST_INVALID, "the turn has not been opened yet; ask again in a moment")
        return TurnStatus(
            session=state.origin.session,
            turn=state.origin.turn,
            agent=state.policy.agent,
            model=state.policy.model,
            state=self.run_state,
            step=state.step,
            max_steps=state.policy.max_steps,
            activity=self.activity,
            queued=sum(message.cancelled is None for message in self.mail.queued),
            cancelling=self.mail.cancel is not None,
            spent=state.own_spent,
            requests=input_requests.input_requests(state) if self.run_state is RunState.WAITING_FOR_INPUT else (),
            todos=state.todos,
            paused=self.mail.paused,
        )

    @property
    def run_state(self) -> RunState:
        """What the turn does, in one word."""
        state = self.state
        if state is not None and state.ending is not None:
            return RunState.ENDED
        if self.mail.paused is not None and self.activity == PAUSED:
            return RunState.PAUSED
        waits = state is not None and state.calls.asking and state.calls.asked and not state.calls.pending
        return RunState.WAITING_FOR_INPUT if waits else RunState.RUNNING

    @workflow.query(name=Query.BUDGET)
    def budget(self) -> BudgetStatus:
        """What the turn may spend and has spent."""
        state = self.state
        if state is None:
            raise refuse(ReasonCode.REQUEST_INVALID, "the turn has not been opened yet; ask again in a moment")
        return budget_of(state)


def _message(given: Sequence[JsonValue]) -> SendRequest:
    return read_input(given, SendRequest, what="message", send='{"prompt": "text"}')


def _pause_request(given: Sequence[JsonValue]) -> PauseRequest:
    return read_input(or_nothing(given), PauseRequest, what="pause", send='{"reason": "why", "by": "who"}, or {}')


def _cancel_request(given: Sequence[JsonValue]) -> CancelRequest:
    send = '{"reason": "why", "turn": 1}, or {}'
    asked = read_input(or_nothing(given), CancelRequest, what="cancel", send=send, extra="forbid")
    if asked.turn is not None and asked.request_id is not None:
        raise refuse(ReasonCode.REQUEST_INVALID, "turn, request_id: name the one or the other")
    return asked


def budget_of(state: TurnState) -> BudgetStatus:
    """The limits of a turn, and what counts against them."""
    steps = state.step + state.spent.delegated_steps
    return BudgetStatus(max_steps=state.policy.max_steps, steps=steps, limits=state.policy.budgets, spent=state.spent)


def _update_id() -> str:
    info = workflow.current_update_info()
    return info.id if info is not None else ""


def _answer(given: Sequence[JsonValue]) -> Reply:
    send = '{"request": "id", "value": "the answer"}'
    return read_input(given, AnswerRequest, what="reply", send=send).reply()


def _approval(given: Sequence[JsonValue]) -> Reply:
    return read_input(given, ApproveRequest, what="reply", send='{"request": "id", "by": "who"}').reply()


def _denial(given: Sequence[JsonValue]) -> Reply:
    send = '{"request": "id", "by": "who", "reason": "why"}'
    return read_input(given, DenyRequest, what="reply", send=send).reply()


def _extend_request(given: Sequence[JsonValue]) -> ExtendRequest:
    known = ", ".join(LIMITS)
    send = f'{{"max_steps": 50}}; the limits are {known}'
    asked = read_input(or_nothing(given), ExtendRequest, what="change of limits", send=send)
    if not asked.limits:
        message = f'name at least one limit, as in {{"max_steps": 50}}; there are {known}'
        raise refuse(ReasonCode.REQUEST_INVALID, message)
    return asked
