"""The same exceptions on a real worker, whose server hears of each attempt: one case for each place."""

from typing import Any

import pytest

from perdure import Agent
from perdure.testing import Script, ScriptedProvider
from tests.house import House
from tests.wild.test_author_exceptions import made
from tests.wild.test_every_place import RAISING, made_with

pytestmark = pytest.mark.timeout(90)

FEW = ("sync", "hook", "instructions", "validator")
MORE = [pytest.param(place, marks=pytest.mark.deep) for place in RAISING if place not in FEW]


@pytest.mark.parametrize("place", [*FEW, *MORE])
@pytest.mark.parametrize("kind", ["CancelledError", "UnprintableError"])
async def test_it_runs_once_and_the_turn_ends(house: House, place: str, kind: str) -> None:
    """S-25: no worker is taken for lost, and no answer is bought again."""
    runs: list[str] = []

    def fail() -> Any:
        raise made(kind)

    settings, replies = made_with(place, fail, runs)
    async with ScriptedProvider(Script(replies=tuple(replies))) as provider:
        house.use(provider)
        async with house.worker(Agent(**{"name": "tester", "model": "openai/scripted", **settings})):
            result = await house.run()
    ended, paid, code = RAISING[place]
    assert (len(runs), len(provider.requests)) == (ended, paid)
    is_a_tools = code is not None and code.startswith("tool.")
    assert (result["stop_reason"], result["reason_code"]) == (("finished", None) if is_a_tools else ("error", code))
