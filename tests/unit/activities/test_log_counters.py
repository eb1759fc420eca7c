"""Counters over the events of the log: a call that a drain cut off is of unknown effect, and no worker was lost."""

from typing import Literal

import pytest
from prometheus_client import CollectorRegistry

from perdure.activities.telling.log_counters import LogCounters
from perdure.activities.telling.metrics import Metrics
from perdure.contracts.errors import ErrorDetail
from perdure.contracts.events import Event, ToolEnd, ToolRecovery
from perdure.store.records import Written

UNKNOWN = ErrorDetail(code="tool.effect_unknown", title="pay", message="unknown")


def counted(*events: Event) -> CollectorRegistry:
    """The metrics of a worker that has written these events."""
    registry = CollectorRegistry()
    LogCounters(Metrics(registry)).count([Written("s", "payer", "", event) for event in events])
    return registry


@pytest.mark.parametrize("decision", ["run_again", "result_found", "given_up"])
@pytest.mark.parametrize(("stopped", "lost"), [(False, 1), (True, None)])
def test_a_worker_that_was_stopped_is_not_counted_as_lost(
    decision: Literal["run_again", "result_found", "given_up"], stopped: bool, lost: int | None
) -> None:
    registry = counted(ToolRecovery(call_id="1", tool="pay", decision=decision, reason="r", stopped=stopped))
    assert registry.get_sample_value("perdure_recoveries_total", {"kind": "tool"}) == lost


@pytest.mark.parametrize("stopped", [False, True])
def test_an_unknown_effect_is_counted_whether_the_worker_was_lost_or_stopped(stopped: bool) -> None:
    given_up = ToolRecovery(call_id="1", tool="pay", decision="given_up", reason="r", stopped=stopped)
    registry = counted(given_up, ToolEnd(call_id="1", tool="pay", result="", error=UNKNOWN, seconds=0.1))
    labels = {"tool": "pay", "outcome": "tool.effect_unknown"}
    assert registry.get_sample_value("perdure_tool_calls_total", labels) == 1
