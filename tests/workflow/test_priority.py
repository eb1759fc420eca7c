"""Work of a lower priority key is given out first while work waits: at every door, and for all that a turn starts."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import temporalio.client
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.worker import UnsandboxedWorkflowRunner

from perdure import Tool, caller_tool, tool
from perdure.cli.server import EmbeddedServer, ServerOptions
from perdure.client import RequestRefusedError, Turn
from perdure.client.connect import DATA_CONVERTER
from perdure.local_ports import find_free_port
from perdure.testing import ChatRequest, Reply, Script, ScriptedProvider, call, say
from tests.conftest import FAST
from tests.gateway import gateway
from tests.house import House, eventually
from tests.temporal_cli import workflow
from tests.unit.cli.invoked import assert_one_line, perdure
from tests.workflow.bodies import Body, happened
from tests.workflow.delegating import DONE, agent, asks, children, in_order, played
from tests.workflow.test_schedules import ran

pytestmark = pytest.mark.deep

MANY = 20

AGENT = agent("tester")


@pytest.fixture(scope="module")
async def server() -> AsyncIterator[EmbeddedServer]:
    """A server as it comes, but with queues of one partition, in which the order is exact, and short histories."""
    exact = {"matching.numTaskqueueReadPartitions": "1", "matching.numTaskqueueWritePartitions": "1"}
    config = {**FAST, **exact, "limit.historyCount.suggestContinueAsNew": "60"}
    async with EmbeddedServer(ServerOptions(port=find_free_port(), dynamic_config=config)) as running:
        yield running


@pytest.fixture(scope="module")
async def temporal(server: EmbeddedServer) -> temporalio.client.Client:
    """A client of that server."""
    return await temporalio.client.Client.connect(server.address, data_converter=DATA_CONVERTER)


async def priority_of(house: House, session: str) -> int:
    """The priority of the session's newest run; 0 is none, which the server takes for 3."""
    description = await house.temporal.get_workflow_handle(session).describe()
    return description.raw_description.workflow_execution_info.priority.priority_key


async def waiting(house: House, session: str, activity: str) -> None:
    """Wait until the server has this activity to give out, or has given it out."""

    async def there() -> bool:
        description = await house.temporal.get_workflow_handle(session).describe()
        return activity in {open_one.activity_type.name for open_one in description.raw_description.pending_activities}

    await eventually(there)


async def wait_for_backlog(house: House, queue: str, wanted: dict[int, int]) -> None:
    """Wait until so many activities of each priority wait on a queue that nobody polls, and no others."""
    request = DescribeTaskQueueRequest(
        namespace=house.temporal.namespace,
        task_queue=TaskQueue(name=queue),
        task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
        report_stats=True,
    )

    async def there() -> bool:
        told = await house.temporal.workflow_service.describe_task_queue(request, retry=True)
        stats = {key: found.approximate_backlog_count for key, found in told.stats_by_priority_key.items()}
        return {key: count for key, count in stats.items() if count} == wanted

    await eventually(there)


def far(queue: str) -> Tool[[], str]:
    """A tool whose calls go on a queue of their own."""

    @tool(task_queue=queue)
    def far() -> str:
        """Do it elsewhere."""
        return "done"

    return far


async def test_a_job_of_priority_1_overtakes_twenty_that_wait(house: House) -> None:
    body = Body()
    lead = agent("tester", tools=[body.held()])

    def answer(request: ChatRequest) -> Reply:
        first = "low 0" in str(request.messages[1]["content"]) and request.messages[-1]["role"] == "user"
        return call(("held", {})) if first else say("done")

    house.settings = house.settings.model_copy(update={"max_activities": 1})
    async with ScriptedProvider(answer) as provider, house.worker(lead, runner=UnsandboxedWorkflowRunner()):
        house.use(provider)
        await house.client.start("tester", "low 0", priority=5)
        await happened(body.started)  # in the worker's only place
        for number in range(1, MANY):
            low = await house.client.start("tester", f"low {number}", priority=5)
            await waiting(house, low.session, "open_turn")
        urgent = await house.client.start("tester", "urgent", priority=1)
        await waiting(house, urgent.session, "open_turn")
        body.released.set()
        assert (await urgent.result()).output == "done"
        asked = [str(seen.request.messages[1]["content"]) for seen in provider.requests]
    assert list(dict.fromkeys(asked)) == ["low 0", "urgent"]


