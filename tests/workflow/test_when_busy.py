"""What becomes of a message while a turn runs: it is refused, waits, steers or interrupts that turn."""

from collections.abc import Sequence
from typing import Any

import pytest

from perdure import Agent
from perdure.client import RequestRefusedError, SessionBusyError, Turn
from perdure.contracts.checkpoints import ResumeFrom
from perdure.contracts.events import AgentStart
from perdure.testing import Script, ScriptedProvider, call, say
from tests.house import House
from tests.workflow.asking import refusal
from tests.workflow.bodies import Body, happened
from tests.workflow.test_command_line import perdure

pytestmark = pytest.mark.deep


def agent(body: Body) -> Agent:
    return Agent(name="tester", model="openai/scripted", tools=[body.held()])


HELD = Script(replies=(call(("held", {})), *[say(f"answer {number}") for number in range(1, 9)]))
LATER = Script(replies=(say("first"), call(("held", {})), *[say(f"answer {number}") for number in range(1, 9)]))


async def ends(house: House) -> list[tuple[int, str]]:
    return [(line["turn"], line["stop_reason"]) for line in await house.events("agent_end")]


async def said(house: House) -> list[str]:
    return [message.content for message in await house.store.transcript(house.session) if message.role == "user"]


async def busy(house: House, body: Body, waiting: Sequence[str] = ()) -> list[Turn]:
    turns = [await house.client.start("tester", "go", session=house.session)]
    await happened(body.started)
    return turns + [await house.client.send(house.session, prompt) for prompt in waiting]


async def test_a_message_that_interrupts_is_the_next_turn_and_overtakes_those_that_wait(house: House) -> None:
    """Each turn ends with its event, and the numbers that senders know stay right."""
    body = Body()
    async with ScriptedProvider(HELD) as provider, house.worker(agent(body)):
        house.use(provider)
        first, second = await busy(house, body, ["second"])
        third = await house.client.send(house.session, "now this", when_busy="interrupt", request_id="i")
        assert third.turn == 3
        again = await house.client.send(house.session, "now this", when_busy="interrupt", request_id="i")
        assert again.turn == 3
        result = await third.result()
        assert (result.output, provider.request_count) == ("answer 1", 2)
        for turn in (first, second):
            ended = await turn.result()
            assert (ended.stop_reason, ended.error) == (
                "cancelled",
                "Operation aborted: interrupted by the message of turn 3",
            )
    assert await ends(house) == [(1, "cancelled"), (2, "cancelled"), (3, "finished")]
    assert await said(house) == ["go", "second", "now this"]


async def test_a_rollback_begins_where_the_running_turn_began(house: House) -> None:
    """The conversation is without that turn; the store keeps it."""
    body = Body()
    async with ScriptedProvider(LATER) as provider, house.worker(agent(body)):
        house.use(provider)
        await house.run(prompt="hello")
        body.started.clear()
        await busy(house, body)
        turn = await house.client.send(house.session, "no, this", when_busy="rollback")
        body.released.set()  # the script answers by what it reads, so it calls the tool again
        result = await turn.result()
    assert (result.turn, result.output) == (3, "answer 1")
    assert await said(house) == ["hello", "no, this"]
    read = [(message["role"], message.get("content")) for message in provider.requests[-2].request.messages]
    assert read == [("user", "hello"), ("assistant", "first"), ("user", "no, this")]
    assert (await ends(house))[1] == (2, "cancelled")
    assert [step.turn for step in await house.store.steps(house.session)].count(2) >= 2


async def test_a_rollback_of_a_first_turn_keeps_what_stood_before_its_prompt(house: House) -> None:
    """A history, and the place that a fork began at, are no part of the turn that is rolled back."""
    body = Body()
    script = Script(replies=(say("yes"), *HELD.replies))
    history = [{"role": "user", "content": "before"}, {"role": "assistant", "content": "yes"}]
    async with ScriptedProvider(script) as provider, house.worker(agent(body)):
        house.use(provider)
        await house.client.start("tester", "go", session=house.session, history=history)
        await happened(body.started)
        turn = await house.client.send(house.session, "this", when_busy="rollback")
        body.released.set()
        assert (await turn.result()).output == "answer 1"
    assert await said(house) == ["before", "this"]


