"""MCP servers in a turn: tools frozen with it, errors for the model, files as artifacts, state on one worker."""

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.worker import UnsandboxedWorkflowRunner

from perdure import Agent, StdioServerConfig
from perdure.contracts.errors import REASONS, ReasonCode
from perdure.contracts.values import JsonValue
from perdure.testing import Reply, Script, ScriptedProvider, call, say
from perdure.workflows import options
from tests.house import House

pytestmark = pytest.mark.deep

PEER = Path(__file__).parent.parent / "mcp_peer.py"
DONE = say("done")


def agent(fault: str = "", **settings: Any) -> Agent:
    server = StdioServerConfig(**{"name": "peer", "command": sys.executable, "args": (str(PEER), fault), **settings})
    return Agent(name="tester", model="openai/scripted", mcp_servers=[server])


async def played(house: House, using: Agent, *answers: Reply) -> tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]:
    """The result of a turn, and the tool messages that the model read last."""
    async with ScriptedProvider(Script(replies=answers)) as provider, house.worker(using):
        house.use(provider)
        result = await house.run()
        last = provider.requests[-1].request.messages
    return result, [message for message in last if message["role"] == "tool"]


async def activities(house: House) -> list[Any]:
    """The activities that the turn scheduled."""
    history = await house.temporal.get_workflow_handle(house.session).fetch_history()
    scheduled = [event.activity_task_scheduled_event_attributes for event in history.events]
    return [activity for activity in scheduled if activity.activity_id]


async def test_the_model_uses_a_servers_tool_and_the_turn_keeps_what_it_was(house: House) -> None:
    """S-75: its type in Temporal is the name that the model called."""
    result, (answer,) = await played(house, agent(), call(("peer__echo", {"text": "hi"})), DONE)
    assert (result["stop_reason"], answer["content"]) == ("finished", 'echo: {"text": "hi"}')
    assert "peer__echo" in [activity.activity_type.name for activity in await activities(house)]
    definition = await house.store.definition((await house.store.turn(house.session, 1)).definition)
    declared = definition.tool("peer__echo")
    assert declared is not None
    assert (declared.reference, declared.description) == ("mcp:peer/echo", "does echo")


async def test_an_error_of_a_server_is_read_by_the_model_although_other_errors_abort(house: House) -> None:
    """S-77."""
    result, (failed, lost) = await played(house, agent(), call(("peer__fail", {})), call(("peer__die", {})), DONE)
    assert result["stop_reason"] == "finished"
    assert json.loads(failed["content"])["error"] == {
        "code": "tool.execution_error",
        "type": "McpError",
        "message": "it did not work",
    }
    error = json.loads(lost["content"])["error"]
    assert (error["code"], "its effect is unknown" in error["message"]) == ("tool.network_error", True)


async def test_masked_arguments_are_in_no_log_of_a_server_and_in_no_error_with_its_last_lines(house: House) -> None:
    """S-52: not in that of another call either, which the server's end fails."""
    secret: JsonValue = {
        "secret": "h7unter of words",
        "note": "nothing",
        "deep": [{"token": 'zwei "words"\nof a 9key'}],
    }
    calls = call(("peer__echo", secret)), call(("peer__die", {}))
    result, (_, lost) = await played(house, agent("loud"), *calls, DONE)
    assert result["stop_reason"] == "finished"
    log = (house.folder / "mcp" / "logs" / "peer.log").read_text()
    for text in (log, lost["content"]):
        assert ("nothing" in text, "***" in text) == (True, True)
        assert [part for part in ("h7unter", "9key", "zwei") if part in text] == []


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"command": "no-such-command"}, "MCP server 'peer' cannot be used: there is no command 'no-such-command'"),
        ({"fault": "dies"}, "cannot go on"),
        ({"fault": "silent", "init_timeout": timedelta(seconds=0.5)}, "did not answer within 0.5 s"),
        ({"fault": "twice"}, "lists two tools named echo"),
        ({"fault": "many"}, "offers 30000 tools, and an agent may use 500 of one server"),
    ],
    ids=["no command", "dies", "silent", "twice", "many"],
)
async def test_a_turn_is_refused_when_a_server_cannot_be_used(
    house: House, settings: dict[str, Any], said: str
) -> None:
    """S-75: at once, and with the cause; the session has no turn."""
    async with house.worker(agent(**settings)):
        result = await house.run()
    assert (result["turn"], result["reason_code"]) == (None, ReasonCode.RUNTIME_MCP_UNAVAILABLE)
    assert said in result["error"]


async def test_files_become_artifacts(house: House) -> None:
    """S-77."""
    _, (answer,) = await played(house, agent(), call(("peer__files", {})), DONE)
    (image,) = [line for line in answer["content"].splitlines() if line.startswith("[image")]
    stored = await house.store.artifact(image.rpartition(" ")[2].rstrip("]"))
    assert (stored.media_type, stored.text) == ("image/png;base64", "aGVsbG8=")


async def test_ten_megabytes_become_an_artifact(house: House) -> None:
    """The model reads head and tail."""
    _, (answer,) = await played(house, agent(), call(("peer__big", {"size": 10_000_000})), DONE)
    name = answer["content"].partition("the whole output is artifact ")[2].partition(" ")[0]
    assert len((await house.store.artifact(name)).text) == 10_000_000
    assert len(answer["content"]) < 31_000


async def test_a_server_with_state_is_called_where_the_turn_was_opened(house: House) -> None:
    """S-75: on a queue that one worker polls."""
    result, answers = await played(
        house, agent(stateful=True), call(("peer__whoami", {})), call(("peer__whoami", {})), DONE
    )
    assert result["stop_reason"] == "finished"
    assert len({answer["content"] for answer in answers}) == 1
    queues = {
        activity.task_queue.name
        for activity in await activities(house)
        if activity.activity_type.name == "peer__whoami"
    }
    assert queues == {house.mcp.queue}
    assert house.mcp.queue != house.settings.task_queue


async def test_the_model_is_told_that_the_state_is_lost_with_its_worker(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-77: no call waits for a worker that is gone, and those behind the first one hardly ask."""
    monkeypatch.setattr(options, "PINNED_WAIT", timedelta(seconds=0.5))
    using = agent(stateful=True)
    who = call(("peer__whoami", {}))
    async with (
        ScriptedProvider(Script(replies=(who, who, DONE))) as provider,
        house.worker(using, runner=UnsandboxedWorkflowRunner()),
    ):
        house.use(provider)
        house.mcp.queue = f"{house.settings.task_queue}-of-a-lost-worker"
        result = await house.run()
        answers = [message for message in provider.requests[-1].request.messages if message["role"] == "tool"]
    assert result["stop_reason"] == "finished"
    assert [answer["content"] for answer in answers] == [REASONS[ReasonCode.TOOL_STATE_LOST].text] * 2
    called = [activity for activity in await activities(house) if activity.activity_type.name == "peer__whoami"]
    assert [activity.schedule_to_start_timeout.ToTimedelta() for activity in called] == [
        options.PINNED_WAIT,
        options.LOST_WAIT,
    ]
