"""Turns: opened once, ended once, closed by the next one when their workflow is gone."""

from decimal import Decimal

import pytest
from sqlalchemy import event

from perdure.contracts.errors import REASONS, ErrorDetail, ReasonCode
from perdure.contracts.events import AgentEnd, ToolEnd, UserMessageReceived
from perdure.contracts.messages import AssistantMessage, ToolMessage, UserMessage
from perdure.contracts.sends import SendRequest
from perdure.contracts.turns import MAX_OUTPUT_CHARACTERS, Continuation, StopReason
from perdure.contracts.values import JsonValue
from perdure.store import NotFoundError, Store, TurnEndedError, TurnMismatchError
from tests.unit.store.given import (
    HELPER,
    LATER,
    SESSION,
    STARTED,
    answer,
    claim,
    commit,
    delegate_opening,
    finish,
    generate,
    new_event,
    open_turn,
    opening,
    types,
    wish,
)


async def test_the_first_turn_of_a_session_is_number_one_and_holds_the_prompt(store: Store) -> None:
    opened = await open_turn(store, "hello")

    assert (opened.turn, opened.first, opened.definition) == (1, True, HELPER.digest())
    assert await store.conversation(opened.tip) == (UserMessage(content="hello"),)
    assert await types(store) == ["agent_start"]
    assert await store.definition(opened.definition) == HELPER


async def test_opening_a_turn_sends_no_statement_twice(store: Store) -> None:
    sent: list[str] = []
    event.listen(store._database.engine, "before_cursor_execute", lambda *about: sent.append(about[2]))
    for request_id in ("r1", "r2"):  # a new session, and one that has a turn
        sent.clear()
        await store.session_before(opening(request_id=request_id))
        opened = await open_turn(store, request_id=request_id)
        assert len(sent) == len(set(sent))
        await store.commit_turn(commit(opened.tip, turn=opened.turn))


async def test_the_same_request_is_the_same_turn(store: Store) -> None:
    first = await open_turn(store)
    await answer(store, generate(first.tip), "hi")

    again = await open_turn(store)

    assert (again.turn, again.tip, again.first, again.ended) == (1, first.tip, False, None)
    assert await types(store) == ["agent_start"]


async def test_the_same_request_after_the_end_gives_the_recorded_result(store: Store) -> None:
    opened = await open_turn(store)
    step = await answer(store, generate(opened.tip), "hi")
    committed = await store.commit_turn(commit(step.id))

    again = await open_turn(store)

    assert again.ended == committed.result


async def test_a_turn_is_committed_once(store: Store) -> None:
    opened = await open_turn(store)
    step = await answer(store, generate(opened.tip), "hi")

    first = await store.commit_turn(commit(step.id))
    second = await store.commit_turn(commit(step.id, stop_reason=StopReason.CANCELLED))

    assert (first.first, second.first) == (True, False)
    assert second.result == first.result
    assert (second.started_at, second.ended_at) == (first.started_at, first.ended_at)
    assert first.result.output == "hi"
    assert first.result.cost_usd == Decimal("0.10")
    assert await types(store) == ["agent_start", "agent_end"]


async def test_an_ended_turn_moves_the_head_and_leaves_no_tip(store: Store) -> None:
    opened = await open_turn(store)
    step = await answer(store, generate(opened.tip), "hi")
    assert (await store.session(SESSION)).tip == step.id

    await store.commit_turn(commit(step.id))

    session = await store.session(SESSION)
    assert (session.head, session.tip, session.open_turn, session.turn) == (step.id, None, None, 1)


async def test_a_conversation_goes_on_over_turns_in_order(store: Store) -> None:
    for turn in (1, 2, 3):
        opened = await open_turn(store, f"question {turn}", request_id=f"r{turn}")
        step = await answer(store, generate(opened.tip, turn=turn), f"answer {turn}")
        await store.commit_turn(commit(step.id, turn=turn))

    texts = [message.content for message in await store.transcript(SESSION)]
    assert texts == ["question 1", "answer 1", "question 2", "answer 2", "question 3", "answer 3"]
    assert [message.content for message in await store.transcript(SESSION, turn=2)] == texts[:4]


async def test_another_turn_than_the_expected_one_is_refused_and_nothing_is_written(store: Store) -> None:
    with pytest.raises(TurnMismatchError, match=r"session 's' is at turn 1, the caller expected 3"):
        await store.open_turn(opening(turn=3), HELPER)

    with pytest.raises(NotFoundError):
        await store.session(SESSION)