async def test_a_rollback_of_a_forks_first_turn_begins_at_the_fork(house: House) -> None:
    body = Body()
    async with ScriptedProvider(LATER) as provider, house.worker(agent(body)):
        house.use(provider)
        await house.run(prompt="hello")
        fork = f"{house.session}-fork"
        await house.client.fork(house.session, "aside", into=fork)
        await happened(body.started)
        turn = await house.client.send(fork, "astern", when_busy="rollback")
        body.released.set()
        assert (await turn.result()).output == "answer 1"
        forked = [message.content for message in await house.store.transcript(fork) if message.role == "user"]
        assert forked == ["hello", "astern"]
        start = next(event.event for event in await house.store.events(fork) if event.turn == 2)
        assert isinstance(start, AgentStart)
        assert start.resumed_from == ResumeFrom(session=house.session, turn=1, step=1)


async def test_a_second_rollback_replaces_the_first(house: House) -> None:
    body = Body()
    async with ScriptedProvider(HELD) as provider, house.worker(agent(body)):
        house.use(provider)
        await busy(house, body)
        await house.client.send(house.session, "one", when_busy="rollback")
        turn = await house.client.send(house.session, "two", when_busy="rollback")
        body.released.set()
        assert (await turn.result()).output == "answer 1"
    assert await said(house) == ["two"]


async def test_a_message_that_is_not_to_wait_is_refused_and_changes_nothing(house: House) -> None:
    body = Body()
    async with ScriptedProvider(HELD) as provider, house.worker(agent(body)):
        house.use(provider)
        (first,) = await busy(house, body)
        with pytest.raises(SessionBusyError, match="is running turn 1"):
            await house.client.send(house.session, "now?", when_busy="reject")
        text = await refusal(house, "send", code="request.session_busy", prompt="now?", when_busy="reject")
        assert text == "turn 1 runs, and the message is not to wait; send it when the turn has ended"
        code, _ = await perdure("send", house.session, "now?", "--when-busy", "reject", refused=True)
        assert code != 0
        body.released.set()
        assert (await first.result()).output == "answer 1"
        turn = await house.client.send(house.session, "now?", when_busy="reject", request_id="r")
        assert (await turn.result()).turn == 2
        assert (await house.client.send(house.session, "now?", when_busy="reject", request_id="r")).turn == 2
    assert await said(house) == ["go", "now?"]


@pytest.mark.parametrize("when_busy", ["reject", "queue", "steer", "interrupt", "rollback"])
async def test_an_idle_session_starts_its_next_turn_whatever_is_said(house: House, when_busy: Any) -> None:
    async with ScriptedProvider(Script(replies=(say("one"), say("two")))) as provider, house.worker(agent(Body())):
        house.use(provider)
        await house.run()
        turn = await house.client.send(house.session, "next", when_busy=when_busy)
        result = await turn.result()
    assert (result.turn, result.output) == (2, "two")
    assert await said(house) == ["go", "next"]


async def test_what_says_two_things_is_refused(house: House) -> None:
    body = Body()
    async with ScriptedProvider(HELD) as provider, house.worker(agent(body)):
        house.use(provider)
        (first,) = await busy(house, body)
        text = await refusal(house, "send", prompt="x", steer=True, when_busy="queue")
        assert "steer, when_busy: say different things; leave steer out" in text
        assert "steer: is true or false" in await refusal(house, "send", prompt="x", steer="maybe")
        with pytest.raises(RequestRefusedError, match="when_busy"):
            await house.client.send(house.session, "x", when_busy="later")  # type: ignore[arg-type]
        code, _ = await perdure("send", house.session, "x", "--steer", "--when-busy", "queue", refused=True)
        assert code == 2
        body.released.set()
        await first.result()
    assert await said(house) == ["go"]
