"""A fleet that is split by roles, or limits a key: calls go to their queues, running turns go on where they were."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import temporalio.client
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import RateLimit as ServerLimit
from temporalio.api.workflowservice.v1 import UpdateTaskQueueConfigRequest
from temporalio.client import WorkflowHandle
from temporalio.worker import UnsandboxedWorkflowRunner

from perdure import Agent, tool
from perdure.cli import doctor
from perdure.client import causes
from perdure.client.connect import DATA_CONVERTER, describe_queue
from perdure.contracts.names import AGENT_TURN
from perdure.contracts.queues import RateLimit, Role
from perdure.contracts.waits import Cause
from perdure.testing import Script, ScriptedProvider, call, faults, say
from perdure.worker import app
from tests.house import House, eventually
from tests.workflow.agents_with_state import agent as stateful


@tool
def look() -> str:
    """Look."""
    return "seen"


tester = Agent(name="tester", model="openai/scripted", tools=[look])
ANSWERS = Script(replies=(call(("look", {})), say("done")))


@asynccontextmanager
async def worker(house: House, *roles: Role, agent: Agent = tester, **settings: Any) -> AsyncIterator[None]:
    """A worker with these roles, beside the others of the test."""
    house.settings = house.settings.model_copy(update={"roles": roles, **settings})
    async with house.worker(agent, runner=UnsandboxedWorkflowRunner()):
        yield


async def queues_of(handle: WorkflowHandle[Any, Any]) -> dict[str, str]:
    """The task queue of each kind of activity in the history, without the name that all begin with."""
    own = (await handle.describe()).task_queue
    history = await handle.fetch_history()
    scheduled = [
        event.activity_task_scheduled_event_attributes
        for event in history.events
        if event.HasField("activity_task_scheduled_event_attributes")
    ]
    return {each.activity_type.name: each.task_queue.name.removeprefix(own) for each in scheduled}


async def test_one_process_does_everything_on_one_queue_unless_it_is_told_otherwise(house: House) -> None:
    async with ScriptedProvider(ANSWERS) as provider, worker(house):
        house.use(provider)
        handle = await house.start()
        assert (await handle.result())["stop_reason"] == "finished"
        assert set((await queues_of(handle)).values()) == {""}


async def test_a_split_fleet_has_calls_of_models_and_tools_on_queues_of_their_own_at_the_same_number_of_events(
    house: House,
) -> None:
    async with ScriptedProvider(Script(replies=ANSWERS.replies * 2)) as provider:
        house.use(provider)
        async with worker(house):
            whole = await house.start()
            await whole.result()
        async with worker(house, Role.TURNS), worker(house, Role.MODELS), worker(house, Role.TOOLS):
            handle = await house.start()
            assert (await handle.result())["stop_reason"] == "finished"
        queues = await queues_of(handle)
        assert queues == {"open_turn": "", "generate": "-models", "look": "-tools", "commit_turn": ""}
        counts = [(await each.describe()).history_length for each in (whole, handle)]
        assert counts[0] == counts[1]


async def test_a_turn_that_was_opened_before_the_fleet_was_split_goes_on_where_it_began(house: House) -> None:
    script = Script(replies=(call(("look", {})), say("done").after(faults.status(503))))
    async with ScriptedProvider(script) as provider:
        house.use(provider)
        async with worker(house):
            handle = await house.start()
            await provider.wait_for_requests(2)
        async with worker(house, Role.TURNS):
            assert (await handle.result())["stop_reason"] == "finished"
        assert set((await queues_of(handle)).values()) == {""}


async def test_a_turn_of_a_split_fleet_says_which_role_it_lacks_and_goes_on_once_a_worker_has_it(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when roles are switched off again: workers of one queue leave such a turn's calls to those with roles."""
    monkeypatch.setattr(causes, "UNTAKEN", causes.UNTAKEN / 50)
    async with ScriptedProvider(ANSWERS) as provider:
        house.use(provider)
        async with worker(house, Role.TURNS, Role.MODELS):
            handle = await house.start()

            async def stands() -> Any:
                wait = await house.client.waits_for(house.session)
                lacks = f"no worker with the role tools polls the task queue '{house.session}-tools'"
                return wait if wait is not None and wait.cause is Cause.WORKER and wait.text == lacks else None

            wait = await eventually(stands)
            assert "perdure worker --roles tools" in wait.advice
        async with worker(house), worker(house, Role.TOOLS, Role.MODELS):
            assert (await handle.result())["stop_reason"] == "finished"


