"""What a tree of delegates may spend: the caller's limits count for all of them, and what is unused comes back."""

import json
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from temporalio.worker import UnsandboxedWorkflowRunner

from perdure import Agent, Budgets, tool
from perdure.testing import ChatRequest, Reply, ScriptedProvider, call, say
from perdure.testing.connection import Response
from perdure.testing.wires import Wire
from tests.house import House
from tests.memory import Run
from tests.workflow.delegating import DONE, agent, asks, children, in_order, played, results_in
from tests.workflow.killing import result_of

pytestmark = pytest.mark.deep

PRICED = "openai/gpt-4o-mini"
"""A model whose price litellm knows."""


@pytest.mark.parametrize(
    ("limits", "code", "made"),
    [
        ({"behavior_calls": 2}, "budget.behavior_calls_exhausted", 2),
        ({"tool_calls": 1}, "budget.tool_calls_exhausted", 1),
        ({"depth": 0}, "budget.depth_exhausted", 0),
    ],
)
async def test_n_calls_of_delegates_are_allowed_and_the_next_ends_the_turn(
    run: Run, limits: dict[str, Any], code: str, made: int
) -> None:
    """S-70: behavior_calls, tool_calls and depth, which a request may lower."""
    lead, helper = agent("tester", delegates=["helper"]), agent("helper")
    answers = played(tester=lambda _: asks("one", "two", "three"), helper=lambda _: say("helped"))
    result = await run(lead, script=answers, agents=[helper], budgets=limits)
    assert (result["stop_reason"], result["reason_code"]) == ("budget_exhausted", code)
    assert len(await children(run)) == made
    transcript = await run.store.transcript(run.session)
    assert [message.role for message in transcript].count("tool") == 3


async def test_the_levels_below_an_agent_are_counted_from_it(run: Run) -> None:
    """S-70: depth 1 allows delegates, and none of theirs."""
    lead, helper = agent("tester", delegates=["helper"]), agent("helper", delegates=["deep"])
    answers = played(
        tester=in_order(asks("one"), DONE), helper=in_order(asks("two", tool="deep"), DONE), deep=lambda _: DONE
    )
    result = await run(lead, script=answers, agents=[helper, agent("deep")], budgets={"depth": 1})
    (read,) = results_in(run.requests[-1].request)
    assert result["stop_reason"] == "finished"
    assert "budget.depth_exhausted" in read
    assert len(await children(run)) == 1


async def test_the_steps_of_the_tree_are_the_callers_steps(run: Run) -> None:
    """S-62 S-66: max_steps counts those of delegates."""
    lead, helper = agent("tester", delegates=["helper"], max_steps=5), agent("helper", delegates=["deep"])
    answers = played(
        tester=lambda _: asks("one"),
        helper=in_order(asks("two", tool="deep"), DONE),
        deep=lambda _: say("deep"),
    )
    result = await run(lead, script=answers, agents=[helper, agent("deep")])
    assert len(run.requests) == 5
    assert (result["stop_reason"], result["steps"], result["delegated_steps"]) == ("max_steps_reached", 2, 3)


async def test_a_delegate_has_the_smaller_of_its_own_limit_and_its_share(run: Run) -> None:
    """S-70: whatever its own agent says."""
    generous, modest = Budgets(llm_calls=100), Budgets(llm_calls=1)
    lead = agent("tester", delegates=["generous", "modest"], budgets=Budgets(llm_calls=7))
    helpers = [
        agent("generous", budgets=generous, delegates=["deep"]),
        agent("modest", budgets=modest, delegates=["deep"]),
        agent("deep"),
    ]
    both = asks("one", tool="generous").calls + asks("one", tool="modest").calls
    working = asks("more", tool="deep")
    answers = played(
        tester=in_order(say("").model_copy(update={"text": None, "calls": both}), DONE),
        generous=lambda _: working,
        modest=lambda _: working,
        deep=lambda _: say("deep"),
    )
    result = await run(lead, script=answers, agents=[*helpers])
    assert len(run.requests) <= 7
    spent = {
        record.agent: turn.result.report.spent.llm_calls
        for record, turn in await children(run)
        if turn.result is not None and turn.result.report is not None and record.agent != "deep"
    }
    assert spent == {"generous": 3, "modest": 1}
    assert result["stop_reason"] == "finished"


@pytest.mark.parametrize("asked", [5, 15])
async def test_what_is_left_goes_to_as_many_delegates_as_can_use_it(run: Run, asked: int) -> None:
    """S-70: three model calls are three delegates, and the others read why they did not start, however many."""
    lead = agent("tester", delegates=["helper"], budgets=Budgets(llm_calls=4))
    answers = played(tester=in_order(asks(*map(str, range(asked))), DONE), helper=lambda _: say("helped"))
    result = await run(lead, script=answers, agents=[agent("helper")])
    assert len(run.requests) == 4
    assert (result["stop_reason"], result["reason_code"]) == ("budget_exhausted", "budget.llm_calls_exhausted")
    assert result["exhausted_by"] == "llm_calls"
    results = [message for message in await run.store.transcript(run.session) if message.role == "tool"]
    assert [message.content for message in results[:3]] == ["helped"] * 3
    assert all("it did not start" in message.content for message in results[3:])
    assert len(results) == asked


