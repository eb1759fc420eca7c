"""A turn played without a server, a clock, a model or a tool: the engine decides, and a script says what comes of it.

The script is the world of :class:`perdure.engine.turn.Story`. Where the turn awaits the world, it may let time pass
and let in whatever comes from outside.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, cast, get_args

from perdure.contracts.budgets import ExtendRequest
from perdure.contracts.errors import ErrorDetail
from perdure.contracts.generations import Compact, Compacted, Generate, Generation
from perdure.contracts.hooks import Decided, HookResult, HookResults, RunHooks
from perdure.contracts.input_requests import AskPeople, Reply
from perdure.contracts.recordings import RecordedDecisions
from perdure.contracts.sends import QueuedMessage, WhenBusy
from perdure.contracts.tools import ToolOutcome
from perdure.contracts.turns import CancelRequest, CommitTurn, TurnResult
from perdure.contracts.waits import Pause
from perdure.engine import delegates, input_requests, messages
from perdure.engine.calls import CallTools, ToolResults
from perdure.engine.delegates import AwaitDelegates, CallDelegates, StartDelegate
from perdure.engine.generation import Failed
from perdure.engine.input_requests import WaitForPeople
from perdure.engine.limits import ExtendError, extend
from perdure.engine.state import Carried, Mailbox, TurnState
from perdure.engine.stops import RunningTurn
from perdure.engine.turn import Story, note_end, state_of
from perdure.engine.world import Action, Stopped, WaitForUnpause, World
from tests.unit.engine.asked import run_now
from tests.unit.engine.fates import answer, collected, delegate, results, summary
from tests.unit.engine.scripts import NOW, REACTIONS, Script, request

MOST_ACTIONS = 40
"""No step of the scripts has so many; a turn that goes on has a bug."""

LIMITS: tuple[dict[str, Any], ...] = (
    *({"max_steps": 10}, {"max_steps": 1}, {"llm_calls": 5}, {"llm_calls": 1}, {"tool_calls": 4}, {"tool_calls": 0}),
    *({"cost_usd": Decimal("0.8")}, {"cost_usd": Decimal("0.02")}, {"events": 6}, {"patches": 2}, {"depth": 0}),
    *({"seconds": timedelta(seconds=90)}, {"behavior_calls": 3}),
)
"""Limits that somebody may set meanwhile."""

Ends = tuple[tuple[str, TurnResult | ErrorDetail], ...]
"""Of delegates in the background: the session of each, and what it came to."""

HOOK_FAILED = ErrorDetail(code="runtime.hook_failed", title="first", message="raised")


@dataclass(frozen=True)
class Moment:
    """An action, and what the turn knew when it was decided.

    Attributes:
        stopped: Whether the turn was stopped before it.
        came: What came of it; None if it was stopped before anything did.
        later: The state after that.
        heard: Delegates in the background of whose ends the turn has heard before the action, and those after it.
    """

    state: TurnState
    mail: Mailbox
    action: Action
    now: datetime
    stopped: bool
    came: object
    later: TurnState
    heard: tuple[Ends, Ends]

    @property
    def ends(self) -> bool:
        """Whether the turn is over with it, but for delegates that are to end first."""
        return isinstance(self.action, CommitTurn) or (isinstance(self.action, AwaitDelegates) and self.action.ends)


@dataclass
class Played:
    """All that happened in a turn.

    Attributes:
        recorded: Results that stand in the store without the workflow's doing, by call.
        log: The decisions in the event log, in its order, as activities have written them.
        decided: The decisions in the order in which the engine has made them.
        extended: The limits that somebody has set meanwhile.
        sent: Ids of the messages that were steered in.
        rotations: What was carried into another run, and what it was there.
    """

    begun: TurnState
    moments: list[Moment] = field(default_factory=list)
    recorded: dict[str, ToolOutcome] = field(default_factory=dict)
    log: list[Decided] = field(default_factory=list)
    decided: dict[str, Decided] = field(default_factory=dict)
    extended: list[ExtendRequest] = field(default_factory=list)
    sent: list[str] = field(default_factory=list)
    rotations: list[tuple[Carried, Carried]] = field(default_factory=list)
    mail: Mailbox = field(default_factory=Mailbox)

    @property
    def commit(self) -> CommitTurn:
        action = self.moments[-1].action
        assert isinstance(action, CommitTurn), "the turn does not end"
        return action

    @property
    def stopped(self) -> bool:
        return self.moments[-1].stopped


def play(choices: bytes, **policy: object) -> Played:
    """Play a turn by a script of choices, to its end."""
    return Simulation(Script(choices), policy).play()


class Simulation(World):
    """The world of a turn."""

    def __init__(self, script: Script, policy: dict[str, object]) -> None:
        self.script = script
        opening, opened = request(script)
        opened = opened.model_copy(update={"policy": opened.policy.model_copy(update=policy)})
        self.time = NOW
        self.story = Story(state_of(opening, opened, self.time), self)
        self.mail = Mailbox()
        self.past = False
        self.looks = 0
        self.waited = False
        self.messages = 0
        self.background: dict[str, StartDelegate] = {}
        self.ended: dict[str, TurnResult | ErrorDetail] = {}
        self.heard: list[tuple[str, TurnResult | ErrorDetail]] = []
        self.played = Played(self.state)
        if self.state.calls.asking:
            waiting = replace(self.state, calls=replace(self.state.calls, asked=True))
            self._reply(waiting, 0, yes=script.of(True, False))

    @property
    def state(self) -> TurnState:
        return self.story.state

    @property
    def now(self) -> datetime:
        return self.time

    @property
    def stopped(self) -> bool:
        """Whether it was; the turn looks when it has taken in what came of an action, and of delegates also before."""
        if self.looks:
            self.looks -= 1
            self.played.moments[-1] = replace(self.played.moments[-1], later=self.state)
        return self.is_stopped

    @property
    def is_stopped(self) -> bool:
        return self.mail.cancel is not None or self.past

    def play(self) -> Played:
        commit = run_now(self.story)
        with self._moment(commit):
            note_end(self.story, commit)
            self._write(commit.decided)
        self.played.mail = self.mail
        return self.played

    @contextlib.contextmanager
    def _moment(self, action: Action) -> Iterator[list[object]]:
        """Note an action, what came of it, which the caller puts into the list, and what it has changed."""
        assert len(self.played.moments) < MOST_ACTIONS * (1 + self.state.policy.max_steps), "the turn does not end"
        self._note_decisions()
        self._rotate()
        before, heard = (self.state, self.mail, action, self.now, self.is_stopped), tuple(self.heard)
        self.heard.clear()
        came: list[object] = []
        yield came
        self._note_decisions()
        outcome = came[0] if came else None
        self.played.moments.append(Moment(*before, outcome, self.state, (heard, tuple(self.heard))))
        self.heard.clear()
        self.looks = 2 if isinstance(action, CallDelegates) else 1
        self.waited = isinstance(action, AwaitDelegates)

    def _note_decisions(self) -> None:
        for one in self.state.decided:
            assert self.played.decided.setdefault(one.key, one) == one, "two decisions have one key"

    def _write(self, decided: tuple[Decided, ...]) -> None:
        """An activity writes decisions into the log, where a key stands once."""
        known = {one.key for one in self.played.log}
        self.played.log += [one for one in decided if one.key not in known]

    def _rotate(self) -> None:
        """Go on with what another run would be given."""
        if self.script.of(*[False] * 9, True):
            carried = Carried(turn=self.state, mail=self.mail, place="calls")
            read = Carried.model_validate(
                Carried.model_validate_json(carried.model_dump_json()).model_dump(mode="json")
            )
            self.played.rotations.append((carried, read))
            self.story.state, self.mail = read.turn, read.mail.followed_by(Mailbox())

    # What comes from outside while the workflow waits.

    def _meanwhile(self, *, counts: bool = True) -> None:
        """Time passes and things come in; ``counts`` says whether the time is the turn's."""
        for session in self.background:
            if session not in self.ended and self.script.often(False, True):
                self._end(session)
        happening = self.script.of(*[None] * 26, "steer", "steer", "queue", "extend", "extend", "cancel")
        self.time += timedelta(seconds=self.script.of(0, 1, 1, 2, 30))
        if happening in get_args(WhenBusy):
            self._send(cast("WhenBusy", happening))
        elif happening == "extend":
            self._extend()
        elif happening == "cancel" and self.mail.cancel is None and self.script.of(False, True):
            if self.mail.queued:
                self.mail = replace(self.mail, paused=Pause(since=self.now))
            elif reason := self.script.of("", "why"):
                self.mail = replace(self.mail, cancel=CancelRequest(reason=reason), cancel_at=self.now)
            else:
                self._send("interrupt")
        limit = self.state.policy.budgets.seconds
        if counts and limit is not None and self.now >= self.state.origin.started_at + self.state.waited + limit:
            self.past = True

    def _send(self, when_busy: WhenBusy) -> None:
        message = QueuedMessage(prompt="more", request_id=f"m{self.messages}", when_busy=when_busy)
        self.messages += 1
        origin = self.state.origin
        running = RunningTurn(
            turn=origin.turn,
            request_id=origin.request_id,
            last_turn=origin.turn,
            ending=self.state.ending is not None,
            takes_steering=self.state.takes_steering,
        )
        self.mail, turn = messages.take_message(self.mail, message, running, self.now)
        if turn == origin.turn:
            self.played.sent.append(message.request_id)

    def _extend(self) -> None:
        asked = ExtendRequest(**self.script.of(*LIMITS), end=self.script.often(False, True))
        if self.past or self.mail.cancel is not None:
            return
        with contextlib.suppress(ExtendError):
            self.story.state = extend(self.state, asked, self.now)
            self.played.extended.append(asked)
            self._note_decisions()

    def _reply(self, state: TurnState, place: int, *, yes: bool) -> None:
        call = state.calls.asking[place]
        words = {"answer": "answered", "approval": "approved"}
        reply = Reply.model_validate(
            {"request": call.call_id, "decision": words[call.needs or "answer"] if yes else "denied", "by": "ann"}
        )
        if reply.decision == "answered":
            reply = reply.model_copy(update={"value": "red"})
        with contextlib.suppress(input_requests.ReplyError):
            self.mail, _ = input_requests.accept_reply(state, self.mail, reply, self.now)

    # What the turn asks for, and what comes of it.

    async def rotate_if_due(self, action: Generate | WaitForPeople) -> bool:
        return False

    async def generate(self, action: Generate) -> Generation | Failed:
        with self._moment(action) as came:
            starts = self.script.often(True, False)
            outcome: Generation | Failed | None = answer(self.script, action, self.state.policy, tuple(self.background))
            self._meanwhile()
            if self.is_stopped and (isinstance(outcome, Failed) or not (starts and self.script.of(False, True))):
                outcome = None
            if starts or not self.is_stopped:
                self._write(action.decided)
            came.append(outcome)
        if outcome is None:
            raise Stopped(action.step)
        return outcome

    async def wait(self, seconds: float) -> None:
        self._meanwhile()
        if self.is_stopped:
            raise Stopped

    async def wait_for_unpause(self, action: WaitForUnpause) -> None:
        with self._moment(action):
            began = self.now
            for _ in range(3):
                self._meanwhile(counts=False)
            self.mail = replace(self.mail, paused=None)
            self.story.state = replace(self.state, waited=self.state.waited + (self.now - began))
        if self.is_stopped:
            raise Stopped

    async def compact(self, action: Compact) -> Compacted | Failed:
        with self._moment(action) as came:
            outcome: Compacted | Failed | None = summary(self.script, action)
            self._meanwhile()
            if self.is_stopped and (self.script.of(True, False) or isinstance(outcome, Failed)):
                outcome = None
            came.append(outcome)
        if outcome is None:
            raise Stopped(action.step)
        return outcome

    async def run_hooks(self, action: RunHooks) -> HookResults | Failed:
        with self._moment(action) as came:
            outcome = self._reactions(action)
            self._meanwhile()
            came.append(None if self.is_stopped else outcome)
        if self.is_stopped:
            raise Stopped
        return outcome

    def _reactions(self, action: RunHooks) -> HookResults | Failed:
        done, refused, failed = list[HookResult | None](), None, False
        for name in action.calling:
            if action.left is not None and len(done) >= action.left:
                refused = name
                break
            wanted = self.script.of(*[None] * 8, *REACTIONS)
            done.append(None if wanted is None else HookResult(hook=name, reaction=wanted))
            failed = failed or self.script.of(*[False] * 39, True)
        if failed:
            return Failed(HOOK_FAILED)
        reactions = tuple(one for one in done if one is not None)
        return HookResults(reactions=reactions, calls=len(done), refused=refused)

    async def call_tools(self, action: CallTools) -> ToolResults:
        with self._moment(action) as came:
            outcomes, aborted = results(self.script, action, self.state.policy)
            self._meanwhile()
            arrived = [
                one for one in outcomes if one.recorded and not (self.is_stopped and self.script.of(True, False))
            ]
            self.played.recorded |= {one.call_id: one for one in arrived}
            came.append(None if self.is_stopped else tuple(outcomes))
        if self.is_stopped:
            raise Stopped
        return ToolResults(tuple(outcomes), aborted)

    async def delegate(self, action: CallDelegates) -> list[delegates.End]:
        with self._moment(action) as came:
            self._meanwhile()
            self.background |= {start.session: start for start in action.starts if start.call.background}
            ended = [None if start.call.background else delegate(self.script, start) for start in action.starts]
            for start, one in zip(action.starts, ended, strict=True):
                if isinstance(one, TurnResult) and one.report is not None:
                    self.played.recorded[start.call.call_id] = delegates.outcome_of(start, one)
            came.append(tuple(ended))
        return list(ended)

    async def await_delegates(self, action: AwaitDelegates) -> ToolOutcome | None:
        with self._moment(action) as came:
            outcome = self._awaited(action)
            came.append(outcome)
        if self.is_stopped and not action.ends:
            raise Stopped
        return outcome

    def _awaited(self, action: AwaitDelegates) -> ToolOutcome | None:
        if action.ends:
            self._meanwhile()
            if self.script.of(False, True) and self.state.calls.asking:
                self._reply(self.state, 0, yes=True)
            for session in action.sessions:
                self._end(session)
        else:
            self._wait_for(action)
        if action.call is None or self.is_stopped:
            return None
        outcome = collected(self.script, action.call.call_id)
        self._meanwhile()
        if outcome.recorded:
            self.played.recorded[outcome.call_id] = outcome
        return outcome

    def _wait_for(self, action: AwaitDelegates) -> None:
        for session in self.script.of(action.sessions, action.sessions[::-1]):
            if not (self.is_stopped or self._has_come(action)):
                self._meanwhile()
            if not (self.is_stopped or self._has_come(action)):
                self._end(session)

    def _has_come(self, action: AwaitDelegates) -> bool:
        ends = [session in self.ended for session in action.sessions]
        return any(ends) if action.call is None else all(ends)

    def _end(self, session: str) -> None:
        """A delegate in the background ends, of which its caller has not heard yet."""
        if session not in self.ended:
            self.ended[session] = delegate(self.script, self.background[session])

    def charge_ended(self, state: TurnState) -> TurnState:
        """The caller hears of ended background delegates; right after a wait for them, they are its outcome."""
        heard = [(one.session, self.ended[one.session]) for one in state.running if one.session in self.ended]
        for session, end in heard:
            state = delegates.mark_ended(state, session, end)
        if self.waited:
            last = self.played.moments[-1]
            self.played.moments[-1] = replace(last, heard=(last.heard[0], (*last.heard[1], *heard)))
            self.waited = False
        else:
            self.heard += heard
        return state

    async def ask(self, action: AskPeople) -> RecordedDecisions | Failed | None:
        with self._moment(action):
            self._meanwhile()
        return None

    async def wait_for_people(self, action: WaitForPeople) -> timedelta:
        with self._moment(action):
            began = self.now
            while not (self.is_stopped or self.mail.replies) and (action.until is None or self.now < action.until):
                kind = self.script.of("no", "yes", "yes", "yes", "late", "nothing")
                self._meanwhile(counts=False)
                if kind == "late" and action.until is not None:
                    self.time = max(self.now, action.until)
                elif kind in {"yes", "no"}:
                    for place in range(self.script.of(len(self.state.calls.asking), 1)):
                        self._reply(self.state, place, yes=kind == "yes")
        return self.now - began
