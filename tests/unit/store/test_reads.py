"""Reading: what the command line and the gateway show."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from perdure.contracts.agents import AgentDefinition
from perdure.contracts.tools import ToolDeclaration
from perdure.contracts.turns import RunState, StopReason
from perdure.store import NotFoundError, Store
from perdure.store.provider_refusals import Refusal
from perdure.store.queries import read_prompts
from tests.unit.store.given import (
    HELPER,
    SESSION,
    answer,
    commit,
    delegate_opening,
    generate,
    new_event,
    open_turn,
    opening,
)


async def test_agents_are_listed_by_name_with_their_newest_definition(store: Store) -> None:
    search = ToolDeclaration(name="search", description="finds", parameters={}, reference="m:search")
    newer = HELPER.model_copy(update={"description": "helps", "tools": (search,)})
    other = AgentDefinition(name="assistant", model="test/other")
    await store.register_agents([HELPER, other])

    await store.register_agents([newer])

    found = await store.agents()
    assert [(agent.name, agent.description, agent.tools) for agent in found] == [
        ("assistant", "", ()),
        ("helper", "helps", ("search",)),
    ]
    assert await store.definition(found[1].definition) == newer
    assert await store.definition(HELPER.digest()) == HELPER


async def test_an_unknown_definition_is_named(store: Store) -> None:
    with pytest.raises(NotFoundError, match="there is no agent definition 'x'"):
        await store.definition("x")


async def test_sessions_are_listed_newest_first_and_filtered(store: Store) -> None:
    other = AgentDefinition(name="assistant", model="test/other")
    for name in ("a", "b", "c"):
        definition = other if name == "b" else HELPER
        await store.open_turn(opening(session=name), definition)
    ended = commit((await store.session("a")).tip or "", stop_reason=StopReason.STALLED)
    await store.commit_turn(ended.model_copy(update={"session": "a"}))

    async def names(**wanted: object) -> list[str]:
        return [session.session for session, _ in await store.sessions(**wanted)]  # type: ignore[arg-type]

    assert await names() == ["c", "b", "a"]
    assert await names(limit=1) == ["c"]
    assert await names(agent="assistant") == ["b"]
    assert await names(state=RunState.RUNNING) == ["c", "b"]
    assert await names(state=RunState.ENDED) == ["a"]
    assert await names(stop_reason=StopReason.STALLED) == ["a"]
    assert await names(reason_code="llm.timeout") == []
    began = [turn.started_at for _, turn in await store.sessions()]
    assert await names(since=began[1]) == ["c", "b"]
    assert await names(text="A") == ["a"]
    assert await names(text="stalled") == ["a"]
    assert await names(text="%") == []


async def test_sessions_are_found_by_the_prompt_of_their_last_turn_and_by_no_other_field_of_it(store: Store) -> None:
    prompts = {"a": 'Say "Lyon"\nand\tmore \x01 \\d', "b": "Où est 100 % de _Nantes_?", "c": "hello"}
    for name, prompt in prompts.items():
        await store.open_turn(opening(prompt, session=name), HELPER)
    await store.commit_turn(commit((await store.session("c")).tip or "").model_copy(update={"session": "c"}))
    await store.open_turn(opening("later", session="c", request_id="r2"), HELPER)

    async def names(text: str) -> list[str]:
        return [session.session for session, _ in await store.sessions(text=text)]

    assert await names("LYON") == await names('"lyon"\nand\t') == await names("\x01 \\d") == ["a"]
    assert await names("où est 100 % de _") == ["b"]
    assert await names("later") == ["c"]
    for other in ("hello", HELPER.model, HELPER.name, HELPER.digest(), "x_Nantes", "agent_start", '","', "prompt"):
        assert await names(other) == [], other


async def test_a_glance_has_the_steps_and_the_cost_of_an_open_turn(store: Store) -> None:
    opened = await open_turn(store, "go")
    step = await answer(store, generate(opened.tip), "a", cost="0.25")
    await answer(store, generate(step.id, step=2), "b", cost="0.000003")
    (glance,) = (await store.glances({SESSION: 1})).values()
    assert (glance.prompt, glance.steps, glance.cost_usd) == ("go", 2, Decimal("0.250003"))


async def test_a_session_is_listed_with_its_last_turn(store: Store) -> None:
    opened = await open_turn(store)
    await store.commit_turn(commit(opened.tip))
    await open_turn(store, request_id="r2")

    ((session, turn),) = await store.sessions()

    assert (session.turn, turn.turn, turn.result) == (2, 2, None)


async def test_turns_are_found_by_number_and_by_request(store: Store) -> None:
    opened = await open_turn(store)
    result = (await store.commit_turn(commit(opened.tip))).result
    await open_turn(store, request_id="r2")

    assert [turn.request_id for turn in await store.turns(SESSION)] == ["r1", "r2"]
    assert (await store.turn(SESSION, 1)).result == result
    assert await store.turn_by_request(SESSION, "r2") == await store.turn(SESSION, 2)
    assert await store.turn_by_request(SESSION, "r3") is None
    with pytest.raises(NotFoundError, match="session 's' has no turn 3"):
        await store.turn(SESSION, 3)


async def test_events_are_read_in_pages(store: Store) -> None:
    await open_turn(store)
    await store.append_events(SESSION, [new_event(f"{n}") for n in range(5)])

    page = await store.events(SESSION, after=2, limit=3)

    assert [envelope.seq for envelope in page] == [3, 4, 5]
    assert await store.events("nobody") == ()


async def test_times_are_aware_and_in_utc(store: Store) -> None:
    opened = await open_turn(store)
    await store.commit_turn(commit(opened.tip))

    session, turn = await store.session(SESSION), await store.turn(SESSION, 1)
    (event, *_) = await store.events(SESSION)

    times = [session.created_at, session.updated_at, turn.started_at, turn.ended_at, event.at]
    assert [time.utcoffset() for time in times if time is not None] == [timedelta(0)] * 5


async def test_the_transcript_of_a_running_turn_goes_to_its_tip(store: Store) -> None:
    opened = await open_turn(store)
    await answer(store, generate(opened.tip), "so far")

    assert [message.content for message in await store.transcript(SESSION)] == ["hello", "so far"]
    assert await store.transcript(SESSION, turn=1) == await store.transcript(SESSION)


async def test_what_is_not_there_is_named(store: Store) -> None:
    with pytest.raises(NotFoundError, match="there is no session 'nobody'"):
        await store.session("nobody")
    with pytest.raises(NotFoundError, match="there is no session 'nobody'"):
        await store.transcript("nobody")
    with pytest.raises(NotFoundError, match="there is no session 's'"):
        await store.append_events(SESSION, [new_event("a")])
    await open_turn(store)
    with pytest.raises(NotFoundError, match="session 's' has no turn 2 yet, its last one is 1"):
        await store.append_events(SESSION, [new_event("a", turn=2)])
    with pytest.raises(NotFoundError, match="session 's' has no turn 7"):
        await store.transcript(SESSION, turn=7)
    assert await store.result_of_call(SESSION, 1, "c1") is None


async def test_workers_read_the_latest_refusals_of_others(store: Store) -> None:
    first = Refusal(key="k", worker="a", at=datetime.now(UTC), closed_until=datetime.now(UTC), rate=2.0)
    latest = replace(first, at=datetime.now(UTC), rate=1.0)
    await store.note_refusal(first)
    await store.note_refusal(latest)
    await store.note_refusal(replace(first, worker="b"))
    assert await store.read_refusals("b") == [latest]


async def test_the_prompt_is_the_one_of_the_turn_that_is_asked_for(store: Store) -> None:
    """Other turns of the sessions have the numbers that are asked of others."""
    for session in ("a", "b"):
        for turn in (1, 2):
            opened = await open_turn(store, f"{session}{turn}", session=session, request_id=f"r{turn}")
            await store.commit_turn(commit(opened.tip, turn=turn).model_copy(update={"session": session}))
    found = await store.read("a test's", lambda connection: read_prompts(connection, {"a": 1, "b": 2}))
    assert found == {"a": "a1", "b": "b2"}


async def test_sessions_are_listed_without_delegates_when_that_is_asked_for(store: Store) -> None:
    caller = await open_turn(store)
    asked = delegate_opening(caller, "c1")
    await store.open_turn(asked, HELPER)
    listed = [session.session for session, _ in await store.sessions(delegates=False)]
    assert listed == [SESSION]
    assert len(await store.sessions()) == 2
