"""The state of a turn: what a rotation carries. The conversation is in the store, and not in here.

Long, because each field of what is carried is explained.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal

from perdure.contracts.agents import TurnPolicy
from perdure.contracts.budgets import Spent
from perdure.contracts.errors import ErrorDetail
from perdure.contracts.hooks import EVENTS_AT, Decided, DecidedEvent
from perdure.contracts.input_requests import Reply, Settled
from perdure.contracts.sends import MAX_WAITING_MESSAGES, QueuedMessage, SendRequest
from perdure.contracts.tool_choice import ToolChoice
from perdure.contracts.tools import Delegated, PlannedCall, Todo, ToolOutcome
from perdure.contracts.turns import CancelRequest, StopReason
from perdure.contracts.values import Value, replace
from perdure.contracts.waits import Pause


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Origin of a turn: what it was opened with. It never changes.

    Attributes:
        definition: Hash of the agent's frozen definition.
        store: Id of the store that holds the session.
        search_attributes: Whether the namespace has perdure's search attributes.
        fails_workflow: Whether an error closes the workflow as Failed, a cancel as Canceled.
        moves: Whether the turn, bound to a version of the workers, rotates to move to the current one.
        delegated: The caller's call that the turn carries out, if the turn is a delegate's.
        guidance: What a summary should keep, in a turn that only compacts the conversation; None in every other turn.
        earlier: What the session had spent before, if budgets count over the session.
        trace: The trace context of the turn's span; empty if the turn is not traced.
        seed: The turn's secret, which the ids of its delegates are made of; empty if an earlier release opened it.
    """

    session: str
    turn: int
    definition: str
    started_at: datetime
    store: str = ""
    tenant: str = ""
    request_id: str = ""
    search_attributes: bool = False
    fails_workflow: bool = False
    moves: bool = False
    delegated: Delegated | None = None
    guidance: str | None = None
    earlier: Spent = Spent()
    trace: str = ""
    seed: str = ""


@dataclass(frozen=True, kw_only=True)
class Calls:
    """The calls of the last answer.

    Attributes:
        ids: Every call, in the model's order. The next generation reads their results.
        pending: Calls that have not run. Tools come first, then delegates, then calls that wait for delegates.
        own: Calls that the workflow carries out itself, and has not yet.
        asking: Calls that wait for a person.
        asked: Whether people have been told of them.
        expires_at: When the approvals among them expire.
        outcomes: Results that no activity has recorded.
        unknown_tool: A call of a tool that does not exist, if it ends the turn once the pending tools have results.
        has_text: Whether the answer had text.
        own_only: Whether no call runs but those that the workflow carries out itself.
    """

    ids: tuple[str, ...] = ()
    pending: tuple[PlannedCall, ...] = ()
    own: tuple[PlannedCall, ...] = ()
    asking: tuple[PlannedCall, ...] = ()
    asked: bool = False
    expires_at: datetime | None = None
    outcomes: tuple[ToolOutcome, ...] = ()
    unknown_tool: ErrorDetail | None = None
    has_text: bool = False
    own_only: bool = False

    def with_outcomes(self, outcomes: Sequence[ToolOutcome]) -> "Calls":
        """The calls with more results that no activity has recorded."""
        return replace(self, outcomes=(*self.outcomes, *outcomes)) if outcomes else self

    def with_questions(self, asking: Sequence[PlannedCall]) -> "Calls":
        """The calls with more that wait for people, who have not been told of these yet."""
        return replace(self, asking=(*self.asking, *asking), asked=False) if asking else self

    def with_approved(self, approved: Sequence[PlannedCall]) -> "Calls":
        """The calls with approved ones as what runs next. Calls are approved only when no other call is pending."""
        own = tuple(call for call in approved if call.is_own)
        pending = tuple(call for call in approved if not call.is_own)
        return replace(self, pending=pending, own=(*self.own, *own))


@dataclass(frozen=True, kw_only=True)
class Request:
    """Request of the last generation. A hook that takes the answer back restores it."""

    parent: str
    call_ids: tuple[str, ...] = ()
    said: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class HookState:
    """State that a turn keeps for its agent's hooks.

    Attributes:
        said: Texts of hooks for the next generation.
        request: The request of the last generation; None before the first.
        tools: Tool of each call of the last answer, by call id.
        unheard: Decision events that hooks receive at the next ``step`` boundary.
        ended: Calls of background delegates that have ended, received at the same boundary.
        retries_in_row: Retries that hooks asked for since the last step without one.
        applied: Number of reactions applied, by hook.
    """

    said: tuple[str, ...] = ()
    request: Request | None = None
    tools: dict[str, str] = field(default_factory=dict[str, str])
    unheard: tuple[Decided, ...] = ()
    ended: tuple[str, ...] = ()
    retries_in_row: int = 0
    applied: dict[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, kw_only=True)
