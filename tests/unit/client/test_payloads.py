"""What Temporal keeps of a value: fields at their defaults are left out, and are there again when it is read."""

import json
from datetime import timedelta
from decimal import Decimal

import pytest

from perdure.client.connect import DATA_CONVERTER
from perdure.contracts.agents import CompactionPolicy, TurnPolicy
from perdure.contracts.budgets import Budgets, Spent, Usage
from perdure.contracts.conditions import Never, StepCount
from perdure.contracts.hooks import BudgetWarning, Continue, Decided, Finish, HookRule
from perdure.contracts.tools import DelegateSettings, FinishCall, PlannedCall, ToolOutcome, ToolPolicy
from perdure.contracts.turns import CommitTurn, Continuation, StopReason, TurnResult
from perdure.contracts.values import Value

CALL = PlannedCall(call_id="c1", tool="finish", builtin=FinishCall(summary=""), background=False, options=())
POLICY = TurnPolicy(
    agent="clerk",
    model="openai/gpt-5-mini",
    max_steps=1000,
    budgets=Budgets(cost_usd=Decimal("0.5"), warn_at=("0.8",)),
    tools={"ask": ToolPolicy(timeout=timedelta(seconds=300), delegate=DelegateSettings(agent="", background=True))},
    compaction=CompactionPolicy(above_tokens=None),
    stop_conditions=(StepCount(count=3) & ~Never(),),
    hooks=(HookRule(name="go on", on="agent_stalled", reaction=Continue("Go on.")),),
)
COMMIT = CommitTurn(
    session="s",
    turn=1,
    tip="t",
    stop_reason=StopReason.FINISHED,
    steps=0,
    spent=Spent(usage=Usage(input_tokens=0, output_tokens=2), cost_usd=Decimal("0.10")),
    failed=(ToolOutcome(call_id="c1", preview="", recorded=False),),
    decided=(Decided(key="k", step=1, event=BudgetWarning(dimension="cost", share=Decimal("0.8"), used="8 of 10")),),
)
RESULT = TurnResult(
    session="s", turn=None, agent="clerk", stop_reason=StopReason.FINISHED, output="", steps=0, value={"at": None}
)
START = Continuation(agent="clerk", prompt="Go.", queued=(), budgets=Budgets(depth=0, scope=None), carried={"turn": 1})


@pytest.mark.parametrize("value", [CALL, POLICY, COMMIT, RESULT, START, Finish("done")], ids=lambda v: type(v).__name__)
async def test_what_is_read_is_what_was_written(value: Value) -> None:
    payloads = await DATA_CONVERTER.encode([value])
    assert await DATA_CONVERTER.decode(payloads, [type(value)]) == [value]


async def test_a_field_at_its_default_takes_no_place_and_a_type_always_does() -> None:
    (payload,) = await DATA_CONVERTER.encode([CALL])
    assert json.loads(payload.data) == {"call_id": "c1", "tool": "finish", "builtin": {"type": "finish"}}


async def test_what_other_services_read_holds_every_field() -> None:
    (payload,) = await DATA_CONVERTER.encode([RESULT])
    assert json.loads(payload.data).keys() == TurnResult.model_fields.keys()
