"""MCP servers that hold state: what the model is told when the state is gone."""

import json
import os
import signal
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from temporalio.worker import UnsandboxedWorkflowRunner

from perdure import Agent
from perdure.activities.open_turn import MOVED
from perdure.contracts.errors import REASONS, ReasonCode
from perdure.contracts.names import AGENT_TURN
from perdure.testing import Script, ScriptedProvider, call, faults, say
from perdure.workflows import options
from tests.house import House
from tests.workflow.agents_with_state import agent, peer

pytestmark = pytest.mark.deep

WHO = call(("peer__whoami", {}))
DONE = say("done")


def results(messages: tuple[Mapping[str, Any], ...]) -> list[str]:
    return [str(message["content"]) for message in messages if message["role"] == "tool"]


def description(provider: ScriptedProvider) -> str:
    """The description of the server's tool in the last request."""
    tools: list[Any] = list(provider.requests[-1].request.tools)
    (found,) = [tool["function"] for tool in tools if tool["function"]["name"] == "peer__whoami"]
    return str(found["description"])


async def test_the_model_is_told_when_the_worker_with_the_state_is_killed_and_goes_on_with_a_new_server(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-77: kill -9 in mid-turn. Another worker goes on; the next turn has a server of its own, and says so."""
    monkeypatch.setattr(options, "PINNED_WAIT", timedelta(seconds=0.5))
    script = Script(replies=(WHO, WHO.after(faults.hang()), DONE, WHO, DONE))
    async with ScriptedProvider(script) as provider:
        house.use(provider)
        killed = house.spawn_worker("tests.workflow.agents_with_state")
        await killed.polling()
        handle = await house.start()
        await provider.wait_for_requests(2)
        killed.kill()
        async with house.worker(agent, runner=UnsandboxedWorkflowRunner()):
            result = await handle.result()
            first, lost = results(provider.requests[-1].request.messages)
            assert MOVED not in description(provider)
            assert (await house.run(prompt="again"))["stop_reason"] == "finished"
            _, _, second = results(provider.requests[-1].request.messages)
    assert result["stop_reason"] == "finished"
    assert lost == REASONS[ReasonCode.TOOL_STATE_LOST].text
    assert first != second
    assert second.isdigit()
    assert MOVED in description(provider)


async def test_a_server_that_is_where_it_was_keeps_its_state_from_turn_to_turn(house: House) -> None:
    async with ScriptedProvider(Script(replies=(WHO, DONE, WHO, DONE))) as provider, house.worker(agent):
        house.use(provider)
        await house.run()
        await house.run(prompt="again")
    first, second = results(provider.requests[-1].request.messages)
    assert first == second
    assert MOVED not in description(provider)


@pytest.mark.parametrize(
    ("dies", "codes"), [("die", ["tool.network_error", "tool.state_lost"]), ("die_once", ["tool.state_lost"])]
)
async def test_a_server_that_ended_says_once_that_it_holds_nothing(house: House, dies: str, codes: list[str]) -> None:
    """It is started anew, and a call that may rely on its state is not carried out, also if it may be repeated."""
    script = Script(replies=(WHO, call((f"peer__{dies}", {})), WHO, WHO, DONE))
    server = peer.model_copy(update={"env": {"MCP_JOURNAL": str(house.folder / "journal")}})
    using = Agent(name="tester", model="openai/scripted", mcp_servers=[server])
    async with ScriptedProvider(script) as provider, house.worker(using):
        house.use(provider)
        await house.run()
    first, *told = results(provider.requests[-1].request.messages)
    failed = [text for text in told if not text.isdigit()]
    assert [json.loads(text)["error"]["code"] for text in failed] == codes
    assert "what it held is gone" in failed[-1]
    assert {text for text in told if text.isdigit()}.isdisjoint({first})
    assert told[-1].isdigit()


async def test_all_calls_of_the_answer_are_refused_when_the_state_is_gone(house: House) -> None:
    """S-77: the model reads it before anything runs on the new process."""
    who: tuple[str, dict[str, Any]] = ("peer__whoami", {})
    script = Script(replies=(WHO, call(("peer__die", {})), call(who, who, who), WHO, DONE))
    async with ScriptedProvider(script) as provider, house.worker(agent):
        house.use(provider)
        await house.run()
    first, _, *refused, last = results(provider.requests[-1].request.messages)
    assert [json.loads(text)["error"]["code"] for text in refused] == ["tool.state_lost"] * 3
    assert last.isdigit()
    assert last != first


async def test_a_session_that_was_forked_is_told_of_what_the_first_one_had_built_up(house: House) -> None:
    """S-77, S-67: the process ends between them."""
    origin = {"resume_from": {"session": house.session}, "prompt": "again"}
    async with ScriptedProvider(Script(replies=(WHO, DONE, WHO, WHO, DONE))) as provider, house.worker(agent):
        house.use(provider)
        await house.run()
        (first,) = results(provider.requests[-1].request.messages)
        os.kill(int(first), signal.SIGKILL)
        fork = await house.temporal.start_workflow(
            AGENT_TURN, origin, id=f"{house.session}-fork", task_queue=house.settings.task_queue
        )
        assert (await fork.result())["stop_reason"] == "finished"
    _, told, last = results(provider.requests[-1].request.messages)
    assert json.loads(told)["error"]["code"] == "tool.state_lost"
    assert last.isdigit()
