"""What a large store costs its readers and writers: ten sessions, and then 100,000 with a million events.

Prints the median of each operation in ms in the small store and in the large one, and their ratio, in the same run.
Ten sessions are written as workers write them; the others are copies of them, made by the database.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from itertools import count
from pathlib import Path
from statistics import median

from sqlalchemy import ColumnElement, Connection, Table, create_engine, literal_column, select, text

from perdure.contracts.agents import AgentDefinition
from perdure.contracts.budgets import Spent, Usage
from perdure.contracts.errors import ErrorDetail, ReasonCode
from perdure.contracts.events import NewEvent, UserMessageReceived
from perdure.contracts.generations import Generate
from perdure.contracts.messages import AssistantMessage
from perdure.contracts.turns import CommitTurn, Continuation, OpenTurn, RunState, StopReason
from perdure.store import StepRecord, Store, schema
from perdure.store.database import Address
from tests.postgresql import start_postgresql, url_of

FEW, MANY, EVENTS, ROUNDS = 10, 100_000, 10, 30
"""Sessions of the small store, which is also a page of lists, and of the large one; events of each; measurements."""

AGENTS = [AgentDefinition(name=f"agent{number}", model="test/model") for number in range(FEW)]

COPIED = (schema.sessions, schema.turns, schema.steps, schema.events)

_NAMES = {"session", "id", "parent", "head", "tip", "last_step", "request_id"}
"""Columns with a name that is a session's own: each copy has another one."""


async def write_session(store: Store, name: str, agent: AgentDefinition, *, ends: bool = True) -> None:
    """One turn of one answer, of ten events in all; the last session runs, the one before it has failed."""
    request = Continuation(prompt="hello", turn=None)
    opening = OpenTurn(session=name, request=request, request_id=f"first-{name}", run_started_at=datetime.now(UTC))
    opened = await store.open_turn(opening, agent)
    generate = Generate(
        session=name, turn=opened.turn, step=1, parent=opened.tip, definition=agent.digest(), call_ids=(), failed=()
    )
    begun = await store.begin_generation(generate, [])
    step = StepRecord(
        id=generate.step_id(),
        session=name,
        turn=opened.turn,
        step=1,
        parent=opened.tip,
        messages=(*begun.results, AssistantMessage(content="x" * 400)),
        usage=Usage(input_tokens=10, output_tokens=5),
        cost_usd=Decimal("0.01"),
    )
    await store.finish_generation(step, [], [])
    last = (await store.session(name)).last_seq
    for number in range(EVENTS - last - 1):
        await append(store, name, f"said/{number}")
    if not ends:
        return
    error = ErrorDetail(code=ReasonCode.LLM_RATE_LIMITED, title="generation", message="limited")
    fails = name.endswith(f"-{FEW - 2}")
    commit = CommitTurn(
        session=name,
        turn=opened.turn,
        tip=step.id,
        stop_reason=StopReason.ERROR if fails else StopReason.FINISHED,
        error=error if fails else None,
        steps=1,
        spent=Spent(usage=step.usage, cost_usd=Decimal("0.01")),
    )
    await store.commit_turn(commit)


async def append(store: Store, session: str, key: str) -> None:
    """Write an event."""
    event = UserMessageReceived(content="x" * 300)
    await store.append_events(session, [NewEvent(key=f"1/{key}", turn=1, step=0, event=event)])


def multiply(connection: Connection, times: int) -> None:
    """Copy every session that has ended so often; one in ten copies per agent has failed, as its original."""
    numbers = (
        select(literal_column("value").label("n")).select_from(text(f"generate_series(1, {times}) AS numbers(value)"))
        if connection.dialect.name == "postgresql"
        else select(literal_column("n")).select_from(
            text(f"(WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {times}) SELECT n FROM s)")
        )
    ).subquery()
    ended = select(schema.sessions.c.session).where(schema.sessions.c.open_turn.is_(None))
    for table in COPIED:
        chosen = [
            _copied(table, name, postgresql=connection.dialect.name == "postgresql")
            for name in table.c.keys()  # noqa: SIM118 - no mapping
        ]
        rows = select(*chosen).select_from(table.join(numbers, literal_column("1 = 1")))
        rows = rows.where(table.c.session.in_(ended), ~table.c.session.like("%/%"))
        connection.execute(table.insert().from_select(list(table.c.keys()), rows))
    connection.execute(text("ANALYZE"))


