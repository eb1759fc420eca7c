"""The ledger: a tool's body runs under a claim, and its result is recorded once."""

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

    assert (first.state, first.arguments) == ("run", '{"query": "x"}')
    assert await types(store) == ["agent_start", "tool_start"]


async def test_the_same_claimant_may_ask_again(store: Store) -> None:
    await planned(store)
    await claim(store, "w1")

    assert (await claim(store, "w1")).state == "run"
    assert await types(store) == ["agent_start", "tool_start"]


async def test_a_tool_that_is_not_safe_to_repeat_is_given_up_when_its_claimant_was_lost(store: Store) -> None:
    """S-58: the call is recorded as errored, and the model reads that its effect is unknown."""
    await planned(store)
    await claim(store, "w1")

    second = await claim(store, "w2")

    assert second.state == "ended"
    assert second.message is not None
    assert second.message.error is not None
    assert second.message.error.code == ReasonCode.TOOL_EFFECT_UNKNOWN
    assert await store.result_of_call(SESSION, 1, "c1") == second.message
    assert await types(store) == ["agent_start", "tool_start", "tool_end"]


@pytest.mark.parametrize("rerun", [False, True])
async def test_an_attempt_that_comes_back_too_late_takes_no_call_from_a_later_one(store: Store, rerun: bool) -> None:
    """A frozen worker goes on: neither may it run the body beside the other, nor tell that the effect is unknown."""
    await planned(store)
    await claim(store, "run/7/0000000020.000000")

    with pytest.raises(TurnEndedError, match="in the hands of a later attempt"):
        await claim(store, "run/7/0000000010.000000", rerun=rerun)

    assert await finish(store, "run/7/0000000020.000000", "done")
    assert await store.result_of_call(SESSION, 1, "c1") == result("done")
    assert await types(store) == ["agent_start", "tool_start", "tool_end"]


async def test_an_idempotent_tool_is_taken_over_when_its_claimant_was_lost(store: Store) -> None:
    await planned(store)
    await claim(store, "w1")

    second = await claim(store, "w2", rerun=True)

    assert (second.state, second.arguments) == ("run", '{"query": "x"}')
    assert await finish(store, "w2")
    assert await types(store) == ["agent_start", "tool_start", "tool_end"]


async def test_the_result_of_a_zombie_is_dropped(store: Store) -> None:
    await planned(store)
    await claim(store, "zombie")
    await claim(store, "w2", rerun=True)

    assert not await finish(store, "zombie", "from the dead")
    assert await finish(store, "w2", "alive")

    assert await store.result_of_call(SESSION, 1, "c1") == result("alive")


async def test_the_result_of_a_zombie_is_dropped_after_its_call_was_given_up(store: Store) -> None:
    await planned(store)
    await claim(store, "zombie")
    lost = await claim(store, "w2")

    assert not await finish(store, "zombie", "from the dead")

    assert await store.result_of_call(SESSION, 1, "c1") == lost.message


async def test_an_ended_call_gives_its_result_to_whoever_asks(store: Store) -> None:
    await planned(store)
    await claim(store, "w1")
    await finish(store, "w1")

    again = await claim(store, "w2", rerun=True)

    assert (again.state, again.message) == ("ended", result())


async def test_whoever_asks_for_a_call_that_ended_the_turn_is_told_so(store: Store) -> None:
    await planned(store)
    await claim(store, "w1")
    error = ErrorDetail(code=ReasonCode.TOOL_EXECUTION_ERROR, title="search", message="no")
    failure = new_event("1/c1/tool_error", ToolError(call_id="c1", tool="search", error=error))
    await store.finish_call(
        session=SESSION, turn=1, call_id="c1", claimant="w1", message=result(error=error), events=[failure]
    )

    again = await claim(store, "w2", rerun=True)

    assert (again.state, again.message, again.aborted) == ("ended", result(error=error), True)


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
    assert "hunter2" in _ledger(url)

    await finish(store, "w1")

    assert "hunter2" not in _ledger(url)


async def test_masked_arguments_are_wiped_when_the_call_is_given_up(store: Store, url: str) -> None:
    await planned(store, masked=True)
    await claim(store, "w1")

    await claim(store, "w2")

    assert "hunter2" not in _ledger(url)


async def test_masked_arguments_are_wiped_when_the_turn_ends_first(store: Store, url: str) -> None:
    tip = await planned(store, masked=True)

    await store.commit_turn(commit(tip, call_ids=["c1"]))

    assert "hunter2" not in _ledger(url)


async def test_an_artifact_is_kept_beside_the_result(store: Store) -> None:
    await planned(store)
    await claim(store, "w1")
    artifact = Artifact(id="a1", session=SESSION, media_type="text/plain", text="long \x00 output")

    await store.finish_call(
        session=SESSION, turn=1, call_id="c1", claimant="w1", message=result(), events=[], artifact=artifact
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
        artifact=artifact,
    )

    with pytest.raises(NotFoundError, match="there is no artifact 'a1'"):
        await store.artifact("a1")


async def test_an_unknown_call_cannot_be_claimed(store: Store) -> None:
    await open_turn(store)

    with pytest.raises(NotFoundError, match="no tool call 'c1'"):
        await claim(store, "w1")


def _ledger(url: str) -> str:
    """All that the ledger's table holds, read past the store."""
    address = make_url(url)
    if address.drivername == "postgresql":
        address = address.set(drivername="postgresql+psycopg")
    engine = create_engine(address)
    with engine.connect() as connection:
        found = str(connection.execute(text("SELECT * FROM tool_calls")).all())
    engine.dispose()
    return found
