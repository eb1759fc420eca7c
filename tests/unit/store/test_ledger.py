"""The ledger: a tool's body runs under a claim, and its result is recorded once."""

from typing import Any

import pytest
from sqlalchemy import create_engine, make_url, text

from perdure.contracts.errors import ErrorDetail, ReasonCode
from perdure.contracts.events import ToolError
from perdure.store import Artifact, NotFoundError, Store
from perdure.store.errors import TurnEndedError
from tests.unit.store.given import (
    SESSION,
    answer,
    claim,
    commit,
    finish,
    generate,
    new_event,
    open_turn,
    result,
    types,
    wish,
)


async def planned(store: Store, *, masked: bool = False) -> str:
    opened = await open_turn(store)
    return (await answer(store, generate(opened.tip), calls=[wish(masked=masked)])).id


async def test_the_first_claimant_runs_the_body_with_the_raw_arguments(store: Store) -> None:
    await planned(store)

    first = await claim(store, "w1")

    assert (first.state, first.arguments) == ("free", '{"query": "x"}')
    assert await types(store) == ["agent_start", "tool_start"]


async def test_the_same_claimant_may_ask_again(store: Store) -> None:
    await planned(store)
    await claim(store, "w1")

    assert (await claim(store, "w1")).state == "free"
    assert await types(store) == ["agent_start", "tool_start"]


async def test_a_call_that_another_attempt_holds_is_uncertain_and_stays_that_ones(store: Store) -> None:
    """S-31: whoever asks is told who holds it, and how often its body was begun; nothing is written."""
    await planned(store)
    await claim(store, "w1")

    second = await claim(store, "w2")

    assert (second.state, second.held_by, second.runs) == ("uncertain", "w1", 1)
    assert second.arguments == '{"query": "x"}'
    assert await types(store) == ["agent_start", "tool_start"]
    assert await finish(store, "w1")


@pytest.mark.parametrize("lost", [None, "run/7/0000000020.000000"])
async def test_an_attempt_that_comes_back_too_late_takes_no_call_from_a_later_one(
    store: Store, lost: str | None
) -> None:
    """A frozen worker goes on: neither may it run the body beside the other, nor tell that the effect is unknown."""
    await planned(store)
    await claim(store, "run/7/0000000020.000000")

    with pytest.raises(TurnEndedError, match="in the hands of a later attempt"):
        await claim(store, "run/7/0000000010.000000", lost=lost)

    assert await finish(store, "run/7/0000000020.000000", "done")
    assert await store.result_of_call(SESSION, 1, "c1") == result("done")
    assert await types(store) == ["agent_start", "tool_start", "tool_end"]


async def test_a_lost_attempts_call_is_taken_over(store: Store) -> None:
    await planned(store)
    await claim(store, "w1")

    second = await claim(store, "w2", lost="w1", rerun=1)

    assert (second.state, second.arguments) == ("free", '{"query": "x"}')
    assert (await claim(store, "w2", lost="w1", rerun=1)).state == "free"
    assert await finish(store, "w2")
    assert await types(store) == ["agent_start", "tool_start", "tool_recovery", "tool_end"]


async def test_a_call_is_taken_over_from_nobody_but_the_attempt_that_was_judged(store: Store) -> None:
    """S-31: two attempts find the same claim; the slower one finds out about the faster one's."""
    await planned(store)
    await claim(store, "w1")
    await claim(store, "w2", lost="w1", rerun=1)

    third = await claim(store, "w3", lost="w1", rerun=1)

    assert (third.state, third.held_by, third.runs) == ("uncertain", "w2", 2)
    assert await finish(store, "w2")


async def test_a_result_that_comes_while_the_next_attempt_makes_up_its_mind_is_kept(store: Store) -> None:
    """It is the truth, and nobody has been told anything else."""
    await planned(store)
    await claim(store, "w1")
    await claim(store, "w2")
    assert await finish(store, "w1")

    second = await claim(store, "w2", lost="w1", rerun=1)

    assert (second.state, second.message) == ("committed", result())
    assert await types(store) == ["agent_start", "tool_start", "tool_end"]


async def test_only_runs_of_the_body_are_counted(store: Store) -> None:
    """S-31: an attempt that took the call over for something else has not begun it."""
    await planned(store)
    await claim(store, "w1")
    for number in range(1, 4):
        await claim(store, f"w{number + 1}", lost=f"w{number}", rerun=number)
    await claim(store, "w5", lost="w4")

    assert (await claim(store, "w6")).runs == 4
    assert await types(store) == ["agent_start", "tool_start", *["tool_recovery"] * 3]


async def test_the_result_of_a_zombie_is_dropped(store: Store) -> None:
    await planned(store)
    await claim(store, "zombie")
    await claim(store, "w2", lost="zombie", rerun=1)

    assert not await finish(store, "zombie", "from the dead")
    assert await finish(store, "w2", "alive")

    assert await store.result_of_call(SESSION, 1, "c1") == result("alive")


