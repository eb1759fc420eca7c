"""Delegates whose workers are killed, whose caller rotates or is reset: what was done stays done, and counts once."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import temporalio.client
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import WorkflowExecutionStatus

from perdure import tool
from perdure.cli.server import EmbeddedServer, ServerOptions, free_port
from perdure.client.connect import DATA_CONVERTER
from perdure.testing import ChatRequest, Reply, ScriptedProvider, call, faults, say
from tests.conftest import FAST
from tests.house import House, eventually
from tests.workflow.delegating import DONE, agent, asks, children, in_order, played, query_of, results_in
from tests.workflow.killing import result_of

SUGGESTED_AFTER = 60
"""Events of a history after which this module's server suggests a fresh one: about five steps."""


@pytest.fixture(scope="module")
async def server() -> AsyncIterator[EmbeddedServer]:
    """A server that suggests a fresh history early."""
    limits = {**FAST, "limit.historyCount.suggestContinueAsNew": str(SUGGESTED_AFTER)}
    async with EmbeddedServer(ServerOptions(port=free_port(), dynamic_config=limits)) as running:
        yield running


@pytest.fixture(scope="module")
async def temporal(server: EmbeddedServer) -> temporalio.client.Client:
    """A client of that server."""
    return await temporalio.client.Client.connect(server.address, data_converter=DATA_CONVERTER)


def of_helpers(provider: ScriptedProvider) -> list[str]:
    """The queries of the delegates' model calls, in order."""
    made = [one.request for one in provider.requests]
    return [query_of(request) for request in made if "helper" in request.system]


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
    query = f'WorkflowId = "{house.session}" AND ExecutionStatus = "ContinuedAsNew"'

    async def rotated() -> bool:
        return bool([one async for one in house.temporal.list_workflows(query)])

    await eventually(rotated)


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
    query = f'WorkflowId = "{child.session}" AND ExecutionStatus = "ContinuedAsNew"'

    async def rotated() -> bool:
        return bool([one async for one in house.temporal.list_workflows(query)])

    await eventually(rotated)


async def test_a_caller_that_is_reset_finds_its_delegates_results(house: House) -> None:
    """S-62: the same call is the same delegate, which is not paid for again; its text comes into no history."""
    lead = agent("tester", delegates=["helper"])
    answers = played(tester=in_order(asks("one"), DONE), helper=lambda _: say("helped" * 2_000))
    async with ScriptedProvider(answers) as provider, house.worker(lead, agent("helper")):
        house.use(provider)
        handle = await house.start()
        await handle.result()
        calls = provider.request_count
        history = await handle.fetch_history()
        tasks = [one for one in history.events if one.HasField("workflow_task_completed_event_attributes")]
        again = await reset(house, tasks[2].event_id)
        result: dict[str, Any] = await again.result()
        assert provider.request_count == calls
        anew = (await again.describe()).raw_info.history_size_bytes
    assert result["stop_reason"] == "finished"
    assert anew < 20_000
    assert len(await house.events("delegate_end")) == 1


async def reset(house: House, event: int) -> Any:
    """The run that begins anew after a workflow task."""
    request = ResetWorkflowExecutionRequest(
        namespace=house.temporal.namespace,
        workflow_execution=WorkflowExecution(workflow_id=house.session),
        reason="test",
        workflow_task_finish_event_id=event,
        request_id="reset",
    )
    made = await house.temporal.workflow_service.reset_workflow_execution(request)
    return house.temporal.get_workflow_handle(house.session, run_id=made.run_id)


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
