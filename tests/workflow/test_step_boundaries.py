"""Turns of each kind, with a kill -9 of their worker at every boundary of a step: the end is the same.

All turns run at once: see ``tests.workflow.boundaries``. The table has what each has to come to, so that it is noticed
too if both runs are wrong. What is left out of the comparison is ``TIMES``; ids, numbers and texts are compared.
"""

import inspect
import uuid
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import pytest
import temporalio.client

from perdure import stop
from perdure.cli.server import EmbeddedServer
from perdure.contracts.budgets import Dimensions
from perdure.contracts.turns import StopReason
from tests.house import House, become_a_user
from tests.workflow.boundaries import Outcome, Played, Scenario, Stage, assert_ends_as_wanted
from tests.workflow.boundaries_delegates import DELEGATES
from tests.workflow.boundaries_table import BUDGETS, COMPLETIONS, CONDITIONS, REACTIONS, REASONS

pytestmark = [pytest.mark.deep, pytest.mark.timeout(1500)]

TABLE: Mapping[str, Scenario] = {**CONDITIONS, **REASONS, **REACTIONS, **BUDGETS, **COMPLETIONS, **DELEGATES}

SERVED = {
    *(name for name, scenario in TABLE.items() if scenario.acts is not None),
    *(
        "finished",
        "bad key",
        "elapsed_time",
        "generations with retries",
        "feedback by a function",
        "retry of a failure",
    ),
    *("budget behavior_calls", "delegates at the same time", "delegates of delegates and propagated"),
    "background awaited",
}
"""Turns of the server: one for each kind of activity and wait, and those that need a message or a clock that moves.

The engine decides the ends of all the others; ``tests/simulation/test_step_boundaries.py`` has the whole table.
"""

SCENARIOS = {name: scenario for name, scenario in TABLE.items() if name in SERVED}


@pytest.fixture(scope="module")
async def runs(
    server: EmbeddedServer, temporal: temporalio.client.Client, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Played, Played]:
    """All scenarios undisturbed, and then with their worker killed; in sessions of the same names."""
    prefix, played = f"b{uuid.uuid4().hex[:6]}", list[Played]()
    for killing in (False, True):
        folder: Path = tmp_path_factory.mktemp("killed" if killing else "calm")
        with pytest.MonkeyPatch.context() as environment:
            become_a_user(environment, server.address)
            name = f"boundaries {killing}"
            async with House.built(
                name=name, server=server, temporal=temporal, environment=environment, folder=folder
            ) as house:
                played.append(await Stage(house, SCENARIOS, prefix, killing=killing).play())
    calm, killed = played
    return calm, killed


WITH_A_STEP = {"llm.parse_error", "llm.schema_violation", "runtime.aborted"}
"""Failures that are recorded together with an answer, or with the end of the turn."""


def failures_in(outcome: Outcome) -> int:
    """How many model calls of a turn and its delegates have failed for good."""
    errors = [event["error"]["code"] for event in outcome.events if event["type"] == "generation_error"]
    own = sum(code not in WITH_A_STEP for code in errors)
    return own + sum(map(failures_in, outcome.delegates.values()))


@pytest.mark.parametrize("name", SCENARIOS)
def test_an_undisturbed_turn_ends_as_the_table_says(runs: tuple[Played, Played], name: str) -> None:
    """S-32 S-34 S-36 S-39 S-63 S-70 S-71."""
    calm, _ = runs
    assert_ends_as_wanted(calm.outcomes[name], TABLE[name])


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_turn_whose_worker_is_killed_at_every_boundary_ends_as_the_undisturbed_one(
    runs: tuple[Played, Played], name: str
) -> None:
    """S-80: transcript, events, usage, cost, steps and stop record, of the turn and of its delegates."""
    calm, killed = runs
    assert asdict(killed.outcomes[name]) == asdict(calm.outcomes[name])
    # Before each model call and behind its failure, behind each delegate's commit, and on both sides of the turn's own.
    outcome = calm.outcomes[name]
    assert killed.stood[name] == calm.asked[name] + failures_in(outcome) + len(outcome.delegates) + 2


def test_the_table_has_each_condition_reason_reaction_and_budget() -> None:
    """S-80: what is new needs a line there."""
    functions = {name: value for name, value in vars(stop).items() if inspect.isfunction(value)}
    factories = {name for name, value in functions.items() if value.__module__ == stop.__name__ and name[0] != "_"}
    assert factories <= CONDITIONS.keys()
    assert {wanted.ends.partition(" ")[0].rstrip(":") for wanted in TABLE.values()} == set(StopReason)
    assert {f"budget {name}" for name in Dimensions.model_fields} <= BUDGETS.keys()
