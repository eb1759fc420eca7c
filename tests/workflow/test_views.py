"""A turn and its session stand alike for the client and for services, wherever the turn is."""

from typing import Any

import pytest

from perdure.client import UnknownSessionError
from perdure.client.views import SessionView, TurnView
from perdure.testing import Script, ScriptedProvider
from tests.gateway import Door, gateway
from tests.house import House
from tests.workflow.asking import COLOUR, DONE, asker, waiting
from tests.workflow.slots import SCRIPT, Work, start_queued
from tests.workflow.test_closed_by_temporal import terminate


async def seen(house: House, door: Door, session: str = "") -> tuple[TurnView, SessionView]:
    """The views of a session and its first turn, which the gateway's answers must agree with."""
    session = session or house.session
    turn, whole = await house.client.turn_view(session, 1), await house.client.session_view(session)
    at = f"/v1/sessions/{session}"
    told = (await door.http.get(f"{at}/turns/1")).json()
    assert {name: told[name] for name in told if name != "result"} == turn.model_dump(
        mode="json", exclude={"definition", "result"}
    )
    assert (told["result"] or {}).get("output") == (turn.result.output if turn.result is not None else None)
    detail: dict[str, Any] = (await door.http.get(at)).json()
    assert detail["state"] == whole.state
    assert [request["request_id"] for request in detail["requests"]] == [each.request_id for each in whole.requests]
    assert (detail["waits_for"] is None) == (whole.waits_for is None)
    return turn, whole


async def test_a_turn_that_no_worker_has_opened_runs_and_waits_for_one(house: House) -> None:
    async with gateway(house) as door:
        await house.start()
        turn, whole = await seen(house, door)
        assert (turn.state, turn.agent, turn.result) == ("running", None, None)
        assert (whole.state, whole.opened) == ("running", None)
        assert await house.client.turn_views(house.session) == []
        await house.temporal.get_workflow_handle(house.session).terminate()


async def test_a_turn_that_was_refused_has_ended_and_says_why(house: House) -> None:
    async with house.worker(asker()), gateway(house) as door:
        await house.store.claim_session(house.session, "")  # as a start over HTTP does
        await house.run("nobody")
        turn, whole = await seen(house, door)
    assert (turn.state, turn.job_status) == ("ended", "stoppedByError")
    assert turn.result is not None
    assert turn.result.reason_code == "request.unknown_agent"
    assert whole.refusal == turn.result
    assert whole.fields["reason_code"] == "request.unknown_agent"


async def test_a_turn_waits_for_people_and_then_has_ended(house: House) -> None:
    async with ScriptedProvider(Script(replies=(COLOUR, DONE))) as provider, house.worker(asker()):
        house.use(provider)
        async with gateway(house) as door:
            await house.start()
            (request,) = await waiting(house)
            turn, whole = await seen(house, door)
            assert (turn.state, turn.agent, whole.state) == ("waiting_for_input", "tester", "waiting_for_input")
            assert whole.waits_for is not None
            await house.client.answer(house.session, request["request_id"], "red")
            await (await house.client.attach(house.session, 1)).result()
            turn, whole = await seen(house, door)
    assert (turn.state, whole.state, whole.requests, whole.waits_for) == ("ended", "ended", (), None)
    assert await house.client.turn_views(house.session) == [turn]


async def test_a_turn_that_temporal_has_ended_has_ended_for_everybody(house: House) -> None:
    async with ScriptedProvider(lambda _: COLOUR) as provider, house.worker(asker()), gateway(house) as door:
        house.use(provider)
        await house.start()
        await waiting(house)
        await terminate(house)
        turn, whole = await seen(house, door)
        (listed,) = (await door.http.get(f"/v1/sessions/{house.session}/turns")).json()["items"]
        at_once = await door.http.get(f"/v1/sessions/{house.session}/turns/1", headers={"Prefer": "wait=60"})
    assert (turn.state, turn.job_status, turn.result) == ("ended", "stoppedByError", None)
    assert turn.closure is not None
    assert turn.closure.how == "terminated"
    assert await house.client.turn_views(house.session) == [turn]
    assert listed == {**at_once.json(), "trace_id": None}
    assert listed["closure"]["text"] == turn.closure.text == whole.fields["error"]
    assert (whole.state, whole.requests, whole.fields["reason_code"]) == ("ended", (), "runtime.turn_closed")


async def test_a_turn_that_waits_for_a_slot_is_queued(house: House) -> None:
    work, holder = Work(), f"{house.session}-holder"
    async with ScriptedProvider(SCRIPT) as provider, house.worker(work.agent(max_running=1)), gateway(house) as door:
        house.use(provider)
        await house.client.start("tester", "go", session=holder)
        await work.wait_for(holder)
        begun = await start_queued(house, house.session)
        turn, whole = await seen(house, door)
        assert (turn.state, turn.agent) == ("queued", None)
        assert (whole.state, whole.agent) == ("queued", "tester")
        work.end(holder, house.session)
        await begun.result()


async def test_a_turn_that_does_not_exist_is_unknown(house: House) -> None:
    async with ScriptedProvider(Script(replies=(DONE,))) as provider, house.worker(asker()):
        house.use(provider)
        await house.run()
        for turn in (0, 2):
            with pytest.raises(UnknownSessionError, match=f"has no turn {turn}; its last is 1"):
                await house.client.turn_view(house.session, turn)
    for verb in (house.client.session_view, house.client.turn_views):
        with pytest.raises(UnknownSessionError, match="nowhere"):
            await verb("nowhere")
    with pytest.raises(UnknownSessionError, match="nowhere"):
        await house.client.turn_view("nowhere", 1)
