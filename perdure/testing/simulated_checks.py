"""Invariants of every run of a simulation, whatever its faults."""

# ruff: noqa: S101 - a check asserts what must hold

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from perdure.contracts.budgets import Budgets
from perdure.contracts.dimensions import COUNTED
from perdure.contracts.events import Envelope
from perdure.contracts.input_requests import InputRequest
from perdure.contracts.messages import AssistantMessage, Message, ToolMessage
from perdure.contracts.turns import RunState, StopReason, TurnResult, TurnStatus
from perdure.store.records import StepRecord
from perdure.testing.provider import RecordedRequest
from perdure.testing.simulated_faults import Fault


@dataclass(frozen=True)
class SessionLog:
    """Log of one session in the store at the end of a run.

    Attributes:
        events: The event log.
        steps: Every step, also those of abandoned answers.
        transcript: The conversation.
    """

    events: Sequence[Envelope]
    steps: Sequence[StepRecord]
    transcript: Sequence[Message]


@dataclass(frozen=True)
class SimulatedRun:
    """One run of a simulation.

    Attributes:
        results: Results of the session's turns; the last is missing if the turn waits.
        waits: The input requests that it waits for, if nobody replies to them.
        sessions: What the store holds, of the session and of its delegates, by id.
        session: The session's id.
        requests: Requests to models.
        points: The points that the run came to, in their order.
        applied: The faults that happened, by point.
        accepted: Messages that were taken, with how each was sent.
        bodies: How often the body of each call has begun, by the call's id.
        unsafe: Tools whose body may run only once.
        status: What the query ``status`` says of a turn that waits.
        replied: Input requests to which a reply was taken.
        seconds: Virtual time until the session ended.
        held: How much of it the session was paused, or waited for people.
        late: Models and tools that were called although the turn was cancelled or paused.
        asked_again: Generations whose answer was stored, and that an attempt begun after that asked for once more.
        limits: What a turn may spend.
        max_steps: The most steps of a turn, delegates' included; None if a request said it.
        secrets: What no text may show.
        endless: Whether the run was given up, as it went on and on.
        differences: How replays of its workflows differ from what was recorded.
    """

    results: tuple[TurnResult, ...]
    waits: tuple[InputRequest, ...]
    sessions: Mapping[str, SessionLog]
    session: str
    requests: tuple[RecordedRequest, ...]
    points: tuple[str, ...]
    applied: Mapping[int, Fault]
    accepted: Mapping[str, str]
    bodies: Counter[str]
    unsafe: frozenset[str] = frozenset()
    status: TurnStatus | None = None
    replied: frozenset[str] = frozenset()
    seconds: float = 0.0
    held: float = 0.0
    late: tuple[str, ...] = ()
    asked_again: tuple[str, ...] = ()
    limits: Budgets = field(default_factory=Budgets)
    max_steps: int | None = None
    secrets: frozenset[str] = field(default=frozenset(), repr=False)
    endless: bool = False
    differences: tuple[str, ...] = ()

    @property
    def stops_for_people(self) -> bool:
        """Whether the session's last turn waits, or has stopped, for people."""
        return bool(self.waits) or self.results[-1].stop_reason is StopReason.WAITING_FOR_INPUT


Check = Callable[[SimulatedRun], None]
"""Raises an AssertionError if something does not hold that must."""


def turn_ends_or_waits(run: SimulatedRun) -> None:
    """The turn ends, or waits for people, and its status and its log name what for."""
    assert not run.endless, f"it goes on after {len(run.points)} points: {run.points[-3:]}"
    if run.results and not run.waits:
        return
    assert run.waits, "no result, and nobody is waited for"
    status = run.status
    assert status is not None
    assert status.state is RunState.WAITING_FOR_INPUT, f"it waits for people, and its status says {status.state}"
    assert status.requests == run.waits, f"it waits for {run.waits}, and its status names {status.requests}"
    unheard = {asked.request_id for asked in run.waits} & run.replied
    assert not unheard, f"it waits for {unheard}, to which a reply was taken"
    told = {e.event.request_id for e in run.sessions[run.session].events if e.event.type == "user_input_required"}
    assert told >= {asked.request_id for asked in run.waits}, "what it waits for is not in the log"


