"""A runtime in memory whose faults come from a schedule: lost attempts and workers, a store that fails, messages.

A *point* is a place where something may go wrong: an attempt begins or returns, or one of its transactions is about to
be made or has been made. Points are numbered as a run comes to them, and one run with the same schedule meets the same.
"""

import asyncio
import contextlib
import dataclasses
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import Future
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, TypeVar, get_args

from sqlalchemy import Connection
from temporalio.testing import ActivityEnvironment

from perdure.activities.store_access import pause
from perdure.agents.tool import Tool
from perdure.client.errors import RequestRefusedError
from perdure.contracts.budgets import ExtendRequest
from perdure.contracts.exceptions import failure_of
from perdure.contracts.input_requests import Reply
from perdure.contracts.sends import SendRequest
from perdure.contracts.turns import CancelRequest
from perdure.contracts.waits import PauseRequest
from perdure.lanes.bodies import Arguments, Bodies, BodyContext, Read
from perdure.lanes.lanes import Lane, Run
from perdure.store import Store
from perdure.store.errors import StoreUnavailableError
from perdure.testing.calls import Call
from perdure.testing.clock import Clock
from perdure.testing.memory_runtime import Around, MemorySession
from perdure.testing.simulated_replay import RecordingRuntime
from perdure.worker.app import Activities
from perdure.workflows.options import HEARTBEAT_TIMEOUT, ActivityOptions
from perdure.workflows.runtime import History
from perdure.workflows.world import TurnWorld

T = TypeVar("T")

SentFault = Literal["cancel", "steer", "queue", "interrupt", "pause", "extend"]
"""A message to the session."""

Fault = Literal["kill", "zombie", "freeze", "refuse", "cut", "rotate", "hour", SentFault]
"""Event that happens at a point.

``kill`` ends the worker's process with all its attempts. ``zombie`` has the server take the attempt for lost although
it goes on; with ``freeze`` it goes on only once the next attempt has begun. ``refuse`` and ``cut`` fail a transaction,
before its commit and behind it. ``rotate`` gives the turn a fresh history, ``hour`` lets an hour pass. The others are
messages to the session; one for the model is sent twice, as by a client that has not heard whether it has come.
"""

FAULTS: tuple[Fault, ...] = get_args(Fault)

FREEZE = HEARTBEAT_TIMEOUT + timedelta(milliseconds=1)
"""An attempt that was frozen goes on so much later: its follower has just begun."""

EXTENDED_STEPS = 200
"""The limit of steps that the fault ``extend`` sets."""

LONGEST_PAUSE = timedelta(minutes=10)
"""A pause of the session is taken back after this long."""


WORK = frozenset({"generate", "compact", "call_tool"})
"""Activities that no turn calls once it is cancelled."""


class LostError(BaseException):
    """The process of the attempt has ended: nothing that it does from here on counts."""


@dataclass
class Worker:
    """A worker's process."""

    activities: Activities
    alive: bool = True


@dataclass(eq=False)
class Attempt:
    """An attempt at an activity; ``lost`` once the server has given it up.

    Attributes:
        has_answer: Whether the model's answer was stored before the attempt began.
        frozen: Whether it does nothing until the server has made the next attempt.
        task: Its task.
    """

    worker: Worker
    call: "SimulatedCall"
    lost: bool = False
    has_answer: bool = False
    frozen: bool = False
    task: "asyncio.Task[Any] | None" = None

    async def thaw(self, clock: Clock) -> None:
        """Wait while the attempt is frozen, if this is its own task."""
        if self.frozen and asyncio.current_task() is self.task:
            self.frozen = False
            await clock.sleep(FREEZE.total_seconds())


_attempt: ContextVar[Attempt | None] = ContextVar("perdure_attempt", default=None)
_meeting: ContextVar["Simulation | None"] = ContextVar("perdure_simulation", default=None)


