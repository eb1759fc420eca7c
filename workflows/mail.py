"""The mail of a running turn: what clients, operators and people send it, and the time limit that they may change.

Handlers only write into the mailbox, and the turn reads it. So a handler never waits for the turn's work. Each may
receive the same message twice. The ``check_…`` methods refuse a message before it is taken and change nothing.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NoReturn

from temporalio.exceptions import ApplicationError

from perdure.contracts.budgets import ExtendRequest
from perdure.contracts.errors import ErrorDetail, ReasonCode
from perdure.contracts.input_requests import MAX_WAITING_BYTES, InputReceipt, Reply
from perdure.contracts.sends import MAX_WAITING_MESSAGES, QueuedMessage, SendReceipt, SendRequest
from perdure.contracts.turns import BudgetStatus, CancelReceipt, CancelRequest, RunState, TurnStatus
from perdure.contracts.values import replace, size_of
from perdure.contracts.waits import Pause, PauseReceipt, PauseRequest
from perdure.engine import input_requests, limits, messages, stops
from perdure.engine.limits import ExtendError, extend
from perdure.engine.state import Mailbox, TurnState
from perdure.engine.stops import RunningTurn, WrongTurnError
from perdure.engine.turn import Story
from perdure.workflows.runtime import Runtime, Task

PAUSED = "paused"
"""The ``activity`` of a paused turn in its status."""


KEPT = (ReasonCode.REQUEST_BLOCKED, ReasonCode.REQUEST_UNKNOWN_SESSION)
"""Codes of refused turns that who waits for the turn gets as they are; all others are an invalid request."""


def refuse(code: ReasonCode, message: str) -> ApplicationError:
    """A failure that no retry can help, with the facts for machines beside the sentence for people."""
    detail = ErrorDetail(code=code, title="runtime", message=message)
    return ApplicationError(message, detail, type=code, non_retryable=True)


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


class Deadline:
    """Watches the time budget; ``past`` is true once it is used up. The clock stops while a reason holds it."""

    def __init__(self, runtime: Runtime) -> None:
        self.past = False
        self._runtime = runtime
        self._watching: Task | None = None
        self._counts = False
        self._holds = limits.Holds()

    def watch(self, state: TurnState) -> None:
        """Count from the turn's beginning, less the time in which it waited for people or was paused."""
        self._counts = True
        limit = state.policy.budgets.seconds
        if limit is None or self._holds.any:
            return

        async def watch() -> None:
            left = state.origin.started_at + state.waited + limit - self._runtime.now
            await self._runtime.sleep(max(left, timedelta(0)))
            self.past = True

        self._watching = self._runtime.start_task(watch())

    def apply_limit(self, state: TurnState) -> None:
        """Count to the limit that the state has now, unless the clock is held."""
        if self._counts:
            self._stop_watching()
            self.watch(state)

    def hold(self, reason: limits.HoldReason) -> None:
        """Stop the clock, for one more reason."""
        self._holds.hold(reason, self._runtime.now)
        self._stop_watching()

    def release(self, reason: limits.HoldReason, state: TurnState) -> timedelta:
        """Take a reason back; once none is left, run the clock again and return the time that it was held."""
        held = self._holds.release(reason, self._runtime.now)
        if self._watching is None and self._counts:
            self.watch(replace(state, waited=state.waited + held))
        return held

    def settle(self) -> timedelta:
        """Return the time that the clock was held and that the state does not have yet."""
        return self._holds.settle(self._runtime.now)

    def stop(self) -> None:
        """Stop counting for good."""
        self._counts = False
        self._stop_watching()

    def _stop_watching(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None


class TurnMail:
    """Mailbox of a turn, and what may be sent to it."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.mail: Mailbox = Mailbox()
        self.story: Story | None = None
        self.opened: Opened | Refused | None = None
        self.request_id = ""
        self.activity = "open_turn"
        self.shown_state = RunState.RUNNING
        self.deadline = Deadline(runtime)

    @property
    def state(self) -> TurnState | None:
        """State of the turn, once it is open."""
        return None if self.story is None else self.story.state

    def check_cancel(self, asked: CancelRequest) -> None:
        """Refuse a cancel of another turn."""
        if isinstance(self.opened, Opened):
            self._take_cancel(asked, self.opened, self.runtime.now)

    async def cancel(self, asked: CancelRequest) -> CancelReceipt:
        """Cancel the running turn or a waiting one, or all of them; a request that names another turn is refused."""
        came_at = self.runtime.now
        # Without a number, or with this turn's request id, it means the running turn, even before that has its number.
        if self.opened is None and asked.turn is None and self._means_this_request(asked.request_id):
            self.mail = stops.stop(self.mail, asked, came_at)
        opened = await self._wait_opened()
        self.mail, receipt = self._take_cancel(asked, opened, came_at)
        return receipt

    def _means_this_request(self, request_id: str | None) -> bool:
        if request_id is None:
            return True
        return request_id == self.request_id and self.runtime.patched("stop-before-opening")

    def _take_cancel(self, asked: CancelRequest, opened: Opened, came_at: datetime) -> tuple[Mailbox, CancelReceipt]:
        try:
            return stops.cancel(self.mail, asked, self._running(opened), came_at)
        except WrongTurnError as error:
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

    def check_send(self, asked: SendRequest, request_id: str) -> None:
        """Refuse a message that the turn does not take, or has no room for."""
        self._need_room_for(asked)
        if isinstance(self.opened, Opened):
            running = self._running(self.opened)
            if messages.find_turn_of(self.mail, request_id, running) is None:
                self._check_message(asked, running)

    async def send(self, asked: SendRequest, request_id: str) -> SendReceipt:
        """Take a message for the running turn or a later one. The same request id twice is the same message."""
        # The receipt names a turn, and this turn's number is known only after open_turn.
        return SendReceipt(turn=self._take_message(asked, request_id, self._running(await self._wait_opened())))

    def _take_message(self, asked: SendRequest, request_id: str, running: RunningTurn) -> int:
        """Take a message unless it came before; the turn that has it."""
        message = QueuedMessage.model_validate({**dict(asked), "request_id": request_id})
        turn = messages.find_turn_of(self.mail, request_id, running)
        if turn is None:
            self._need_room_for(message)
            self._check_message(message, running)
            self.mail, turn = messages.take_message(self.mail, message, running, self.runtime.now)
        return turn

    def _check_message(self, asked: SendRequest, running: RunningTurn) -> None:
        try:
            messages.check_message(asked, running)
        except messages.MessageRefusedError as error:
            raise refuse(error.code, str(error)) from None

    def _need_room_for(self, asked: SendRequest) -> None:
        """Refuse a message if too many wait. Checked twice: before it is taken, and where it is taken, after others."""
        waiting = (*self.mail.queued, *self.mail.steered, asked)
        # The mailbox goes into the next run's input; a payload that is too large would keep the turn from going on.
        size = size_of(waiting)
        if len(waiting) > MAX_WAITING_MESSAGES or size > MAX_WAITING_BYTES:
            message = f"{len(waiting) - 1} messages wait already; send this one when a turn has ended"
            raise refuse(ReasonCode.REQUEST_TOO_LARGE, message)

    def check_reply(self, reply: Reply, message: SendRequest | None = None) -> None:
        """Refuse a reply that nothing waits for. A turn that has just rotated may not be set up for that yet."""
        if message is not None:
            self._need_room_for(message)
        if self.state is not None:
            self._accept_reply(self.state, reply)

    async def reply(self, reply: Reply, message: SendRequest | None = None) -> InputReceipt:
        """Take an answer, an approval, a denial or a result, and the message beside it."""
        await self.runtime.wait(lambda: self.opened is not None)
        if self.state is None or not isinstance(self.opened, Opened):
            raise refuse(ReasonCode.REQUEST_INVALID, f"nothing waits for {reply.request!r}")
        if message is not None:
            self._need_room_for(message)
        self.mail, receipt = self._accept_reply(self.state, reply)
        if message is not None:
            self._take_message(message, message.request_id, self._running(self.opened))
        return receipt

    def _accept_reply(self, state: TurnState, reply: Reply) -> tuple[Mailbox, InputReceipt]:
        try:
            return input_requests.accept_reply(state, self.mail, reply, self.runtime.now)
        except input_requests.TooEarlyError as error:
            raise refuse(ReasonCode.REQUEST_TOO_EARLY, str(error)) from None
        except input_requests.ReplyError as error:
            raise refuse(ReasonCode.REQUEST_INVALID, str(error)) from None

    def check_extend(self, asked: ExtendRequest) -> None:
        """Refuse limits that cannot be set."""
        if (state := self.state) is not None:
            self._with_new_limits(state, asked)

    async def extend(self, asked: ExtendRequest) -> BudgetStatus:
        """Set limits. Limits that the request does not name stay."""
        await self.runtime.wait(lambda: self.opened is not None)
        # No await from here to the assignment, or a change that the turn makes meanwhile would be lost.
        if (story := self.story) is None:
            raise refuse(ReasonCode.REQUEST_INVALID, "no turn runs whose limits could be changed")
        story.state = self._with_new_limits(story.state, asked)
        self.deadline.apply_limit(story.state)
        return budget_of(story.state)

    def _with_new_limits(self, state: TurnState, asked: ExtendRequest) -> TurnState:
        if self.deadline.past or self.mail.cancel is not None:
            raise refuse(
                ReasonCode.REQUEST_INVALID, f"turn {state.origin.turn} is ending; the next message begins another"
            )
        try:
            return extend(state, asked, self.runtime.now)
        except ExtendError as error:
            raise refuse(ReasonCode.REQUEST_INVALID, str(error)) from None

    async def pause(self, asked: PauseRequest) -> PauseReceipt:
        """Pause the session: nothing new begins, what runs finishes. Turns of waiting messages are paused too."""
        opened = await self._wait_opened()
        changed = self.mail.paused is None
        if changed:
            self.mail = replace(self.mail, paused=Pause(since=self.runtime.now, reason=asked.reason, by=asked.by))
            self.deadline.hold("pause")
        return PauseReceipt(turn=opened.turn, changed=changed)

    async def unpause(self) -> PauseReceipt:
        """Take the pause of the session back."""
        opened = await self._wait_opened()
        changed = self.mail.paused is not None
        self.mail = replace(self.mail, paused=None)
        if self.story is not None and changed:
            # No await from here to the assignment, or a change that the turn makes meanwhile would be lost.
            state = self.story.state
            self.story.state = replace(state, waited=state.waited + self.deadline.release("pause", state))
        return PauseReceipt(turn=opened.turn, changed=changed)

    async def _wait_opened(self) -> Opened:
        """Wait until the turn has its number. Raises the turn's refusal if it was refused."""
        await self.runtime.wait(lambda: self.opened is not None)
        if not isinstance(opened := self.opened, Opened):
            error = opened.error if opened is not None else None
            code = next((kept for kept in KEPT if error is not None and error.code == kept), ReasonCode.REQUEST_INVALID)
            raise refuse(code, error.message if error is not None else "the turn was refused")
        return opened

    def status(self) -> TurnStatus:
        """Status of the turn."""
        state = self.state
        if state is None:
            _refuse_unopened()
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
        """Activity of the turn, in one word."""
        state = self.state
        if state is not None and state.ending is not None:
            return RunState.ENDED
        if self.mail.paused is not None and self.activity == PAUSED:
            return RunState.PAUSED
        waits = state is not None and state.calls.asking and state.calls.asked and not state.calls.pending
        return RunState.WAITING_FOR_INPUT if waits else RunState.RUNNING

    def budget(self) -> BudgetStatus:
        """Budget of the turn, with what it has spent."""
        state = self.state
        if state is None:
            _refuse_unopened()
        return budget_of(state)


def _refuse_unopened() -> NoReturn:
    raise refuse(ReasonCode.REQUEST_INVALID, "the turn has not been opened yet; ask again in a moment")


def budget_of(state: TurnState) -> BudgetStatus:
    """The limits of a turn, and what counts against them."""
    steps = state.step + state.spent.delegated_steps
    return BudgetStatus(max_steps=state.policy.max_steps, steps=steps, limits=state.policy.budgets, spent=state.spent)
