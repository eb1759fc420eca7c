"""Reads of sessions: lists, transcripts, trajectories, tool metrics; a turn that Temporal ended counts as ended.

A workflow that was terminated, has failed or timed out cannot end its turn in the store. Nobody else does before the
session's next message: an operator may reset the workflow, and its turn then goes on.
"""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Unpack

import temporalio.client
from pydantic import Field, computed_field
from temporalio.client import WorkflowExecution, WorkflowExecutionStatus

from perdure.client.connect import rpc_errors
from perdure.client.stream import EventReader
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.errors import ReasonCode
from perdure.contracts.events import Envelope, ToolEnd, ToolError, ToolStart
from perdure.contracts.names import AGENT_TURN
from perdure.contracts.turns import RunState, StopReason, TurnResult
from perdure.contracts.values import JsonValue, Value, replace
from perdure.llm.openai_format import openai_tools
from perdure.store import SessionRecord, Store, TurnRecord
from perdure.store.records import Closure, QueuedTurn, SessionFilter, StepRecord
from perdure.trajectory import Trajectory, TrajectoryStep

PAGE = 500
"""Events read at once."""

ENDED = ("stop_reason", "reason_code", "error", "stopped_by")
"""Fields about how a turn ended."""

SESSION_FIELDS = (
    *(
        "session",
        "tenant",
        "agent",
        "turn",
        "created_at",
        "updated_at",
        "state",
        "job_status",
        "started_at",
        "ended_at",
    ),
    *(*ENDED, "steps", "cost_usd"),
)
"""Fields of a session in lists: itself, its last turn, and, null while that runs, how it ended."""


async def read_trajectory(store: Store, session: str, turn: int | None = None) -> Trajectory:
    """Read the session so far, or one turn of it."""
    now = await store.session(session)
    last = await store.turn(session, turn or now.turn)
    definition = await store.definition(last.definition)
    end = (last.last_step if turn is not None else None) or now.tip or now.head
    steps = [
        step
        for step in await _path(store, session, end)
        if turn is None or (step.session, step.turn) == (session, turn)
    ]
    events = [envelope async for envelope in read_events(store, session) if turn in {None, envelope.turn}]
    return Trajectory(
        session=session,
        turn=turn,
        agent=last.agent,
        model=definition.model,
        system_prompt=definition.instructions,
        tools=tuple(openai_tools(definition.tools)),
        steps=tuple(
            TrajectoryStep(
                turn=step.turn,
                step=step.step,
                messages=step.added,
                finish_reason=step.finish_reason,
                usage=step.usage,
                cost_usd=step.cost_usd,
                session="" if step.session == session else step.session,
            )
            for step in steps
        ),
        events=tuple(events),
        metadata={**_labels_of(definition), **end_of(last.result)},
        result=last.result,
    )


def _labels_of(definition: AgentDefinition) -> dict[str, JsonValue]:
    """Label and tags that the author gives the agent."""
    called: dict[str, JsonValue] = {"label": definition.label, "tags": [*definition.tags]}
    return {name: value for name, value in called.items() if value}


async def read_events(store: Store, session: str) -> AsyncIterator[Envelope]:
    """The event log from its beginning."""
    after = 0
    while page := await store.events(session, after=after, limit=PAGE):
        for envelope in page:
            yield envelope
        after = page[-1].seq


async def _path(store: Store, session: str, tip: str | None) -> list[StepRecord]:
    """The steps from the root to the tip; the first ones may be another session's, of which this one is a fork."""
    known = {step.id: step for step in await store.steps(session)}
    backwards: list[StepRecord] = []
    while tip is not None:
        if tip not in known:
            step = await store.step(tip)
            if step is None:
                break
            known |= {record.id: record for record in await store.steps(step.session)}
        backwards.append(known[tip])
        tip = known[tip].parent
    return backwards[::-1]


def end_of(result: TurnResult | None, names: Sequence[str] = ENDED) -> dict[str, JsonValue]:
    """End of a turn as far as it is known: these fields of its result, or null while it runs."""
    known: dict[str, JsonValue] = result.model_dump(mode="json", include=set(names)) if result is not None else {}
    return {name: known.get(name) for name in names}


