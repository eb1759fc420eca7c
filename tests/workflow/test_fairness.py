"""Tenants take turns while work waits: on a server with fairness, no tenant's jobs hold up another's."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import temporalio.client
from temporalio.worker import UnsandboxedWorkflowRunner

from perdure import Agent
from perdure.cli.server import EmbeddedServer, ServerOptions
from perdure.client.connect import DATA_CONVERTER
from perdure.local_ports import find_free_port
from perdure.testing import ScriptedProvider, say
from tests.house import House, become_a_user

pytestmark = pytest.mark.deep

FAIR = {
    "history.timerProcessorMaxTimeShift": '"1ms"',
    "matching.enableFairness": "true",
    "matching.numTaskqueueReadPartitions": "1",
    "matching.numTaskqueueWritePartitions": "1",
}
MANY = 200


@pytest.fixture
async def fair(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[House]:
    """A house whose server gives out tasks by fairness keys."""
    async with EmbeddedServer(ServerOptions(port=find_free_port(), dynamic_config=FAIR)) as server:
        become_a_user(monkeypatch, server.address)
        temporal = await temporalio.client.Client.connect(server.address, data_converter=DATA_CONVERTER)
        async with House.built(
            name="fair", server=server, temporal=temporal, environment=monkeypatch, folder=tmp_path
        ) as house:
            yield house


async def test_one_job_does_not_wait_behind_the_two_hundred_of_another_tenant(fair: House) -> None:
    async with ScriptedProvider(lambda _: say("done")) as provider:
        fair.use(provider)
        await fair.store.register_agents([Agent(name="tester", model="openai/scripted").definition])
        for number in range(MANY):
            await fair.client.start("tester", f"many {number}", tenant="many")
        lone = await fair.client.start("tester", "lone", tenant="lone")
        described = await fair.temporal.get_workflow_handle(lone.session).describe()
        assert described.raw_description.workflow_execution_info.priority.fairness_key == "lone"
        fair.settings = fair.settings.model_copy(update={"max_activities": 2})
        agent = Agent(name="tester", model="openai/scripted")
        async with fair.worker(agent, runner=UnsandboxedWorkflowRunner()):
            await lone.result()
            asked = [str(seen.request.messages[-1]["content"]) for seen in provider.requests]
        assert asked.index("lone") < MANY // 4