class Context:
    """Fill of the model's context.

    Attributes:
        tokens: Tokens that the last generation read and wrote; 0 until they are known.
        not_below: Tokens below which no other compaction is due: 10 % more than the last one left.
        compacted_step: The last generation for which a compaction was tried. Each gets one try.
        overflow: The provider's refusal of a context that was too long, until a compaction has made room.
    """

    tokens: int = 0
    not_below: int = 0
    compacted_step: int = 0
    overflow: ErrorDetail | None = None


@dataclass(frozen=True, kw_only=True)
class Tally:
    """Counts of the turn for its stop conditions.

    Attributes:
        uses: Successful calls of each tool.
        results: Calls that have a result, errors among them.
        failed: Tools with a failed call.
        errors_in_row: Failed calls since the last successful one.
        most_errors_in_row: The longest such row.
        generations: Answers of the turn's own model.
        retries: Model calls that failed and were sent again.
        steps_without_call: Steps since the last one with a call.
        steps_without_new: Steps since the last one that used a tool for the first time.
        used: Tools that were called, also without success.
        matched: Places of the text conditions that hold for the current step.
        ended: Calls of the current step that have a result: the tool, and whether it succeeded.
    """

    uses: dict[str, int] = field(default_factory=dict[str, int])
    results: int = 0
    failed: tuple[str, ...] = ()
    errors_in_row: int = 0
    most_errors_in_row: int = 0
    generations: int = 0
    retries: int = 0
    steps_without_call: int = 0
    steps_without_new: int = 0
    used: tuple[str, ...] = ()
    matched: tuple[int, ...] = ()
    ended: tuple[tuple[str, bool], ...] = ()

    def with_generation(self, calls: Sequence[PlannedCall], *, matched: tuple[int, ...], retries: int) -> "Tally":
        """The tally after an answer with these calls."""
        called = {call.tool for call in calls}
        new = called - set(self.used)
        rejected = [call for call in calls if call.rejected is not None]
        return replace(
            self,
            generations=self.generations + 1,
            retries=self.retries + retries,
            steps_without_call=0 if calls else self.steps_without_call + 1,
            steps_without_new=0 if new else self.steps_without_new + 1,
            used=(*self.used, *sorted(new)),
            matched=matched,
            ended=(),
        ).with_ended([(call.tool, False) for call in rejected])

    def without_calls(self) -> "Tally":
        """The tally after a failed model call that the model is told of: its step has no calls."""
        return replace(self, retries=self.retries + 1, matched=(), ended=())

    def with_results(self, calls: Sequence[PlannedCall], outcomes: Sequence[ToolOutcome]) -> "Tally":
        """The tally after these calls have ended."""
        results = [(call.tool, outcome.error is None) for call, outcome in zip(calls, outcomes, strict=True)]
        matched = {*self.matched, *(place for outcome in outcomes for place in outcome.matched)}
        return replace(self, matched=tuple(sorted(matched))).with_ended(results)

    def with_ended(self, results: Sequence[tuple[str, bool]]) -> "Tally":
        """The tally after calls of these tools have ended, with success or not."""
        uses, failed, in_row, most = dict(self.uses), list(self.failed), self.errors_in_row, self.most_errors_in_row
        for tool, succeeded in results:
            in_row = 0 if succeeded else in_row + 1
            most = max(most, in_row)
            if succeeded:
                uses[tool] = uses.get(tool, 0) + 1
            elif tool not in failed:
                failed.append(tool)
        return replace(
            self,
            uses=uses,
            failed=tuple(failed),
            errors_in_row=in_row,
            most_errors_in_row=most,
            results=self.results + len(results),
            ended=(*self.ended, *results),
        )


@dataclass(frozen=True, kw_only=True)
class Ending:
    """The decision to end the turn.

    Attributes:
        stopped_by: The condition, tool or hook that ended a turn whose model would have gone on.
    """

    stop_reason: StopReason
    error: ErrorDetail | None = None
    stopped_by: str | None = None

    @property
    def is_models_own(self) -> bool:
        """Whether the model ended the turn: with its text, or with a tool that finishes the work."""
        return self.stopped_by is None and self.is_finish

    @property
    def is_finish(self) -> bool:
        """Whether the turn ends without a failure, a limit or a stop."""
        return self.stop_reason in {StopReason.FINISHED, StopReason.STALLED}


