"""The record beside the log: what events say stands in rows, which no sweep takes away, and older stores are filled.

An older release writes events only. Here its store is this release's without what the newest migration adds.
"""

import inspect
import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Column, Table, delete, update

from perdure.contracts.budgets import Usage
from perdure.contracts.checkpoints import CheckpointStatus, ResumeFrom
from perdure.contracts.errors import ErrorDetail, ReasonCode
from perdure.contracts.events import (
    CompactionEvent,
    DelegateEnd,
    DelegateStart,
    GenerationAdapted,
    GenerationEnd,
    GenerationError,
    GenerationRetry,
    HookEnd,
    NewEvent,
    ToolError,
    ToolRecovery,
    UserInputReceived,
    UserInputRequired,
)
from perdure.contracts.hooks import Continue, ReactStep, TodosChanged
from perdure.contracts.messages import AssistantMessage, ToolCall
from perdure.contracts.retention import Retention
from perdure.contracts.tools import PlannedCall, Todo
from perdure.contracts.traces import TurnTrace
from perdure.contracts.turns import Continuation, OpenTurn, StopReason
from perdure.store import RERUN, LedgerCall, StepRecord, Store, fill, schema
from perdure.store.migrate import read_schema
from tests.older_store import ADDED, MADE, empty_rows, migrate_back
from tests.unit.store.given import (
    ERROR,
    HELPER,
    SESSION,
    STARTED,
    commit,
    database,
    delegate_opening,
    generate,
    new_event,
    opening,
)

CALLS = ("call_1", "call_2", "call_3", "call_4")
PLAN = (Todo(title="look"), Todo(title="write", completed=True))
NOW = datetime(2026, 3, 1, tzinfo=UTC)
TRACE = TurnTrace(span="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", began_at=STARTED)


def failure(kind: str, *, compaction: bool = False, fallback: int = 0) -> NewEvent:
    """The event of a call that failed: ``retry``, or for good."""
    paid = {"usage": Usage(output_tokens=3), "cost_usd": Decimal("0.02")}
    key = f"1/1/{f'fallback{fallback}/' if fallback else ''}{'compaction/' if compaction else ''}{kind}"
    if kind == "retry":
        retry = GenerationRetry(
            attempt=1,
            max_attempts=5,
            wait_seconds=1,
            code="llm.server_error",
            error_type="ServerError",
            error_message="busy",
            failed_at=STARTED,
            compaction=compaction,
            fallback=fallback,
            **paid,  # type: ignore[arg-type]
        )
        return new_event(key, retry)
    if not compaction:
        return new_event(key, GenerationError(error=ERROR, **paid))  # type: ignore[arg-type]
    failed = CompactionEvent(
        trigger="threshold",
        compaction_status="failed",
        messages_before=9,
        messages_after=9,
        **paid,  # type: ignore[arg-type]
    )
    return new_event(key, failed)


