"""Each way in which a turn can end, with its worker lost at every boundary of a step: the end is the same.

Turns with a real server, real workers and a real ``kill -9`` stand in ``tests/workflow/test_step_boundaries.py``.
"""

from collections import Counter
from dataclasses import asdict
from typing import Any

import pytest

from perdure import Agent
from perdure.store import open_turn
from perdure.testing import ChatRequest, simulate, simulation, wires
from perdure.testing.simulated_checks import SimulatedRun
from perdure.testing.simulated_faults import Attempt, SimulatedStore, Simulation
from tests.workflow import agents_at_boundaries
from tests.workflow.boundaries import READ, WRITTEN, Outcome, assert_ends_as_wanted, outcome
from tests.workflow.test_step_boundaries import SERVED, TABLE, failures_in

AGENTS = {agent.name: agent for agent in vars(agents_at_boundaries).values() if isinstance(agent, Agent)}

DELEGATES = ("helper", "one-step", "one-call", "middle", "deep", "failing")

HELD = ("begin_generation is done", "append_events is done", "commit_turn begins", "commit_turn is done")
"""Where the workers of the server are killed: a call is with its model, has failed for good; a turn commits."""

STORED = ("open_turn is done", "finish_generation is done", "finish_call is done")
"""Points behind which Temporal has not yet heard of what is stored.

Only turns with one call at a time have these too: calls that run at the same time are lost together, and a call that is
lost five times in a row ends its turn.
"""

SCENARIOS = tuple(name for name, scenario in TABLE.items() if scenario.acts is None and name != "elapsed_time")


class Killing:
    """Kills the worker once at each boundary of each call."""

    def __init__(self, *boundaries: str) -> None:
        self.kills = Counter[str]()
        self._boundaries = boundaries
        self._met = set[tuple[object, str]]()

    def patch(self, patch: pytest.MonkeyPatch) -> None:
        """Meet the runs that begin from now on."""
        meet = Simulation.meet

        def meeting(around: Simulation, attempt: Attempt, name: str, *, committed: bool | None = None) -> None:
            boundary = (attempt.call, name)
            around.schedule = {}
            if name in self._boundaries and boundary not in self._met:
                self._met.add(boundary)
                self.kills[name] += 1
                around.schedule = {len(around.points): "kill"}
            meet(around, attempt, name, committed=committed)

        patch.setattr(Simulation, "meet", meeting)


@pytest.fixture(autouse=True)
def same_ids_and_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "REFUSED_KEY", "UNREACHED_KEY", "RETRYING_KEY"):
        monkeypatch.setenv(name, f"sk-of-{name}")
    monkeypatch.setattr(open_turn, "new_seed", lambda: "the same in every run")
    monkeypatch.setattr(wires, "count_tokens", lambda _: WRITTEN)
    monkeypatch.setattr(ChatRequest, "tokens", property(lambda _: READ))


_calm: list[SimulatedStore] = []
_killed: list[SimulatedStore] = []
"""Stores of the two kinds of runs, whose sessions have the same names."""


async def play(name: str, stores: list[SimulatedStore]) -> tuple[Outcome, int]:
    """Play a scenario; what is left of it, and how many model calls it made, a repeated one counted once."""
    scenario, ended = TABLE[name], list[SimulatedRun]()
    agent = AGENTS[scenario.agent]
    others = [AGENTS[other] for other in DELEGATES if other != agent.name]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "_stores", stores)
        patch.setattr(simulation, "session_id", lambda _: name.replace(" ", "-"))
        options: Any = {"agents": others, "check": ended.append, **scenario.request}
        await simulate(agent, name, scenario.reply, schedules=1, only={}, **options)
    (run,), (store,) = ended, stores
    told = run.results[0].model_dump(mode="json")
    return await outcome(store, run.session, scenario, told), len({asked.request.digest for asked in run.requests})


@pytest.mark.parametrize("name", SCENARIOS)
async def test_a_turn_ends_as_the_table_says_also_when_its_worker_is_lost_at_every_boundary(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """S-32 S-34 S-36 S-39 S-63 S-70 S-71 S-80: transcript, events, usage, cost, steps and stop record."""
    calm, asked = await play(name, _calm)
    assert_ends_as_wanted(calm, TABLE[name])
    killing = Killing(*HELD, *(() if TABLE[name].is_parallel else STORED))
    killing.patch(monkeypatch)
    killed, _ = await play(name, _killed)
    assert asdict(killed) == asdict(calm)
    kills = killing.kills
    assert [kills[point] for point in HELD[2:]] == [turns_in(calm)] * 2
    assert kills[HELD[0]] >= asked
    assert kills[HELD[1]] >= failures_in(calm)


def turns_in(outcome: Outcome) -> int:
    """How many turns there are, delegates' included."""
    return 1 + sum(map(turns_in, outcome.delegates.values()))


def test_what_is_not_played_here_is_played_on_the_server() -> None:
    assert TABLE.keys() - SCENARIOS <= SERVED
