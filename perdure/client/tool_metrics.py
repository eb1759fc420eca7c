"""What tools did, counted from the event log: how many calls, how long they took, how many succeeded."""

from collections.abc import Iterable
from datetime import datetime

from pydantic import Field, computed_field

from perdure.client.stream import EventReader
from perdure.contracts.events import Envelope, ToolEnd, ToolError, ToolStart
from perdure.contracts.values import Value
from perdure.store import Store


class ToolMetrics(Value):
    """Calls that have a result, errors among them.

    Attributes:
        count: How many calls.
        errors: Those whose result is an error, also of calls that never ran.
        seconds: Time spent in the tools.
        tools: The same of each tool, by name, if it was asked for.
    """

    count: int = 0
    errors: int = 0
    seconds: float = 0.0
    tools: "dict[str, ToolMetrics]" = Field(default_factory=dict)

    @computed_field  # type: ignore[prop-decorator]  # pydantic's own form
    @property
    def success_rate(self) -> float | None:
        """The share of calls that succeeded, from 0 to 1; None without a call."""
        return (self.count - self.errors) / self.count if self.count else None


def tool_metrics(envelopes: Iterable[Envelope], *, detailed: bool = False) -> ToolMetrics:
    """The metrics of the calls in these events; ``detailed`` counts each tool apart too."""
    began: dict[str, datetime] = {}
    ended: dict[str, tuple[str, bool, float]] = {}
    for envelope in envelopes:
        event = envelope.event
        if isinstance(event, ToolStart):
            began[event.call_id] = envelope.at
        elif isinstance(event, ToolEnd):
            ended[event.call_id] = (event.tool, event.error is not None, event.seconds)
        elif isinstance(event, ToolError):  # such a call has no end of its own, or never began
            seconds = (envelope.at - began.get(event.call_id, envelope.at)).total_seconds()
            ended.setdefault(event.call_id, (event.tool, True, seconds))
    names = sorted({tool for tool, _, _ in ended.values()}) if detailed else ()
    each = {name: _of([one for one in ended.values() if one[0] == name]) for name in names}
    return _of(list(ended.values())).model_copy(update={"tools": each})


async def read_tool_metrics(store: Store, session: str, turn: int | None, *, detailed: bool = False) -> ToolMetrics:
    """The metrics of a session, or of one of its turns, as far as the log has come."""
    reader = EventReader(store, session, 0)
    last = await reader.begin()
    if turn is not None:
        await reader.skip_to(turn)
    envelopes: list[Envelope] = []
    while reader.after < last and (page := await reader.read()):
        envelopes += [one for one in page if turn in {None, one.turn}]
        if turn is not None and page[-1].turn > turn:
            break
    return tool_metrics(envelopes, detailed=detailed)


def _of(calls: list[tuple[str, bool, float]]) -> ToolMetrics:
    return ToolMetrics(
        count=len(calls),
        errors=sum(failed for _, failed, _ in calls),
        seconds=round(sum(seconds for _, _, seconds in calls), 3),
    )
