"""Simulate an agent: run its turn again and again, each time with other faults, and check what must always hold.

The whole turn runs in this process, in virtual time: the engine, the world, the activities and a store, as on a worker.
A schedule says which fault happens at which point; every schedule follows from a number, so that a failure can be
repeated.
"""

# ruff: noqa: S101 - a check asserts what must hold

import asyncio
import contextlib
import random
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, Unpack

from perdure.activities.models.provider_http import StandIn, stand_in
from perdure.activities.recordings import Recordings
from perdure.agents.agent import Agent
from perdure.client.read import read_events
from perdure.client.requests import session_id, turn_request
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.budgets import Budgets
from perdure.contracts.errors import PerdureError
from perdure.contracts.events import Event
from perdure.contracts.input_requests import InputRequest
from perdure.contracts.tools import ToolDeclaration
from perdure.contracts.turn_options import TaskOptions
from perdure.contracts.turns import Continuation, TurnResult, TurnStatus
from perdure.contracts.values import JsonValue
from perdure.testing.clock import Clock, NothingComesError
from perdure.testing.in_memory import IN_MEMORY, OpenGates, People, ask_with, make_parts
from perdure.testing.memory_runtime import MemorySession, RunningTurn
from perdure.testing.provider import AUTO, ScriptedProvider
from perdure.testing.script import Answers
from perdure.testing.simulated_checks import INVARIANTS, Check, SessionLog, SimulatedRun
from perdure.testing.simulated_faults import (
    EXTENDED_STEPS,
    FAULTS,
    Fault,
    InlineBodies,
    SimulatedStore,
    Simulation,
    note_request,
)
from perdure.testing.simulated_replay import difference_of
from perdure.testing.stand_in import stand_in_of
from perdure.worker.app import Activities, Parts, make_activities

MOST_FAULTS = 4
"""Faults of one schedule."""


MOST_TRIES = 100
"""Smaller schedules that are tried of one that fails."""

MOST_MOVES = 3
"""Earlier points to which a fault of it is moved."""

MOST_POINTS = 100_000
"""Points of a run; one that comes to more does not end."""

FEWEST_POINTS = 1_000
"""Any run may come to so many points, and to ten times those of the calm one beside."""


class SimulationError(PerdureError, AssertionError):
    """A schedule broke what must always hold; the message has a shortest such schedule, as a test that can be pasted.

    Attributes:
        schedule: The schedule that fails, shrunk.
        points: The points at which its faults happen.
        found_after: How many schedules were run until one failed.
    """

    def __init__(self, message: str, schedule: Mapping[int, Fault], points: Sequence[str]) -> None:
        super().__init__(message)
        self.schedule = schedule
        self.points = points
        self.found_after = 1


@dataclass
class Simulated:
    """Report of a simulation.

    Attributes:
        schedules: How many runs there were, the calm one among them.
        points: Points of each run.
        applied: How often each fault happened.
        ends: How often the first turn ended with each stop reason; ``waits`` is not an end.
    """

    schedules: int = 0
    points: list[int] = field(default_factory=list[int])
    applied: Counter[str] = field(default_factory=Counter[str])
    ends: Counter[str] = field(default_factory=Counter[str])

    def __str__(self) -> str:
        """The counts, in a line each."""
        applied = ", ".join(f"{name} {count}" for name, count in sorted(self.applied.items()))
        ends = ", ".join(f"{name} {count}" for name, count in sorted(self.ends.items()))
        return f"{self.schedules} schedules, {median(self.points):g} points each\nfaults: {applied}\nends: {ends}"

    def note(self, run: SimulatedRun) -> None:
        """Count a run."""
        self.schedules += 1
        self.points.append(len(run.points))
        self.applied.update(run.applied.values())
        self.ends[run.results[0].stop_reason if run.results else "waits"] += 1


class SimulationOptions(TaskOptions, total=False):
    """Options of a simulation beside the prompt.

    Attributes:
        agents: Further agents, such as delegates that the agent names.
        models: Scripts of single models, by the name after the provider's prefix.
        plays: The provider by whose rules requests are refused, as for :func:`run_in_memory`.
        people: Replies to questions and approvals, as for :func:`run_in_memory`.
        check: What must hold of every run of this agent, beside what must hold of all.
        faults: The faults to draw from; all are the default.
    """

    agents: Sequence[Agent]
    models: Mapping[str, Answers]
    plays: str | None
    people: Callable[[], People]
    check: Check
    faults: Collection[Fault]


_OURS = frozenset(SimulationOptions.__annotations__) - frozenset(TaskOptions.__annotations__)


