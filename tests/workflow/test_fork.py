"""Sessions that go on from a chosen step: committed effects never run again, whatever model or limit goes on."""

from typing import Any

import pytest

from perdure import Agent, tool
from perdure.client import SessionBusyError, UnknownSessionError
from perdure.contracts.names import AGENT_TURN
from perdure.testing import ChatRequest, Reply, Script, ScriptedProvider, call, faults, say
from tests.house import House, eventually
from tests.temporal_cli import workflow
from tests.workflow.test_command_line import perdure

pytestmark = pytest.mark.deep

PAID: list[int] = []
"""What the outside world has seen."""

PAY = call(("pay", {"amount": 7}))
DONE = say("paid 7")
REPLIES = (PAY, call(("look", {})), DONE)
SLOW = DONE.after(faults.hang())


@tool
def pay(amount: int) -> str:
    """Pay an amount."""
    PAID.append(amount)
    return f"paid {amount}"


@tool
def look() -> str:
    """Look at the account."""
    return f"{len(PAID)} payments"


AGENT = Agent(name="tester", model="openai/scripted", tools=[pay, look])


@pytest.fixture(autouse=True)
def _nothing_is_paid() -> None:
    PAID.clear()


async def test_a_fork_with_another_model_goes_on_with_the_results_and_repeats_no_effect(house: House) -> None:
    """S-67: a chosen earlier checkpoint as a branch."""
    other = Script(replies=(PAY, say("the other model says so")))
    async with ScriptedProvider(Script(replies=REPLIES), models={"other": other}) as provider, house.worker(AGENT):
        house.use(provider)
        first = await house.run()
        turn = await house.client.fork(house.session, at=1, into=f"{house.session}-fork", model="openai/other")
        forked = await turn.result()
        asked = provider.requests[-1].request.messages

    assert (first["output"], forked.output) == ("paid 7", "the other model says so")
    assert PAID == [7]
    assert [message["role"] for message in asked] == ["user", "assistant", "tool"]
    assert asked[-1]["content"] == "paid 7"
    assert (forked.turn, forked.steps, forked.agent) == (1, 1, "tester")
    assert len(await house.client.transcript(house.session)) == 6


async def test_a_turn_out_of_steps_is_resumed_without_a_word(house: House) -> None:
    """S-67: from the last checkpoint after max steps; nothing is added to the conversation."""
    async with ScriptedProvider(Script(replies=REPLIES)) as provider, house.worker(AGENT):
        house.use(provider)
        stopped = await house.run(max_steps=1)
        resumed = await (await house.client.resume(house.session, max_steps=2)).result()
        asked = provider.requests[-2].request.messages

    assert (stopped["stop_reason"], resumed.stop_reason, resumed.turn) == ("max_steps_reached", "finished", 2)
    assert (PAID, [message["role"] for message in asked]) == ([7], ["user", "assistant", "tool"])


async def test_a_cancelled_turn_is_resumed_with_another_model(house: House) -> None:
    """S-67, S-58: the model that goes on reads what was there when the turn was stopped."""
    script, other = Script(replies=(PAY, SLOW)), {"other": Script(replies=(PAY, DONE))}
    async with ScriptedProvider(script, models=other) as provider, house.worker(AGENT):
        house.use(provider)
        handle = await house.start()
        await provider.wait_for_requests(2)
        await handle.signal("cancel", {"reason": "too slow"})
        assert (await handle.result())["stop_reason"] == "cancelled"
        resumed = await (await house.client.resume(house.session, model="openai/other")).result()

    assert (resumed.output, PAID) == ("paid 7", [7])


async def test_a_session_goes_back_to_before_a_message_of_the_user(house: House) -> None:
    """A rewind to an earlier message of the user: what came after it stays stored, and leaves the conversation."""

    def echo(request: ChatRequest) -> Reply:
        return say(str(request.messages[-1]["content"]))

    async with ScriptedProvider(echo) as provider, house.worker(AGENT):
        house.use(provider)
        await house.run(prompt="one")
        await (await house.client.send(house.session, "two")).result()
        await (await house.client.resume(house.session, "three", turn=1)).result()

    assert [message.content for message in await house.client.transcript(house.session)] == [
        *("one", "one"),
        *("three", "three"),
    ]
    assert [message.content for message in await house.client.transcript(house.session, 2)][2:] == ["two", "two"]


async def test_another_service_forks_a_session_with_temporals_own_tool(house: House) -> None:
    """S-67: over Temporal alone; the same request starts one turn only."""
    fork = f"{house.session}-fork"
    sent = f'{{"resume_from": {{"session": "{house.session}", "turn": 1, "step": 1}}, "request_id": "r"}}'
    start = ("start", "--type", AGENT_TURN, "--task-queue", house.settings.task_queue, "--workflow-id", fork)
    async with ScriptedProvider(Script(replies=REPLIES)) as provider, house.worker(AGENT):
        house.use(provider)
        await house.run()
        results: list[Any] = []
        for _ in range(2):
            await workflow(*start, "--input", sent)
            results.append((await workflow("result", "--workflow-id", fork))["result"])

    assert [(result["output"], result["turn"], result["steps"]) for result in results] == [("paid 7", 1, 2)] * 2
    assert PAID == [7]