def call_has_one_result(run: SimulatedRun) -> None:
    """Every call of a conversation has exactly one result, before the next answer."""
    for session, log in run.sessions.items():
        open_calls: list[str] = []
        seen = Counter[str]()
        for message in log.transcript:
            if isinstance(message, ToolMessage):
                seen[message.call_id] += 1
                assert message.call_id in open_calls, f"{session}: a result of {message.call_id}, not asked for"
                open_calls.remove(message.call_id)
            else:
                waiting = run.waits and session == run.session
                assert not open_calls or waiting, f"{session}: {open_calls} have no result before the next message"
                if isinstance(message, AssistantMessage):
                    open_calls = [asked.id for asked in message.tool_calls]
        waiting = session == run.session and run.stops_for_people
        assert not open_calls or waiting, f"{session}: {open_calls} have no result at the end"


def unsafe_body_runs_once(run: SimulatedRun) -> None:
    """The body of a call that is not idempotent runs at most once."""
    for log in run.sessions.values():
        tools = {call.call_id: call.tool for step in log.steps for call in step.calls}
        for call, count in run.bodies.items():
            assert count <= 1 or tools.get(call) not in run.unsafe, f"{tools.get(call)} ran {count} times for {call}"


def result_comes_of_a_run(run: SimulatedRun) -> None:
    """A call that ended without an error has run."""
    for log in run.sessions.values():
        for envelope in log.events:
            event = envelope.event
            if event.type == "tool_end" and event.error is None and event.call_id in run.bodies:
                assert run.bodies[event.call_id], f"{event.tool} ended well and has not run"


def log_has_no_gap(run: SimulatedRun) -> None:
    """The event log has no gap; each turn has one start and one end, and each call at most one end."""
    for session, log in run.sessions.items():
        assert [envelope.seq for envelope in log.events] == list(range(1, len(log.events) + 1)), session
        starts = Counter(envelope.turn for envelope in log.events if envelope.event.type == "agent_start")
        ends = Counter(envelope.turn for envelope in log.events if envelope.event.type == "agent_end")
        assert set(starts.values()) <= {1}, f"{session}: {starts}"
        assert set(ends.values()) <= {1}, f"{session}: {ends}"
        assert set(ends) <= set(starts)
        assert ends == starts or run.waits, f"{session}: turns {set(starts) - set(ends)} have no end"
        ended = Counter(e.event.call_id for e in log.events if e.event.type == "tool_end")
        assert set(ended.values()) <= {1}, f"{session}: {ended}"


def message_is_read_once(run: SimulatedRun) -> None:
    """Every message that was taken stands in the conversation once: read by the turn, or the prompt of a later one."""
    said = Counter(message.content for message in run.sessions[run.session].transcript if message.role == "user")
    for text in run.accepted:
        assert said[text] == 1 or run.waits, f"{text!r} stands {said[text]} times in the conversation"


def result_counts_the_steps(run: SimulatedRun) -> None:
    """The result of a turn has the steps and the tokens of its steps in the store, and the tokens of its delegates."""
    log = run.sessions[run.session]
    delegates = [delegate for name, delegate in run.sessions.items() if name != run.session]
    beside = sum(step.usage.total_tokens for delegate in delegates for step in delegate.steps)
    counted = 0
    for result in run.results:
        mine = [step for step in log.steps if step.turn == result.turn]
        calls = [step for step in mine if step.step and step.summarised is None]
        answers = {step.step for step in calls if any(message.role == "assistant" for message in step.messages)}
        assert result.steps >= len(answers), f"turn {result.turn}: {result.steps} steps, and {len(answers)} answers"
        kept = sum(step.usage.total_tokens for step in mine)
        counted += result.usage.total_tokens - kept
        assert result.usage.total_tokens >= kept, f"turn {result.turn}: {result.usage.total_tokens} of {kept} tokens"
    if not run.waits:
        assert counted >= beside, f"the results have {counted} of the {beside} tokens that delegates used"


def end_is_told_alike(run: SimulatedRun) -> None:
    """The result of a turn and the event of its end say the same."""
    ends = {e.turn: e.event for e in run.sessions[run.session].events if e.event.type == "agent_end"}
    for result in run.results:
        if result.turn is None:  # it was refused
            continue
        end = ends.get(result.turn)
        assert end is not None, f"turn {result.turn} has a result, and the log no end"
        told = (end.stop_reason, end.reason_code, end.output, end.steps, end.usage, end.cost_usd, end.exhausted_by)
        same = (result.stop_reason, result.reason_code, result.output, result.steps, result.usage, result.cost_usd)
        assert told == (*same, result.exhausted_by), f"turn {result.turn}: {told} in the log, {same} in the result"


def message_reaches_the_model(run: SimulatedRun) -> None:
    """A message that was taken is sent to the model, unless a turn ends before that other than by its model."""
    if run.waits or not all(_ended_freely(run, result) for result in run.results):
        return
    sent = {
        str(message.get("content"))
        for asked in run.requests
        for message in asked.request.messages
        if message.get("role") == "user"
    }
    for text in run.accepted:
        assert any(text in said for said in sent), f"{text!r} was not sent to the model"


