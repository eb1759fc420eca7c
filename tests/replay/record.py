"""``make histories``: run the scenarios that have no history for this version, and store that of each run.

What the workflow reads is kept; what names the machine that recorded (identities, stack traces) is not.
"""

import asyncio
import json
import logging
import re
import tempfile
from importlib.metadata import version
from pathlib import Path

import click
import pytest
import temporalio.client
from temporalio.client import WorkflowExecution, WorkflowExecutionStatus, WorkflowHistory
from temporalio.worker import UnsandboxedWorkflowRunner

from perdure.cli.server import EmbeddedServer, ServerOptions
from perdure.client.connect import DATA_CONVERTER
from perdure.contracts.names import DEFAULT_TASK_QUEUE
from perdure.contracts.values import JsonValue
from perdure.local_ports import find_free_port
from perdure.testing import ScriptedProvider
from tests.conftest import FAST
from tests.house import House, become_a_user, eventually
from tests.receiver import Receiver
from tests.replay.scenarios import ROTATES_AFTER, SCENARIOS, Scenario, Stage
from tests.workflow.bodies import Body

HISTORIES = Path(__file__).parent / "histories"
"""A folder for each version, and in it a file for each run of each scenario."""

OF_THIS_MACHINE = {"identity", "stackTrace", "source", "requestId", "binaryChecksum", "buildId"}
"""Fields that no replay reads and that differ between machines and recordings."""


def cleaned(value: JsonValue) -> JsonValue:
    """The history without what names the machine."""
    if isinstance(value, list):
        return [cleaned(item) for item in value]
    if isinstance(value, dict):
        return {name: cleaned(item) for name, item in value.items() if name not in OF_THIS_MACHINE}
    return value


def written(history: WorkflowHistory) -> str:
    """The history as JSON, one event a line."""
    events = cleaned(json.loads(history.to_json())["events"])
    assert isinstance(events, list)
    return '{"events": [\n' + ",\n".join(json.dumps(event, sort_keys=True) for event in events) + "\n]}\n"


async def record(scenario: Scenario, house: House) -> list[str]:
    """Play the scenario; the histories of its runs, the oldest first."""
    house.session = scenario.name
    body = Body()
    provider = ScriptedProvider(scenario.script(), always=scenario.always)
    agents = (scenario.agent(body), *scenario.helpers)
    async with provider, Receiver.listening() as receiver:
        house.settings = house.settings.model_copy(update={"webhook_allow": (receiver.origin,)})
        async with house.worker(*agents, runner=UnsandboxedWorkflowRunner(), fail_workflows=scenario.fails):
            house.use(provider)
            await scenario.drive(Stage(house, provider, body, receiver.url))
            runs = await _ended(house)
    histories = [await house.temporal.get_workflow_handle(run.id, run_id=run.run_id).fetch_history() for run in runs]
    return [written(history) for history in histories]


async def _ended(house: House) -> list[WorkflowExecution]:
    """All runs of the session, the oldest first, once none runs any more."""

    async def ended() -> list[WorkflowExecution] | None:
        newest = await house.temporal.get_workflow_handle(house.session).describe()
        found = [run async for run in house.temporal.list_workflows(f'WorkflowId = "{house.session}"')]
        closed = all(run.status is not WorkflowExecutionStatus.RUNNING for run in (newest, *found))
        return found if closed and newest.run_id in {run.run_id for run in found} else None

    runs: list[WorkflowExecution] = await eventually(ended)
    return sorted(runs, key=lambda run: run.start_time)


def missing(folder: Path) -> list[Scenario]:
    """The scenarios without a history in the folder. Those that have one keep it: it proves that old turns go on."""
    stored = {re.sub(r"-\d+$", "", path.stem) for path in folder.glob("*.json")}
    return [scenario for scenario in SCENARIOS if scenario.name not in stored]


async def record_into(folder: Path) -> None:
    """Record what is missing into the folder."""
    options = ServerOptions(
        port=find_free_port(), dynamic_config={**FAST, "limit.historyCount.suggestContinueAsNew": str(ROTATES_AFTER)}
    )
    found: dict[str, str] = {}
    async with EmbeddedServer(options) as server:
        # The identity names sticky task queues too; by default it holds the machine's name.
        temporal = await temporalio.client.Client.connect(
            server.address, data_converter=DATA_CONVERTER, identity="recorder"
        )
        for scenario in missing(folder):
            with pytest.MonkeyPatch.context() as environment, tempfile.TemporaryDirectory() as scratch:
                become_a_user(environment, server.address)
                built = House.built(
                    name=scenario.name,
                    server=server,
                    temporal=temporal,
                    environment=environment,
                    folder=Path(scratch),
                    task_queue=DEFAULT_TASK_QUEUE,
                )
                async with built as house:
                    histories = await record(scenario, house)
            click.echo(f"{scenario.name}: {len(histories)}")
            several = len(histories) > 1
            for number, history in enumerate(histories, start=1):
                found[f"{scenario.name}-{number}.json" if several else f"{scenario.name}.json"] = history
    await asyncio.to_thread(_write, folder, found)


def _write(folder: Path, histories: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in histories.items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    logging.disable(logging.ERROR)  # failures are part of the scenarios
    asyncio.run(record_into(HISTORIES / version("perdure")))