async def simulate(
    agent: Agent,
    prompt: str,
    script: Answers | None = None,
    *,
    schedules: int = 100,
    seed: int = 1,
    only: Mapping[int, Fault] | None = None,
    **options: Unpack[SimulationOptions],
) -> Simulated:
    """Run a turn of an agent with many schedules of faults, and check after each what must always hold.

    Every call has one result; the body of a call that is not idempotent runs at most once; the event log has no gap;
    messages that were taken are read once; results count what the steps have cost; the turn ends, or waits for people.

    Args:
        agent: The agent; its delegates come with it.
        prompt: The prompt.
        script: The answers of every model, as for :class:`ScriptedProvider`.
        schedules: How many schedules, the first without a fault.
        seed: Another number is another set of schedules.
        only: This one schedule, as a failure prints it.
        **options: See :class:`SimulationOptions`.

    Raises:
        SimulationError: A run broke what must hold; its message has a test that repeats it with the fewest faults.

    Example::

        report = await simulate(agent, "Pay the bill.", [call(("pay", {"amount": 7})), say("done")])
        assert report.ends["finished"]
    """
    stage = _Stage(agent, prompt, script, dict(options))
    report = Simulated()
    async with stage.opened():
        if only is not None:
            report.note(await stage.run_checked(only))
            return report
        calm = await stage.run_checked({})
        stage.expect(len(calm.points))
        report.note(calm)
        drawn = tuple(options.get("faults", FAULTS))
        for number in range(1, schedules):
            chance = random.Random(f"{seed}/{number}")  # noqa: S311 - repeatable
            schedule = _draw(chance, len(calm.points), drawn)
            try:
                report.note(await stage.run_checked(schedule))
            except SimulationError as error:
                found = await _shrink(stage, error)
                found.found_after = number + 1
                raise found from None
    return report