@dataclass(kw_only=True)
class Simulation(Around):
    """The surroundings of one run, with its schedule.

    Attributes:
        make_worker: Starts a worker's process.
        schedule: The fault at each point, by its number.
        root: The session to which messages are sent.
        most_points: A run that comes to more goes on for ever.
        give_up: Called then.
        points: The points so far, by name.
        applied: The faults that have happened, by point.
        accepted: Messages that the session has taken: the text of each, and how it was sent.
        bodies: How often the body of each call has begun.
        replied: Input requests to which a reply was taken.
        late: Models and tools that were called while their turn was cancelled or paused.
        passed: Virtual time until the session ended.
        held: How much of it the session was paused, or waited for people.
        ended: Whether the session has ended.
        runs: Each run of a session, with what was recorded of it.
        asked_again: Generations that asked for an answer that was stored.
    """

    make_worker: Callable[[], Activities]
    schedule: Mapping[int, Fault]
    root: str
    most_points: int = 100_000
    give_up: Callable[[], object] = lambda: None
    points: list[str] = field(default_factory=list[str])
    applied: dict[int, Fault] = field(default_factory=dict[int, Fault])
    accepted: dict[str, str] = field(default_factory=dict[str, str])
    bodies: Counter[str] = field(default_factory=Counter[str])
    replied: set[str] = field(default_factory=set[str])
    passed: timedelta = timedelta(0)
    held: timedelta = timedelta(0)
    ended: bool = False
    runs: list[RecordingRuntime] = field(default_factory=list[RecordingRuntime])
    late: list[str] = field(default_factory=list[str])
    asked_again: list[str] = field(default_factory=list[str])
    rotating: set[str] = field(default_factory=set[str])

    def __post_init__(self) -> None:
        self.worker = Worker(self.activities)
        self.clock.on_pass = self._note_time
        _meeting.set(self)
        pause.set(timedelta(0))

    def call(self, activity: str, argument: object, *, name: str, session: str, bounds: ActivityOptions) -> Call:
        """Call an activity on the worker that lives."""
        if activity in WORK:
            caller = self.sessions[session]
            if caller.is_cancelled:
                self.late.append(f"{name} was called after {session} was cancelled")
            if caller.is_paused:
                self.late.append(f"{name} was called while {session} was paused")
        return SimulatedCall(self, activity, argument, name=name, session=session, options=bounds)

    def note_reply(self, reply: Reply) -> None:
        """A reply was taken."""
        self.replied.add(reply.request)

    def history(self, session: str) -> History:
        """A history that is long once a fault says so, until the next run begins."""
        return History(continue_as_new_suggested=session in self.rotating)

    def note_run(self, session: str) -> None:
        """A run of the session has begun, with a fresh history."""
        self.rotating.discard(session)

    def make_runtime(self, session: str) -> RecordingRuntime:
        """Make a runtime that can be replayed."""
        self.runs.append(RecordingRuntime(self, session))
        return self.runs[-1]

    def meet(self, attempt: Attempt, name: str, *, committed: bool | None = None) -> None:
        """Come to a point, and have its fault happen if it has one that is possible there.

        Args:
            attempt: The attempt.
            name: The point's name.
            committed: Of a point at a transaction, whether that is behind its commit.

        Raises:
            LostError: The worker's process has ended.
            StoreUnavailableError: The transaction fails.
        """
        if not attempt.worker.alive:
            raise LostError
        if committed and name.startswith("finish_generation "):
            attempt.call.has_answer = True
        number = len(self.points)
        self.points.append(name)
        if number > self.most_points:
            self.give_up()
        fault = self.schedule.get(number)
        if fault is None or not self._apply(fault, attempt, committed=committed):
            return
        self.applied[number] = fault
        if fault == "kill":
            raise LostError
        if fault in {"refuse", "cut"}:
            msg = "the store sqlite:// cannot be used: simulated"
            raise StoreUnavailableError(msg)

    def _apply(self, fault: Fault, attempt: Attempt, *, committed: bool | None) -> bool:
        """Have a fault happen; False if it cannot."""
        match fault:
            case "kill":
                attempt.worker.alive = False
                self.worker = Worker(self.make_worker())
                self.clock.look()
            case "zombie" | "freeze":
                if attempt.lost:
                    return False
                attempt.lost, attempt.frozen = True, fault == "freeze"
                self.clock.look()
            case "refuse":
                return committed is False
            case "cut":
                return committed is True
            case "rotate":
                self.rotating |= set(self.sessions)
            case "hour":
                self.clock.advance(self.clock.now + timedelta(hours=1))
            case _:
                self._send_message(fault)
        return True

    def _send_message(self, kind: SentFault) -> None:
        """Send the session a message."""
        match kind:
            case "pause":
                self._send(lambda world: world.pause(PauseRequest(reason="simulated")))
                seconds = LONGEST_PAUSE.total_seconds()
                self._session.deliver_later(seconds, lambda world: world.unpause())
            case "extend":
                self._send(lambda world: world.extend(ExtendRequest(max_steps=EXTENDED_STEPS)))
            case "cancel":
                self._send(lambda world: world.cancel(CancelRequest(reason="simulated")))
            case "steer" | "queue" | "interrupt":
                text = f"message {len(self.points)}"
                message = SendRequest(prompt=text, when_busy=kind)
                for _ in range(2):  # as a client that has not heard whether its message has come
                    self._send(lambda world: world.send(message, text), lambda: self.accepted.update({text: kind}))

    def _note_time(self, time: timedelta) -> None:
        """Time passes: it does not count while the session is paused or waits for people."""
        if (session := self.sessions.get(self.root)) is not None and not self.ended:
            self.passed += time
            if session.is_held:
                self.held += time

    @property
    def _session(self) -> MemorySession:
        return self.sessions[self.root]

    def _send(
        self, message: Callable[[TurnWorld], Coroutine[Any, Any, object]], taken: Callable[[], None] = lambda: None
    ) -> None:
        with contextlib.suppress(RequestRefusedError):
            self._session.deliver(message, taken)


