"""Questions of MCP servers over restarts: a person answers days later, at any door."""

from datetime import timedelta
from typing import Any

import pytest
from mcp.server.mcpserver import MCPServer

from perdure import Agent, ApprovalPolicy, ApprovalRule, HttpServerConfig
from perdure.activities.errors import runtime_error, transient
from perdure.activities.mcp.questions import AskedByServer
from perdure.activities.toolbox.claims import Attempt
from perdure.activities.tools import ToolActivities
from perdure.contracts.errors import ReasonCode
from perdure.contracts.tools import ToolOutcome
from perdure.testing import Script, ScriptedProvider, call, say
from tests.gateway import gateway
from tests.house import House
from tests.unit.activities.mcp_askers import Asker
from tests.unit.activities.mcp_http import Web, web
from tests.workflow.asking import waiting

PAINT = call(("web__paint", {"what": "the door"}))
DONE = say("done")


def agent(at: Web, **settings: Any) -> Agent:
    server = HttpServerConfig(name="web", url=f"{at.url}/mcp")
    return Agent(name="tester", model="openai/scripted", mcp_servers=[server], **settings)


def app(server: MCPServer) -> Any:
    return server.streamable_http_app()


async def test_a_question_is_answered_after_a_restart_of_worker_gateway_and_server(house: House) -> None:
    """S-60: the same call, with the state that the server gave; the tool starts and ends once in the log."""
    at, asker = web(), Asker()
    async with ScriptedProvider(Script(replies=(PAINT, DONE))) as provider:
        house.use(provider)
        async with at.serving(app(asker.server())), house.worker(agent(at)), gateway(house) as door:
            handle = await house.start()
            (request,) = await waiting(house)
            shown = (await door.http.get(f"/v1/sessions/{house.session}")).json()
            assert shown["requests"][0]["form"]["properties"] == {"colour": {"type": "string"}}
        async with at.serving(app(asker.server())), house.worker(agent(at)), gateway(house) as door:
            place = f"/v1/sessions/{house.session}/answers/{request['request_id']}"
            refused = await door.http.post(place, json={"action": "answer", "value": {"colour": 7}})
            assert refused.is_client_error
            assert "does not fit" in refused.text
            answered = await door.http.post(place, json={"action": "answer", "value": {"colour": "red"}})
            assert answered.is_success, answered.text
            assert (await handle.result())["stop_reason"] == "finished"
        (result,) = [message for message in provider.requests[-1].request.messages if message["role"] == "tool"]
    assert result["content"] == "the door is red"
    assert asker.said == [{"action": "accept", "content": {"colour": "red"}, "state": "painting the door"}]
    assert asker.calls == ["the door"] * 2
    for kind in ("tool_start", "tool_end", "user_input_required", "user_input_received"):
        assert len(await house.events(kind)) == 1, kind


@pytest.mark.parametrize("is_approved_first", [False, True])
async def test_a_question_stops_a_turn_that_does_not_wait(is_approved_first: bool, house: House) -> None:
    """S-60: the reply begins the next turn, which sends the call again; it needs no second approval."""
    at, asker = web(), Asker()
    rules = [ApprovalRule(tool="web__paint", decision="ask")] if is_approved_first else []
    async with (
        ScriptedProvider(Script(replies=(PAINT, DONE))) as provider,
        at.serving(app(asker.server())),
        house.worker(agent(at, interactive="stop", approvals=ApprovalPolicy(rules=rules))),
    ):
        house.use(provider)
        result = await house.run()
        assert result["stop_reason"] == "waiting_for_input"
        if is_approved_first:
            (approval,) = await house.client.inbox(house.session)
            await house.client.approve(house.session, approval.request_id, by="ann")
            assert (await (await house.client.attach(house.session)).result()).stop_reason == "waiting_for_input"
        (request,) = await house.client.inbox(house.session)
        with pytest.raises(Exception, match="does not fit"):
            await house.client.answer(house.session, request.request_id, {"colour": 7}, by="ann")
        await house.client.answer(house.session, request.request_id, {"colour": "red"}, by="ann")
        await (await house.client.attach(house.session)).result()
        (said,) = [message for message in provider.requests[-1].request.messages if message["role"] == "tool"]
    assert said["content"] == "the door is red"


async def test_an_agent_without_people_goes_on_at_once(house: House) -> None:
    """S-60: the server learns that nobody answers."""
    at, asker = web(), Asker()
    async with (
        ScriptedProvider(Script(replies=(PAINT, DONE))) as provider,
        at.serving(app(asker.server())),
        house.worker(agent(at, interactive="refuse")),
    ):
        house.use(provider)
        assert (await house.run())["stop_reason"] == "finished"
    assert [said["action"] for said in asker.said] == ["cancel"]


async def test_an_attempt_that_is_lost_once_its_server_has_asked_asks_nothing_again(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-60: the question is kept with the call, also the second one, which the first answer does not fit."""
    at, asker = web(), Asker()
    park, lost = ToolActivities._park, list[int]()

    async def park_and_be_lost(self: ToolActivities, attempt: Attempt, asked: AskedByServer) -> ToolOutcome:
        outcome = await park(self, attempt, asked)
        if asked.question.number not in lost:
            lost.append(asked.question.number)
            raise transient(runtime_error(ReasonCode.RUNTIME_QUEUED, "lost"), timedelta(milliseconds=10), benign=True)
        return outcome

    monkeypatch.setattr(ToolActivities, "_park", park_and_be_lost)
    async with (
        ScriptedProvider(Script(replies=(call(("web__twice", {})), DONE))) as provider,
        at.serving(app(asker.server())),
        house.worker(agent(at)),
    ):
        house.use(provider)
        handle = await house.start()
        for colour in ("red", "blue"):
            (request,) = await waiting(house)
            await house.client.answer(house.session, request["request_id"], {"colour": colour}, by="ann")
        await handle.result()
        (said,) = [message for message in provider.requests[-1].request.messages if message["role"] == "tool"]
    assert said["content"] == "red, then blue"
    assert lost == [1, 2]
    assert asker.calls == ["twice None", "twice 1", "twice red"]