async def make_everything(store: Store) -> str:
    """Two turns with all that is recorded, the second one open; returns the session of their delegate."""
    opened = await store.open_turn(opening("a first prompt"), HELPER, context_window=8_000, trace=TRACE)
    request = generate(opened.tip)
    await store.begin_generation(request, [])
    wished = tuple(ToolCall(id=call, name="search") for call in CALLS)
    step = StepRecord(
        id=request.step_id(),
        session=SESSION,
        turn=1,
        step=1,
        parent=opened.tip,
        messages=(AssistantMessage(content="", tool_calls=wished),),
        calls=tuple(PlannedCall(call_id=call, tool="search") for call in CALLS),
        usage=Usage(input_tokens=10, output_tokens=5),
        model="test/other",
    )
    ended = GenerationEnd(model="test/other", finish_reason="stop", usage=step.usage, cost_usd=None, seconds=1)
    ledger = [LedgerCall(call_id=call, tool="search", arguments="{}") for call in CALLS]
    await store.finish_generation(step, ledger, [new_event("1/1/end", ended)])
    delegate = delegate_opening(opened, "call_1")
    called = {"call_id": "call_1", "tool": "search"}
    about = {**called, "agent": "helper", "delegate": delegate.session}
    at = {"decision": "approved", "at": NOW, "by": "ann", "tool": "search"}
    asked = {"needs": "approval", "tool": "search"}
    written = [
        failure("retry"),
        failure("retry", compaction=True, fallback=2),
        failure("failed"),
        failure("failed", compaction=True, fallback=2),
        new_event("1/1/adapted", GenerationAdapted(model="test/other", most=3, reason="too many")),
        new_event("1/call_1/delegate_start", DelegateStart.model_validate(about)),
        new_event("1/call_2/user_input_required", UserInputRequired.model_validate({**asked, "request_id": "call_2"})),
        new_event("1/call_2/user_input_received", UserInputReceived.model_validate({**at, "request_id": "call_2"})),
        new_event("1/call_3/tool_error", ToolError(call_id="call_3", tool="search", error=ERROR)),
        new_event("1/call_4/error", ToolError(call_id="call_4", tool="search", error=ERROR)),
        *(
            new_event(
                f"1/call_4/{RERUN}{number}",
                ToolRecovery(call_id="call_4", tool="search", decision="run_again", reason=""),
            )
            for number in (1, 2)
        ),
        new_event("1/1/todos", TodosChanged(todos=PLAN[:1]), step=1),
        new_event("1/2/todos", TodosChanged(todos=PLAN), step=2),
        *(
            new_event(f"1/1/react/{place}", ReactStep(hook_name="h", boundary="step", reaction=Continue(text)))
            for place, text in enumerate(("look again", "and again"))
        ),
        *(
            new_event(f"1/1/hook/{place}", HookEnd(hook="h", boundary="step", event="step_end", seconds=0))
            for place in range(3)
        ),
    ]
    await store.append_events(SESSION, written)
    below = await store.open_turn(delegate, HELPER)
    await store.commit_turn(commit(below.tip).model_copy(update={"session": delegate.session}))
    spent = DelegateEnd.model_validate(
        {**about, "stop_reason": "finished", "steps": 2, "usage": Usage(), "cost_usd": 1}
    )
    await store.append_events(SESSION, [new_event("1/call_1/delegate_end", spent)])
    error = ErrorDetail(code=ReasonCode.TOOL_EXECUTION_ERROR, title="search", message="it broke")
    ended_turn = commit(step.id, stop_reason=StopReason.ERROR, error=error, call_ids=CALLS)
    await store.commit_turn(ended_turn.model_copy(update={"todos": PLAN}))
    second = opening("a second prompt", request_id="r2")
    origin = ResumeFrom(session=SESSION, turn=1, step=1)
    await store.open_turn(
        second.model_copy(update={"request": Continuation(prompt="a second prompt", resume_from=origin)}), HELPER
    )
    waits = UserInputRequired.model_validate({**asked, "request_id": "call_9", "question": "Which?"})
    hook = HookEnd(hook="h", boundary="step", event="step_end", seconds=0)
    await store.append_events(
        SESSION, [new_event("2/call_9/user_input_required", waits, turn=2), new_event("2/hook", hook, turn=2)]
    )
    return delegate.session


def recorded(url: str) -> dict[str, list[tuple[object, ...]]]:
    """All that the migration has added, row by row."""
    columns: dict[Table, tuple[Column[object], ...]] = {
        **{
            table: tuple(table.c[name] for name in (*table.primary_key.columns.keys(), *names))
            for table, names in ADDED.items()
        },
        **{table: tuple(table.c) for table in MADE},
    }
    found: dict[str, list[tuple[object, ...]]] = {}
    with database(url) as connection:
        for table, wanted in columns.items():
            rows = connection.exec_driver_sql(f"SELECT {', '.join(column.name for column in wanted)} FROM {table.name}")
            found[table.name] = sorted((tuple(row) for row in rows), key=str)
    return found


def become_older(url: str, after: int = 0) -> None:
    """Leave the store as an older release would have written it, or what it wrote behind that number."""
    with database(url) as connection:
        if not after:
            empty_rows(connection)
        for table in MADE:
            connection.execute(delete(table))
        connection.execute(update(schema.sessions).values(recorded_seq=after or None))


async def test_what_is_filled_is_what_this_release_writes(url: str, store: Store) -> None:
    """S-92: row by row, also when it is filled twice."""
    await make_everything(store)
    written = recorded(url)
    assert all(written.values())
    assert sum(value is not None for rows in written.values() for row in rows for value in row) > 60
    become_older(url)
    assert recorded(url) != written
    assert await store.fill() == 2
    assert recorded(url) == written
    assert await store.fill() == 0
    assert recorded(url) == written


async def test_a_store_of_the_release_before_is_migrated_and_then_filled(url: str, store: Store) -> None:
    """S-92: sessions with an open turn before anybody works with it, the others in slices."""
    await make_everything(store)
    written = recorded(url)
    with database(url) as connection:
        migrate_back(connection)
    assert read_schema(url).pending == ("0015",)
    async with await Store.open(url, upgrade=True) as upgraded:
        assert (await upgraded.open_turns()).waiting == 1
        assert await upgraded.fill() == 1
    assert recorded(url) == written


