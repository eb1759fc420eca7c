"""Somebody begins a delivery or a sweep first, under the id that its parts make: both happen all the same."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import temporalio.client
from temporalio.client import Interceptor, OutboundInterceptor, StartWorkflowInput, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from perdure import Agent
from perdure.client import Client
from perdure.client.deliveries import find_delivery_id
from perdure.client.retention import schedule_id_of, schedule_sweeps
from perdure.contracts.names import AGENT_TURN, NOTIFY, SWEEP
from perdure.settings import Settings
from perdure.testing import ScriptedProvider, say
from perdure.worker.fleet_figures import FleetFigures
from tests.house import House, eventually
from tests.receiver import Receiver

AGENT = Agent(name="tester", model="openai/scripted")


class Refuses(Interceptor):
    """A server that starts no delivery."""

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:  # noqa: A002 - the SDK's name
        return _Refusing(next)


class _Refusing(OutboundInterceptor):
    async def start_workflow(self, input: StartWorkflowInput) -> Any:  # noqa: A002 - the SDK's name
        if input.workflow == NOTIFY:
            raise RPCError("workers may not", RPCStatusCode.PERMISSION_DENIED, b"")
        return await super().start_workflow(input)


async def listen(house: House, receiver: Receiver) -> str:
    """A webhook at a receiver on loopback; its id."""
    house.environment.setenv("PERDURE_WEBHOOK_ALLOW", f"*,{receiver.origin}")
    house.settings = Settings()
    await house.client.close()
    house.client = await Client.connect(house.settings)
    return (await house.client.webhooks.add(receiver.url, ["ended"])).id


async def test_a_message_arrives_although_somebody_began_a_workflow_of_the_name_that_its_parts_make(
    house: House,
) -> None:
    """T-03: And the message is sent again under its own id, also after the store signs with another secret."""
    async with Receiver.listening() as receiver, ScriptedProvider(lambda _: say("2")) as provider:
        house.use(provider)
        webhook, message = await listen(house, receiver), f"{house.session}:1:ended"
        taken = f"notify:{webhook}:{message}"
        stranger = await house.temporal.start_workflow(AGENT_TURN, {}, id=taken, task_queue="nobodys")
        async with house.worker(AGENT):
            await house.run()

            async def arrived(count: int) -> bool:
                return len(receiver.got) == count

            await eventually(lambda: arrived(1))
            first = await find_delivery_id(house.temporal, house.store, webhook, message)
            await house.temporal.get_workflow_handle(first).result()
            await house.store.rotate_id_secret()
            assert await find_delivery_id(house.temporal, house.store, webhook, message) == first
            assert await house.client.webhooks.redrive(webhook, message) == (message,)
            await eventually(lambda: arrived(2))
            fresh = await find_delivery_id(house.temporal, house.store, webhook, "other")
            assert fresh.startswith(f"notify:{webhook}:other~n")
        assert {got.message for got in receiver.got} == {message}
        await stranger.terminate()


async def test_a_sweep_begins_although_somebody_began_workflows_of_the_names_that_its_parts_make(house: House) -> None:
    """T-03."""
    queue = house.settings.task_queue
    async with house.worker(AGENT):
        await schedule_sweeps(house.temporal, queue, house.store, timedelta(days=1))
        schedule, now = schedule_id_of(queue), datetime.now(UTC).replace(microsecond=0)
        times = [(now + timedelta(seconds=second)).isoformat().replace("+00:00", "Z") for second in range(60)]
        start = house.temporal.start_workflow
        strangers = await asyncio.gather(
            *(start(AGENT_TURN, {}, id=f"{schedule}-{time}", task_queue="nobodys") for time in times)
        )
        await house.temporal.get_schedule_handle(schedule).trigger()

        async def swept() -> temporalio.client.WorkflowExecution | None:
            query = f'WorkflowType = "{SWEEP}" AND TaskQueue = "{queue}"'
            found = [run async for run in house.temporal.list_workflows(query)]
            return next((run for run in found if run.status is WorkflowExecutionStatus.COMPLETED), None)

        assert (await eventually(swept)).id.startswith(f"{schedule}~s")
        await asyncio.gather(*(stranger.terminate() for stranger in strangers))
        await schedule_sweeps(house.temporal, queue, house.store, None)


async def test_a_delivery_that_the_server_refuses_to_start_is_counted(house: House) -> None:
    """The turn does not wait for it."""
    client = temporalio.client.Client(
        house.temporal.service_client,
        namespace=house.temporal.namespace,
        data_converter=house.temporal.data_converter,
        interceptors=[Refuses()],
    )
    async with Receiver.listening() as receiver, ScriptedProvider(lambda _: say("2")) as provider:
        house.use(provider)
        await listen(house, receiver)
        async with house.worker(AGENT, client=client):
            assert (await house.run())["stop_reason"] == "finished"
            counted = house.metrics.unstarted_deliveries.count
            figures = await FleetFigures(house.store, house.temporal, house.settings, counted).read()
            assert figures.failed_errands["webhook"] == 1
            assert counted(timedelta(0)) == 0
        assert not receiver.got
