"""A worker that looks at another store than the turn's leaves every activity of the turn, before it does anything."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from perdure.activities.commit_turn import CommitTurnActivity
from perdure.activities.compact import CompactActivity
from perdure.activities.delegates import CollectActivity
from perdure.activities.generate import GenerateActivity
from perdure.activities.hooks import HooksActivity
from perdure.activities.input_requests import PeopleActivity
from perdure.activities.open_turn import OpenTurnActivity
from perdure.activities.tools import ToolActivities
from perdure.client.connect import DATA_CONVERTER
from perdure.contracts.budgets import Spent
from perdure.contracts.generations import Compact, Generate
from perdure.contracts.hooks import RunHooks
from perdure.contracts.input_requests import AskPeople
from perdure.contracts.tools import CallTool, CollectDelegates
from perdure.contracts.turns import CommitTurn, Continuation, OpenTurn, StopReason
from perdure.store import Store

CONVERTER = DATA_CONVERTER.payload_converter
ELSEWHERE = "0" * 32
STEP: dict[str, Any] = {"session": "s", "turn": 1, "step": 1, "store": ELSEWHERE}
NOW = datetime(2026, 1, 1, tzinfo=UTC)
CALL = CallTool(**STEP, call_id="c", definition="d")
ASKED: dict[str, tuple[type[Any], str, object]] = {
    "open_turn": (
        OpenTurnActivity,
        "open_turn",
        OpenTurn(session="s", request=Continuation(prompt="go", store=ELSEWHERE), request_id="r", run_started_at=NOW),
    ),
    "generate": (GenerateActivity, "generate", Generate(**STEP, parent="p", definition="d")),
    "compact": (CompactActivity, "compact", Compact(**STEP, parent="p", definition="d", trigger="manual")),
    "run_hooks": (
        HooksActivity,
        "run_hooks",
        RunHooks(**STEP, tip="t", definition="d", boundary="step", calling=()),
    ),
    "ask": (PeopleActivity, "ask", AskPeople(**STEP, requests=())),
    "collect_delegates": (
        CollectActivity,
        "collect_delegates",
        CollectDelegates(**STEP, call_id="c", tool="t", definition="d", delegates=()),
    ),
    "a tool": (ToolActivities, "call_tool", [RawValue(CONVERTER.to_payload(CALL))]),
    "commit_turn": (
        CommitTurnActivity,
        "commit_turn",
        CommitTurn(
            session="s",
            turn=1,
            tip="t",
            stop_reason=StopReason.FINISHED,
            steps=1,
            spent=Spent(),
            store=ELSEWHERE,
        ),
    ),
}


@pytest.mark.parametrize("name", ASKED)
async def test_the_activity_is_left_to_workers_on_the_turns_store(name: str) -> None:
    """It has nothing but its store and its secrets here: whatever else it touched first would not be there."""
    kind, method, request = ASKED[name]
    async with await Store.open("sqlite://", upgrade=True) as store:
        activities: Any = object.__new__(kind)
        activities._store, activities._secrets = store, frozenset()
        environment = ActivityEnvironment()
        environment.payload_converter = CONVERTER
        body: Callable[[Any], Any] = getattr(activities, method)
        with pytest.raises(ApplicationError, match=f"the turn lives in the store {ELSEWHERE}") as left:
            await environment.run(body, request)
    assert (left.value.type, left.value.non_retryable) == ("runtime.store_mismatch", False)
    assert left.value.next_retry_delay is not None