async def test_the_activities_of_a_turn_and_of_the_turn_behind_it_inherit_the_priority(house: House) -> None:
    """A message for a run that works waits in that run, which keeps its own priority."""
    elsewhere = f"{house.session}-elsewhere"
    replies = Script(replies=(call(("far", {})), call(("far", {}))))
    async with ScriptedProvider(replies) as provider, house.worker(agent("tester", tools=[far(elsewhere)])):
        house.use(provider)
        first = await house.client.start("tester", "go", session=house.session, priority=1, tenant="acme")
        await wait_for_backlog(house, elsewhere, {1: 1})
        queued = await house.client.send(house.session, "next", priority=5)
        await house.client.cancel(house.session, turn=1)
        assert (await first.result()).stop_reason == "cancelled"
        await wait_for_backlog(house, elsewhere, {1: 2})
        info = (await house.temporal.get_workflow_handle(house.session).describe()).raw_description
        await house.client.cancel(house.session)
        assert (await queued.result()).turn == 2
    run = info.workflow_execution_info
    assert run.execution.run_id != run.first_run_id
    assert (run.priority.priority_key, run.priority.fairness_key) == (1, "acme")


async def test_a_session_goes_on_with_its_tenants_share_and_behind_replies_with_the_priority_that_it_had(
    house: House,
) -> None:
    """Also where a request names no tenant: a reply, a message, a resume, a fork."""

    async def share(session: str) -> tuple[int, str]:
        described = await house.temporal.get_workflow_handle(session).describe()
        priority = described.raw_description.workflow_execution_info.priority
        return priority.priority_key, priority.fairness_key

    look = caller_tool("look", "Look.")
    stops = agent("tester", tools=[look], interactive="stop")
    script = Script(replies=(call(("look", {})), *[say("seen")] * 4))
    async with ScriptedProvider(script) as provider, house.worker(stops):
        house.use(provider)
        first = await house.client.start("tester", "go", session=house.session, priority=2, tenant="acme")
        (request,) = (await first.result()).requests
        await house.client.submit_result(house.session, request.request_id, "a door")
        assert await share(house.session) == (2, "acme")
        assert (await (await house.client.attach(house.session, 2)).result()).output == "seen"
        message = await house.client.send(house.session, "go on", priority=4)
        assert await share(house.session) == (4, "acme")
        await message.result()
        resumed = await house.client.resume(house.session, "and on")
        assert await share(house.session) == (0, "acme")
        await resumed.result()
        fork = await house.client.fork(house.session, "elsewhere")
        assert await share(fork.session) == (0, "acme")
        await fork.result()


async def test_a_delegate_and_its_activities_inherit_the_priority(house: House) -> None:
    elsewhere = f"{house.session}-elsewhere"
    lead, helper = agent("tester", delegates=["helper"]), agent("helper", tools=[far(elsewhere)])
    answers = played(tester=in_order(asks("one"), DONE), helper=lambda _: call(("far", {})))
    async with ScriptedProvider(answers) as provider, house.worker(lead, helper):
        house.use(provider)
        turn = await house.client.start("tester", "go", session=house.session, priority=2)
        await wait_for_backlog(house, elsewhere, {2: 1})
        ((child, _),) = await children(house)
        assert await priority_of(house, child.session) == 2
        await turn.cancel()
        await turn.result()


async def test_a_turn_that_goes_on_in_a_fresh_history_keeps_its_priority(house: House) -> None:
    elsewhere = f"{house.session}-elsewhere"

    @tool
    def look(number: int) -> str:
        """Look."""
        return f"number {number}"

    looks = (call(("look", {"number": number})) for number in range(10))
    lead = agent("tester", tools=[look, far(elsewhere)])
    async with ScriptedProvider(Script(replies=(*looks, call(("far", {}))))) as provider, house.worker(lead):
        house.use(provider)
        turn = await house.client.start("tester", "go", session=house.session, priority=4)
        await wait_for_backlog(house, elsewhere, {4: 1})
        info = (await house.temporal.get_workflow_handle(house.session).describe()).raw_description
        await turn.cancel()
        await turn.result()
    run = info.workflow_execution_info
    assert (run.priority.priority_key, run.execution.run_id != run.first_run_id) == (4, True)


async def test_every_method_of_the_client_that_begins_a_run_takes_a_priority(house: House) -> None:
    client = house.client

    async def begun(turn: Turn) -> int:
        await turn.result()
        return await priority_of(house, turn.session)

    async with ScriptedProvider(lambda _: say("done")) as provider, house.worker(AGENT):
        house.use(provider)
        first = await client.start("tester", "go", priority=1)
        assert await begun(first) == 1
        assert await begun(await client.send(first.session, "go", priority=2)) == 2
        assert await begun(await client.send(first.session, "go", when_busy="reject", priority=4)) == 4
        assert await begun(await client.resume(first.session, "go", priority=5)) == 5
        assert await begun(await client.fork(first.session, "go", priority=1)) == 1
        assert await begun(await client.send(first.session, "go")) == 0  # the server's own, which is 3
        made = await client.task("tester", priority=4)("goal")
        assert await priority_of(house, made.session) == 4


