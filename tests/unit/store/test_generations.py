"""Generations: an answer is stored once, and found again instead of being paid for twice."""

from decimal import Decimal

import pytest

from perdure.contracts.errors import ReasonCode
from perdure.contracts.events import GenerationRetry, ToolEnd
from perdure.contracts.messages import AssistantMessage, UserMessage
from perdure.contracts.tools import ToolOutcome
from perdure.store import NotFoundError, Store
from tests.unit.store.given import (
    ERROR,
    SESSION,
    STARTED,
    answer,
    claim,
    commit,
    finish,
    generate,
    generation_start,
    new_event,
    open_turn,
    types,
    wish,
)


async def test_an_answer_is_found_under_the_key_of_its_request_and_nothing_is_written(store: Store) -> None:
    opened = await open_turn(store)
    request = generate(opened.tip)
    step = await answer(store, request, "hi", cost="0.000001")

    begun = await store.begin_generation(request, [new_event("1/1/start/2", generation_start())])

    assert begun.answer == step
    assert step.cost_usd == Decimal("0.000001")
    assert await types(store) == ["agent_start"]


async def test_the_answer_that_was_stored_first_wins(store: Store) -> None:
    opened = await open_turn(store)
    first = await answer(store, generate(opened.tip), "one", [wish("c1")])
    other = first.model_copy(update={"messages": (AssistantMessage(content="two"),)})

    stored = await store.finish_generation(other, [wish("c2")], [new_event("1/1/late")])

    assert stored == first
    assert await store.result_of_call(SESSION, 1, "c2") is None
    assert await types(store) == ["agent_start"]


async def test_results_come_in_the_order_the_model_asked(store: Store) -> None:
    opened = await open_turn(store)
    step = await answer(store, generate(opened.tip), calls=[wish("c1"), wish("c2")])
    for call_id in ("c2", "c1"):
        await claim(store, "w1", call_id=call_id)
        await finish(store, "w1", f"result of {call_id}", call_id=call_id)

    begun = await store.begin_generation(generate(step.id, step=2, call_ids=["c1", "c2"]), [])

    assert [message.content for message in begun.results] == ["result of c1", "result of c2"]


async def test_a_rejected_call_is_born_with_its_error(store: Store) -> None:
    opened = await open_turn(store)
    step = await answer(store, generate(opened.tip), calls=[wish(rejected=ERROR)])

    begun = await store.begin_generation(generate(step.id, step=2, call_ids=["c1"]), [])

    assert [(message.content, message.error) for message in begun.results] == [(ERROR.as_result(), ERROR)]
    assert (await claim(store, "w1")).state == "committed"


async def test_what_only_the_workflow_knows_of_a_call_becomes_its_result(store: Store) -> None:
    opened = await open_turn(store)
    step = await answer(store, generate(opened.tip), calls=[wish()])
    failed = ToolOutcome(call_id="c1", preview="timed out", error=ERROR)

    begun = await store.begin_generation(generate(step.id, step=2, call_ids=["c1"], failed=[failed]), [])

    assert [(message.content, message.error) for message in begun.results] == [("timed out", ERROR)]
    end = (await store.events(SESSION))[-1].event
    assert end == ToolEnd(call_id="c1", tool="search", result="timed out", error=ERROR, seconds=0)


async def test_a_recorded_result_is_not_replaced_by_what_the_workflow_believes(store: Store) -> None:
    opened = await open_turn(store)
    step = await answer(store, generate(opened.tip), calls=[wish()])
    await claim(store, "w1")
    await finish(store, "w1")
    failed = ToolOutcome(call_id="c1", preview="timed out", error=ERROR)

    begun = await store.begin_generation(generate(step.id, step=2, call_ids=["c1"], failed=[failed]), [])

    assert [message.content for message in begun.results] == ["found"]
    assert await types(store) == ["agent_start", "tool_start", "tool_end"]


async def test_a_call_without_a_result_is_read_as_lost_and_stays_so(store: Store) -> None:
    """S-58: the model sees an error result for the call whose worker was lost."""
    opened = await open_turn(store)
    step = await answer(store, generate(opened.tip), calls=[wish()])
    await claim(store, "zombie")

    begun = await store.begin_generation(generate(step.id, step=2, call_ids=["c1"]), [])

    assert begun.results[0].error is not None
    assert begun.results[0].error.code == ReasonCode.TOOL_EFFECT_UNKNOWN
    assert not await finish(store, "zombie")
    assert await store.result_of_call(SESSION, 1, "c1") == begun.results[0]


async def test_an_unknown_call_is_named(store: Store) -> None:
    opened = await open_turn(store)

    with pytest.raises(NotFoundError, match="turn 1 of session 's' has no tool call 'c9'"):
        await store.begin_generation(generate(opened.tip, call_ids=["c9"]), [])


async def test_a_conversation_follows_parents_and_not_the_order_of_writing(store: Store) -> None:
    opened = await open_turn(store)
    kept = await answer(store, generate(opened.tip), "kept")
    await answer(store, generate(opened.tip, call_ids=[], step=2), "left behind by a reset")
    last = await answer(store, generate(kept.id, step=2), "last")

    assert await store.conversation(last.id) == (
        UserMessage(content="hello"),
        AssistantMessage(content="kept"),
        AssistantMessage(content="last"),
    )


async def test_the_conversation_of_an_unknown_step_is_not_found(store: Store) -> None:
    with pytest.raises(NotFoundError, match="there is no step 'x'"):
        await store.conversation("x")


async def test_retries_are_those_of_one_generation_in_order(store: Store) -> None:
    opened = await open_turn(store)
    for step, attempt in ((1, 1), (2, 1), (2, 2)):
        retry = GenerationRetry(
            attempt=attempt,
            max_attempts=8,
            wait_seconds=1,
            code="llm.rate_limited",
            error_type="RateLimitError",
            error_message="slow down",
            failed_at=STARTED,
        )
        await store.append_events(SESSION, [new_event(f"1/{step}/retry/{attempt}", retry, step=step)])

    found = [envelope.event for envelope in await store.retries(SESSION, 1, 2)]

    assert [event.attempt for event in found if isinstance(event, GenerationRetry)] == [1, 2]
    await store.commit_turn(commit(opened.tip))


async def test_any_character_a_tool_can_print_is_kept(store: Store) -> None:
    """PostgreSQL refuses NUL in plain text."""
    opened = await open_turn(store, "nul \x00 and 😀")
    await answer(store, generate(opened.tip), "answer \x00", [wish()])
    await claim(store, "w1")

    assert await finish(store, "w1", "binary \x00\x01")

    message = await store.result_of_call(SESSION, 1, "c1")
    assert message is not None
    assert message.content == "binary \x00\x01"
    assert (await store.transcript(SESSION))[0] == UserMessage(content="nul \x00 and 😀")
