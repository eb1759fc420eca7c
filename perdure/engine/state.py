"""The state of a turn: two small values, carried whole when a long turn rotates. The conversation is not in them."""

from datetime import datetime, timedelta

from perdure.contracts.agents import TurnPolicy
from perdure.contracts.budgets import Spent
from perdure.contracts.errors import ErrorDetail
from perdure.contracts.hooks import EVENTS_AT, Boundary, Decided, DecidedEvent
from perdure.contracts.input_requests import Reply, Settled
from perdure.contracts.tools import Delegated, PlannedCall, Todo, ToolOutcome
from perdure.contracts.turns import MAX_WAITING_MESSAGES, CancelRequest, QueuedMessage, SendRequest, StopReason
from perdure.contracts.values import Value
from perdure.engine.conditions import Tally


class WasRead(Value):
    """What the last generation was given: with it, its step can be taken back."""

    parent: str
    call_ids: tuple[str, ...] = ()
    said: tuple[str, ...] = ()


class HookState(Value):
    """Where a turn stands with its hooks.

    Attributes:
        boundary: Where they are called next; None until the next generation.
        calling: The hooks written in Python that are to be called there.
        said: What the next generation is told by hooks.
        read: What the last one was given; None before the first.
        calls: The calls of the last answer, by id and tool.
        happened: The events of the last generation that a rule can be on.
        unheard: Decisions that hooks are on, and will hear of when the results of a step are there.
        ended: The same of delegates in the background: the calls of those that have ended.
        told: How many of those two hooks hear of at this boundary; what comes while they run is for the next step.
        retries_in_row: Retries that hooks have asked for since the last step without one.
        carried_out: In how many steps each hook has had its way.
    """

    boundary: Boundary | None = None
    calling: tuple[str, ...] = ()
    said: tuple[str, ...] = ()
    read: WasRead | None = None
    calls: tuple[tuple[str, str], ...] = ()
    happened: tuple[str, ...] = ()
    unheard: tuple[Decided, ...] = ()
    ended: tuple[str, ...] = ()
    told: tuple[int, int] = (0, 0)
    retries_in_row: int = 0
    carried_out: dict[str, int] = {}


class Ending(Value):
    """The decision to end the turn, and why.

    Attributes:
        stopped_by: What ends a finished turn before the model does.
    """

    stop_reason: StopReason
    error: ErrorDetail | None = None
    stopped_by: str | None = None


