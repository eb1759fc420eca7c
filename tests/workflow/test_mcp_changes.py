"""What happens to a server's tools and calls while a turn runs: its list changes, the turn is cancelled."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, StdioServerConfig
from perdure.contracts.agents import AgentDefinition
from perdure.testing import Script, ScriptedProvider, call, say
from perdure.testing.provider import RecordedRequest
from tests.house import House
from tests.workflow.cancelling import BOTH_WAYS, How, cancel, cancelled
from tests.workflow.killing import has_lines, read

pytestmark = pytest.mark.deep

PEER = Path(__file__).parent.parent / "mcp_peer.py"
DONE = say("done")


def agent(journal: Path, fault: str = "") -> Agent:
    peer = StdioServerConfig(
        name="peer", command=sys.executable, args=(str(PEER), fault), env={"MCP_JOURNAL": str(journal)}
    )
    return Agent(name="tester", model="openai/scripted", mcp_servers=[peer])


def journal_of(house: House) -> Path:
    """What the server was asked for, a line each."""
    journal = house.folder / "journal"
    journal.touch()
    return journal


def offered(recorded: RecordedRequest) -> dict[str, str]:
    """The server's tools in a request, with their descriptions."""
    functions: list[Any] = [tool["function"] for tool in recorded.request.tools]
    return {str(function["name"]): str(function["description"]) for function in functions}


async def definition(house: House, turn: int) -> tuple[str, AgentDefinition]:
    """The definition of a turn, and its hash."""
    name = (await house.store.turn(house.session, turn)).definition
    return name, await house.store.definition(name)


async def test_a_list_of_tools_that_changes_in_a_turn_is_the_next_turns(house: House) -> None:
    """S-23, S-75: the server says so (``list_changed``), and the model reads it; the running turn stays as it began."""
    echo, learnt, fail = (call((f"peer__{name}", {})) for name in ("echo", "learnt", "fail"))
    journal = journal_of(house)
    script = Script(replies=(echo, learnt, fail, DONE, learnt, fail, DONE))
    async with ScriptedProvider(script) as provider, house.worker(agent(journal, "learns")):
        house.use(provider)
        assert (await house.run())["stop_reason"] == "finished"
        running = [offered(request) for request in provider.requests]
        called = [line for line in read(journal) if line.startswith("call")]
        before = await definition(house, 1)
        assert (await house.run(prompt="again"))["stop_reason"] == "finished"
        after = await definition(house, 2)
        results = [
            str(message["content"]) for message in provider.requests[-1].request.messages if message["role"] == "tool"
        ]
        assert ["has changed its list of tools" in text for text in results] == [True, *[False] * (len(results) - 1)]
        assert await definition(house, 1) == before
    assert all(names == running[0] for names in running)
    assert running[0]["peer__echo"] == "does echo"
    assert "peer__learnt" not in running[0]
    assert called == ["call echo", "call fail"]  # the tool that the server no longer lists is still the turn's
    next_turn = offered(provider.requests[len(running)])
    assert next_turn["peer__echo"] == "now does echo"
    assert next_turn.keys() == {"peer__echo", "peer__whoami", "peer__learnt"}
    assert [line for line in read(journal) if line.startswith("call")] == [*called, "call learnt"]
    assert read(journal).count("list") == 2
    assert before[0] != after[0]
    assert {tool.name for tool in before[1].tools} == running[0].keys()
    assert {tool.name for tool in after[1].tools} == next_turn.keys()


@BOTH_WAYS
async def test_a_cancel_during_a_servers_call_is_told_to_the_server_and_ends_the_turn(house: House, how: How) -> None:
    """S-57: the server stays for the next turn."""
    journal = journal_of(house)
    script = Script(replies=(call(("peer__slow", {})), call(("peer__whoami", {})), DONE))
    async with ScriptedProvider(script) as provider, house.worker(agent(journal)):
        house.use(provider)
        handle = await house.start()
        await has_lines(journal, 3)
        assert [line.split()[0] for line in read(journal)] == ["started", "list", "call"]
        await cancel(handle, how)
        result = await cancelled(house, handle, how)
        assert result.steps == 1
        await has_lines(journal, 4)
        assert read(journal)[3].split()[0] == "cancelled"
        assert (await house.run(prompt="and now?"))["stop_reason"] == "finished"
        assert [line.split()[0] for line in read(journal)].count("started") == 1
    asked: list[Mapping[str, Any]] = list(provider.requests[-1].request.messages)
    lost, who = [str(message["content"]) for message in asked if message["role"] == "tool"]
    assert "cancelled" in lost
    assert who == read(journal)[0].split()[1]