async def test_what_a_worker_of_an_older_release_writes_is_recorded_by_who_locks_the_session_next(
    url: str, store: Store
) -> None:
    """S-92: or by a worker of this release that looks for it; a request of it is found without a bound of time."""
    opened = await store.open_turn(opening(), HELPER)
    asked = UserInputRequired(request_id="q", needs="answer", tool="ask_user", question="Which?")
    await store.append_events(SESSION, [new_event("1/q/user_input_required", asked)])
    become_older(url, after=1)
    assert await store.open_requests() == ()
    assert await store.fill(only_open=True) == 1
    (found,) = await store.open_requests()
    assert (found.request_id, found.question, found.session, found.turn) == ("q", "Which?", SESSION, 1)
    assert (found.agent, found.asked_at) == ("helper", (await store.events(SESSION))[-1].at)

    become_older(url, after=1)
    said = UserInputReceived(request_id="q", decision="answered", at=NOW, tool="ask_user")
    await store.append_events(SESSION, [new_event("1/q/user_input_received", said)])
    assert await store.open_requests() == ()
    assert (await store.open_turns()).waiting == 0
    assert (await store.commit_turn(commit(opened.tip))).first
    assert await store.fill() == 0


async def test_nothing_but_the_log_goes_when_events_are_swept(store: Store) -> None:
    """S-93 (H1b): callers, todos, prompts, traces and checkpoints are as they were."""
    delegate = await make_everything(store)
    tip = (await store.session(SESSION)).tip or ""
    await store.commit_turn(commit(tip, turn=2).model_copy(update={"steps": 0}))

    async def told() -> list[Any]:
        fork = Continuation(prompt="on", resume_from=ResumeFrom(session=SESSION, turn=1, step=1))
        name = f"fork-{len(await store.sessions())}"
        forked = OpenTurn(session=name, request=fork, request_id="f", run_started_at=STARTED)
        opened = await store.open_turn(forked, HELPER)
        return [
            opened.todos,
            await store.checkpoints(SESSION),
            await store.traces(SESSION, [1, 2]),
            await store.glances({SESSION: 2}),
            [record.session for record, _ in await store.sessions(text="SECOND Prompt")],
            [record.session for record, _ in await store.sessions(caller=SESSION)],
            await store.sessions_below(SESSION),
            await store.adaptations(SESSION),
        ]

    before = await told()
    trimmed = await store.trim_session(SESSION, Retention(events="1h"), datetime.now(UTC) + timedelta(days=1))
    await store.trim_session(delegate, Retention(events="1h"), datetime.now(UTC) + timedelta(days=1))
    assert trimmed.events > 20
    assert await store.events(SESSION) == await store.events(delegate) == ()
    assert await told() == before
    todos, (_, first, *_), traces, glances, found, called, _, adapted = before
    assert todos == PLAN[:1]
    assert (first.model, first.retries, first.status) == ("test/other", 1, CheckpointStatus.STOPPED_BY_ERROR)
    assert (first.context_window, first.error and first.error.message) == (8_000, "it broke")
    assert traces == {1: "0af7651916cd43dd8448eb211c80319c"}
    assert glances[SESSION].prompt == "a second prompt"
    assert (found, called, len(adapted)) == ([SESSION], [delegate], 1)


@pytest.mark.parametrize("swept", [False, True], ids=["by the log", "by the call's id"])
async def test_the_caller_of_a_delegate_of_an_older_release_is_found(url: str, store: Store, swept: bool) -> None:
    """Before it is filled; also if both logs are gone: the id of a call is made from that of its step."""
    opened = await store.open_turn(opening(), HELPER)
    step = StepRecord(id="0123456789abcdef" * 2, session=SESSION, turn=1, step=1, parent=opened.tip, messages=())
    call = f"call_{step.id[:16]}_0"
    await store.finish_generation(step, [LedgerCall(call_id=call, tool="search", arguments="{}")], [])
    delegate = delegate_opening(opened, call)
    below = await store.open_turn(delegate, HELPER)
    become_older(url)
    if swept:
        with database(url) as connection:
            connection.execute(delete(schema.events))
    assert [each.session for each in await store.sessions_below(SESSION)] == [delegate.session]
    assert await store.running_delegates(SESSION) == (delegate.session,)
    assert below.first


def test_only_the_logs_own_module_reads_the_log() -> None:
    """The wall: facts of events stand in rows. ``schema`` makes the table, and ``erase`` deletes its rows."""
    folder = Path(inspect.getfile(fill)).parent
    names = re.compile(r"\bschema\.events\b|^from perdure\.store\.schema import .*\bevents\b", re.MULTILINE)
    reading = {
        file.relative_to(folder).as_posix()
        for file in folder.rglob("*.py")
        if "migrations" not in file.parts and names.search(file.read_text(encoding="utf-8"))
    }
    assert reading == {"log.py", "keys/erase.py"}