class BackgroundDelegate(Value):
    """A delegate that works while its caller goes on, or has.

    Attributes:
        session: Where it works on the call ``call_id`` of the tool ``tool``.
        granted: What it may spend, in ``steps`` steps at most: nobody else may until it has ended.
        ended: Whether it has, and is charged for.
        error: Why it did not finish.
        lost: Whether that is all there is of it: it has no result of its own.
        cancelled: Whether its caller ended first, so that its own end changes nothing.
        awaited: The step in which the caller's model has waited for it, and read what came of it.
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


class Mailbox(Value):
    """What came in from outside while the turn ran.

    Attributes:
        queued: Messages for the turns after this one, in order.
        steered: Messages for this turn's next generation.
        taken: Request ids of the steered messages that were read, the last hundred: they are not read again.
        cancel: The first request to cancel this turn; ``cancel_at`` is when it came.
        replies: What people have said to input requests, until the turn has heard it.
        settled: What was decided about input requests, the last hundred: a second reply is compared with it.
    """

    queued: tuple[QueuedMessage, ...] = ()
    steered: tuple[SendRequest, ...] = ()
    taken: tuple[str, ...] = ()
    cancel: CancelRequest | None = None
    cancel_at: datetime | None = None
    replies: tuple[Reply, ...] = ()
    settled: tuple[Settled, ...] = ()

    def with_reply(self, reply: Reply, settled: Settled) -> "Mailbox":
        """The mailbox with one more reply."""
        kept = (*self.settled, settled)[-max(MAX_WAITING_MESSAGES, len(self.replies) + 1) :]
        return self.model_copy(update={"replies": (*self.replies, reply), "settled": kept})

    def read(self, count: int) -> "Mailbox":
        """The mailbox after a generation has read so many of the steered messages."""
        taken = (*self.taken, *(message.request_id for message in self.steered[:count]))
        return self.model_copy(update={"steered": self.steered[count:], "taken": taken[-MAX_WAITING_MESSAGES:]})

    def with_all_queued(self) -> "Mailbox":
        """The mailbox of a turn that stops before it could read what was steered: the next turn does."""
        steered = (QueuedMessage.model_validate(message.model_dump(exclude_unset=True)) for message in self.steered)
        return self.model_copy(update={"queued": (*steered, *self.queued), "steered": ()})

    def followed_by(self, later: "Mailbox") -> "Mailbox":
        """Both mailboxes as one, the later messages after these; the first cancel counts."""
        first = self if self.cancel is not None else later
        return Mailbox(
            queued=(*self.queued, *later.queued),
            steered=(*self.steered, *later.steered),
            taken=self.taken,
            cancel=first.cancel,
            cancel_at=first.cancel_at,
            replies=(*self.replies, *later.replies),
            settled=(*self.settled, *later.settled)[-MAX_WAITING_MESSAGES:],
        )


class TurnState(Value):
    """Where a turn stands.

    Attributes:
        definition: The hash of the agent's frozen definition.
        tip: The id of the last step: the parent of the next.
        step: Generations used.
        pending: Calls of the last generation that have not run yet; tools come first, then delegates.
        asking: Calls of the last generation that wait for a person; ``asked`` says that people have been told.
        expires_at: Until when the approvals among them can be given.
        waited: Time spent waiting for people, which is not taken from the time budget.
        call_ids: All calls of the last generation, in the model's order: their results are what the next one reads.
        failed: Results that no activity could record.
        failures_in_row: Failed model calls of which the model was told, since its last answer.
        tool_errors_in_row: Tool errors since the last success; bounds ``feed_back``.
        corrections: Answers that did not fit the output schema.
        exhausted: A budget that ends the turn once the calls at hand have their results.
        guidance: Of a turn that compacts the conversation and generates nothing: what to keep in mind.
        context_tokens: What the last generation read and wrote; 0 until it is known.
        not_below_tokens: A tenth more than the last compaction has left: no other one is due before.
        compacted_step: The last generation for which a compaction was tried: once for each.
        overflow: The refusal of a context that was too long, until a compaction has made room.
        fallback: How many models have failed for good; ``policy`` is that of the one at work.
        aborted_step: The number of the generation that a stop interrupted.
        tally: What stop conditions count.
        judged_step: The last step at whose end they were looked at.
        decided: Decisions that the event log does not have yet.
        decisions: How many have been made, those that it has included: each has a key of its own.
        delegated: Whose call the turn carries out, if it is a delegate's.
        hooks: Where the turn stands with its agent's hooks.
        ending: Set once the turn is over but for its commit.
        todos: What the agent has on its list.
        builtins: Calls of the last generation that the workflow carries out itself, and has not yet.
        has_text: Whether the last answer had any text.
        completing: Whether the work is done and only the text of the result is missing.
        tool_turns: Answers with calls.
        earlier: The part of ``spent`` that is not of this turn: budgets may count over the whole session.
        lost_queues: Of workers that alone could take calls of this turn, and did not.
        background: The delegates of this turn that work, or have worked, in the background.
        short: Whether a call of a model or a hook was not affordable beside what they may spend.
        fails_workflow: Whether an error closes the workflow as Failed, a cancel as Canceled.
        store: The id of the store that the turn lives in; empty of a turn from before stores had one.
        unknown_tool: What ends the turn once the tools at hand have their results: the model called one that is none.
    """

    session: str
    turn: int
    definition: str
    policy: TurnPolicy
    tip: str
    started_at: datetime
    search_attributes: bool = False
    fails_workflow: bool = False
    store: str = ""
    tenant: str = ""
    request_id: str = ""
    step: int = 0
    pending: tuple[PlannedCall, ...] = ()
    asking: tuple[PlannedCall, ...] = ()
    asked: bool = False
    expires_at: datetime | None = None
    waited: timedelta = timedelta(0)
    call_ids: tuple[str, ...] = ()
    failed: tuple[ToolOutcome, ...] = ()
    failures_in_row: int = 0
    tool_errors_in_row: int = 0
    corrections: int = 0
    exhausted: ErrorDetail | None = None
    guidance: str | None = None
    context_tokens: int = 0
    not_below_tokens: int = 0
    compacted_step: int = 0
    overflow: ErrorDetail | None = None
    spent: Spent = Spent()
    tally: Tally = Tally()
    judged_step: int = 0
    decided: tuple[Decided, ...] = ()
    decisions: int = 0
    fallback: int = 0
    aborted_step: int | None = None
    delegated: Delegated | None = None
    hooks: HookState = HookState()
    ending: Ending | None = None
    todos: tuple[Todo, ...] = ()
    builtins: tuple[PlannedCall, ...] = ()
    has_text: bool = False
    completing: bool = False
    tool_turns: int = 0
    earlier: Spent = Spent()
    lost_queues: tuple[str, ...] = ()
    background: tuple[BackgroundDelegate, ...] = ()
    short: bool = False
    unknown_tool: ErrorDetail | None = None

    @property
    def running(self) -> tuple[BackgroundDelegate, ...]:
        """The delegates in the background that have not ended."""
        return tuple(one for one in self.background if not one.ended)

    @property
    def granted(self) -> Spent:
        """What those may still spend, and nobody else may."""
        granted = Spent()
        for one in self.running:
            granted = granted.with_delegate(one.granted, one.steps)
        return granted

    @property
    def taken(self) -> Spent:
        """What is spent, and what is granted."""
        return self.spent.with_delegate(self.granted, 0) if self.running else self.spent

    @property
    def own_spent(self) -> Spent:
        """What this turn has spent."""
        return self.spent.without(self.earlier)

    def with_decided(self, *events: DecidedEvent) -> "TurnState":
        """The state with decisions for the event log, under keys of this step."""
        known = max(self.decisions, len(self.decided))  # a turn from before these were counted
        new = [
            Decided(key=f"{self.step}/decided/{place}/{event.type}", step=self.step, event=event)
            for place, event in enumerate(events, start=known)
        ]
        if not new:
            return self
        state = self.model_copy(update={"decided": (*self.decided, *new), "decisions": known + len(new)})
        unheard = tuple(one for one in new if self.is_hooked(one.event.type))
        return state.with_hooks(unheard=(*self.hooks.unheard, *unheard)) if unheard else state

    def is_hooked(self, event: str) -> bool:
        """Whether a hook hears of such an event when the results of a step are there."""
        return event in EVENTS_AT["step"] and any(event in hook.events for hook in self.policy.hooks)

    def with_hooks(self, **changes: object) -> "TurnState":
        """The state with this changed of what it remembers of its hooks."""
        return self.model_copy(update={"hooks": self.hooks.model_copy(update=changes)})

    def with_written(self, count: int) -> "TurnState":
        """The state after an activity has written so many of its decisions."""
        return self.model_copy(update={"decided": self.decided[count:]}) if count else self


class Carried(Value):
    """What a rotation hands to the next run of the same turn."""

    turn: TurnState
    mail: Mailbox
