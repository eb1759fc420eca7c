"""Budgets: N allows exactly N in every dimension, and the result names the budget that ended it."""

import asyncio
import sys
import threading
from datetime import timedelta
from decimal import Decimal
from typing import Any, cast

import pytest
from temporalio.client import WorkflowUpdateFailedError

from perdure import Agent, Budgets, Delegate, RetryPolicy, clear_todo, todo, tool
from perdure.client.errors import RequestRefusedError, SessionIdleError
from perdure.testing import Reply, Script, ScriptedProvider, call, faults, say
from tests.house import House
from tests.memory import Run
from tests.temporal_cli import temporal

pytestmark = pytest.mark.deep

MODEL = "openai/gpt-4o-mini"
"""Its price is known: $0.15 for a million tokens read, $0.60 written."""


@tool
async def work(text: str = "it") -> str:
    """Do some work."""
    return f"did {text}"


GATE = threading.Event()


@tool
def hold() -> str:
    """Wait until the test lets it go."""
    return f"held {GATE.wait(60)}"


@tool
async def hang() -> str:
    """Take long."""
    await asyncio.sleep(600)
    return "never"


def agent(**settings: Any) -> Agent:
    fields: dict[str, Any] = {
        "name": "tester",
        "model": "openai/scripted",
        "tools": [work, hang, hold, todo, clear_todo],
    }
    return Agent(**{**fields, **settings})


HELPER = Agent(name="helper", model="openai/scripted")
WORK, TODO = call(("work", {})), call(("todo", {"new_titles": ["look"]}))
ASK = call(("helper", {"query": "help"}))

EXHAUSTED: dict[str, tuple[Budgets, Reply, str, dict[str, int]]] = {
    "llm_calls": (Budgets(llm_calls=2), WORK, "llm_calls", {"llm_calls": 2, "tool_calls": 2}),
    "tool_calls": (Budgets(tool_calls=2), WORK, "tool_calls", {"llm_calls": 3, "tool_calls": 2}),
    "events": (Budgets(events=4), WORK, "events", {"events": 4, "llm_calls": 2}),
    "patches": (Budgets(patches=2), TODO, "patches", {"patches": 2, "llm_calls": 3}),
    "behavior_calls": (Budgets(behavior_calls=2), ASK, "behavior_calls", {"behavior_calls": 2}),
    "depth": (Budgets(depth=0), ASK, "depth", {"behavior_calls": 0, "llm_calls": 1}),
}


@pytest.mark.parametrize("dimension", EXHAUSTED)
async def test_a_budget_allows_exactly_so_many_and_then_names_itself(run: Run, dimension: str) -> None:
    """S-70 S-68: the code and the raw name, in the result and in the last event."""
    budgets, reply, name, spent = EXHAUSTED[dimension]

    def answers(request: Any) -> Reply:
        return say("helped") if request.messages[-1]["content"] == "help" else reply

    tester = agent(delegates=[Delegate(HELPER)])
    result = await run(
        tester, script=answers, agents=[HELPER], budgets=budgets.model_dump(mode="json", exclude_none=True)
    )
    assert (result["stop_reason"], result["reason_code"]) == ("budget_exhausted", f"budget.{name}_exhausted")
    assert result["exhausted_by"] == name
    assert {key: result["spent"][key] for key in spent} == spent
    (*_, end) = await run.events("agent_end")
    assert (end["exhausted_by"], end["reason_code"]) == (name, f"budget.{name}_exhausted")


async def test_a_time_budget_ends_a_turn_in_a_tool_and_names_itself(house: House) -> None:
    """S-70 S-68: by Temporal's clock, while the body goes on."""
    async with ScriptedProvider(Script(replies=(call(("hang", {})),))) as provider, house.worker(agent()):
        house.use(provider)
        result = await house.run(budgets={"seconds": 1})
    assert (result["stop_reason"], result["reason_code"]) == ("budget_exhausted", "budget.seconds_exhausted")
    assert (result["exhausted_by"], result["spent"]["llm_calls"]) == ("seconds", 1)
    (*_, end) = await house.events("agent_end")
    assert (end["exhausted_by"], end["reason_code"]) == ("seconds", "budget.seconds_exhausted")


async def test_a_call_whose_worst_case_is_not_affordable_is_not_made(run: Run) -> None:
    """S-70: nobody is asked, and nothing is spent."""
    tester = agent(model=MODEL, budgets=Budgets(cost_usd=Decimal("0.000001")))
    result = await run(tester, say("done"))
    assert len(run.requests) == 0
    assert (result["stop_reason"], result["exhausted_by"], result["cost_usd"]) == ("budget_exhausted", "cost", "0")
    assert "was not made" in result["error"]


async def test_an_answer_may_be_as_long_as_is_affordable_and_one_that_is_cut_off_ends_the_turn(run: Run) -> None:
    """S-70: what it said so far is kept, and paid for."""
    tester = agent(model=MODEL, budgets=Budgets(cost_usd=Decimal("0.002")))
    cut = Reply(text="as far as it goes", finish_reason="length")
    result = await run(tester, cut)
    (request,) = run.requests
    assert isinstance(request.body, dict)
    most = request.body["max_tokens"]
    assert isinstance(most, int)
    assert 1 < most < 16_384
    assert len(run.requests) == 1
    assert (result["stop_reason"], result["exhausted_by"], result["steps"]) == ("budget_exhausted", "cost", 1)
    assert result["output"].startswith("as far as it goes\n[cut off here")
    assert Decimal(result["cost_usd"]) > 0


