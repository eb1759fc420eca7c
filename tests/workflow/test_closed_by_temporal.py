"""Turns whose workflows Temporal has ended show as that at once, and not only when the session's next message comes."""

import asyncio
import json
import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest
from click.testing import CliRunner, Result
from temporalio.client import WorkflowExecutionStatus

from perdure.cli.main import cli
from perdure.contracts.names import AGENT_TURN, Metric
from perdure.local_ports import find_free_port
from perdure.testing import ScriptedProvider, faults
from tests.house import House, eventually
from tests.workflow.asking import COLOUR, asker, waiting
from tests.workflow.resetting import completed_tasks, reset
from tests.workflow.test_people_metric import AGENTS, says

pytestmark = pytest.mark.deep


async def perdure(*arguments: str) -> Result:
    """What a command prints; it runs a loop of its own."""
    return await asyncio.to_thread(CliRunner().invoke, cli, arguments, prog_name="perdure")


async def listed(*arguments: str) -> list[dict[str, Any]]:
    """The lines of ``perdure list --json``."""
    result = await perdure("list", "--json", *arguments)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


async def terminate(house: House) -> None:
    """End the session's workflow as an operator does, and wait until visibility, which is eventual, knows."""
    await house.temporal.get_workflow_handle(house.session).terminate(reason="no longer needed")
    await known(house, "Terminated")


async def known(house: House, status: str) -> None:
    query = f'WorkflowId = "{house.session}" AND ExecutionStatus = "{status}"'

    async def there() -> bool:
        return bool([run async for run in house.temporal.list_workflows(query)])

    await eventually(there)


async def test_a_terminated_turn_that_waited_is_listed_as_ended_and_follow_asks_nobody(house: House) -> None:
    """S-60: neither a filter nor ``follow`` takes it for one that waits; the next message goes on."""
    async with ScriptedProvider(lambda _: COLOUR) as provider, house.worker(asker()):
        house.use(provider)
        await house.start()
        await waiting(house)
        (before,) = await listed("--state", "waiting_for_input")
        assert (before["state"], before["stop_reason"]) == ("waiting_for_input", None)
        await terminate(house)
        assert await listed("--state", "waiting_for_input") == await listed("--state", "running") == []
        (line,) = await listed()
        assert (line["state"], line["stop_reason"], line["reason_code"]) == ("ended", "error", "runtime.turn_closed")
        assert line["job_status"] == "stoppedByError"
        assert line["error"] == (
            "the turn's workflow was terminated before the turn could end; "
            f"'perdure send {house.session} …' goes on from its last step"
        )
        assert (line["steps"], line["cost_usd"]) == (None, None)
        assert line["ended_at"] > line["started_at"]
        for arguments in (("--state", "ended"), ("--stop-reason", "error"), ("--reason-code", "runtime.turn_closed")):
            assert await listed(*arguments) == [line]
        assert await listed("--stop-reason", "finished") == []
        assert "error (runtime.turn_closed: terminated)" in (await perdure("list")).stdout
        command = [sys.executable, "-m", "perdure.cli", "follow", house.session]
        followed = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
        assert followed.returncode == 1
        assert "was terminated: no longer needed" in followed.stderr
        assert f"'perdure send {house.session} …' goes on from its last step" in followed.stderr
        assert "perdure answer" not in followed.stderr
        told = await perdure("doctor")
        (hint,) = [text for text in told.stdout.splitlines() if " turns: " in text]
        assert hint.startswith("· turns: Temporal has ended the workflows of open turns")
        assert f"{house.session} (terminated)" in hint
        assert f"perdure send {house.session}" in hint
        assert (await house.store.turn(house.session, 1)).result is None


async def test_a_turn_that_timed_out_is_listed_as_such(house: House) -> None:
    """S-60"""
    async with ScriptedProvider(always=faults.hang()) as provider, house.worker(asker()):
        house.use(provider)
        await house.temporal.start_workflow(
            AGENT_TURN,
            {"agent": "tester", "prompt": "go"},
            id=house.session,
            task_queue=house.settings.task_queue,
            execution_timeout=timedelta(seconds=2),
        )
        await house.wait_for_event("agent_start")
        await known(house, "TimedOut")
        (line,) = await listed("--state", "ended")
    assert str(line["error"]).startswith("the turn's workflow timed out before the turn could end")


async def test_a_terminated_turn_that_an_operator_has_reset_runs(house: House) -> None:
    """S-46: its old run is no end of it."""
    async with ScriptedProvider(lambda _: COLOUR) as provider, house.worker(asker()):
        house.use(provider)
        handle = await house.start()
        await waiting(house)
        await terminate(house)
        again = await reset(house, (await completed_tasks(handle))[-1])
        await waiting(house)
        await known(house, "Running")
        (line,) = await listed()
        assert line["state"] == "waiting_for_input"
        assert (await again.describe()).status is WorkflowExecutionStatus.RUNNING


async def test_an_earlier_termination_is_no_end_of_the_session_s_next_turn(house: House) -> None:
    """S-60"""
    async with ScriptedProvider(lambda _: COLOUR) as provider, house.worker(asker()):
        house.use(provider)
        await house.start()
        await waiting(house)
        await terminate(house)
        await house.start(prompt="again")
        await waiting(house)
        (line,) = await listed()
    assert (line["turn"], line["state"]) == (2, "waiting_for_input")


async def test_without_the_server_the_list_is_the_store_s_and_says_so(house: House) -> None:
    """S-51: a note on stderr, and nothing is left out."""
    async with ScriptedProvider(lambda _: COLOUR) as provider, house.worker(asker()):
        house.use(provider)
        await house.start()
        await waiting(house)
    house.environment.setenv("TEMPORAL_ADDRESS", f"127.0.0.1:{find_free_port()}")
    result = await perdure("list", "--json")
    assert json.loads(result.stdout)["state"] == "waiting_for_input"
    assert "perdure: whether open turns still run is not known: no Temporal server answers" in result.stderr


async def test_the_metric_counts_no_turn_whose_workflow_was_terminated(house: House) -> None:
    """S-60: an alert ends without the session's next message."""
    address = f"127.0.0.1:{find_free_port()}"
    async with ScriptedProvider(lambda _: COLOUR) as provider:
        house.use(provider)
        house.spawn_worker(AGENTS, PERDURE_METRICS_ADDRESS=address)
        await says(address, 0)
        await house.start()
        await waiting(house)
        await says(address, 1)
        await terminate(house)
        page = await says(address, 0)
    assert page[Metric.WAITING_SECONDS] == 0
