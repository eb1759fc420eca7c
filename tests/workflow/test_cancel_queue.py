"""Which turn a cancel means: another one is refused, a waiting one ends without having begun, the queue is dropped."""

import json
from typing import Any

import pytest

from perdure import Agent
from perdure.client import WrongTurnError
from perdure.testing import Script, ScriptedProvider, call, say
from tests.house import House
from tests.temporal_cli import temporal, workflow
from tests.workflow.asking import refusal, update
from tests.workflow.bodies import Body, happened
from tests.workflow.test_command_line import perdure

pytestmark = pytest.mark.deep


def agent(body: Body) -> Agent:
    return Agent(name="tester", model="openai/scripted", tools=[body.held()])


HELD = Script(replies=(call(("held", {})), *[say(f"answer {number}") for number in range(1, 9)]))


async def ends(house: House) -> list[tuple[int, str]]:
    """Number and stop reason of each turn, by the events that end them."""
    return [(line["turn"], line["stop_reason"]) for line in await house.events("agent_end")]


async def busy(house: House, body: Body, *queued: str) -> Any:
    """A turn that runs a tool, with messages that wait for the turns after it."""
    handle = await house.start()
    await happened(body.started)
    for prompt in queued:
        await handle.execute_update("send", {"prompt": prompt, "request_id": prompt})
    return house.temporal.get_workflow_handle(house.session)


@pytest.mark.parametrize("turn", [0, 3])
async def test_a_cancel_of_a_turn_that_neither_runs_nor_waits_is_refused_and_changes_nothing(
    house: House, turn: int
) -> None:
    """S-59: the refusal names the turns there are."""
    body = Body()
    async with ScriptedProvider(HELD) as provider, house.worker(agent(body)):
        house.use(provider)
        handle = await busy(house, body, "second")
        message = await refusal(house, "cancel", code="request.turn_mismatch", turn=turn)
        assert message == f"turn {turn} does not run: turn 1 does, and turn 2 waits"
        with pytest.raises(WrongTurnError, match="turn 1 does, and turn 2 waits"):
            await house.client.cancel(house.session, turn=turn)
        assert not (await handle.query("status"))["cancelling"]
        body.released.set()
        assert (await handle.result())["turn"] == 2
    assert await ends(house) == [(1, "finished"), (2, "finished")]


async def test_a_cancel_of_a_turn_that_has_ended_is_refused_while_another_one_runs(house: House) -> None:
    """S-59: and the handle of the ended turn says that there was nothing to stop."""
    body = Body()
    async with ScriptedProvider(HELD) as provider, house.worker(agent(body)):
        house.use(provider)
        first = await house.client.start("tester", "go", session=house.session)
        await happened(body.started)
        second = await house.client.send(house.session, "second")
        body.started.clear()
        body.released.set()
        await first.result()
        await second.result()
        assert await first.cancel() is False
        assert await house.client.cancel(house.session, turn=1) is False


async def test_the_command_line_tells_which_turn_runs_and_exits_with_2(house: House) -> None:
    """S-59"""
    body = Body()
    async with ScriptedProvider(HELD) as provider, house.worker(agent(body)):
        house.use(provider)
        await busy(house, body)
        code, printed = await perdure("cancel", house.session, "--turn", "7", refused=True)
        assert (code, printed) == (2, [])
        assert await perdure("cancel", house.session, "--turn", "1") == (0, [{"session": house.session, "sent": True}])
        await house.temporal.get_workflow_handle(house.session).result()
        assert await perdure("cancel", house.session, "--turn", "1") == (0, [{"session": house.session, "sent": False}])
    assert await ends(house) == [(1, "cancelled")]


@pytest.mark.parametrize("named", [{"turn": 3}, {"request_id": "third"}])
async def test_a_waiting_turn_is_cancelled_alone(house: House, named: dict[str, Any]) -> None:
    """S-59: it ends as cancelled in its place, keeps its message, and those around it are carried out."""
    body = Body()
    async with ScriptedProvider(HELD) as provider, house.worker(agent(body)):
        house.use(provider)
        handle = await busy(house, body, "second", "third", "fourth")
        receipt = await update(house, "cancel", reason="no longer needed", **named)
        assert receipt == {"turn": 3, "stops": True, "dropped": []}
        assert (await handle.query("status"))["queued"] == 2
        assert not (await handle.query("status"))["cancelling"]
        body.released.set()
        result = await handle.result()
        assert provider.request_count == 4
    assert await ends(house) == [(1, "finished"), (2, "finished"), (3, "cancelled"), (4, "finished")]
    assert result["turn"] == 4
    third = (await house.store.turn(house.session, 3)).result
    assert third is not None
    assert (third.reason_code, third.error, third.steps) == (
        "runtime.aborted",
        "Operation aborted: no longer needed",
        0,
    )
    said = [message.content for message in await house.store.transcript(house.session) if message.role == "user"]
    assert said == ["go", "second", "third", "fourth"]