@dataclass(frozen=True, kw_only=True)
class BackgroundDelegate:
    """A delegate that works, or has worked, while its caller goes on.

    Attributes:
        session: The delegate's session. It works on the call ``call_id`` of the tool ``tool``.
        granted: What the delegate may spend, in ``steps`` steps at most. Until it ends, nothing else may.
        ended: Whether the delegate has ended, and its caller is charged for it.
        error: Why the delegate did not finish.
        lost: Whether ``error`` is all there is: the delegate has no result of its own.
        cancelled: Whether the caller ended first, so that the delegate's end changes nothing.
        awaited: The step in which the caller's model waited for the delegate and read its result.
    """

    session: str
    call_id: str
    tool: str
    granted: Spent = Spent()
    steps: int = 0
    ended: bool = False
    error: ErrorDetail | None = None
    lost: bool = False
    cancelled: bool = False
    awaited: int | None = None


@dataclass(frozen=True, kw_only=True)
class Mailbox:
    """Messages from outside while the turn ran.

    Attributes:
        queued: Messages for the turns after this one, in order.
        steered: Messages for this turn's next generation.
        taken: Request ids of the steered messages that were read, the last hundred: they are not read again.
        cancel: The first request to cancel this turn; ``cancel_at`` is when it came.
        paused: The pause of the session; nothing of the turn begins until it is taken back.
        replies: Replies to input requests that the turn has not applied yet.
        settled: Decisions about input requests, the last hundred: a second reply is compared with them.
    """

    queued: tuple[QueuedMessage, ...] = ()
    steered: tuple[SendRequest, ...] = ()
    taken: tuple[str, ...] = ()
    cancel: CancelRequest | None = None
    cancel_at: datetime | None = None
    paused: Pause | None = None
    replies: tuple[Reply, ...] = ()
    settled: tuple[Settled, ...] = ()

    def with_reply(self, reply: Reply, settled: Settled) -> "Mailbox":
        """The mailbox with one more reply."""
        kept = (*self.settled, settled)[-max(MAX_WAITING_MESSAGES, len(self.replies) + 1) :]
        return replace(self, replies=(*self.replies, reply), settled=kept)

    def with_queued(self, message: QueuedMessage) -> "Mailbox":
        """The mailbox with one more message for a later turn."""
        return replace(self, queued=(*self.queued, message))

    def with_steered(self, message: SendRequest) -> "Mailbox":
        """The mailbox with one more message for this turn."""
        return replace(self, steered=(*self.steered, message))

    def read(self, count: int) -> "Mailbox":
        """The mailbox after a generation has read the first ``count`` steered messages."""
        taken = (*self.taken, *(message.request_id for message in self.steered[:count]))
        return replace(self, steered=self.steered[count:], taken=taken[-MAX_WAITING_MESSAGES:])

    def with_all_queued(self) -> "Mailbox":
        """The mailbox of a turn that stops before it could read what was steered: the next turn reads it."""
        steered = (QueuedMessage.model_validate(message.model_dump(exclude_unset=True)) for message in self.steered)
        return replace(self, queued=(*steered, *self.queued), steered=())

    def followed_by(self, later: "Mailbox") -> "Mailbox":
        """Both mailboxes as one, the later messages last. The first cancel counts."""
        first = self if self.cancel is not None else later
        return Mailbox(
            queued=(*self.queued, *later.queued),
            steered=(*self.steered, *later.steered),
            taken=self.taken,
            cancel=first.cancel,
            cancel_at=first.cancel_at,
            paused=later.paused or self.paused,
            replies=(*self.replies, *later.replies),
            settled=(*self.settled, *later.settled)[-MAX_WAITING_MESSAGES:],
        )