def _ended_freely(run: SimulatedRun, result: TurnResult) -> bool:
    """Whether the model ended the turn, which could have gone on."""
    if result.stop_reason is not StopReason.FINISHED or result.stopped_by or result.spent is None:
        return False
    if run.max_steps is not None and result.steps + result.delegated_steps >= run.max_steps:
        return False
    limits = {name: getattr(run.limits, name) for name in COUNTED}
    return all(limit is None or getattr(result.spent, name) < limit for name, limit in limits.items())


def held_time_does_not_count(run: SimulatedRun) -> None:
    """A turn uses up its time only by the time in which it was neither paused nor waited for people."""
    (first, *later) = run.results or (None,)
    if first is None or later or first.exhausted_by != "seconds" or run.limits.seconds is None:
        return
    limit = run.limits.seconds.total_seconds()
    assert run.seconds - run.held >= limit, f"{run.seconds} s, of them {run.held} s held, use up {limit} s"


def nothing_begins_out_of_time(run: SimulatedRun) -> None:
    """No model and no tool is called after a cancel was taken, or during a pause."""
    assert not run.late, ", ".join(run.late)


def stored_answer_is_not_asked_for_again(run: SimulatedRun) -> None:
    """A model is not asked again for an answer that is stored."""
    assert not run.asked_again, ", ".join(run.asked_again)


def request_is_decided_once(run: SimulatedRun) -> None:
    """Every request to people is decided at most once, and settled by the end of the turn that asked."""
    for session, log in run.sessions.items():
        asked = Counter(e.event.request_id for e in log.events if e.event.type == "user_input_required")
        decided = Counter(e.event.request_id for e in log.events if e.event.type == "user_input_received")
        assert set(asked.values()) <= {1}, f"{session}: asked {asked}"
        assert set(decided.values()) <= {1}, f"{session}: decided {decided}"
        if session != run.session or not run.stops_for_people:
            ended = {e.event.call_id for e in log.events if e.event.type == "tool_end"}  # a stop withdraws a request
            left = set(asked) - set(decided) - ended
            assert not left, f"{session}: {left} asked and not settled"


def limit_is_not_passed(run: SimulatedRun) -> None:
    """A turn and its delegates use no more than the limits allow."""
    for result in run.results:
        if result.spent is None:
            continue
        for name in COUNTED:
            limit, spent = getattr(run.limits, name), getattr(result.spent, name)
            assert limit is None or spent <= limit, f"turn {result.turn}: {spent} of {limit} {name}"
        steps = result.steps + result.delegated_steps
        assert run.max_steps is None or steps <= run.max_steps, f"turn {result.turn}: {steps} of {run.max_steps} steps"


def secret_is_not_shown(run: SimulatedRun) -> None:
    """No event, step or result shows a secret of the environment."""
    if not run.secrets:
        return
    for session, log in run.sessions.items():
        shown = [("event", e.event.model_dump_json()) for e in log.events]
        shown += [("step", step.model_dump_json()) for step in log.steps]
        for kind, text in shown + [("result", result.model_dump_json()) for result in run.results]:
            assert not any(secret in text for secret in run.secrets), f"{session}: a secret is in the {kind} {text}"


def event_is_written_once(run: SimulatedRun) -> None:
    """No event of a step is written twice by one attempt or its follower."""
    for session, log in run.sessions.items():
        told = Counter(
            (e.turn, e.step, e.event.type, e.event.attempt) for e in log.events if e.event.type == "generation_retry"
        )
        assert set(told.values()) <= {1}, f"{session}: {told}"


def replay_does_the_same(run: SimulatedRun) -> None:
    """A replay of each workflow starts the same activities, timers and delegates, in the same order."""
    assert not run.differences, "; ".join(run.differences)


INVARIANTS: tuple[Check, ...] = (
    turn_ends_or_waits,
    call_has_one_result,
    unsafe_body_runs_once,
    result_comes_of_a_run,
    log_has_no_gap,
    message_is_read_once,
    result_counts_the_steps,
    end_is_told_alike,
    message_reaches_the_model,
    held_time_does_not_count,
    nothing_begins_out_of_time,
    stored_answer_is_not_asked_for_again,
    request_is_decided_once,
    limit_is_not_passed,
    secret_is_not_shown,
    event_is_written_once,
    replay_does_the_same,
)
"""Checks that hold of every run."""
