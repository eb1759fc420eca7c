"""What tools did, counted from the events of a log."""

from datetime import UTC, datetime, timedelta

from perdure.client.read import ToolMetrics, tool_metrics
from perdure.contracts.errors import ErrorDetail
from perdure.contracts.events import Envelope, Event, ToolEnd, ToolError, ToolStart

NOW = datetime(2026, 11, 21, tzinfo=UTC)
BROKEN = ErrorDetail(code="tool.execution_error", title="work", message="broken")


def log(*events: Event) -> list[Envelope]:
    """The events, a second apart."""
    return [
        Envelope(seq=seq, session="s", turn=1, step=1, at=NOW + timedelta(seconds=seq), event=event)
        for seq, event in enumerate(events, start=1)
    ]


def start(call_id: str, tool: str) -> ToolStart:
    return ToolStart(call_id=call_id, tool=tool, arguments="{}")


def end(call_id: str, tool: str, error: ErrorDetail | None = None) -> ToolEnd:
    return ToolEnd(call_id=call_id, tool=tool, result="", error=error, seconds=0.25)


EVENTS = log(
    *(start("1", "work"), end("1", "work"), start("2", "work"), end("2", "work", BROKEN)),
    *(start("3", "other"), end("3", "other")),
    *(start("4", "work"), ToolError(call_id="4", tool="work", error=BROKEN)),
    ToolError(call_id="5", tool="nothing", error=BROKEN),
)


def test_calls_are_counted_with_their_time_and_their_success() -> None:
    """S-45: a call that ended its turn, or never ran, counts too."""
    metrics = tool_metrics(EVENTS)
    assert (metrics.count, metrics.errors, metrics.seconds, metrics.success_rate) == (5, 3, 1.75, 0.4)
    assert metrics.tools == {}


def test_each_tool_is_counted_apart_if_asked_for() -> None:
    """S-45."""
    tools = tool_metrics(EVENTS, detailed=True).tools
    assert {name: (tool.count, tool.errors, tool.seconds) for name, tool in tools.items()} == {
        "work": (3, 2, 1.5),
        "other": (1, 0, 0.25),
        "nothing": (1, 1, 0.0),
    }


def test_without_a_call_there_is_no_rate() -> None:
    assert tool_metrics([]) == ToolMetrics()
    assert ToolMetrics().model_dump(mode="json")["success_rate"] is None