@dataclass(frozen=True, kw_only=True)
class TurnState:
    """State of a turn.

    Attributes:
        policy: The agent's settings, with the limits and the model of now.
        tip: Id of the last step, the parent of the next.
        step: Number of generations.
        calls: The calls of the last answer.
        spent: What counts against the budgets: the spending of this turn and of ``origin.earlier``.
        exhausted: The budget that ends the turn once the calls of the last answer have results.
        short: Whether a call was not affordable beside the grants of background delegates.
        failures_in_row: Failed model calls that the model was told of since its last answer.
        tool_errors_in_row: Answers in a row whose tool calls all failed.
        tool_turns: Answers with calls.
        corrections: Answers that did not fit the output schema.
        tool_choice: What the model has to call, as the request wishes, until it has.
        reminders: Times that the model was told to make that call.
        completing: Whether the model said that the work is done, and only has to write the text of the result.
        fallback: Number of models that failed for good; ``policy`` names the one at work.
        waited: Time spent waiting for people. The time budget leaves it out.
        decided: Decision events that the log does not have yet.
        decisions: Number of decision events of the turn; each gets a key of its own from it.
        lost_queues: Task queues of workers that took no calls any more.
        background: The background delegates of this turn.
        ending: The decision to end the turn, once it is made.
    """

    origin: Origin
    policy: TurnPolicy
    tip: str
    step: int = 0
    calls: Calls = Calls()
    hooks: HookState = HookState()
    context: Context = Context()
    tally: Tally = Tally()
    spent: Spent = Spent()
    exhausted: ErrorDetail | None = None
    short: bool = False
    failures_in_row: int = 0
    tool_errors_in_row: int = 0
    tool_turns: int = 0
    corrections: int = 0
    tool_choice: ToolChoice | None = None
    reminders: int = 0
    completing: bool = False
    fallback: int = 0
    waited: timedelta = timedelta(0)
    todos: tuple[Todo, ...] = ()
    decided: tuple[Decided, ...] = ()
    decisions: int = 0
    lost_queues: tuple[str, ...] = ()
    background: tuple[BackgroundDelegate, ...] = ()
    ending: Ending | None = None

    @property
    def running(self) -> tuple[BackgroundDelegate, ...]:
        """The background delegates that have not ended."""
        return tuple(delegate for delegate in self.background if not delegate.ended)

    @property
    def granted(self) -> Spent:
        """Budget that running delegates may still spend, and nothing else may."""
        granted = Spent()
        for delegate in self.running:
            granted = granted.with_delegate(delegate.granted, delegate.steps)
        return granted

    @property
    def taken(self) -> Spent:
        """Use that is spent or granted."""
        return self.spent.with_delegate(self.granted, 0) if self.running else self.spent

    @property
    def own_spent(self) -> Spent:
        """Use of this turn alone."""
        return self.spent.without(self.origin.earlier)

    @property
    def has_hooks(self) -> bool:
        """Whether hooks look at the turn's steps; a turn that only compacts has none."""
        return bool(self.policy.hooks) and self.origin.guidance is None

    @property
    def stop_reason(self) -> StopReason | None:
        """The stop reason of the ending, once it is decided."""
        return None if self.ending is None else self.ending.stop_reason

    @property
    def takes_steering(self) -> bool:
        """Whether a message can still steer the turn; otherwise it waits for the next one."""
        return self.ending is None and self.origin.guidance is None

    @property
    def has_open_calls(self) -> bool:
        """Whether calls of the last answer run next, or wait for people."""
        return bool(self.calls.pending) or (bool(self.calls.asking) and self.ending is None)

    def with_decided(self, *events: DecidedEvent) -> "TurnState":
        """The state with decision events for the log, under keys of this step."""
        new = tuple(
            Decided(key=f"{self.step}/decided/{place}/{event.type}", step=self.step, event=event)
            for place, event in enumerate(events, start=self.decisions)
        )
        if not new:
            return self
        unheard = tuple(decided for decided in new if self.is_hooked(decided.event.type))
        return replace(
            self,
            decided=(*self.decided, *new),
            decisions=self.decisions + len(new),
            hooks=replace(self.hooks, unheard=(*self.hooks.unheard, *unheard)),
        )

    def is_hooked(self, event: str) -> bool:
        """Whether a hook receives such an event at the ``step`` boundary."""
        return event in EVENTS_AT["step"] and any(event in hook.events for hook in self.policy.hooks)

    def with_written(self, count: int) -> "TurnState":
        """The state after an activity has written the first ``count`` decision events."""
        return replace(self, decided=self.decided[count:]) if count else self


Place = Literal["start", "calls", "model"]
"""Place where a turn goes on: at its start, with open calls of the last answer, or with the next question to the
model.
"""


class Carried(Value):
    """State that a rotation hands to the next run of the same turn; ``moved_from`` is the version that it left."""

    turn: TurnState
    mail: Mailbox
    place: Place
    moved_from: str = ""
