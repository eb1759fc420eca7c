"""Delegates in the background whose workers are killed, whose caller rotates, is reset or forked."""

import pytest
import temporalio.client

from perdure.contracts.names import AGENT_TURN
from perdure.testing import ScriptedProvider, call, faults, say
from tests.house import House, eventually
from tests.workflow.backgrounds import HANGING, awaiting, lead, starts, statuses, steps, waits_for_delegates
from tests.workflow.bodies import Body, happened
from tests.workflow.delegating import DONE, agent, children, in_order, of_helpers, played, results_in
from tests.workflow.killing import result_of
from tests.workflow.resetting import completed_tasks, reset
from tests.workflow.rotation.rotations import rotated

pytestmark = pytest.mark.deep


async def test_killing_the_only_worker_between_start_and_wait_repeats_no_delegate(house: House) -> None:
    """S-17 S-64: the caller's lost model call is made again, and waits for the same delegate."""
    answers = played(
        beside=steps(starts("one"), lambda asked: awaiting(0)(asked).after(faults.hang()), DONE),
        helper=lambda _: say("helped"),
    )
    async with ScriptedProvider(answers) as provider:
        house.use(provider)
        first = house.spawn_worker("tests.workflow.agents_that_delegate")
        await first.polling()
        handle = await house.start("beside")
        await house.wait_for_event("delegate_end")
        await provider.wait_for_requests(3)
        first.kill()
        second = house.spawn_worker("tests.workflow.agents_that_delegate")
        await second.polling()
        result = await result_of(handle)
        *_, read = results_in(provider.requests[-1].request)
        assert of_helpers(provider) == ["one"]
    assert (result["stop_reason"], result["delegated_steps"], read) == ("finished", 1, "helped")


async def test_a_caller_rotates_only_when_its_delegate_has_ended_and_can_still_read_its_result(house: House) -> None:
    """S-46 S-64: charged once, and waited for in another run than it began in."""
    body = Body()
    helper = agent("helper", tools=[body.held()])
    looking = [call(("look", {}))] * 8
    answers = played(
        tester=steps(starts("one"), *looking, *looking, awaiting(0), DONE),
        helper=in_order(call(("held", {})), say("helped")),
    )
    async with ScriptedProvider(answers) as provider, house.worker(lead(), helper):
        house.use(provider)
        handle = await house.start()
        await happened(body.started)
        await house.wait_for_event("tool_end", 8)
        run = (await handle.describe()).run_id
        assert run == handle.first_execution_run_id
        body.released.set()
        result = await result_of(handle)
        *_, read = results_in(provider.requests[-1].request)
    assert (result["stop_reason"], result["steps"], result["delegated_steps"]) == ("finished", 19, 2)
    assert read == "helped"
    await rotated(house, house.session)


async def test_a_caller_that_is_reset_finds_the_delegates_it_had_in_the_background(house: House) -> None:
    """S-62 S-64: the same call is the same delegate, which is not paid for again."""
    answers = played(tester=steps(starts("one"), awaiting(0), DONE), helper=lambda _: say("helped"))
    async with ScriptedProvider(answers) as provider, house.worker(lead(), agent("helper")):
        house.use(provider)
        handle = await house.start()
        before = await handle.result()
        calls = provider.request_count
        again = await reset(house, (await completed_tasks(handle))[2])
        result = await result_of(again)
        assert provider.request_count == calls
    assert {name: result[name] for name in ("stop_reason", "usage", "spent", "delegated_steps")} == {
        name: before[name] for name in ("stop_reason", "usage", "spent", "delegated_steps")
    }
    assert len(await house.events("delegate_end")) == 1


@pytest.mark.parametrize("task", [2, 3])
async def test_a_caller_that_is_reset_while_its_delegate_works_waits_for_that_one(house: House, task: int) -> None:
    """S-62 S-64: to before the delegate was started, and to behind that."""
    body = Body()
    helper = agent("helper", tools=[body.held()])
    answers = played(tester=steps(starts("one"), awaiting(0), DONE), helper=in_order(call(("held", {})), say("helped")))
    async with ScriptedProvider(answers) as provider, house.worker(lead(), helper):
        house.use(provider)
        handle = await house.start()
        await happened(body.started)
        await provider.wait_for_requests(3)
        await waits_for_delegates(handle)
        again = await reset(house, (await completed_tasks(handle))[task])
        await waits_for_delegates(again)
        body.released.set()
        result = await result_of(again)
        *_, read = results_in(provider.requests[-1].request)
        assert of_helpers(provider) == ["one", "one"]
    assert (result["stop_reason"], result["delegated_steps"], read) == ("finished", 2, "helped")
    assert len(await house.events("delegate_end")) == 1


async def test_a_fork_does_not_have_the_delegates_that_worked_beside_its_checkpoint(house: House) -> None:
    """S-64 S-67: its model reads that there are none, and the turn goes on."""
    answers = played(tester=steps(starts("one"), call(("look", {})), awaiting(0), DONE), helper=lambda _: say("helped"))
    async with ScriptedProvider(answers) as provider, house.worker(lead(), agent("helper")):
        house.use(provider)
        await house.run()
        fork = await house.temporal.start_workflow(
            AGENT_TURN,
            {"resume_from": {"session": house.session, "turn": 1, "step": 2}},
            id=f"{house.session}-fork",
            task_queue=house.settings.task_queue,
        )
        result = await result_of(fork)
        *_, read = results_in(provider.requests[-1].request)
        assert len(of_helpers(provider)) == 1
    assert result["stop_reason"] == "finished"
    assert "no agent works in the background as" in read
    assert (result["delegated_steps"], len(await children(house))) == (0, 1)  # that of the session itself


async def test_a_caller_that_is_terminated_leaves_no_delegate_in_the_background(house: House) -> None:
    """S-57 S-64: Temporal cancels it."""
    answers = played(tester=steps(starts("one"), lambda _: HANGING), helper=lambda _: HANGING)
    async with ScriptedProvider(answers) as provider, house.worker(lead(), agent("helper")):
        house.use(provider)
        handle = await house.start()
        await provider.wait_for_requests(3)
        await handle.terminate()

        async def ended() -> bool:
            return await statuses(house) == [temporalio.client.WorkflowExecutionStatus.CANCELED]

        await eventually(ended)
    ((_, turn),) = await children(house)
    assert turn.result is not None
    assert turn.result.stop_reason == "cancelled"