async def test_an_ended_call_gives_its_result_to_whoever_asks(store: Store) -> None:
    await planned(store)
    await claim(store, "w1")
    await finish(store, "w1")

    again = await claim(store, "w2")

    assert (again.state, again.message) == ("committed", result())


async def test_whoever_asks_for_a_call_that_ended_the_turn_is_told_so(store: Store) -> None:
    await planned(store)
    await claim(store, "w1")
    error = ErrorDetail(code=ReasonCode.TOOL_EXECUTION_ERROR, title="search", message="no")
    failure = new_event("1/c1/tool_error", ToolError(call_id="c1", tool="search", error=error))
    await store.finish_call(
        session=SESSION, turn=1, call_id="c1", claimant="w1", message=result(error=error), events=[failure]
    )

    again = await claim(store, "w2")

    assert (again.state, again.message, again.aborted) == ("committed", result(error=error), True)


async def test_recording_the_same_result_again_is_harmless(store: Store) -> None:
    await planned(store)
    await claim(store, "w1")

    assert await finish(store, "w1")
    assert await finish(store, "w1")

    assert await types(store) == ["agent_start", "tool_start", "tool_end"]


async def test_a_result_after_the_end_of_the_turn_is_dropped(store: Store) -> None:
    tip = await planned(store)
    await claim(store, "w1")
    await store.commit_turn(commit(tip, call_ids=["c1"]))
    before = await store.events(SESSION)

    assert not await finish(store, "w1")

    assert await store.events(SESSION) == before


async def test_masked_arguments_are_wiped_when_the_call_ends(store: Store, url: str) -> None:
    await planned(store, masked=True)
    assert (await claim(store, "w1")).arguments == '{"password": "hunter2"}'
    assert "hunter2" in ledger_at(url)

    await finish(store, "w1")

    assert "hunter2" not in ledger_at(url)


async def test_masked_arguments_are_wiped_when_the_turn_ends_first(store: Store, url: str) -> None:
    tip = await planned(store, masked=True)

    await store.commit_turn(commit(tip, call_ids=["c1"]))

    assert "hunter2" not in ledger_at(url)


async def test_an_artifact_is_kept_beside_the_result(store: Store) -> None:
    await planned(store)
    await claim(store, "w1")
    artifact = Artifact(id="a1", session=SESSION, media_type="text/plain", text="long \x00 output")

    await store.finish_call(
        session=SESSION, turn=1, call_id="c1", claimant="w1", message=result(), events=[], artifacts=[artifact]
    )

    assert await store.artifact("a1") == artifact


async def test_an_artifact_of_a_zombie_is_not_kept(store: Store) -> None:
    await planned(store)
    artifact = Artifact(id="a1", session=SESSION, media_type="text/plain", text="long")

    await store.finish_call(
        session=SESSION,
        turn=1,
        call_id="c1",
        claimant="zombie",
        message=result(),
        events=[new_event("late")],
        artifacts=[artifact],
    )

    with pytest.raises(NotFoundError, match="there is no artifact 'a1'"):
        await store.artifact("a1")


async def test_an_unknown_call_cannot_be_claimed(store: Store) -> None:
    await open_turn(store)

    with pytest.raises(NotFoundError, match="no tool call 'c1'"):
        await claim(store, "w1")


def ledger_at(url: str) -> str:
    """All that the ledger's table holds, read past the store."""
    address = make_url(url)
    if address.drivername == "postgresql":
        address = address.set(drivername="postgresql+psycopg")
    engine = create_engine(address)
    with engine.connect() as connection:
        found = str(connection.execute(text("SELECT * FROM tool_calls")).all())
    engine.dispose()
    return found


async def test_a_call_whose_server_asks_is_free_again_with_the_question(store: Store) -> None:
    """S-60: it has no result yet, and an attempt that has lost it cannot park it."""
    await planned(store)
    await claim(store, "w1")
    about: dict[str, Any] = {"session": SESSION, "turn": 1, "call_id": "c1"}
    assert await store.park_call(**about, claimant="w1", asked='{"a": 1}')
    assert await store.park_call(**about, claimant="w1", asked='{"a": 1}')  # the answer to the first was lost
    assert not await store.park_call(**about, claimant="w0", asked='{"b": 1}')
    assert await store.result_of_call(**about) is None
    again = await claim(store, "w2")
    assert (again.state, again.asked, again.arguments) == ("free", '{"a": 1}', '{"query": "x"}')
    lost = await claim(store, "w3")
    assert (lost.state, lost.asked) == ("uncertain", '{"a": 1}')
    assert await finish(store, "w2")
    assert not await store.park_call(**about, claimant="w2", asked='{"c": 1}')
    assert await store.result_of_call(**about) == result()