async def test_a_terminated_turn_is_closed_from_its_tip_by_the_next_one(store: Store) -> None:
    """S-56: the user's message, the answer and the partial results stay in the conversation."""
    opened = await open_turn(store, "hello")
    first = await answer(store, generate(opened.tip), calls=[wish("c1")], cost="0.10")
    await claim(store, "w1")
    second = await answer(store, generate(first.id, step=2, call_ids=["c1"]), "wait", [wish("c2")], cost="0.20")

    reopened = await store.open_turn(opening("again", request_id="r2", run_started_at=LATER), HELPER)

    closed = (await store.turn(SESSION, 1)).result
    assert closed is not None
    assert (closed.stop_reason, closed.reason_code) == (StopReason.ERROR, "runtime.turn_closed")
    assert closed.error == REASONS[ReasonCode.RUNTIME_TURN_CLOSED].text
    assert (closed.steps, closed.usage.total_tokens, closed.cost_usd) == (2, 30, Decimal("0.30"))
    assert closed.output == "wait"
    roles = [message.role for message in await store.conversation(reopened.tip)]
    assert roles == ["user", "assistant", "tool", "assistant", "tool", "user"]
    assert second.id in {step.id for step in await store.steps(SESSION)}
    assert (await types(store))[-4:] == ["tool_end", "agent_error", "agent_end", "agent_start"]


async def test_an_older_run_may_not_close_a_newer_turn(store: Store) -> None:
    await store.open_turn(opening(run_started_at=LATER), HELPER)

    with pytest.raises(TurnMismatchError, match="a newer run"):
        await store.open_turn(opening(request_id="r0", run_started_at=STARTED), HELPER)

    assert (await store.session(SESSION)).open_turn == 1


async def test_nothing_is_written_for_a_turn_after_its_end(store: Store) -> None:
    """S-46: ``agent_end`` is the last event of its turn, whatever a zombie still wants to write."""
    opened = await open_turn(store)
    step = await answer(store, generate(opened.tip), calls=[wish()])
    await store.commit_turn(commit(step.id, call_ids=["c1"]))
    before = await store.events(SESSION)

    with pytest.raises(TurnEndedError, match="turn 1 of session 's' has ended"):
        await store.append_events(SESSION, [new_event("late")])
    with pytest.raises(TurnEndedError):
        await store.begin_generation(generate(step.id, step=2), [])
    with pytest.raises(TurnEndedError):
        await store.finish_generation(step.model_copy(update={"id": "late"}), [], [])
    with pytest.raises(TurnEndedError):
        await claim(store, "zombie")

    assert await store.events(SESSION) == before


async def test_a_cancelled_turn_gives_every_unfinished_call_a_result(store: Store) -> None:
    """S-56, S-58: what was asked stays, and the model reads of each call what is known of its effect."""
    opened = await open_turn(store)
    step = await answer(store, generate(opened.tip), calls=[wish("c1"), wish("c2")])
    await claim(store, "w1", call_id="c1")

    ended = commit(step.id, stop_reason=StopReason.CANCELLED, call_ids=["c1", "c2"], aborted_step=2)
    committed = await store.commit_turn(ended)

    claimed, planned = (await store.transcript(SESSION))[-2:]
    assert isinstance(claimed, ToolMessage)
    assert isinstance(planned, ToolMessage)
    assert claimed.content == "Operation aborted: search was cancelled while it ran; its effect is unknown"
    assert planned.content == "Operation aborted: search was cancelled before it ran"
    assert claimed.error is not None
    assert claimed.error.code == ReasonCode.TOOL_CANCELLED
    assert committed.result.error == "Operation aborted"
    ends = ["tool_start", "tool_end", "tool_end", "generation_error", "agent_end"]
    assert (await types(store))[1:] == ends
    ran = [event.event.seconds for event in await store.events(SESSION) if isinstance(event.event, ToolEnd)]
    assert ran[0] > 0, "it ran until the commit"
    assert ran[1] == 0


async def test_an_answer_stored_while_the_turn_was_stopped_belongs_to_the_transcript(store: Store) -> None:
    """S-56: the workflow never heard of the answer, but it is paid for and its events stand in the log."""
    opened = await open_turn(store)
    first = await answer(store, generate(opened.tip), calls=[wish("c1")], cost="0.10")
    await claim(store, "w1")
    await finish(store, "w1")
    second = await answer(store, generate(first.id, step=2, call_ids=["c1"]), calls=[wish("c2")], cost="0.20")

    stopped = commit(first.id, stop_reason=StopReason.CANCELLED, call_ids=["c1"], aborted_step=2)
    committed = await store.commit_turn(stopped)

    transcript = await store.transcript(SESSION)
    assert transcript[-2] == second.messages[-1]
    assert isinstance(transcript[-1], ToolMessage)
    assert transcript[-1].call_id == "c2"
    assert sum(isinstance(message, ToolMessage) and message.call_id == "c1" for message in transcript) == 1
    result = committed.result
    assert (result.steps, result.usage.total_tokens, result.cost_usd) == (2, 30, Decimal("0.30"))
    assert "generation_error" not in await types(store)


