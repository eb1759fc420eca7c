"""S-81: a call that waits for its caller outlives pauses, workers and forks, and is replayed with nobody there."""

from typing import Any

from perdure import Agent, caller_tool
from perdure.contracts.turns import RunState
from perdure.testing import Script, ScriptedProvider, call, say
from tests.house import House, eventually
from tests.workflow.asking import results, waiting
from tests.workflow.recording import recordings, replaying, told

GIVEN: dict[str, Any] = {
    "name": "lookup",
    "description": "Look a customer up.",
    "parameters": {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]},
}
LOOK = call(("lookup", {"id": 7}))
DONE = say("done")
BARE = Agent(name="tester", model="openai/scripted")
AGENT = Agent(name="tester", model="openai/scripted", tools=[caller_tool("lookup", "Look.", GIVEN["parameters"])])


async def test_a_result_is_taken_while_the_session_is_paused_and_another_worker_goes_on_with_it(house: House) -> None:
    """The worker that asked is gone; the start's own tools are still the turn's."""
    async with ScriptedProvider(Script(replies=(LOOK, LOOK, DONE))) as provider:
        house.use(provider)
        async with house.worker(BARE):
            await house.start(tools=[GIVEN])
            (request,) = await waiting(house)
            await house.client.pause(house.session, "a move", by="ann")
        async with house.worker(BARE):
            receipt = await house.client.submit_result(house.session, request["request_id"], "Ada")

            async def stands() -> bool:
                return (await house.client.status(house.session)).state is RunState.PAUSED

            await eventually(stands)
            assert (receipt.decision, provider.request_count) == ("returned", 1)
            await house.client.unpause(house.session)
            (second,) = await waiting(house)
            assert await house.client.submit_result(house.session, request["request_id"], "Ada") == receipt
            await house.client.submit_result(house.session, second["request_id"], "Bob")
            assert (await (await house.client.attach(house.session)).result()).output == "done"
    assert results(provider.requests[-1].request.messages) == ["Ada", "Bob"]


async def test_a_fork_asks_anew_for_nothing_and_leaves_the_open_call_alone(house: House) -> None:
    """S-67: while the call is open there is no result to go on with; afterwards a fork has it."""
    async with ScriptedProvider(Script(replies=(LOOK, DONE, DONE))) as provider, house.worker(AGENT):
        house.use(provider)
        await house.start()
        (request,) = await waiting(house)
        early = await (await house.client.fork(house.session, at=1, into=f"{house.session}-early")).result()
        await house.client.submit_result(house.session, request["request_id"], "Ada")
        await (await house.client.attach(house.session)).result()
        fork = await house.client.fork(house.session, at=1, into=f"{house.session}-fork")
        assert (await fork.result()).output == "done"
        assert not await house.client.inbox(f"{house.session}-fork")
    assert (early.reason_code, "still runs 1 of its calls" in str(early.error)) == ("request.invalid", True)
    assert results(provider.requests[-1].request.messages) == ["Ada"]


async def test_a_recorded_turn_is_replayed_with_the_results_of_callers(house: House) -> None:
    """S-73."""
    recordings(house, "record")
    asked = call(("lookup", {"id": 7}), ("lookup", {"id": 8}))
    async with ScriptedProvider(Script(replies=(asked, DONE))) as provider, house.worker(BARE):
        house.use(provider)
        await house.start(tools=[GIVEN])
        first, second = await waiting(house, 2)
        await house.client.submit_result(house.session, second["request_id"], error="no such customer")
        await house.client.submit_result(house.session, first["request_id"], {"name": "Ada"}, by="app")
        await (await house.client.attach(house.session)).result()
    async with replaying(house, BARE) as again:
        assert (await again.run(tools=[GIVEN]))["output"] == "done"
        assert await told(again) == await told(house)