class SimulatedCall(Call):
    """An activity whose attempts may be lost."""

    def __init__(
        self,
        simulation: Simulation,
        activity: str,
        argument: object,
        *,
        name: str,
        session: str,
        options: ActivityOptions,
    ) -> None:
        self._simulation = simulation
        self._activity = activity
        self._lost = 0
        self.has_answer = False
        super().__init__(
            simulation.clock, simulation.body(activity), argument, name=name, session=session, options=options
        )

    async def _run(self) -> Any:  # noqa: ANN401 - as an activity handle's
        simulation, environment = self._simulation, self._environment
        while True:
            attempt = Attempt(simulation.worker, self, has_answer=self.has_answer)
            simulation.activities = attempt.worker.activities
            body = simulation.body(self._activity)
            task = self._clock.start(self._make(attempt, environment, body))
            task.add_done_callback(_take_exception)
            worker = attempt.worker
            await self._clock.wait(lambda: task.done() or attempt.lost or not worker.alive)  # noqa: B023 - of this round
            if worker.alive and not attempt.lost:
                return task.result()
            if not worker.alive:
                task.cancel()
            # Nobody hears of it: the server takes the attempt for lost when its heartbeat stays away.
            await self._clock.sleep(HEARTBEAT_TIMEOUT.total_seconds())
            if self._cancelled:
                raise asyncio.CancelledError
            told = [{"lost_attempts": self._lost, "running_attempt": environment.info.attempt}]
            self._lost += 1
            environment = self._environment = self._begin()
            environment.info = dataclasses.replace(environment.info, heartbeat_details=told)

    def __str__(self) -> str:
        """Its name, and its session's."""
        return f"{self._name} of {self._session}"

    async def _make(
        self, attempt: Attempt, environment: ActivityEnvironment, body: Callable[..., Awaitable[Any]]
    ) -> Any:  # noqa: ANN401 - as an activity handle's
        _attempt.set(attempt)
        attempt.task = asyncio.current_task()
        try:
            self._simulation.meet(attempt, f"{self._name} begins")
            await attempt.thaw(self._clock)
            result = await environment.run(body, self._argument)
            self._simulation.meet(attempt, f"{self._name} returns")
        finally:
            attempt.task = None  # which has the attempt in its context
        return result


class SimulatedStore(Store):
    """A store whose transactions are points, where an attempt makes them."""

    async def write(self, operation: str, work: Callable[[Connection], T]) -> T:
        """Do work in one transaction that writes."""
        await _meet(operation, committed=False)
        result = await super().write(operation, work)
        await _meet(operation, committed=True)
        return result

    async def read(self, operation: str, work: Callable[[Connection], T]) -> T:
        """Do work that only reads."""
        await _meet(operation, committed=False)
        return await super().read(operation, work)


def note_request() -> None:
    """Note that the attempt which runs asks a model."""
    simulation, attempt = _meeting.get(), _attempt.get()
    if simulation is not None and attempt is not None and attempt.has_answer:
        simulation.asked_again.append(f"{attempt.call} has an answer, and asks again")


def _take_exception(task: "asyncio.Task[Any]") -> None:
    """Have asyncio not tell of the exception of an attempt that was given up."""
    if not task.cancelled():
        task.exception()


async def _meet(operation: str, *, committed: bool) -> None:
    simulation, attempt = _meeting.get(), _attempt.get()
    if simulation is not None and attempt is not None:
        simulation.meet(attempt, f"{operation} {'is done' if committed else 'begins'}", committed=committed)
        await attempt.thaw(simulation.clock)


class InlineLane(Lane):
    """A lane whose sync code runs at once, so that a run with the same schedule is the same."""

    def run_on_thread(self, name: str, code: Callable[[], Any]) -> Run:
        """Run sync code here."""
        run: Run = Run(name, self, Future(), Future())
        run.begun.set_result(None)
        try:
            came = code()
        except BaseException as error:  # noqa: BLE001 - the edge: it is the author's code
            came = failure_of(error)
        run.future.set_result(came)
        return run


class InlineBodies(Bodies):
    """Bodies that run at once, and are counted."""

    lane = InlineLane

    def start(
        self, tool: Tool[..., Any], arguments: Arguments, context: BodyContext, read: Read = lambda value: value
    ) -> Run:
        """Start a body, and count it."""
        simulation, attempt = _meeting.get(), _attempt.get()
        if simulation is not None and attempt is not None:
            with contextlib.suppress(StoreUnavailableError):
                simulation.meet(attempt, f"{tool.name} runs")
            simulation.bodies[context.call_id] += 1
        run = super().start(tool, arguments, context, read)
        if simulation is not None and attempt is not None:
            simulation.meet(attempt, f"{tool.name} has run")
        return run
