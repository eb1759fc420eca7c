"""A store that has lost its last transactions: nothing goes on from what is gone, and no turn stays open."""

import pytest

from perdure.contracts.sends import SendRequest
from perdure.contracts.turns import StopReason, TurnResult
from perdure.store import NotFoundError, OtherStoreError, StepRecord, Store
from perdure.store.admission import Asked, Fresh, Known
from perdure.store.commit_turn import close_behind
from tests.unit.store.given import (
    HELPER,
    LATER,
    SESSION,
    answer,
    claim,
    commit,
    finish,
    generate,
    open_turn,
    opening,
    wish,
)

LOST = "the transcript store has lost what the turn had written to it"


async def turn_that_stands_at(store: Store) -> tuple[str, str]:
    """A turn with one answer; its tip, and the id of a step that the workflow knows and the store has not."""
    opened = await open_turn(store)
    step = await answer(store, generate(opened.tip), "as far as the store knows")
    return step.id, generate(step.id, step=2).step_id()


async def test_a_turn_whose_last_steps_are_gone_ends_from_what_is_left(store: Store) -> None:
    tip, lost = await turn_that_stands_at(store)
    committed = await store.commit_turn(commit(lost, call_ids=["c9"], steered=[SendRequest(prompt="late")]))
    result = committed.result
    assert (result.stop_reason, result.reason_code) == (StopReason.ERROR, "runtime.store_behind")
    assert result.error is not None
    assert result.error.startswith(LOST)
    assert result.error.endswith(f"(there is no step '{lost}')")
    assert (result.output, result.steps, str(result.cost_usd)) == ("as far as the store knows", 1, "0.10")
    session = await store.session(SESSION)
    assert (session.open_turn, session.tip) == (None, None)
    said = [message.content for message in await store.transcript(SESSION)]
    assert said == ["hello", "as far as the store knows", "late"]
    events = await store.events(SESSION)
    assert [envelope.seq for envelope in events] == list(range(1, len(events) + 1))
    assert [envelope.event.type for envelope in events][-2:] == ["agent_error", "agent_end"]
    assert (await store.commit_turn(commit(lost))).result == result
    assert (await store.commit_turn(commit(tip))).result == result


async def test_its_calls_that_the_store_still_has_get_their_error_results(store: Store) -> None:
    opened = await open_turn(store)
    step = await answer(store, generate(opened.tip), calls=[wish("c1"), wish("c2")])
    await claim(store, "attempt")
    await finish(store, "attempt")
    result = (await store.commit_turn(commit(generate(step.id, step=2).step_id()))).result
    assert result.reason_code == "runtime.store_behind"
    contents = {m.call_id: m.content for m in await store.transcript(SESSION) if m.role == "tool"}
    assert contents["c1"] == "found"
    assert "search was lost before it ran" in contents["c2"]


async def test_a_cancelled_turn_is_cancelled_all_the_same(store: Store) -> None:
    _, lost = await turn_that_stands_at(store)
    result = (await store.commit_turn(commit(lost, stop_reason=StopReason.CANCELLED))).result
    assert (result.stop_reason, result.reason_code) == (StopReason.CANCELLED, None)
    assert (await store.session(SESSION)).open_turn is None


async def test_no_step_is_written_behind_one_that_is_gone(store: Store) -> None:
    """A worker with the conversation in memory would go on; the next one would read it from its middle."""
    _, lost = await turn_that_stands_at(store)
    request = generate(lost, step=3)
    with pytest.raises(NotFoundError, match=f"there is no step '{lost}'"):
        await store.begin_generation(request, [])
    step = StepRecord(id=request.step_id(), session=SESSION, turn=1, step=3, parent=lost, messages=())
    with pytest.raises(NotFoundError, match=f"there is no step '{lost}'"):
        await store.finish_generation(step, [], [])
    with pytest.raises(NotFoundError, match=f"there is no step '{lost}'"):
        await store.finish_compaction(step, [])


async def test_a_store_keeps_its_id_and_no_other_has_it(store: Store, url: str) -> None:
    opened = await open_turn(store)
    assert opened.store == store.id
    assert len(store.id) == 32
    async with await Store.open(url) as again, await Store.open("sqlite://", upgrade=True) as other:
        assert again.id == store.id != other.id


async def test_a_process_on_another_store_is_told_both(store: Store) -> None:
    await store.require(store.id)
    await store.require("")
    with pytest.raises(OtherStoreError) as refused:
        await store.require("0" * 32)
    assert f"({store.id}), the turn lives in the store {'0' * 32}; start this worker with the" in str(refused.value)


async def test_a_database_that_was_exchanged_is_noticed_by_the_next_turn(postgresql_url: str) -> None:
    """What this process knew when it opened the store is not what a turn is told."""
    async with await Store.open(postgresql_url, upgrade=True) as store:
        known = store.id
        await store.write("test", lambda connection: connection.exec_driver_sql("UPDATE identity SET id = 'new'"))
        assert (await open_turn(store)).store == "new"
        await store.require("new")
        with pytest.raises(OtherStoreError, match=r"\(new\), the turn lives in"):
            await store.require(known)


KNOWN = TurnResult(session=SESSION, turn=1, agent="helper", stop_reason=StopReason.FINISHED, output="done", steps=4)
NOTE = (
    "Note: the record of this conversation was restored from an older copy. Turn 1 went on after its step 1, and that "
    "work is not shown here: calls of tools may have had their effects. Look before you repeat one."
)


@pytest.mark.parametrize("by", ["closed", "ended by itself"])
async def test_a_turn_behind_what_was_done_says_so_to_its_model_its_followers_and_its_caller(
    store: Store, by: str
) -> None:
    _, lost = await turn_that_stands_at(store)
    if by == "closed":
        closed = await store.write("behind", lambda connection: close_behind(connection, SESSION, 1, KNOWN))
        assert closed is not None
        assert await store.write("behind", lambda connection: close_behind(connection, SESSION, 1, KNOWN)) is None
    else:
        await store.commit_turn(commit(lost))
    sending = Asked(tenant="", action="send", body="{}", session=SESSION, key="k")
    admitted = await store.admit(sending)
    assert isinstance(admitted, Fresh)
    assert await store.notice_of_behind(SESSION, 1) == admitted.notice == NOTE
    ticket = await store.note_outcome(admitted, "k", None, "r2")
    assert await store.admit(sending) == Known(session=SESSION, ticket=ticket)
    assert (ticket.turn, ticket.notice) == (2, NOTE)
    await store.open_turn(opening("again", request_id="r2", run_started_at=LATER), HELPER)
    ended = (await store.turn(SESSION, 1)).result
    assert ended is not None
    assert ended.reason_code == "runtime.store_behind"
    if by == "closed":
        assert (ended.error or "").endswith("(Temporal knows that it ended as finished after 4 steps)")
    said = [message.content for message in await store.transcript(SESSION)]
    assert said == ["hello", "as far as the store knows", NOTE, "again"]
    told = [envelope.event for envelope in await store.events(SESSION) if envelope.turn == 2]
    assert [(event.type, getattr(event, "content", "")) for event in told[1:]] == [("user_message", NOTE)]


async def test_only_the_next_turn_says_so_and_none_after_a_turn_that_was_terminated(store: Store) -> None:
    await turn_that_stands_at(store)
    await store.open_turn(opening("again", request_id="r2", run_started_at=LATER), HELPER)
    await store.open_turn(opening("more", request_id="r3", run_started_at=LATER), HELPER)
    assert not any(NOTE[:20] in message.content for message in await store.transcript(SESSION))