async def test_with_enough_left_the_request_is_what_it_would_be_without_a_budget(run: Run) -> None:
    tester = agent(model=MODEL, budgets=Budgets(cost_usd=Decimal(5)), generate_params={"max_tokens": 50})
    await run(tester, say("done"))
    (request,) = run.requests
    assert isinstance(request.body, dict)
    assert request.body["max_tokens"] == 50


async def test_answers_that_could_not_be_used_are_counted_before_each_retry(run: Run) -> None:
    """S-70: the author's own limit cuts them off, and each of them is paid for."""
    cut = [faults.truncated("x" * 4_000)] * 4
    retry = RetryPolicy(max_retries=8, base=timedelta(milliseconds=1), jitter=timedelta(0))
    budget = Decimal("0.003")
    tester = agent(
        model=MODEL, tools=[], budgets=Budgets(cost_usd=budget), retry=retry, generate_params={"max_tokens": 1_001}
    )
    result = await run(tester, say("done").after(*cut, faults.truncated("as far as it goes")))
    sent = len(run.requests)
    assert (result["stop_reason"], result["exhausted_by"]) == ("budget_exhausted", "cost")
    assert result["output"].startswith("as far as it goes")
    assert sent == 5
    assert Decimal("0.0024") < Decimal(result["cost_usd"]) <= budget
    retries = await run.events("generation_retry")
    assert sum(Decimal(line["cost_usd"]) for line in retries) <= Decimal(result["cost_usd"])


@pytest.mark.parametrize("budget", ["0.0004", "0.0011", "0.004"])
async def test_a_turn_never_costs_more_than_its_budget(run: Run, budget: str) -> None:
    """S-70: whatever the model answers, as long as it heeds ``max_tokens``."""

    def answers(request: Any) -> Reply:
        body = cast("dict[str, int]", run.requests[-1].body) if run.requests else {"max_tokens": 150}
        return call(("work", {"text": "x" * max(1, min(2_000, 4 * body["max_tokens"] - 400))}))

    tester = agent(model=MODEL, tools=[work], budgets=Budgets(cost_usd=Decimal(budget)))
    result = await run(tester, script=answers)
    assert result["stop_reason"] == "budget_exhausted"
    assert Decimal(result["cost_usd"]) <= Decimal(budget)


async def test_a_model_of_unknown_price_is_counted_as_unpriced(run: Run) -> None:
    tester = agent(budgets=Budgets(cost_usd=Decimal("0.000001")))
    result = await run(tester, say("done"))
    assert (result["stop_reason"], result["unpriced_calls"]) == ("finished", 1)


@pytest.mark.parametrize(("scope", "second"), [("turn", 3), ("session", 1)])
async def test_a_follow_up_has_a_fresh_allowance_or_the_remaining_one(run: Run, scope: Any, second: int) -> None:
    """S-38: max_steps, and every other limit that counts."""
    tester = agent(max_steps=4, budgets=Budgets(tool_calls=3, scope=scope))
    first = await run(tester, WORK, WORK, say("one"), WORK, WORK, WORK, WORK)
    result = await run(tester, WORK, WORK, say("one"), WORK, WORK, WORK, WORK, prompt="more")
    assert (first["stop_reason"], first["steps"]) == ("finished", 3)
    assert (result["spent"]["tool_calls"], result["steps"]) == (second, 4 if scope == "turn" else 1)
    assert result["stop_reason"] == ("budget_exhausted" if scope == "turn" else "max_steps_reached")


async def test_max_tool_turns_allows_exactly_so_many_answers_with_calls(run: Run) -> None:
    """S-71: the calls of the last one have their results."""
    result = await run(agent(max_tool_turns=2), WORK, WORK, WORK)
    assert len(run.requests) == 2
    assert (result["stop_reason"], result["reason_code"]) == ("error", "tool.max_turns_exhausted")
    assert len(await run.events("tool_end")) == 2


async def extend(house: House, **limits: Any) -> dict[str, Any]:
    handle = house.temporal.get_workflow_handle(house.session)
    status: dict[str, Any] = await handle.execute_update("extend", limits)
    return status


async def holding(house: House) -> Any:
    """A turn that is held by a tool in its second step."""
    GATE.clear()
    handle = await house.start()
    await house.wait_for_event("tool_start", 2)
    return handle


HELD = (WORK, call(("hold", {})), WORK, say("done"))


