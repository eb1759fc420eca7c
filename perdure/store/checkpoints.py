"""The steps of a session as checkpoints. Nothing is stored for them: all follows from turns, steps and ledger."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal

from sqlalchemy import Connection, Row, bindparam, func, select

from perdure.contracts.budgets import Usage
from perdure.contracts.checkpoints import Checkpoint, CheckpointStatus
from perdure.contracts.errors import ErrorDetail
from perdure.contracts.messages import ToolMessage
from perdure.contracts.tools import PlannedCall
from perdure.store import schema
from perdure.store.agents import definition as find_definition
from perdure.store.queries import session as find_session
from perdure.store.queries import steps as all_steps
from perdure.store.queries import turns as all_turns
from perdure.store.records import StepRecord, TurnRecord
from perdure.store.steps import conversation
from perdure.store.tool_calls import CallRow, read_results

_T, _F = schema.turns, schema.failed_generations
_STARTS = select(_T.c.turn, _T.c.model, _T.c.context_window, _T.c.error).where(_T.c.session == bindparam("session"))
_RETRIES = (
    select(_F.c.turn, _F.c.step, func.count().label("retries"))
    .where(_F.c.session == bindparam("session"), ~_F.c.compaction, ~_F.c.final)
    .group_by(_F.c.turn, _F.c.step)
)

_Start = Row[*tuple[object, ...]]
_Retries = Mapping[tuple[int, int], int]


@dataclass(frozen=True)
class _Calls:
    """The calls of the last step: those without a result, and the results so far while some have none."""

    pending: tuple[PlannedCall, ...] = ()
    results: tuple[ToolMessage, ...] = ()
    waits: CheckpointStatus | None = None

    @classmethod
    def read(cls, connection: Connection, step: StepRecord, definition: str) -> "_Calls":
        ended, rows = read_results(connection, step.session, step.calls, step.turn)
        pending = [call for call in step.calls if call.call_id in rows]
        if not pending:
            return cls()
        tools = find_definition(connection, definition).tools
        delegates = {tool.name for tool in tools if tool.delegate is not None or tool.builtin == "await_delegate"}
        waits = {_waits_for(call, rows[call.call_id], delegates) for call in pending}
        results = tuple(ended[call.call_id] for call in step.calls if call not in pending)
        return cls(tuple(pending), results, None if None in waits else min(waits, key=_FIRST.index))


_FIRST = (CheckpointStatus.STOPPED_BY_DELEGATE, CheckpointStatus.STOPPED_BY_INTERACTIVE_TOOL)
"""The order of importance: if some calls wait for delegates and some for people, the first counts."""


def _waits_for(call: PlannedCall, row: CallRow, delegates: Collection[str]) -> CheckpointStatus | None:
    """Whether a call without a result waits for a delegate or a person; None if it runs, or is about to."""
    if call.tool in delegates:
        return CheckpointStatus.STOPPED_BY_DELEGATE
    asks = call.needs is not None or row.message is not None  # a question of an MCP server
    return CheckpointStatus.STOPPED_BY_INTERACTIVE_TOOL if asks and row.state != "claimed" else None


def checkpoints(connection: Connection, session: str) -> tuple[Checkpoint, ...]:
    """Every checkpoint of the session, in order.

    Raises:
        NotFoundError: There is no such session.
    """
    find_session(connection, session)
    turns = {record.turn: record for record in all_turns(connection, session)}
    starts = {row.turn: row for row in connection.execute(_STARTS, {"session": session})}
    retries = {(row.turn, row.step): row.retries for row in connection.execute(_RETRIES, {"session": session})}
    sizes: dict[str, int] = {}
    by_turn: dict[int, list[StepRecord]] = {}
    for step in all_steps(connection, session):
        if step.parent is not None and step.parent not in sizes:  # a fork: it began in another session
            sizes[step.parent] = len(conversation(connection, step.parent))
        before = 0 if step.parent is None or step.summarised is not None else sizes[step.parent]
        sizes[step.id] = len(step.messages) + before
        if step.turn in turns and step.is_checkpoint:
            by_turn.setdefault(step.turn, []).append(step)
    return tuple(
        checkpoint
        for turn, steps in by_turn.items()
        for checkpoint in _checkpoints_of_turn(connection, turns[turn], steps, starts[turn], retries, sizes)
    )


def _checkpoints_of_turn(
    connection: Connection,
    turn: TurnRecord,
    steps: list[StepRecord],
    start: _Start,
    retries: _Retries,
    sizes: dict[str, int],
) -> Iterator[Checkpoint]:
    usage, cost = Usage(), Decimal(0)
    window = start.context_window
    error = None if start.error is None else ErrorDetail.model_validate_json(start.error)
    for step, after in zip(steps, [*steps[1:], None], strict=True):
        usage, cost = usage.plus(step.usage), cost + (step.cost_usd or 0)
        if after is not None and after.step == step.step:  # a compaction has the number of the generation after it
            continue
        last = after is None
        stands = _Calls.read(connection, step, turn.definition) if last else _Calls()
        status = stands.waits or CheckpointStatus.PROCEEDING
        if last and turn.result is not None:
            status = turn.result.stop_reason.checkpoint_status
        elif step.step == 0 and not step.calls:
            status = CheckpointStatus.INIT
        tokens = 0 if step.summarised is not None else step.usage.total_tokens
        yield Checkpoint(
            id=step.id,
            session=step.session,
            turn=step.turn,
            step=step.step,
            status=status,
            agent=turn.agent,
            model=step.model or start.model or "",
            messages=sizes[step.id],
            usage=usage,
            cost_usd=cost,
            context_tokens=tokens,
            context_window=window,
            context_used=round(tokens / window, 4) if window else None,
            retries=retries.get((step.turn, step.step), 0),
            pending_calls=stands.pending,
            partial_results=stands.results,
            error=error if last else None,
        )