def _draw(chance: random.Random, points: int, faults: Sequence[Fault]) -> dict[int, Fault]:
    """A schedule: a few faults at points of a run, some of them behind the last point of the calm one."""
    count = chance.randint(1, MOST_FAULTS)
    return {chance.randrange(points + points // 2 + 1): chance.choice(faults) for _ in range(count)}


async def _shrink(stage: "_Stage", error: SimulationError) -> SimulationError:
    """The failure of a smaller schedule: one fault less, or a fault at an earlier point of the same name.

    It is the smallest for these steps, unless so many were tried that the search ends.
    """
    tries = MOST_TRIES
    while True:
        for smaller in _smaller(error):
            tries -= 1
            try:
                await stage.run_checked(smaller)
            except SimulationError as found:
                error = found
                break
            if not tries:
                return error
        else:
            return error


def _smaller(error: SimulationError) -> Iterator[dict[int, Fault]]:
    """Schedules without one of the faults, and then with one of them at one of the first points of its point's name."""
    faults, points = error.schedule, error.points
    for left in sorted(faults):
        yield {number: fault for number, fault in faults.items() if number != left}
    for moved in sorted(faults):
        others: dict[int, Fault] = {number: fault for number, fault in faults.items() if number != moved}
        places = [number for number in range(moved) if points[number] == points[moved] and number not in others]
        for place in places[:MOST_MOVES]:
            yield {**others, place: faults[moved]}


class _Stage:
    """Runs an agent's turn with one schedule after the other, each in a session of its own."""

    def __init__(self, agent: Agent, prompt: str, script: Answers | None, options: dict[str, object]) -> None:
        self._agent = agent
        self._prompt = prompt
        self._script = script
        self._ours: dict[str, object] = {name: value for name, value in options.items() if name in _OURS}
        self._fields = {name: value for name, value in options.items() if name not in _OURS}
        self._parts: Parts | None = None
        self._most_points = MOST_POINTS

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Open a store, and prepare the agents."""
        more: Sequence[Agent] = self._ours.get("agents", ())  # type: ignore[assignment]
        if not _stores:
            _stores.append(await SimulatedStore.open(IN_MEMORY, upgrade=True))
        store = _stores[0]
        async with make_parts((self._agent, *more), store, InlineBodies) as parts:
            self._parts = parts
            yield

    def expect(self, points: int) -> None:
        """Give a run up that comes to very many more points than this."""
        self._most_points = FEWEST_POINTS + 10 * points

    async def run_checked(self, schedule: Mapping[int, Fault]) -> SimulatedRun:
        """Run with a schedule, and check what must hold.

        Raises:
            SimulationError: Something does not.
        """
        # A run of its own context: what it sets there, no other reads.
        run = await asyncio.get_running_loop().create_task(self._run(schedule), context=copy_context())
        checks: list[Check] = [*INVARIANTS]
        if (own := self._ours.get("check")) is not None:
            checks.append(own)  # type: ignore[arg-type]
        for check in checks:
            try:
                check(run)
            except AssertionError as error:
                raise SimulationError(self._describe(run, check, error), run.applied, run.points) from error
        return run

    def _max_steps(self, applied: Mapping[int, Fault]) -> int | None:
        if "max_steps" in self._fields:
            return None
        return max(self._agent.max_steps, EXTENDED_STEPS if "extend" in applied.values() else 0)

    def _describe(self, run: SimulatedRun, check: Check, error: AssertionError) -> str:
        said = (check.__doc__ or check.__name__).splitlines()[0]
        name = re.sub(r"\W+", "_", check.__name__).strip("_")
        given = [f", {option}={option}" for option in self._ours if option not in {"faults", "check"}]
        given += [f", {option}={value!r}" for option, value in self._fields.items()]
        return "\n".join(
            [
                f"does not hold: {said}",
                str(error),
                "a test that repeats it:",
                "",
                f"async def test_{name}() -> None:",
                "    schedule: dict[int, Fault] = {",
                *(
                    f"        {number}: {fault!r},  # {run.points[number]}"
                    for number, fault in sorted(run.applied.items())
                ),
                "    }",
                f"    await simulate(agent, {self._prompt!r}, script, only=schedule{''.join(given)})",
            ]
        )

    async def _run(self, schedule: Mapping[int, Fault]) -> SimulatedRun:
        parts = self._parts
        assert parts is not None, "the stage is open"
        session = session_id(self._agent.name)
        fields = {"agent": self._agent.name, "prompt": self._prompt, **self._fields}
        request = Continuation.model_validate(dict(turn_request(session, fields)))
        clock = Clock(datetime.now(UTC))
        models: Mapping[str, Answers] | None = self._ours.get("models")  # type: ignore[assignment]
        plays: str | None = self._ours.get("plays", AUTO)  # type: ignore[assignment]
        model = ScriptedProvider(self._script, models=models, plays=plays)
        people: Callable[[], People] = self._ours.get("people", tuple)  # type: ignore[assignment]

        def make_worker() -> Activities:
            recordings = Recordings(mode="off", folder=Path(), store=parts.store, secrets=parts.secrets)
            return make_activities(parts, recordings, OpenGates(parts.metrics, room=1), clock.seconds)

        around = Simulation(
            activities=make_worker(),
            clock=clock,
            ask=ask_with(people()),
            on_event=_hear_nothing,
            make_worker=make_worker,
            schedule=schedule,
            root=session,
        )
        results: tuple[TurnResult, ...] = ()
        waits: tuple[InputRequest, ...] = ()
        status: TurnStatus | None = None
        token = stand_in.set(_noting(stand_in_of(model, clock)))
        running = MemorySession(around, session)

        async def run() -> list[TurnResult]:
            try:
                return await running.run(request)
            finally:
                around.ended = True

        endless: list[bool] = []
        around.most_points = self._most_points
        async with clock:
            task = clock.start(run())

            def give_up() -> None:
                endless.append(True)
                task.cancel()

            around.give_up = give_up
            try:
                results = tuple(await task)
            except asyncio.CancelledError:
                if not endless:
                    raise
            except NothingComesError:
                waits, status = running.requests, running.status
            finally:
                around.worker.alive = False
                stand_in.reset(token)
        return SimulatedRun(
            results=results,
            waits=waits,
            sessions={name: await _read_session(parts, name) for name in around.sessions},
            session=session,
            requests=tuple(model.requests),
            points=tuple(around.points),
            applied=around.applied,
            accepted=around.accepted,
            bodies=around.bodies,
            unsafe=frozenset(_unsafe_tools(parts)),
            status=status,
            replied=frozenset(around.replied),
            seconds=around.passed.total_seconds(),
            held=around.held.total_seconds(),
            late=tuple(around.late),
            asked_again=tuple(around.asked_again),
            limits=self._agent.budgets if "budgets" not in self._fields else Budgets(),
            max_steps=self._max_steps(around.applied),
            secrets=parts.secrets,
            endless=bool(endless),
            differences=tuple(filter(None, map(difference_of, around.runs))),
        )


def _noting(model: StandIn) -> StandIn:
    """The same model, which notes who asks it."""

    async def answer(definition: AgentDefinition, arguments: Mapping[str, Any]) -> dict[str, JsonValue] | None:
        note_request()
        return await model.answer(definition, arguments)

    return StandIn(answer=answer, send=model.send)


def _hear_nothing(_event: Event, _turn: RunningTurn) -> None:
    """A simulation sends its own messages."""


async def _read_session(parts: Parts, session: str) -> SessionLog:
    store = parts.store
    events = [envelope async for envelope in read_events(store, session)]
    if not events:  # it was refused
        return SessionLog((), (), ())
    return SessionLog(events, await store.steps(session), list(await store.transcript(session)))


def _unsafe_tools(parts: Parts) -> list[str]:
    declared: list[ToolDeclaration] = [tool.declaration for agent in parts.agents.values() for tool in agent.tools]
    return [tool.name for tool in declared if not tool.idempotent]


_stores: list[SimulatedStore] = []