@pytest.mark.deep
async def test_a_server_with_state_stays_with_the_process_that_opened_the_turn(house: House) -> None:
    replies = (call(("peer__whoami", {})), call(("peer__whoami", {})), say("done"))
    async with ScriptedProvider(Script(replies=replies)) as provider:
        house.use(provider)
        async with (
            worker(house, Role.MODELS, Role.TOOLS, agent=stateful),
            worker(house, Role.TURNS, agent=stateful),
        ):
            handle = await house.start()
            assert (await handle.result())["stop_reason"] == "finished"
            assert house.mcp.queue is not None
            assert (await queues_of(handle))["peer__whoami"] == house.mcp.queue.removeprefix(house.settings.task_queue)


async def test_the_doctor_names_the_roles_that_no_worker_has(house: House) -> None:
    house.settings = house.settings.model_copy(update={"roles": (Role.TURNS, Role.MODELS)})
    async with app.build_store_worker(house.temporal, house.settings, house.store):

        async def told() -> Any:
            return await doctor.find_missing_roles(house.client)

        found = await eventually(told)
        assert (found.ok, found.text) == (
            False,
            f"no worker of {house.session!r} has the role tools, so work for this role waits",
        )
        assert "perdure worker --roles tools" in found.fix


async def test_the_server_holds_the_calls_of_a_limited_key_back_over_the_whole_fleet_and_takes_another_rate_at_once(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers tell one limit; the stock command 'temporal task-queue config set' changes it while they run."""
    monkeypatch.setattr(causes, "UNTAKEN", causes.UNTAKEN / 50)
    limits = (RateLimit.parse("openai=1/h"),)
    async with ScriptedProvider(lambda _: say("done")) as provider:
        house.use(provider)
        other = await temporalio.client.Client.connect(house.server.address, data_converter=DATA_CONVERTER)
        async with (
            worker(house, rate_limits=limits),
            house.worker(tester, runner=UnsandboxedWorkflowRunner(), client=other),
        ):
            jobs = [
                await house.temporal.start_workflow(
                    AGENT_TURN,
                    {"agent": "tester", "prompt": "go"},
                    id=f"{house.session}-{number}",
                    task_queue=house.settings.task_queue,
                )
                for number in range(6)
            ]

            async def held() -> Any:
                found = [await house.client.waits_for(job.id) for job in jobs]
                return next((wait for wait in found if wait is not None and wait.cause is Cause.PACE), None)

            wait = await eventually(held)
            assert "calls a second with the key openai, and" in wait.text
            assert not wait.is_stuck
            assert len(provider.requests) < len(jobs)
            queue = f"{house.settings.task_queue}-models-openai"
            described = await describe_queue(house.temporal, queue, TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY)
            assert described.effective_rate_limit.requests_per_second == pytest.approx(1 / 3600)
            await house.temporal.workflow_service.update_task_queue_config(
                UpdateTaskQueueConfigRequest(
                    namespace=house.temporal.namespace,
                    task_queue=queue,
                    task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
                    update_queue_rate_limit=UpdateTaskQueueConfigRequest.RateLimitUpdate(
                        rate_limit=ServerLimit(requests_per_second=100), reason="test"
                    ),
                ),
                retry=True,
            )
            async with asyncio.timeout(60):
                assert {(await job.result())["stop_reason"] for job in jobs} == {"finished"}
