"""How often one attempt at a model call asks the store, by operation: each answer is read once, and not again."""

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from temporalio import activity

from perdure import Agent, Budgets, RetryPolicy
from perdure.store import Store
from perdure.testing import Reply, faults, say
from tests.memory import Run

PRICES: dict[str, Any] = {"input_cost_per_token": 0.000_001, "output_cost_per_token": 0.000_01}
QUICK = RetryPolicy(max_retries=3, jitter=timedelta(0))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[int, Counter[str]]:
    """The store's operations of each attempt of ``generate``, by its number."""
    found: dict[int, Counter[str]] = {}

    def counted(name: str) -> None:
        original = getattr(Store, name)

        async def ask(self: Store, operation: str, work: Any) -> Any:
            if activity.in_activity() and activity.info().activity_type == "generate":
                found.setdefault(activity.info().attempt, Counter())[operation] += 1
            return await original(self, operation, work)

        monkeypatch.setattr(Store, name, ask)

    counted("read")
    counted("write")
    return found


async def answered(run: Run, reply: Reply, **settings: Any) -> None:
    agent = Agent(name="tester", model="openai/scripted", retry=QUICK, generate_params=PRICES, **settings)
    result = await run(agent, reply)
    assert result["stop_reason"] == "finished"


async def test_an_answer_without_a_budget_needs_no_look_at_the_steps_tries(
    run: Run, asked: dict[int, Counter[str]]
) -> None:
    await answered(run, say("done"))

    assert asked[1]["retries"] == 0


async def test_an_answer_within_a_budget_needs_one(run: Run, asked: dict[int, Counter[str]]) -> None:
    await answered(run, say("done"), budgets=Budgets(cost_usd=1))

    assert asked[1]["retries"] == 1


async def test_an_attempt_looks_once_before_its_call_and_once_after_it(
    run: Run, asked: dict[int, Counter[str]]
) -> None:
    """Another attempt, taken for lost, may have written while the model answered."""
    await answered(
        run,
        say("done").after(faults.rate_limited(), faults.rate_limited()),
        budgets=Budgets(cost_usd=1),
        stream="always",
    )

    assert [asked[attempt]["retries"] for attempt in (1, 2, 3)] == [2, 2, 2]
