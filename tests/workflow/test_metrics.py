"""What a worker counts is what the store holds: every paid call, and the outcome of every tool call, once."""

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, ApprovalPolicy, ApprovalRule, Compaction, RetryPolicy, Tool, ToolContext, tool
from perdure.contracts.events import NewEvent
from perdure.contracts.values import replace
from perdure.store import LedgerCall, StepRecord, StoreUnavailableError
from perdure.testing import Script, ScriptedProvider, call, faults, say
from perdure.testing.script import Answers
from tests.house import House
from tests.workflow.agents_for_kill import agent as payer
from tests.workflow.bodies import Body, happened
from tests.workflow.killing import PAY, has_lines, lines_of, result_of, worker
from tests.workflow.test_compaction import WINDOW, Reader, look

pytestmark = pytest.mark.deep

MODEL = "openai/gpt-4o-mini"
"""Its prices are known."""

QUICK = RetryPolicy(max_retries=2, base=timedelta(milliseconds=1), jitter=timedelta(0))
CUT = faults.truncated("x" * 4_000)
DONE = say("done")


def samples(house: House, name: str) -> dict[tuple[str, ...], float]:
    """The values of a counter by the values of its labels."""
    return {
        tuple(sample.labels.values()): sample.value
        for metric in house.registry.collect()
        for sample in metric.samples
        if sample.name == name
    }


PAID: dict[str, tuple[Answers, dict[str, Any], set[str]]] = {
    "a plain answer": (Script(replies=(DONE,)), {}, {"generation"}),
    "cut answers before a whole one": (Script(replies=(DONE.after(CUT, CUT),)), {}, {"generation", "failed"}),
    "cut answers and no whole one": (Script(replies=(DONE.after(CUT, CUT, CUT),)), {}, {"failed"}),
    "a cut answer of which the model is told": (
        Script(replies=(DONE.after(CUT),)),
        {"retry": QUICK.model_copy(update={"on_retry": "tell_model"})},
        {"generation", "failed"},
    ),
    "summaries, one of them cut": (
        Reader(12, CUT),
        {"tools": [look], "compaction": Compaction(window=WINDOW)},
        {"generation", "compaction", "failed"},
    ),
    "an answer without a price": (Script(replies=(DONE,)), {"model": "openai/scripted"}, {"generation"}),
}


def purposes(house: House, name: str, *wanted: str) -> dict[str, float]:
    """A counter by purpose; of the tokens, those of a kind."""
    found: dict[str, float] = {}
    for labels, value in samples(house, name).items():
        if set(wanted) <= set(labels):
            purpose = next(label for label in labels if label in {"generation", "compaction", "failed", "lost"})
            found[purpose] = found.get(purpose, 0) + value
    return found


@pytest.mark.parametrize("name", PAID)
async def test_tokens_and_dollars_are_those_of_every_call_that_was_paid(house: House, name: str) -> None:
    """The counters agree with the turn's own sums, also where an answer was of no use."""
    answers, settings, wanted = PAID[name]
    tester = Agent(**{"name": "tester", "model": MODEL, "retry": QUICK, **settings})
    async with ScriptedProvider(answers, window=WINDOW) as provider, house.worker(tester):
        house.use(provider)
        result = await house.run()
    assert_counted(house, result)
    assert set(purposes(house, "perdure_tokens_total", "input")) == wanted
    unpriced = samples(house, "perdure_unpriced_calls_total").values()
    assert sum(unpriced) == result["unpriced_calls"] == (settings.get("model") is not None)


def assert_counted(house: House, result: dict[str, Any]) -> None:
    """What was paid for is what the turn's result says, beside answers that no turn has."""
    for kind in ("input", "output", "cached"):
        counted = purposes(house, "perdure_tokens_total", kind)
        counted.pop("lost", None)
        assert sum(counted.values()) == result["usage"][f"{kind}_tokens"]
    assert result["usage"]["input_tokens"] > 0
    dollars = purposes(house, "perdure_cost_usd_total")
    dollars.pop("lost", None)
    assert sum(dollars.values()) == pytest.approx(float(Decimal(result["cost_usd"])))


async def test_an_answer_that_comes_second_is_paid_and_is_in_no_turn(house: House) -> None:
    """A worker that was taken for dead answers after the one that took over: its answer is counted as lost."""
    finish = house.store.finish_generation

    async def overtaken(step: StepRecord, calls: Sequence[LedgerCall], events: Sequence[NewEvent]) -> StepRecord:
        await finish(replace(step, finish_reason="stop"), calls, events)  # an equal one of another attempt
        return await finish(step, calls, events)

    house.environment.setattr(house.store, "finish_generation", overtaken)
    tester = Agent(name="tester", model=MODEL)
    async with ScriptedProvider(Script(replies=(DONE,))) as provider, house.worker(tester):
        house.use(provider)
        result = await house.run()
    assert_counted(house, result)
    dollars = purposes(house, "perdure_cost_usd_total")
    assert dollars["lost"] == dollars["generation"] == pytest.approx(float(Decimal(result["cost_usd"])))


