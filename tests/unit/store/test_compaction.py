"""A summary in place of the messages before it: what models read changes, what people read does not."""

from decimal import Decimal

from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine, text

from perdure.contracts.budgets import Usage
from perdure.contracts.generations import Compact
from perdure.contracts.messages import AssistantMessage, Message, ToolMessage, UserMessage
from perdure.contracts.turns import OpenTurn, StopReason
from perdure.store import StepRecord, Store
from perdure.store.database import Address
from perdure.store.migrate import MIGRATIONS
from tests.unit.store.given import (
    HELPER,
    LATER,
    SESSION,
    answer,
    commit,
    generate,
    new_event,
    open_turn,
    opening,
    wish,
)

SUMMARY = UserMessage(content="the gist", summary_of=2)


def compact(parent: str, *, turn: int = 1, step: int = 2) -> Compact:
    return Compact(
        session=SESSION, turn=turn, step=step, parent=parent, definition=HELPER.digest(), trigger="threshold"
    )


async def summarise(store: Store, request: Compact, *kept: Message, summary: UserMessage = SUMMARY) -> StepRecord:
    """What ``compact`` does around the model call."""
    step = StepRecord(
        id=request.step_id(),
        session=request.session,
        turn=request.turn,
        step=request.step,
        parent=request.parent,
        messages=(summary, *kept),
        usage=Usage(input_tokens=100, output_tokens=10),
        cost_usd=Decimal("0.01"),
        summarised=summary.summary_of,
    )
    return await store.finish_compaction(step, [new_event("1/2/compaction", step=2)])


async def test_models_read_the_summary_and_people_every_message(store: Store) -> None:
    """S-43: the full history stays retrievable."""
    opened = await open_turn(store)
    first = await answer(store, generate(opened.tip), "one")
    summary = await summarise(store, compact(first.id))
    second = await answer(store, generate(summary.id, step=2), "two")

    assert await store.conversation(second.id) == (SUMMARY, AssistantMessage(content="two"))
    every = (UserMessage(content="hello"), AssistantMessage(content="one"), AssistantMessage(content="two"))
    assert await store.transcript(SESSION) == every


async def test_the_next_turn_goes_on_from_the_summary(store: Store) -> None:
    """S-43"""
    opened = await open_turn(store)
    first = await answer(store, generate(opened.tip), "one")
    summary = await summarise(store, compact(first.id))
    second = await answer(store, generate(summary.id, step=2), "two")
    await store.commit_turn(commit(second.id))

    again = await open_turn(store, "and now?", request_id="r2")

    assert await store.conversation(again.tip) == (
        SUMMARY,
        AssistantMessage(content="two"),
        UserMessage(content="and now?"),
    )
    assert len(await store.transcript(SESSION)) == 4


async def test_a_second_summary_stands_for_the_first(store: Store) -> None:
    opened = await open_turn(store)
    first = await answer(store, generate(opened.tip), "one")
    summary = await summarise(store, compact(first.id))
    second = await answer(store, generate(summary.id, step=2), "two")
    newer = UserMessage(content="the gist of all", summary_of=3)
    two = await summarise(store, compact(second.id, step=3), summary=newer)

    assert await store.conversation(two.id) == (newer,)
    assert len(await store.transcript(SESSION)) == 3


async def test_a_summary_that_is_stored_wins_over_a_second_attempts(store: Store) -> None:
    opened = await open_turn(store)
    first = await answer(store, generate(opened.tip), "one")
    stored = await summarise(store, compact(first.id))
    again = await summarise(store, compact(first.id), summary=UserMessage(content="another", summary_of=2))

    assert again.messages == stored.messages == (SUMMARY,)
    assert await store.step(stored.id) == stored
    assert await store.step("nothing") is None


async def test_calls_that_wait_for_their_results_get_them_behind_the_summary(store: Store) -> None:
    """S-42: the answer with the calls is kept, so its results follow, also when the workflow is gone."""
    opened = await open_turn(store)
    first = await answer(store, generate(opened.tip), calls=[wish("c1")])
    await summarise(store, compact(first.id), first.messages[-1])

    again = await store.open_turn(opening("next", request_id="r2", run_started_at=LATER), HELPER)

    read = await store.conversation(again.tip)
    assert [message.role for message in read] == ["user", "assistant", "tool", "user"]
    assert isinstance(read[2], ToolMessage)
    assert read[2].call_id == "c1"


async def test_a_turn_that_was_terminated_is_closed_with_what_its_summary_cost(store: Store) -> None:
    """It is no step, but it was paid for."""
    opened = await open_turn(store)
    first = await answer(store, generate(opened.tip), "one", cost="0.10")
    await summarise(store, compact(first.id))
    await store.open_turn(opening("next", request_id="r2", run_started_at=LATER), HELPER)

    result = (await store.turn(SESSION, 1)).result
    assert result is not None
    assert (result.steps, result.usage.total_tokens, result.cost_usd) == (1, 125, Decimal("0.11"))


async def test_a_summary_stored_while_the_turn_was_stopped_is_kept_and_counted(store: Store) -> None:
    opened = await open_turn(store)
    first = await answer(store, generate(opened.tip), "one", cost="0.10")
    summary = await summarise(store, compact(first.id))

    stopped = commit(first.id, stop_reason=StopReason.CANCELLED, aborted_step=2)
    committed = await store.commit_turn(stopped)

    assert (await store.session(SESSION)).head == summary.id
    result = committed.result
    assert (result.steps, result.cost_usd, result.output) == (1, Decimal("0.11"), "")


async def test_a_turn_that_only_compacts_adds_no_message(store: Store) -> None:
    """S-44: what a person asks the summary to keep is no message to the model."""
    opened = await open_turn(store)
    await store.commit_turn(commit((await answer(store, generate(opened.tip), "one")).id))
    asked = opening("keep the names", request_id="r2")
    asked = OpenTurn.model_validate({**asked.model_dump(), "request": {"prompt": "keep the names", "compact": True}})

    compacting = await store.open_turn(asked, HELPER)

    assert [message.role for message in await store.conversation(compacting.tip)] == ["user", "assistant"]


async def test_an_answers_value_is_in_the_result_of_a_finished_turn_only(store: Store) -> None:
    opened = await open_turn(store)
    request = generate(opened.tip)
    answered = AssistantMessage(content='{"total": 3}', value={"total": 3})
    step = StepRecord(id=request.step_id(), session=SESSION, turn=1, step=1, parent=opened.tip, messages=(answered,))
    await store.finish_generation(step, [], [])
    committed = await store.commit_turn(commit(step.id))
    assert committed.result.value == {"total": 3}
    assert (await store.transcript(SESSION))[-1] == answered


async def test_a_store_of_the_first_schema_is_upgraded_with_what_it_holds(empty_url: str) -> None:
    """Nothing is lost, and old steps are none that summarise."""
    address = Address(empty_url)
    if address.file is not None:
        address.file.parent.mkdir(parents=True)
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    engine = create_engine(address.url)
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
        connection.execute(
            text(
                "INSERT INTO steps (id, session, turn, step, messages, calls, finish_reason, usage, created_at) "
                "VALUES ('t', 's', 1, 0, :messages, '[]', '', '{}', '2026-01-01 00:00:00')"
            ),
            {"messages": '[{"role": "user", "content": "hello"}]'},
        )
    engine.dispose()

    async with await Store.open(empty_url, upgrade=True) as store:
        assert await store.conversation("t") == (UserMessage(content="hello"),)
        step = await store.step("t")
    assert step is not None
    assert step.summarised is None
