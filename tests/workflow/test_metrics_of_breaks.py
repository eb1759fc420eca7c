"""Counters of what breaks on the way: a stream that is no answer, and a session that an MCP server has ended."""

import pytest

from perdure import Agent, HttpServerConfig
from perdure.activities.mcp import server
from perdure.testing import ChatRequest, Reply, Script, ScriptedProvider, call, faults, say
from tests.house import House
from tests.unit.activities.mcp_scripted import Reply as Refusal
from tests.unit.activities.mcp_scripted import Scripted, error


@pytest.mark.parametrize("model", ["openai/scripted", "anthropic/scripted"])
@pytest.mark.parametrize(("fault", "count"), [("without an end", 1), ("cut", None)])
async def test_a_stream_that_ends_in_good_order_and_is_no_answer_is_counted(
    house: House, model: str, fault: str, count: int | None
) -> None:
    """One that is cut in the middle is sent again as a stream, and is none."""
    broken = faults.stream_without_end() if count else faults.stream_cut(4)
    agent = Agent(name="tester", model=model, stream="always")
    async with ScriptedProvider(Script(replies=(say("done").after(broken),))) as provider, house.worker(agent):
        house.use(provider)
        assert (await house.run())["output"] == "done"
    assert house.registry.get_sample_value("perdure_unusable_streams_total", {"model": model}) == count


async def test_a_connection_that_follows_a_broken_one_is_counted(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one is none of them; a server that has ended its session is connected to once more."""
    monkeypatch.setattr(server, "RECONNECT_PAUSE", 0.01)

    def pays(request: ChatRequest) -> Reply:
        return call(("web__pay", {})) if request.messages[-1]["role"] == "user" else say("done")

    async with Scripted().serving() as at, ScriptedProvider(pays) as provider:
        house.use(provider)
        agent = Agent(name="tester", model="openai/scripted", mcp_servers=[HttpServerConfig(name="web", url=at.url)])
        async with house.worker(agent):
            for session, count in (("S0", None), ("S1", 1), ("S1", 1)):
                ended = session
                at.answers = lambda method, _, of: (
                    Refusal(error(-32001, "who?"), status=404) if of == ended and method != "initialize" else None  # noqa: B023
                )
                turn = await house.client.start("tester", "go", session=f"{house.session}-{len(at.called)}")
                assert (await turn.result()).output == "done"
                counted = house.registry.get_sample_value("perdure_mcp_reconnects_total", {"server": "web"})
                assert counted == count
            assert house.registry.get_sample_value("perdure_mcp_call_seconds_count", {"server": "web"}) == 3
    assert at.called == ["pay"] * 3
