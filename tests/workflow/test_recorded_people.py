"""A recorded run in which people decided, or an MCP server was used, is replayed without either."""

import json
import re
import shutil
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from perdure import Agent, ApprovalPolicy, StdioServerConfig
from perdure.contracts.input_requests import Reply as Decision
from perdure.contracts.values import JsonValue
from perdure.testing import Script, ScriptedProvider, call, say
from tests.house import House
from tests.workflow.asking import COLOUR, DONE, PAID, PAY, asker, several, waiting
from tests.workflow.recording import recordings, replaying, told

HOW_MANY = call(("count", {"question": "How many?"}))
SECRET_PAY = call(("pay", {"amount": 7, "password": "hunter2-hunter2"}))


@pytest.fixture(autouse=True)
def _nothing_is_paid() -> None:
    PAID.clear()


async def decide(house: House, decisions: Sequence[tuple[str, JsonValue]]) -> None:
    """Reply to what the turn waits for, in order."""
    for left in range(len(decisions), 0, -1):
        decision, value = decisions[-left]
        request = (await waiting(house, left))[0]["request_id"]
        if decision == "answered":
            await house.client.answer(house.session, request, value, by="ann")
        elif decision == "approved":
            await house.client.approve(house.session, request, by="ann")
        else:
            await house.client.deny(house.session, request, by="ann", reason=str(value))


async def recorded(house: House, using: Agent, script: Script, *decisions: tuple[str, JsonValue]) -> object:
    """The result of a recorded turn in which these were decided."""
    recordings(house, "record")
    async with ScriptedProvider(script) as provider, house.worker(using):
        house.use(provider)
        handle = await house.start()
        await decide(house, decisions)
        return await handle.result()


def without_digests(transcript: JsonValue) -> str:
    """The transcript without what is made of raw arguments: a replay only has the masked ones."""
    return re.sub(r'"digest": "[0-9a-f]{32}"', "", json.dumps(transcript))


async def test_answers_approvals_and_denials_are_replayed_with_nobody_there(house: House) -> None:
    """S-73: the same transcript, with who decided and when; the approved call does not run again."""
    script = Script(replies=(several(COLOUR, SECRET_PAY, PAY, HOW_MANY), DONE))
    decided = (("answered", "red"), ("approved", None), ("denied", "not twice"), ("answered", 12))
    first = await recorded(house, asker(), script, *decided)
    assert PAID == [7]
    async with replaying(house, asker()) as again:
        second = await again.run()
        transcript = await told(again)
        assert without_digests(transcript) == without_digests(await told(house))
        kinds = [line["type"] for line in await again.events()]
        assert sorted(kinds) == sorted(line["type"] for line in await house.events())
    assert {**second, "session": ""} == {**first, "session": ""}  # type: ignore[dict-item]
    assert PAID == [7]
    assert "not twice" in json.dumps(transcript)


async def test_a_standing_approval_lets_the_same_calls_through_in_a_replay(house: House) -> None:
    """S-84: a replay has it from the recorded decision, and asks nobody."""
    recordings(house, "record")
    until = datetime.now(UTC) + timedelta(hours=1)
    async with ScriptedProvider(Script(replies=(PAY, PAY, DONE))) as provider, house.worker(asker()):
        house.use(provider)
        handle = await house.start()
        (request,) = await waiting(house)
        await house.client.approve(house.session, request["request_id"], by="ann", always="tool", until=until)
        await handle.result()
    async with replaying(house, asker()) as again:
        assert (await again.run())["stop_reason"] == "finished"
        assert await told(again) == await told(house)
        kinds = [line["type"] for line in await again.events()]
        assert sorted(kinds) == sorted(line["type"] for line in await house.events())
    assert PAID == [7, 7]


async def test_an_approval_that_nobody_gave_in_time_is_replayed_at_once(house: House) -> None:
    """Nothing is waited for, however long the wait was."""
    policy = ApprovalPolicy(expires=timedelta(seconds=1))
    await recorded(house, asker(approvals=policy), Script(replies=(PAY, DONE)))
    policy = ApprovalPolicy(expires=timedelta(days=3))
    async with replaying(house, asker(approvals=policy)) as again:
        assert (await again.run())["stop_reason"] == "finished"
        assert await told(again) == await told(house)


async def test_a_decision_that_was_not_recorded_ends_the_replay(house: House) -> None:
    """Nobody is waited for: the turn says what is missing."""
    await recorded(house, asker(), Script(replies=(COLOUR, DONE)), ("answered", "red"))
    folder = recordings(house, "replay") / "tester" / "people"
    shutil.rmtree(folder)
    async with replaying(house, asker()) as again:
        result = await again.run()
    assert (result["stop_reason"], result["reason_code"]) == ("error", "tool.fixture_missing")
    assert "no answer is recorded for this call of ask_user" in result["error"]
    assert "record it again" in result["error"]


async def test_a_turn_that_stops_for_people_stops_in_its_replay_and_takes_the_reply_again(house: House) -> None:
    using = asker(interactive="stop")
    recordings(house, "record")
    async with ScriptedProvider(Script(replies=(COLOUR, DONE))) as provider, house.worker(using):
        house.use(provider)
        (request,) = (await house.run())["requests"]
        await house.client.answer(house.session, request["request_id"], "red", by="ann")
        await (await house.client.attach(house.session)).result()
    async with replaying(house, using) as again:
        stopped = await again.run()
        assert stopped["stop_reason"] == "waiting_for_input"
        (request,) = stopped["requests"]
        reply = Decision(request=request["request_id"], decision="answered", value="red", by="ann")
        result = await again.run(reply=reply.model_dump(mode="json"))
    assert (result["turn"], result["stop_reason"], result["output"]) == (2, "finished", "done")


PEER = Path(__file__).parent.parent / "mcp_peer.py"


def with_server(command: str, **settings: object) -> Agent:
    server = StdioServerConfig(name="peer", command=command, args=(str(PEER), ""), **settings)  # type: ignore[arg-type]
    return Agent(name="tester", model="openai/scripted", mcp_servers=[server])


@pytest.mark.deep
@pytest.mark.parametrize("stateful", [False, True])
async def test_a_replay_connects_to_no_server(house: House, stateful: bool) -> None:
    """S-73: the tools are those that were offered in that turn; the command need not even exist."""
    recordings(house, "record")
    script = Script(replies=(call(("peer__echo", {"text": "hi"})), say("one"), say("two")))
    using = with_server(sys.executable, stateful=stateful)
    async with ScriptedProvider(script) as provider, house.worker(using):
        house.use(provider)
        await house.run()
        await house.run(prompt="more")
    async with replaying(house, with_server("no-such-command", stateful=stateful)) as again:
        first = await again.run()
        second = await again.run(prompt="more")
        assert await told(again) == await told(house)
        assert again.mcp.states() == ()
        third = await again.run(prompt="and more")
    assert (first["output"], second["output"]) == ("one", "two")
    assert third["turn"] is None
    assert "does not say what the MCP servers offered in turn 3" in third["error"]