def session_fields(session: SessionRecord, last: TurnRecord) -> dict[str, JsonValue]:
    """The :data:`SESSION_FIELDS` of a session and its last turn. A turn that Temporal has ended counts as an error."""
    ended = end_of(last.result, (*ENDED, "steps", "cost_usd"))
    if last.result is None and last.closure is not None:
        ended |= {"stop_reason": StopReason.ERROR, "reason_code": ReasonCode.RUNTIME_TURN_CLOSED}
        ended["error"] = last.closure.text
    return {
        **session.model_dump(mode="json", include={"session", "tenant", "agent", "turn", "created_at", "updated_at"}),
        "state": session.state,
        "job_status": last.job_status,
        **last.model_dump(mode="json", include={"started_at", "ended_at"}),
        **ended,
    }


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
    each = {name: _sum_up([row for row in ended.values() if row[0] == name]) for name in names}
    return replace(_sum_up(list(ended.values())), tools=each)


async def read_tool_metrics(store: Store, session: str, turn: int | None, *, detailed: bool = False) -> ToolMetrics:
    """The metrics of a session, or of one of its turns, as far as the log has come."""
    reader = EventReader(store, session, 0)
    last = await reader.begin()
    await reader.skip_swept()
    if turn is not None:
        await reader.skip_to(turn)
    envelopes: list[Envelope] = []
    while reader.after < last and (page := await reader.read()):
        envelopes += [envelope for envelope in page if turn in {None, envelope.turn}]
        if turn is not None and page[-1].turn > turn:
            break
    return tool_metrics(envelopes, detailed=detailed)


def _sum_up(calls: list[tuple[str, bool, float]]) -> ToolMetrics:
    return ToolMetrics(
        count=len(calls),
        errors=sum(failed for _, failed, _ in calls),
        seconds=round(sum(seconds for _, _, seconds in calls), 3),
    )


MOST = 10_000
"""Ended workflows that are looked at."""

AT_ONCE = 100
"""Workflow ids in one query."""

_HOW = {
    WorkflowExecutionStatus.TERMINATED: "was terminated",
    WorkflowExecutionStatus.FAILED: "failed",
    WorkflowExecutionStatus.TIMED_OUT: "timed out",
}

Listed = tuple[SessionRecord, TurnRecord]

Ask = Callable[[Mapping[str, datetime]], Awaitable[Mapping[str, Closure]]]
"""Says which turns Temporal has ended: :func:`closures`, with a client."""


def ask_of(temporal: temporalio.client.Client) -> Ask:
    """:func:`closures` of this server."""
    return partial(closures, temporal)


async def closures(temporal: temporalio.client.Client, begun: Mapping[str, datetime]) -> dict[str, Closure]:
    """Closures by Temporal of the workflows of open turns, by session.

    One query, and a second one only if it finds some: visibility is asked, which may be a moment behind.

    Args:
        temporal: The server.
        begun: When the first run of each open turn began, by session. Runs of earlier turns had closed by then.

    Raises:
        ClientError: The server does not answer, or refuses.
    """
    if not begun:
        return {}
    statuses, earliest = '"Terminated", "Failed", "TimedOut"', min(begun.values()).isoformat()
    query = f'WorkflowType = "{AGENT_TURN}" AND ExecutionStatus IN ({statuses}) AND CloseTime >= "{earliest}"'
    if len(begun) <= AT_ONCE:  # others may have failed in any number
        query += f" AND WorkflowId IN ({_quote_names(begun)})"
    ended: dict[str, Closure] = {}
    with rpc_errors():
        async for run in temporal.list_workflows(query, limit=MOST):
            first, at = begun.get(run.id), run.close_time
            if first is None or at is None or at < first:  # of another turn
                continue
            if run.id not in ended or ended[run.id].at < at:
                ended[run.id] = _closure(run, at)
        for names in (list(ended)[place : place + AT_ONCE] for place in range(0, len(ended), AT_ONCE)):
            still = f'WorkflowId IN ({_quote_names(names)}) AND ExecutionStatus = "Running"'
            async for run in temporal.list_workflows(still):
                ended.pop(run.id, None)  # it was reset
    return ended


