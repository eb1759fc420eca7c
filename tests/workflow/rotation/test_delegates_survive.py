"""Delegates whose workers are killed, whose caller rotates or is reset: what was done stays done, and counts once."""

from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus

from perdure import tool
from perdure.testing import ChatRequest, Reply, ScriptedProvider, call, faults, say
from tests.house import House, eventually
from tests.workflow.delegating import DONE, agent, asks, children, in_order, of_helpers, played, query_of, results_in
from tests.workflow.killing import result_of
from tests.workflow.resetting import completed_tasks, reset
from tests.workflow.rotation.rotations import rotated

pytestmark = pytest.mark.deep


async def test_killing_the_only_worker_while_delegates_run_loses_and_repeats_nothing(house: House) -> None:
    """S-62 S-65: one has finished and is not asked again, the other one's lost call is."""

    def helping(request: ChatRequest) -> Reply:
        slow = say("answer to slow").after(faults.hang())
        return slow if query_of(request) == "slow" else say("answer to quick")

    answers = played(tester=in_order(asks("quick", "slow"), DONE), helper=helping)
    async with ScriptedProvider(answers) as provider:
        house.use(provider)
        first = house.spawn_worker("tests.workflow.agents_that_delegate")
        await first.polling()
        handle = await house.start()
        await house.wait_for_event("delegate_end")
        await provider.wait_for_requests(3)
        first.kill()
        second = house.spawn_worker("tests.workflow.agents_that_delegate")
        await second.polling()
        result = await result_of(handle)
        read = results_in(provider.requests[-1].request)
        assert sorted(of_helpers(provider)) == ["quick", "slow", "slow"]
    assert (result["stop_reason"], read) == ("finished", ["answer to quick", "answer to slow"])
    assert (result["steps"], result["delegated_steps"]) == (2, 2)
    assert len(await house.events("delegate_end")) == 2


async def test_a_caller_that_rotates_keeps_what_its_delegates_used(house: House) -> None:
    """S-46 S-62: charged before and after."""

    @tool
    def look() -> str:
        """Look."""
        return "looked"

    lead = agent("tester", delegates=["helper"], tools=[look])
    steps = [asks("one"), *[call(("look", {}))] * 6, asks("two"), *[call(("look", {}))] * 3, DONE]
    answers = played(tester=in_order(*steps), helper=lambda request: say(f"answer to {query_of(request)}"))
    async with ScriptedProvider(answers) as provider, house.worker(lead, agent("helper")):
        house.use(provider)
        result = await house.run()
        assert of_helpers(provider) == ["one", "two"]
    assert (result["stop_reason"], result["steps"], result["delegated_steps"]) == ("finished", 12, 2)
    assert len(await children(house)) == 2
    await rotated(house, house.session)


async def test_a_delegate_that_rotates_is_one_call(house: House) -> None:
    """S-46 S-62: the caller waits for its last run."""

    @tool
    def look() -> str:
        """Look."""
        return "looked"

    helper = agent("helper", tools=[look])
    working = in_order(*[call(("look", {}))] * 9, say("helped"))
    answers = played(tester=in_order(asks("one"), DONE), helper=working)
    async with ScriptedProvider(answers) as provider, house.worker(agent("tester", delegates=["helper"]), helper):
        house.use(provider)
        result = await house.run()
        (read,) = results_in(provider.requests[-1].request)
    assert (read, result["delegated_steps"]) == ("helped", 10)
    ((child, _),) = await children(house)
    await rotated(house, child.session)


async def test_a_caller_that_is_reset_finds_its_delegates_results(house: House) -> None:
    """S-62: the same call is the same delegate, which is not paid for again; its text comes into no history."""
    lead = agent("tester", delegates=["helper"])
    answers = played(tester=in_order(asks("one"), DONE), helper=lambda _: say("helped" * 2_000))
    async with ScriptedProvider(answers) as provider, house.worker(lead, agent("helper")):
        house.use(provider)
        handle = await house.start()
        await handle.result()
        calls = provider.request_count
        again = await reset(house, (await completed_tasks(handle))[2])
        result = await result_of(again)
        assert provider.request_count == calls
        anew = (await again.describe()).raw_info.history_size_bytes
    assert result["stop_reason"] == "finished"
    assert anew < 20_000
    assert len(await house.events("delegate_end")) == 1


async def test_a_caller_that_is_terminated_takes_its_delegates_with_it(house: House) -> None:
    """S-57: Temporal cancels them, and their transcripts are committed."""
    lead, helper = agent("tester", delegates=["helper"]), agent("helper")
    hanging = say("late").after(faults.hang())
    answers = played(tester=in_order(asks("one"), DONE), helper=lambda _: hanging)
    async with ScriptedProvider(answers) as provider, house.worker(lead, helper):
        house.use(provider)
        handle = await house.start()
        await provider.wait_for_requests(2)
        await handle.terminate()

        async def ended() -> Any:
            ((_, turn),) = await children(house)
            return turn.result

        result = await eventually(ended)
        ((child, _),) = await children(house)
        inside = house.temporal.get_workflow_handle(child.session)

        async def canceled() -> bool:
            return (await inside.describe()).status is WorkflowExecutionStatus.CANCELED

        await eventually(canceled)
    assert result.stop_reason == "cancelled"