@pytest.mark.parametrize("priority", [0, 6, -1, True, "1", 1.5])
async def test_a_bad_priority_is_refused_before_anything_starts(house: House, priority: Any) -> None:
    with pytest.raises(RequestRefusedError, match="priority: "):
        await house.client.start("tester", "go", session=house.session, priority=priority)
    with pytest.raises(RequestRefusedError, match="priority: "):
        await house.client.send(house.session, "go", priority=priority)
    with pytest.raises(RequestRefusedError, match="priority: "):
        await house.client.schedules.add(house.session, cron="@daily", agent="tester", prompt="go", priority=priority)
    assert not await nothing_started(house)


async def nothing_started(house: House) -> list[str]:
    query = f'TaskQueue = "{house.settings.task_queue}"'
    return [run.id async for run in house.temporal.list_workflows(query)]


async def test_the_http_door_takes_a_priority_and_refuses_what_is_none(house: House) -> None:
    async with (
        ScriptedProvider(lambda _: say("done")) as provider,
        house.worker(AGENT),
        gateway(house) as door,
    ):
        house.use(provider)
        path = f"/v1/sessions/{house.session}"
        wrong = await door.http.post("/v1/sessions", json={"agent": "tester", "prompt": "go", "priority": 9})
        assert (wrong.status_code, "priority" in wrong.text, await nothing_started(house)) == (422, True, []), (
            wrong.text
        )
        start = {"agent": "tester", "prompt": "go", "session": house.session, "priority": 1}
        for number, (route, body) in enumerate(
            (
                ("/v1/sessions", start),
                (f"{path}/messages", {"prompt": "go", "priority": 2}),
                (f"{path}/resume", {"prompt": "go", "priority": 4}),
            ),
            start=1,
        ):
            sent = await door.http.post(route, json=body)
            assert sent.status_code == 202, sent.text
            await (await house.client.attach(house.session, number)).result()
            assert await priority_of(house, house.session) == body["priority"]


async def test_schedules_give_what_they_start_their_priority(house: House) -> None:
    names = [f"{kind}-{house.session[-6:]}" for kind in ("new", "old")]
    async with ScriptedProvider(lambda _: say("done")) as provider, house.worker(AGENT):
        house.use(provider)
        schedules = house.client.schedules
        added = await schedules.add(names[0], cron="@daily", agent="tester", prompt="go", priority=1)
        assert (added.priority, (await schedules.update(names[0], priority=2)).priority) == (1, 2)
        await schedules.trigger(names[0])
        (run,) = await ran(house, names[0], "ended")
        assert await priority_of(house, run.session) == 2
        await schedules.add(names[1], cron="@daily", session=run.session, prompt="More.", priority=1)
        await schedules.trigger(names[1])
        (knock,) = await ran(house, names[1], "ended")
        assert (knock.turn, await priority_of(house, run.session)) == (2, 1)
        for name in names:
            await schedules.remove(name)


async def test_the_command_line_takes_a_priority(house: House) -> None:
    first = house.session
    async with ScriptedProvider(lambda _: say("done")) as provider, house.worker(AGENT):
        house.use(provider)
        for priority, verb in (
            ("1", ("run", "tester", "go", "--session", first)),
            ("2", ("send", first, "go")),
            ("4", ("resume", first, "go")),
            ("5", ("fork", first, "go", "--as", f"{first}-fork")),
        ):
            called = await asyncio.to_thread(perdure, *verb, "--priority", priority, "--detach", "--json")
            assert called.exit_code == 0, called.output
            begun = json.loads(called.stdout)
            await (await house.client.attach(begun["session"], begun["turn"])).result()
            assert await priority_of(house, begun["session"]) == int(priority)


async def test_temporals_own_command_starts_a_turn_with_a_priority(house: House) -> None:
    body = Body()
    script = Script(replies=(call(("held", {})), DONE))
    async with ScriptedProvider(script) as provider, house.worker(agent("tester", tools=[body.held()])):
        house.use(provider)
        where = ("--task-queue", house.settings.task_queue, "--workflow-id", house.session)
        asked = ("--input", '{"agent": "tester", "prompt": "go"}', "--priority-key", "1")
        await workflow("start", "--type", "AgentTurn", *where, *asked)
        await happened(body.started)
        assert await priority_of(house, house.session) == 1
        body.released.set()
        result = await house.temporal.get_workflow_handle(house.session).result()
    assert result["stop_reason"] == "finished"


def test_the_command_line_says_what_a_priority_is() -> None:
    for verb in (("run", "a", "p"), ("send", "s", "p"), ("resume", "s"), ("fork", "s"), ("schedule", "add", "n", "p")):
        result = perdure(*verb, "--priority", "6")
        assert_one_line(result, 2, "priority", "1<=x<=5")