def _quote_names(names: Iterable[str]) -> str:
    return ", ".join(map(json.dumps, names))


def _closure(run: WorkflowExecution, at: datetime) -> Closure:
    how = _HOW[run.status or WorkflowExecutionStatus.FAILED]
    text = f"the turn's workflow {how} before the turn could end; 'perdure send {run.id} …' goes on from its last step"
    return Closure(at=at, how=how.removeprefix("was "), text=text)


async def list_sessions(store: Store, ask: Ask, *, limit: int, **wanted: Unpack[SessionFilter]) -> list[Listed]:
    """Sessions with their last turns, those that began last first; open turns that Temporal has ended are ended."""
    state = wanted.get("state")
    if state in {RunState.RUNNING, RunState.WAITING_FOR_INPUT, RunState.PAUSED}:
        return await _list_open(store, ask, limit, wanted)
    found = [await _with_closures(store, ask, list(await store.sessions(limit=limit, **wanted)))]
    if state is RunState.ENDED or wanted.get("stop_reason") or wanted.get("reason_code"):
        found.append(await _find_closed(store, ask, wanted))
    merged = sorted((row for rows in found for row in rows), key=place_of, reverse=True)
    return merged[:limit]


def is_listed(turn: QueuedTurn, wanted: SessionFilter) -> bool:
    """Whether a filter selects a queued turn: it has neither begun nor ended, and belongs to no delegate."""
    if wanted.get("state") not in {None, RunState.QUEUED} or wanted.get("agent") not in {None, turn.agent}:
        return False
    if (text := wanted.get("text")) and text.lower() not in turn.session.lower():
        return False
    since = wanted.get("since")
    if since is not None and turn.queued_at < since:
        return False
    return not any((wanted.get("stop_reason"), wanted.get("reason_code"), wanted.get("caller")))


def place_of(row: Listed) -> tuple[datetime, str]:
    """A row's place in the list; ``before`` of a filter goes on behind it."""
    return row[1].started_at, row[1].session


async def _list_open(store: Store, ask: Ask, limit: int, wanted: SessionFilter) -> list[Listed]:
    asked = limit
    while True:
        rows = await _with_closures(store, ask, list(await store.sessions(limit=asked, **wanted)))
        kept = [row for row in rows if row[1].closure is None]
        if len(kept) >= limit or len(rows) < asked:
            return kept[:limit]
        asked *= 2


async def _find_closed(store: Store, ask: Ask, wanted: SessionFilter) -> list[Listed]:
    """The open turns that the filter wants as ended ones."""
    if wanted.get("stop_reason") not in {None, StopReason.ERROR}:
        return []
    if wanted.get("reason_code") not in {None, ReasonCode.RUNTIME_TURN_CLOSED}:
        return []
    ended = await ask(await store.open_runs())
    other: SessionFilter = {**wanted, "state": None, "stop_reason": None, "reason_code": None}
    rows = await store.sessions(limit=len(ended), only=list(ended), **other) if ended else ()
    return [listed for row in rows if (listed := _mark_ended(row, ended))[1].closure is not None]


async def _with_closures(store: Store, ask: Ask, rows: list[Listed]) -> list[Listed]:
    names = [session.session for session, _ in rows if session.open_turn is not None]
    if not names:
        return rows
    ended = await ask(await store.open_runs(names))
    return [_mark_ended(row, ended) for row in rows]


def _mark_ended(row: Listed, ended: Mapping[str, Closure]) -> Listed:
    closure = ended.get(row[0].session)
    return row if closure is None or row[0].open_turn is None else mark_ended(row, closure)


def mark_ended(row: Listed, closure: Closure) -> Listed:
    """Mark the open turn of a session as ended by Temporal."""
    session, turn = row
    return (
        replace(session, open_turn=None, waiting=False),
        replace(turn, closure=closure, ended_at=closure.at),
    )