async def test_an_answer_whose_commit_was_cut_off_is_counted_at_most_once(house: House) -> None:
    """The store has it, and the write that is made again finds it there: nobody else's answer was first."""
    finish, cut = house.store.finish_generation, [True]

    async def cutting(step: StepRecord, calls: Sequence[LedgerCall], events: Sequence[NewEvent]) -> StepRecord:
        stored = await finish(step, calls, events)
        if cut:
            cut.pop()
            msg = "the connection was lost at the commit"
            raise StoreUnavailableError(msg)
        return stored

    house.environment.setattr(house.store, "finish_generation", cutting)
    house.environment.setattr("perdure.activities.store_access.PAUSE", timedelta(0))
    tester = Agent(name="tester", model=MODEL)
    async with ScriptedProvider(Script(replies=(DONE,))) as provider, house.worker(tester):
        house.use(provider)
        result = await house.run()
    assert set(purposes(house, "perdure_cost_usd_total")) == {"generation"}
    assert_counted(house, result)


@tool
def fine() -> str:
    """Work."""
    return "fine"


@tool(catch=True)
def broken() -> str:
    """Fail."""
    msg = "broken"
    raise ValueError(msg)


@tool(timeout=timedelta(milliseconds=50), catch=True)
def slow(context: ToolContext) -> str:
    """Take too long."""
    context.wait(600)
    return "late"


@tool
def forbidden() -> str:
    """Never run."""
    return "it ran"


TOOLS: list[Tool[..., Any]] = [fine, broken, slow, forbidden]


async def outcomes_in_log(house: House) -> Counter[tuple[str, str]]:
    """What the log says of the calls that ended; names that a model made up are of one kind."""
    ended = await house.events("tool_end", "tool_error")
    codes = [(line["tool"], line["error"]["code"] if line["error"] else "ok") for line in ended]
    return Counter(("(unknown)" if code == "tool.unknown_tool" else name, code) for name, code in codes)


async def test_each_outcome_of_a_tool_call_is_counted_once(house: House) -> None:
    """Also those that never reach a body: unknown tools, refused arguments, calls that a rule denies."""
    policy = ApprovalPolicy(rules=(ApprovalRule(tool="forbidden", decision="deny"),))
    tester = Agent(name="tester", model=MODEL, tools=TOOLS, approvals=policy)
    asked = call(
        ("fine", {}),
        ("fine", {}),
        ("fine", {"no": "such argument"}),
        ("broken", {}),
        ("slow", {}),
        ("forbidden", {}),
        ("made_up", {}),
        ("made_up_too", {}),
    )
    async with ScriptedProvider(Script(replies=(asked, DONE))) as provider, house.worker(tester):
        house.use(provider)
        result = await house.run()
    assert result["stop_reason"] == "finished"
    counted = samples(house, "perdure_tool_calls_total")
    assert counted == {
        ("fine", "ok"): 2,
        ("fine", "tool.invalid_input"): 1,
        ("broken", "tool.execution_error"): 1,
        ("slow", "tool.timeout"): 1,
        ("forbidden", "tool.denied"): 1,
        ("(unknown)", "tool.unknown_tool"): 2,
    }
    assert counted == await outcomes_in_log(house)


async def test_a_call_that_ends_the_turn_is_counted(house: House) -> None:
    @tool
    def fatal() -> str:
        """Fail for good."""
        msg = "broken"
        raise ValueError(msg)

    tester = Agent(name="tester", model=MODEL, tools=[fatal])
    async with ScriptedProvider(Script(replies=(call(("fatal", {})),))) as provider, house.worker(tester):
        house.use(provider)
        result = await house.run()
    assert result["stop_reason"] == "error"
    assert samples(house, "perdure_tool_calls_total") == {("fatal", "tool.execution_error"): 1}


async def test_a_cancelled_call_is_counted(house: House) -> None:
    body = Body()
    tester = Agent(name="tester", model=MODEL, tools=[body.held()])
    async with ScriptedProvider(Script(replies=(call(("held", {})),))) as provider, house.worker(tester):
        house.use(provider)
        handle = await house.start()
        await happened(body.started)
        await handle.signal("cancel", {"reason": "enough"})
        await result_of(handle)
    assert samples(house, "perdure_tool_calls_total") == {("held", "tool.cancelled"): 1}


async def test_a_call_whose_worker_was_lost_is_counted_by_the_next_one(house: House) -> None:
    lines: Path = lines_of(house)
    async with ScriptedProvider(PAY) as provider:
        house.use(provider)
        first = await worker(house, HOLD="1")
        handle = await house.start()
        await has_lines(lines, 1)
        first.kill()
        async with house.worker(payer):
            await result_of(handle)
    assert samples(house, "perdure_tool_calls_total") == {("pay", "tool.effect_unknown"): 1}