@pytest.mark.parametrize(
    ("origin", "code", "said"),
    [
        ({"session": "nobody"}, "request.unknown_session", "there is no session 'nobody'"),
        ({"step": 9}, "request.invalid", "has no step 9; its last is 3"),
        ({"turn": 9}, "request.invalid", "has no turn 9"),
        ({}, "request.invalid", "ends there with an answer of the model; give a prompt"),
    ],
)
async def test_what_cannot_be_resumed_is_refused_in_one_line(
    house: House, origin: dict[str, Any], code: str, said: str
) -> None:
    async with ScriptedProvider(Script(replies=REPLIES)) as provider, house.worker(AGENT):
        house.use(provider)
        await house.run()
        again = await house.temporal.start_workflow(
            AGENT_TURN, {"resume_from": origin}, id=house.session, task_queue=house.settings.task_queue
        )
        result: dict[str, Any] = await again.result()

    assert (result["turn"], result["reason_code"]) == (None, code)
    assert said in result["error"]
    assert len(await house.client.turns(house.session)) == 1


async def test_a_step_of_a_running_turn_is_forked_and_a_running_session_is_not_resumed(house: House) -> None:
    script, other = Script(replies=(PAY, SLOW)), {"other": Script(replies=(PAY, DONE))}
    async with ScriptedProvider(script, models=other) as provider, house.worker(AGENT):
        house.use(provider)
        handle = await house.start()
        await provider.wait_for_requests(2)
        with pytest.raises(SessionBusyError, match="is running turn 1"):
            await house.client.resume(house.session, "and now?")
        turn = await house.client.fork(house.session, at=1, model="openai/other")
        assert (await turn.result()).output == "paid 7"
        await handle.signal("cancel", {})
        await handle.result()
    assert PAID == [7]


async def test_the_command_line_forks_resumes_and_lists_checkpoints(house: House) -> None:
    fork = f"{house.session}-fork"
    async with ScriptedProvider(Script(replies=REPLIES)) as provider, house.worker(AGENT):
        house.use(provider)
        await house.run(max_steps=1)
        code, events = await perdure("fork", house.session, "--at", "1", "--as", fork)
        assert (code, events[-1]["output"], events[0]["resumed_from"]) == (
            0,
            "paid 7",
            {"session": house.session, "turn": 1, "step": 1},
        )
        code, events = await perdure("resume", house.session, "--max-steps", "1")
        assert (code, events[0]["resumed_from"]) == (3, {"session": house.session, "turn": 1, "step": 1})
        (listed,) = (await perdure("show", house.session, "--checkpoints"))[1]

    assert [
        (checkpoint["turn"], checkpoint["step"], checkpoint["status"], checkpoint["messages"])
        for checkpoint in listed["checkpoints"]
    ] == [
        (1, 0, "init", 1),
        (1, 1, "stoppedByExceededMaxSteps", 2),
        (2, 0, "init", 3),
        (2, 1, "stoppedByExceededMaxSteps", 4),
    ]
    assert PAID == [7]


async def test_an_unknown_session_is_not_forked(house: House) -> None:
    with pytest.raises(UnknownSessionError, match="no session 'nobody'"):
        await house.client.fork("nobody", "hello")


async def test_a_fork_reads_the_artifacts_of_the_session_it_came_from(house: House) -> None:
    @tool
    def dump() -> str:
        """Give much."""
        return "x" * 40_000

    agent = Agent(name="tester", model="openai/scripted", tools=[dump])
    async with ScriptedProvider(Script(replies=(call(("dump", {})), DONE))) as provider, house.worker(agent):
        house.use(provider)
        await house.run()
        (end,) = await house.events("tool_end")
        turn = await house.client.fork(house.session, at=1)
        await turn.result()

        async def there() -> bool:
            return (await house.client.artifact(turn.session, end["artifact"])).text == "x" * 40_000

        assert await eventually(there)


async def test_the_agent_of_the_turn_goes_on_and_not_that_of_the_last_one(house: House) -> None:
    other = Agent(name="other", model="openai/scripted")
    async with ScriptedProvider(lambda _: DONE) as provider, house.worker(AGENT, other):
        house.use(provider)
        await house.run()
        await house.run("other")
        agents = [
            (await (await house.client.fork(house.session, "more", turn=turn)).result()).agent for turn in (1, 2, None)
        ]
    assert agents == ["tester", "other", "other"]