def _copied(table: Table, name: str, *, postgresql: bool) -> ColumnElement[object]:
    """A column of a copy: names are its own, and each copy began a minute before the last one."""
    column = table.c[name]
    if name in {"started_at", "ended_at"}:
        earlier = f"{name} - n * interval '1 minute'"
        if not postgresql:
            earlier = f"strftime('%Y-%m-%d %H:%M:%f000', {name}, '-' || n || ' minutes')"
        return literal_column(earlier).label(name)
    return literal_column(f"{table.name}.{name} || '/' || n").label(name) if name in _NAMES else column


async def measured(store: Store, names: "count[int]") -> dict[str, float]:
    """The median of each operation, in ms."""
    some = "job-3"
    before = (datetime.now(UTC), "")
    operations: Mapping[str, Callable[[], Awaitable[object]]] = {
        "list": lambda: store.sessions(limit=FEW),
        "list, next page": lambda: store.sessions(limit=FEW, before=before),
        "list --agent": lambda: store.sessions(limit=FEW, agent="agent3"),
        "list --state running": lambda: store.sessions(limit=FEW, state=RunState.RUNNING),
        "list --stop-reason error": lambda: store.sessions(limit=FEW, stop_reason=StopReason.ERROR),
        "list --reason-code": lambda: store.sessions(limit=FEW, reason_code="llm.rate_limited"),
        "list --reason-code, none": lambda: store.sessions(limit=FEW, reason_code="llm.bad_request"),
        "list of a tenant": lambda: store.sessions(limit=FEW, tenant=""),
        "list of a small tenant": lambda: store.sessions(limit=FEW, tenant="nobody"),
        "show": lambda: store.turns(some),
        "show, its transcript": lambda: store.transcript(some),
        "follow": lambda: store.events(some, after=3, limit=500),
        "inbox": store.open_requests,
        "scrape": store.open_turns,
        "scrape, sizes": store.table_bytes,
        "open": lambda: write_session(store, f"new-{next(names)}", AGENTS[0], ends=False),
        "append": lambda: append(store, f"job-{FEW - 1}", f"more/{next(names)}"),
    }
    found: dict[str, float] = {}
    for name, operation in operations.items():
        times: list[float] = []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            await operation()
            times.append((time.perf_counter() - began) * 1000)
        found[name] = median(times)
    return found


async def compare(url: str, sessions: int) -> dict[str, tuple[float, float]]:
    """Each operation in the small store and in the large one."""
    names = count()
    async with await Store.open(url, upgrade=True) as store:
        await store.register_agents(AGENTS)
        for number, agent in enumerate(AGENTS):
            await write_session(store, f"job-{number}", agent, ends=number < FEW - 1)
        small = await measured(store, names)
        engine = create_engine(Address(url).url)
        with engine.begin() as connection:
            multiply(connection, sessions // (FEW - 1))
        with engine.connect() as connection:
            held = [connection.execute(text(f"SELECT count(*) FROM {t}")).scalar() for t in ("sessions", "events")]
        engine.dispose()
        sys.stdout.write(f"{held[0]:,} sessions, {held[1]:,} events\n")
        large = await measured(store, names)
    return {name: (small[name], large[name]) for name in small}


def main() -> None:
    """Measure on SQLite and on PostgreSQL."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=MANY)
    parser.add_argument("--store", choices=["sqlite", "postgresql"], action="append")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    given = parser.parse_args()
    figures: dict[str, dict[str, tuple[float, float]]] = {}
    for kind in given.store or ["sqlite", "postgresql"]:
        sys.stdout.write(f"{kind}: ")
        with tempfile.TemporaryDirectory() as folder:
            server = start_postgresql() if kind == "postgresql" else None
            url = url_of(server) if server is not None else f"sqlite:///{folder}/store.db"
            figures[kind] = asyncio.run(compare(url, given.sessions))
            if server is not None:
                server.cleanup()
        for name, (few, many) in figures[kind].items():
            sys.stdout.write(f"  {name:<28}{few:>8.2f} ms {many:>9.2f} ms {many / few:>7.1f}\n")
    if given.json is not None:
        given.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