async def test_a_cancelled_turn_shows_the_reason_it_was_given(store: Store) -> None:
    opened = await open_turn(store)
    error = ErrorDetail(code=ReasonCode.RUNTIME_ABORTED, title="runtime", message="Operation aborted: wrong file")

    committed = await store.commit_turn(commit(opened.tip, stop_reason=StopReason.CANCELLED, error=error))

    assert (committed.result.error, committed.result.reason_code) == ("Operation aborted: wrong file", error.code)
    assert await types(store) == ["agent_start", "agent_end"]


async def test_a_message_that_came_too_late_is_kept_with_one_event(store: Store) -> None:
    """S-56: the aborted generation has written the event before; the commit does not repeat it."""
    opened = await open_turn(store)
    late = SendRequest(prompt="also this", request_id="m1")
    taken = new_event("1/1/user_message/m1", UserMessageReceived(content="also this"))
    await store.begin_generation(generate(opened.tip, steered=[late]), [taken])

    ended = commit(opened.tip, stop_reason=StopReason.CANCELLED, steered=[late], aborted_step=1)
    await store.commit_turn(ended)

    assert (await store.transcript(SESSION))[-1] == UserMessage(content="also this")
    assert (await types(store)).count("user_message") == 1


async def test_an_error_and_a_stall_have_their_own_event_before_the_end(store: Store) -> None:
    opened = await open_turn(store)
    error = ErrorDetail(code=ReasonCode.LLM_AUTH_ERROR, title="generation", message="refused")
    failed = await store.commit_turn(commit(opened.tip, stop_reason=StopReason.ERROR, error=error))
    second = await open_turn(store, request_id="r2")
    await store.commit_turn(commit(second.tip, turn=2, stop_reason=StopReason.STALLED))

    assert (failed.result.reason_code, failed.result.error) == ("llm.auth_error", "refused")
    assert await types(store) == [
        *("agent_start", "agent_error", "agent_end"),
        *("agent_start", "agent_stalled", "agent_end"),
    ]


async def test_an_output_over_the_limit_is_cut_with_a_notice_and_kept_whole_in_the_transcript(store: Store) -> None:
    opened = await open_turn(store)
    text = "x" * (MAX_OUTPUT_CHARACTERS + 1)
    step = await answer(store, generate(opened.tip), text)

    committed = await store.commit_turn(commit(step.id))

    assert len(committed.result.output) == MAX_OUTPUT_CHARACTERS
    assert committed.result.output.endswith("[cut here; the transcript holds the whole text]")
    assert (await store.transcript(SESSION))[-1] == AssistantMessage(content=text)
    last = (await store.events(SESSION))[-1].event
    assert isinstance(last, AgentEnd)
    assert last.output == committed.result.output


async def test_committing_an_unknown_turn_names_it(store: Store) -> None:
    with pytest.raises(NotFoundError, match="there is no turn 1 of session 's'"):
        await store.commit_turn(commit("x"))


async def test_a_delegates_turn_is_given_up_for_its_own_call_only(store: Store) -> None:
    caller = await open_turn(store)
    asked = delegate_opening(caller, "c1")
    opened = await store.open_turn(asked, HELPER)
    delegated = asked.request.delegated
    assert delegated is not None
    given_up = commit(opened.tip).model_copy(
        update={"session": asked.session, "abandoned": True, "stop_reason": StopReason.CANCELLED}
    )
    other = delegated.model_copy(update={"call_id": "c2"})
    with pytest.raises(NotFoundError, match="is of another request"):
        await store.commit_turn(given_up.model_copy(update={"delegated": other}))
    ended = await store.commit_turn(given_up.model_copy(update={"delegated": delegated}))
    assert ended.first


async def test_a_history_is_what_a_new_session_begins_with(store: Store) -> None:
    history: tuple[dict[str, JsonValue], ...] = (
        {"role": "user", "content": "before"},
        {"role": "assistant", "content": "then"},
    )
    request = Continuation(prompt="now", history=history)
    asked = opening("now").model_copy(update={"request": request})
    await store.open_turn(asked, HELPER)
    assert [message.content for message in await store.transcript(SESSION)] == ["before", "then", "now"]
