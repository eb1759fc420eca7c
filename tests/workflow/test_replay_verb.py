"""``perdure replay``: the histories of a cluster against the installed code, before it is rolled out."""

import json
from typing import Any

import pytest
from temporalio import workflow
from temporalio.worker import Worker

from perdure.contracts.names import AGENT_TURN, SWEEP
from perdure.contracts.retention import SweepRequest
from perdure.contracts.values import JsonValue
from perdure.local_ports import find_free_port
from perdure.testing import Script, ScriptedProvider, say
from tests.house import House, eventually
from tests.workflow.asking import COLOUR, asker, waiting
from tests.workflow.test_people_doors import perdure

pytestmark = pytest.mark.deep


@workflow.defn(name=AGENT_TURN, sandboxed=False)
class OfAnotherRelease:
    """A turn of code that began with a timer."""

    @workflow.run
    async def run(self, _: JsonValue) -> str:
        await workflow.sleep(0.01)
        return "done"


async def listed(house: House, count: int) -> None:
    """Wait until visibility, which is eventually consistent, knows so many turns."""

    async def known() -> bool:
        query = f'TaskQueue = "{house.settings.task_queue}" AND WorkflowType = "{AGENT_TURN}"'
        return len([run async for run in house.temporal.list_workflows(query)]) == count

    await eventually(known)


async def test_turns_that_run_and_that_have_ended_are_replayed(house: House) -> None:
    async with ScriptedProvider(Script(replies=(COLOUR, say("done")))) as provider, house.worker(asker()):
        house.use(provider)
        first = house.session
        await house.start()
        (request,) = await waiting(house)
        await house.client.answer(first, request["request_id"], "red")
        await house.temporal.get_workflow_handle(first).result()
        house.session = f"{first}-open"
        await house.start()
        await waiting(house)
        await listed(house, 2)
        code, output, errors = await perdure("replay")
        assert (code, output) == (0, "2 histories replay, 0 do not\n"), errors
        _, output, _ = await perdure("replay", "--limit", "1", "--json")
        assert json.loads(output) == {"replayed": 1, "failed": []}
        _, output, _ = await perdure("replay", "--query", f'WorkflowId = "{first}"', "--since", "1h")
        assert output == "1 histories replay, 0 do not\n"


async def test_a_turn_that_would_stand_still_is_named_with_its_event_and_what_to_do(house: House) -> None:
    async with Worker(house.temporal, task_queue=house.settings.task_queue, workflows=[OfAnotherRelease]):
        handle: Any = await house.start()
        assert await handle.result() == "done"
    await listed(house, 1)
    code, output, _ = await perdure("replay")
    line, summary = output.splitlines()
    assert code == 1
    assert line.startswith(f"{house.session} (run {handle.result_run_id}) at event 5: ")
    assert "keep the turn on its version, or put the change behind workflow.patched: see docs/upgrades.md" in line
    assert summary == "0 histories replay, 1 do not"
    code, output, _ = await perdure("replay", "--json")
    (failed,) = json.loads(output)["failed"]
    assert (code, failed["workflow"], failed["event"]) == (1, house.session, 5)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--since", "soon"), 2, "'soon' is no duration; write for example 30m, 24h or 7d"),
        (("--query", "Colour = 1"), 1, "Colour"),
        (("--limit", "0"), 2, "--limit"),
        (("--since", "7"), 2, "'7' is no duration"),
    ],
)
async def test_what_cannot_be_asked_is_said_in_one_line(
    house: House, arguments: tuple[str, ...], code: int, said: str
) -> None:
    done, _, errors = await perdure("replay", *arguments)
    (line,) = errors.splitlines()
    assert done == code
    assert said in line


async def test_sweeps_are_replayed_too_and_a_query_that_finds_none_fails_nothing(house: House) -> None:
    async with house.worker(asker()):
        sweep = await house.temporal.start_workflow(
            SWEEP, SweepRequest(store=house.store.id), id=f"sweep-{house.session}", task_queue=house.settings.task_queue
        )
        await sweep.result()

    async def replayed() -> bool:  # visibility is eventually consistent
        return (await perdure("replay"))[:2] == (0, "1 histories replay, 0 do not\n")

    await eventually(replayed)
    code, output, errors = await perdure("replay", "--query", 'WorkflowId = "nobody"', "--json")
    assert (code, json.loads(output), errors) == (0, {"replayed": 0, "failed": []}, "")


async def test_without_a_server_the_exit_code_is_8_and_the_line_says_where_it_looked(house: House) -> None:
    address = f"127.0.0.1:{find_free_port()}"
    house.environment.setenv("TEMPORAL_ADDRESS", address)
    code, output, errors = await perdure("replay")
    (line,) = errors.splitlines()
    assert (code, output, address in line) == (8, "", True), line