async def test_no_more_delegates_start_than_could_pay_for_a_first_call_and_the_others_can_be_asked_again(
    run: Run,
) -> None:
    """S-63 S-70: twelve shares would all be too small, while nearly all of the budget is left."""

    @tool(description="x" * 1_000)  # of 1,024 characters that gpt-4o takes
    def look() -> str:
        return "nothing"

    @tool(description="x" * 1_000)
    def see() -> str:
        return "nothing"

    twelve = [str(number) for number in range(12)]
    lead = priced("tester", delegates=["helper"], budgets=Budgets(cost_usd=Decimal("0.0035")))

    def again(request: ChatRequest) -> Reply:
        missing = 12 - results_in(request).count("helped")
        return asks(*twelve[-missing:]) if missing else DONE

    answers = played(tester=again, helper=lambda _: say("helped"))
    result = await run(lead, script=answers, agents=[priced("helper", tools=[look, see])])
    ends = [turn.result.stop_reason for _, turn in await children(run) if turn.result is not None]
    assert (result["stop_reason"], ends) == ("finished", ["finished"] * 12)


class Spender(ScriptedProvider):
    """A model whose every answer is charged for as many tokens as it may have."""

    async def answer(self, wire: Wire, body: bytes, headers: dict[str, str]) -> Response:
        """The scripted answer, at the dearest price."""
        response = await super().answer(wire, body, headers)
        said = json.loads(response.body)
        said["usage"]["completion_tokens"] = json.loads(body)["max_tokens"]
        return replace(response, body=json.dumps(said).encode())


async def test_a_tree_of_73_agents_ends_at_its_cost_budget_and_not_beyond(house: House) -> None:
    """S-70: 1 + 8 + 64 agents, each of which spends what it may, and then one more with all that is left."""
    limit = Decimal("0.006")
    lead = priced("tester", delegates=["middle", "leaf"], budgets=Budgets(cost_usd=limit))
    eight = [str(number) for number in range(8)]
    answers = played(
        tester=lambda request: asks("more", tool="leaf") if request.index else asks(*eight, tool="middle"),
        middle=in_order(asks(*eight, tool="leaf"), say("middle " * 20)),
        leaf=lambda _: say("leaf"),
    )
    async with (
        Spender(answers) as provider,
        house.worker(
            lead, priced("middle", delegates=["leaf"]), agent("leaf", model=PRICED), runner=UnsandboxedWorkflowRunner()
        ),
    ):
        house.use(provider)
        result = await result_of(await house.start())
        assert await costs_at_most(house, result, limit) > limit * Decimal("0.9")
        assert provider.request_count > 1 + 8 + 64
    assert (result["stop_reason"], result["reason_code"], result["exhausted_by"]) == (
        "budget_exhausted",
        "budget.cost_exhausted",
        "cost",
    )
    assert len(await children(house)) > 8 + 64


async def test_a_tree_whose_agents_never_stop_is_stopped_by_its_cost_budget(house: House) -> None:
    """S-70: nine agents at the bottom go on for as long as they are let."""

    @tool
    def look() -> str:
        """Look."""
        return "nothing"

    limit = Decimal("0.0025")
    lead = priced("tester", delegates=["middle"], budgets=Budgets(cost_usd=limit))
    answers = played(
        tester=lambda _: asks("1", "2", "3", tool="middle"),
        middle=lambda _: asks("1", "2", "3", tool="leaf"),
        leaf=lambda _: call(("look", {})),
    )
    async with (
        Spender(answers) as provider,
        house.worker(lead, priced("middle", delegates=["leaf"]), priced("leaf", tools=[look])),
    ):
        house.use(provider)
        result = await house.run()
        assert provider.request_count > 2 * 13
    assert (result["stop_reason"], result["reason_code"]) == ("budget_exhausted", "budget.cost_exhausted")
    assert await costs_at_most(house, result, limit) > limit / 4


def priced(name: str, **settings: Any) -> Agent:
    """An agent whose model has a price, and whose answers have a longest length."""
    return agent(name, model=PRICED, generate_params={"max_tokens": 100}, **settings)


async def costs_at_most(house: House, result: dict[str, Any], limit: Decimal) -> Decimal:
    """What the whole tree has cost, which is what its top says."""
    total = sum([step.cost_usd or Decimal(0) for step in await steps(house)], Decimal(0))
    assert Decimal(result["cost_usd"]) == total
    assert total <= limit
    return total


async def steps(house: House) -> list[Any]:
    """The steps of every session in the tree."""
    sessions = [house.session, *(record.session for record, _ in await children(house))]
    return [step for session in sessions for step in await house.store.steps(session)]
