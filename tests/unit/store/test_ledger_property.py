"""In whatever order attempts claim, decide, finish and are cancelled: one result, and no run without a claim."""

import asyncio
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from perdure.contracts.messages import ToolMessage
from perdure.store import Claim, Store, TurnEndedError
from tests.unit.store.given import SESSION, answer, claim, commit, finish, generate, open_turn, types, wish

ATTEMPTS = 3

Step = tuple[str, int]

OFTEN = ["ask", "ask", "ask", "run again", "run again", "give up"]
"""Beside one end in ten: a call that has its result is soon boring."""

STEPS = st.lists(
    st.tuples(st.sampled_from([*OFTEN, *OFTEN, *OFTEN, "finish", "cancel"]), st.integers(1, ATTEMPTS)),
    min_size=8,
    max_size=30,
)


@dataclass
class Attempts:
    """Attempts at one call, and what has to be true of them."""

    store: Store
    tip: str
    holder: int | None = None
    runs: int = 0
    result: ToolMessage | None = None
    cancelled: bool = False
    found: dict[int, Claim] = field(default_factory=dict)
    begun: set[int] = field(default_factory=set)

    async def take(self, step: Step) -> None:
        """One step of one attempt; then the result is what it was, or the first there is."""
        what, attempt = step
        if what == "ask":
            await self._ask(attempt)
        elif what == "finish":
            await self._finish(attempt)
        elif what == "cancel":
            await self._cancel()
        elif attempt in self.found and self.found[attempt].state == "uncertain":
            await self._ask(attempt, self.found[attempt], again=what == "run again")
        stored = await self.store.result_of_call(SESSION, 1, "c1")
        assert self.result in {None, stored}
        self.result = stored

    async def _ask(self, attempt: int, judged: Claim | None = None, *, again: bool = True) -> None:
        lost = None if judged is None else judged.held_by
        rerun = judged.runs if judged is not None and again else None
        too_late = self.cancelled or (self.result is None and self.holder is not None and self.holder > attempt)
        try:
            claimed = await claim(self.store, _name(attempt), lost=lost, rerun=rerun)
        except TurnEndedError:
            assert too_late
            return
        assert not too_late
        self.found[attempt] = claimed
        if self.result is not None:
            assert (claimed.state, claimed.message) == ("committed", self.result)
        elif self.holder in {None, attempt} or (lost is not None and _name(self.holder) == lost):
            assert claimed.state == "free"
            self._given(attempt, again=again)
        else:
            assert (claimed.state, claimed.held_by, claimed.runs) == ("uncertain", _name(self.holder), self.runs)

    def _given(self, attempt: int, *, again: bool) -> None:
        if again and self.holder != attempt:
            assert attempt not in self.begun
            self.begun.add(attempt)
            self.runs += 1
        self.holder = attempt

    async def _finish(self, attempt: int) -> None:
        before = self.result
        kept = await finish(self.store, _name(attempt), f"of {attempt}")
        stored = await self.store.result_of_call(SESSION, 1, "c1")
        if kept:
            assert not self.cancelled
            assert self.holder == attempt
            assert stored is not None
            assert stored.content == f"of {attempt}"
        else:
            assert stored == before

    async def _cancel(self) -> None:
        if not self.cancelled:
            await self.store.commit_turn(commit(self.tip, call_ids=["c1"]))
        self.cancelled = True


def _name(attempt: int | None) -> str:
    return f"run/7/{attempt or 0:020.6f}"


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A store with one planned call, and the id of its step."""
    file = tmp_path_factory.mktemp("ledger") / "planned.db"

    async def plan() -> str:
        async with await Store.open(f"sqlite:///{file}", upgrade=True) as store:
            opened = await open_turn(store)
            return (await answer(store, generate(opened.tip), calls=[wish()])).id

    return file, asyncio.run(plan())


@example(steps=[("ask", 1), ("ask", 3), ("ask", 2), ("run again", 2), ("run again", 3)])
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_no_order_of_steps_gives_two_results_or_a_run_without_a_claim(
    planned: tuple[Path, str], tmp_path: Path, steps: list[Step]
) -> None:
    """S-31."""
    planned_store, tip = planned
    file = tmp_path / "perdure.db"
    for old in tmp_path.iterdir():
        old.unlink()
    shutil.copy(planned_store, file)

    async def play() -> None:
        async with await Store.open(f"sqlite:///{file}") as store:
            attempts = Attempts(store, tip)
            for step in steps:
                await attempts.take(step)
            written = await types(store)
            assert written.count("tool_end") == (attempts.result is not None)
            assert written.count("tool_recovery") == max(0, attempts.runs - 1)

    asyncio.run(play())