async def test_limits_of_a_running_turn_are_raised_and_it_goes_on(house: House) -> None:
    """S-38 S-70: written to the event log, and harmless a second time."""
    tester = agent(max_steps=2, budgets=Budgets(tool_calls=2))
    async with ScriptedProvider(Script(replies=HELD)) as provider, house.worker(tester):
        house.use(provider)
        handle = await holding(house)
        status = await extend(house, max_steps=4, tool_calls=3)
        again = await extend(house, max_steps=4, tool_calls=3)
        GATE.set()
        result = await handle.result()
    assert status["limits"]["tool_calls"] == again["limits"]["tool_calls"] == 3
    assert (status["max_steps"], status["steps"]) == (4, 2)
    assert (result["stop_reason"], result["steps"], result["spent"]["tool_calls"]) == ("finished", 4, 3)
    changed = [(line["dimension"], line["before"], line["after"]) for line in await house.events("budget_changed")]
    assert changed == [("max_steps", "2", "4"), ("tool_calls", "2", "3")]


async def test_a_limit_that_is_used_up_already_is_refused_unless_it_is_to_end_the_turn(house: House) -> None:
    async with ScriptedProvider(Script(replies=HELD)) as provider, house.worker(agent()):
        house.use(provider)
        handle = await holding(house)
        with pytest.raises(WorkflowUpdateFailedError) as caught:
            await extend(house, max_steps=2)
        await extend(house, max_steps=2, end=True)
        GATE.set()
        result = await handle.result()
    assert "max_steps: 2 is used already" in str(caught.value.cause)
    assert (result["stop_reason"], result["steps"]) == ("max_steps_reached", 2)


async def test_a_deadline_moves_while_a_tool_runs(house: House) -> None:
    """S-70: by Temporal's clock, at once."""
    tester = agent(budgets=Budgets(seconds=timedelta(hours=1)))
    async with ScriptedProvider(Script(replies=(call(("hang", {})),))) as provider, house.worker(tester):
        house.use(provider)
        handle = await house.start()
        await house.wait_for_event("tool_start")
        await extend(house, seconds=0.1, end=True)
        result = await handle.result()
    assert (result["stop_reason"], result["exhausted_by"]) == ("budget_exhausted", "seconds")


BAD: dict[str, tuple[Any, str]] = {
    "nothing": ({}, 'name at least one limit, as in {"max_steps": 50}'),
    "unknown": ({"steps": 5}, "the limits are max_steps, cost_usd"),
    "no number": ({"max_steps": "many"}, "max_steps: "),
    "zero": ({"cost_usd": 0}, "cost_usd: "),
    "another turn": ({"max_steps": 9, "turn": 7}, "turn 1 is the one that runs, and not turn 7"),
}


async def test_what_is_no_limit_is_refused_in_one_line(house: House) -> None:
    async with ScriptedProvider(Script(replies=HELD)) as provider, house.worker(agent()):
        house.use(provider)
        handle = await holding(house)
        for given, told in BAD.values():
            with pytest.raises(WorkflowUpdateFailedError) as caught:
                await extend(house, **given)
            assert told in str(caught.value.cause)
            assert "\n" not in str(caught.value.cause)
        GATE.set()
        await handle.result()


async def test_the_stock_command_line_extends_a_turn_and_so_does_ours(house: House) -> None:
    async with ScriptedProvider(Script(replies=HELD)) as provider, house.worker(agent(max_steps=2)):
        house.use(provider)
        handle = await holding(house)
        sent = ("--name", "extend", "--input", '{"max_steps": 3, "cost_usd": "2.50"}')
        code, output = await temporal("workflow", "update", "execute", "--workflow-id", house.session, *sent)
        assert code == 0, output
        code, output = await perdure("extend", house.session, "--max-steps", "4", "--max-seconds", "600")
        assert (code, output) == (0, f"session {house.session}: seconds 0:10:00, max_steps 4 (2 used)\n")
        code, output = await perdure("extend", house.session, "--max-cost-usd", "lots")
        assert (code, "cost_usd: " in output) == (2, True), output
        GATE.set()
        result = await handle.result()
        code, output = await perdure("extend", house.session, "--max-steps", "9")
        assert (code, "no turn of session" in output) == (2, True), output
    assert (result["stop_reason"], result["steps"]) == ("finished", 4)
    changed = [(line["dimension"], line["after"]) for line in await house.events("budget_changed")]
    assert changed == [("max_steps", "3"), ("cost_usd", "2.50"), ("max_steps", "4"), ("seconds", "600")]


async def perdure(*arguments: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "perdure.cli", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


async def test_the_client_extends_a_turn_and_says_when_none_runs(house: House) -> None:
    async with ScriptedProvider(Script(replies=HELD)) as provider, house.worker(agent(max_steps=2)):
        house.use(provider)
        GATE.clear()
        turn = await house.client.start("tester", "go", session=house.session)
        await house.wait_for_event("tool_start", 2)
        with pytest.raises(RequestRefusedError, match="is used already"):
            await turn.extend(max_steps=1)
        with pytest.raises(RequestRefusedError, match="at least one limit"):
            await turn.extend()
        assert (await turn.extend(max_steps=4)).max_steps == 4
        GATE.set()
        result = await turn.result()
        with pytest.raises(SessionIdleError, match="no turn of session"):
            await house.client.extend(house.session, max_steps=9)
    assert (result.stop_reason, result.steps) == ("finished", 4)
