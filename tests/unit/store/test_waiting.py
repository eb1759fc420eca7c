"""Which turns wait for people: counted over all sessions, by indexes, on both databases."""

from datetime import UTC, datetime

from sqlalchemy import create_engine, text

from perdure.contracts.events import NewEvent, UserInputReceived, UserInputRequired
from perdure.store import Store
from perdure.store.database import Address
from perdure.store.figures import OPEN_TURNS
from perdure.store.records import OpenTurns
from tests.unit.store.given import commit, new_event, open_turn


def asked(request: str) -> NewEvent:
    event = UserInputRequired(request_id=request, needs="answer", tool="ask_user", question="Which?")
    return new_event(f"1/{request}/user_input_required", event)


def decided(request: str) -> NewEvent:
    event = UserInputReceived(request_id=request, tool="ask_user", decision="answered", at=datetime.now(UTC))
    return new_event(f"1/{request}/user_input_received", event)


async def test_the_turns_that_wait_now_are_counted_with_the_time_of_the_first(store: Store) -> None:
    """A turn with two requests is one; what was decided, or has ended, waits no more."""
    before = datetime.now(UTC)
    assert await store.open_turns() == OpenTurns()
    tips = {name: (await open_turn(store, session=name)).tip for name in ("a", "b", "c", "d")}
    await store.append_events("a", [asked("1")])
    await store.append_events("a", [decided("1")])
    await store.append_events("b", [asked("1")])
    await store.append_events("b", [decided("1")])
    await store.append_events("c", [asked("1"), asked("2"), decided("1")])
    await store.append_events("b", [asked("3")])

    both = await store.open_turns()

    assert (both.running, both.waiting) == (2, 2)
    assert both.waiting_since == (await store.events("c"))[1].at > before
    await store.commit_turn(commit(tips["c"]).model_copy(update={"session": "c"}))
    only = await store.open_turns()
    assert (only.waiting, only.waiting_since) == (1, (await store.events("b"))[-1].at)


async def test_neither_the_sessions_that_have_ended_nor_the_other_events_are_read(url: str, store: Store) -> None:
    await open_turn(store)
    engine = create_engine(Address(url).url)
    query = OPEN_TURNS.compile(engine, compile_kwargs={"literal_binds": True})
    with engine.connect() as connection:
        if engine.dialect.name == "postgresql":  # of tables with one row, anything else costs more
            connection.exec_driver_sql("SET enable_seqscan = off")
        explain = "EXPLAIN" if engine.dialect.name == "postgresql" else "EXPLAIN QUERY PLAN"
        plan = "\n".join(str(row) for row in connection.execute(text(f"{explain} {query}")))
    engine.dispose()
    assert "ix_sessions_open" in plan
    assert "ix_input_requests_undecided" in plan