async def test_the_handle_of_a_waiting_turn_cancels_that_turn_and_gives_its_result(house: House) -> None:
    """S-59: the turn that runs goes on."""
    body = Body()
    async with ScriptedProvider(HELD) as provider, house.worker(agent(body)):
        house.use(provider)
        await busy(house, body)
        second = await house.client.send(house.session, "second")
        assert await second.cancel("no longer needed")
        body.released.set()
        assert (await second.result()).stop_reason == "cancelled"
    assert await ends(house) == [(1, "finished"), (2, "cancelled")]


async def test_a_cancel_that_drops_the_queue_ends_every_waiting_turn_as_cancelled(house: House) -> None:
    """S-59: each has its own terminal event and result; a message that comes later has the next number."""
    body = Body()
    async with ScriptedProvider(HELD) as provider, house.worker(agent(body)):
        house.use(provider)
        handle = await busy(house, body, "second", "third")
        receipt = await update(house, "cancel", reason="all of it", drop_queue=True)
        assert receipt == {"turn": 1, "stops": True, "dropped": [2, 3]}
        result = await handle.result()
        assert (result["turn"], result["stop_reason"]) == (3, "cancelled")
        assert provider.request_count == 1
        assert (await house.run(prompt="fourth"))["turn"] == 4
    assert await ends(house) == [(1, "cancelled"), (2, "cancelled"), (3, "cancelled"), (4, "finished")]
    errors = [record.result.error for record in await house.store.turns(house.session) if record.result is not None]
    assert errors == [*["Operation aborted: all of it"] * 3, None]


async def test_a_message_that_comes_while_the_queue_is_dropped_is_carried_out(house: House) -> None:
    """S-59: only what waited then is dropped."""
    body = Body()
    async with ScriptedProvider(HELD) as provider, house.worker(agent(body)):
        house.use(provider)
        handle = await busy(house, body, "second", "third")
        await update(house, "cancel", turn=3, drop_queue=True)
        await handle.execute_update("send", {"prompt": "fourth", "request_id": "fourth"})
        body.released.set()
        assert (await handle.result())["turn"] == 4
    assert await ends(house) == [(1, "finished"), (2, "cancelled"), (3, "cancelled"), (4, "finished")]


async def test_the_stock_signal_and_update_drop_the_queue_and_a_wrong_signal_is_ignored(house: House) -> None:
    """S-59: with nothing of ours installed."""
    body = Body()
    async with ScriptedProvider(HELD) as provider, house.worker(agent(body)):
        house.use(provider)
        handle = await busy(house, body, "second")
        where = ("--workflow-id", house.session, "--name", "cancel", "--input")
        await temporal("workflow", "signal", *where, json.dumps({"turn": 7, "drop_queue": True}))
        assert not (await handle.query("status"))["cancelling"]
        await workflow("update", "execute", *where, json.dumps({"turn": 2}))
        await temporal("workflow", "signal", *where, json.dumps({"reason": "enough", "drop_queue": True}))
        assert (await handle.result())["turn"] == 2
    assert await ends(house) == [(1, "cancelled"), (2, "cancelled")]


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ({"turn": "first"}, "turn: Input should be a valid integer"),
        ({"trun": 1}, "trun"),
        ({"turn": 1, "request_id": "second"}, "the one or the other"),
        ({"request_id": "unknown"}, "no turn of request 'unknown' runs or waits; turn 1 runs"),
    ],
)
async def test_a_cancel_update_that_means_no_turn_is_refused(house: House, sent: dict[str, Any], said: str) -> None:
    """S-59"""
    body = Body()
    async with ScriptedProvider(HELD) as provider, house.worker(agent(body)):
        house.use(provider)
        handle = await busy(house, body)
        code = "request.turn_mismatch" if sent.get("request_id") == "unknown" else "request.invalid"
        assert said in await refusal(house, "cancel", code=code, **sent)
        body.released.set()
        assert (await handle.result())["stop_reason"] == "finished"


async def test_without_a_worker_a_cancel_of_a_turn_is_left_for_the_next_one(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-57: nobody can say whether that turn runs; the request waits in the history."""
    monkeypatch.setattr("perdure.client.executions.CANCEL_TIMEOUT", 0.2)
    body = Body()
    async with ScriptedProvider(HELD) as provider:
        house.use(provider)
        turn = await house.client.start("tester", "go", session=house.session)
        assert await turn.cancel("no longer needed")
        async with house.worker(agent(body)):
            result = await turn.result()
    assert (result.stop_reason, result.error) == ("cancelled", "Operation aborted: no longer needed")
