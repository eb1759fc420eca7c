"""A turn whose own code fails in every worker is found by whoever looks for it, and can be ended."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from typing import Any

import httpx
import pytest
from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.client import WorkflowExecutionStatus
from temporalio.common import RawValue
from temporalio.worker import UnsandboxedWorkflowRunner

from perdure import Agent
from perdure.client import Cause, RequestRefusedError, TurnWait, unopened
from perdure.client.unopened import FAILING, list_reported_turns
from perdure.contracts.names import AGENT_TURN, KNOCK
from perdure.engine.turn import Story
from perdure.testing import ScriptedProvider, faults, say
from perdure.worker.fleet_figures import FleetFigures
from perdure.workflows.world import TurnWorld
from tests.gateway import gateway
from tests.house import House, eventually
from tests.workflow.asking import PAY, asker, waiting
from tests.workflow.test_command_line import perdure

AGENT = Agent(name="tester", model="openai/scripted")
QUICK = timedelta(seconds=1)
"""How long the server waits for an answer of the turn's own code; it counts each time that none came."""


async def start(house: House, given: object) -> None:
    await house.temporal.start_workflow(
        AGENT_TURN, given, id=house.session, task_queue=house.settings.task_queue, task_timeout=QUICK
    )


@asynccontextmanager
async def undecodable(house: House, _: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Its input cannot be read by any worker, so that it is never opened."""
    data = b'{"agent": "tester", "prompt": ' + b"[" * 400 + b"]" * 400 + b"}"
    async with house.worker(AGENT):
        await start(house, RawValue(Payload(metadata={"encoding": b"json/plain"}, data=data)))
        yield


@asynccontextmanager
async def raising(house: House, patch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Its code raises, once it is open."""

    async def fail(*_: object) -> None:
        raise RuntimeError("a mistake in the turn's code")

    patch.setattr(Story, "run", fail)
    async with house.worker(AGENT, runner=UnsandboxedWorkflowRunner()):
        await start(house, {"agent": "tester", "prompt": "go"})
        yield


@asynccontextmanager
async def nondeterministic(house: House, patch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """A release does something else than what stands in its history; the turn waits for a person."""
    agent, opened = asker(), TurnWorld._open

    async def other(turn: TurnWorld, request: Any) -> Any:
        await workflow.sleep(1)
        return await opened(turn, request)

    async with ScriptedProvider(lambda _: PAY) as provider:
        house.use(provider)
        async with house.worker(agent, runner=UnsandboxedWorkflowRunner()):
            await start(house, {"agent": agent.name, "prompt": "go"})
            await waiting(house)
        patch.setattr(TurnWorld, "_open", other)
        async with house.worker(agent, runner=UnsandboxedWorkflowRunner()):
            await house.temporal.get_workflow_handle(house.session).signal("cancel", {"reason": "none reads it"})
            yield


Failing = Callable[[House, pytest.MonkeyPatch], AbstractAsyncContextManager[None]]
CAUSES: dict[str, Failing] = {"undecodable": undecodable, "raising": raising, "nondeterministic": nondeterministic}


async def until_it_fails(house: House) -> TurnWait:
    async def fails() -> TurnWait | None:
        is_failing = await house.client._runs.fails(house.session)
        return await house.client.waits_for(house.session) if is_failing else None

    wait: TurnWait = await eventually(fails)
    return wait


@pytest.mark.deep
@pytest.mark.parametrize("cause", CAUSES)
async def test_a_turn_whose_code_fails_is_found_and_ended(
    house: House, monkeypatch: pytest.MonkeyPatch, cause: str
) -> None:
    async with CAUSES[cause](house, monkeypatch), gateway(house) as door:
        wait = await until_it_fails(house)
        assert (wait.cause, wait.is_stuck) == (Cause.WORKFLOW_TASK, True)
        assert wait.text.startswith("the turn's own code fails in every worker: ")
        assert f"'perdure cancel {house.session} --force' ends the turn" in wait.advice
        await look_everywhere(house, door.http)
        (outcome,) = await house.client.cancel_all(dry_run=False)
        assert (outcome.session, outcome.turn, outcome.outcome) == (house.session, 1, "failed")
        assert f"'perdure cancel {house.session} --force' ends it" in outcome.error
        blocked = await house.client.block(agent=AGENT.name)
        assert [(turn.session, turn.outcome) for turn in blocked.turns] == [(house.session, "failed")]
        await house.client.unblock(blocked.block.id)
        code, (line,) = await perdure("cancel", house.session, "--force", "--reason", "broken")
        assert (code, line) == (0, {"session": house.session, "sent": True})
        described = await house.temporal.get_workflow_handle(house.session).describe()
        assert described.status == WorkflowExecutionStatus.TERMINATED
        assert await house.client.cancel_all() == []
        if cause != "undecodable":
            ended = (await house.store.turns(house.session))[-1].result
            assert ended is not None
            assert (ended.stop_reason, ended.error) == ("cancelled", "Operation aborted: broken")
        code, (line,) = await perdure("cancel", house.session, "--force")
        assert (code, line["sent"]) == (0, False)


async def look_everywhere(house: House, http: httpx.AsyncClient) -> None:
    """The verbs and routes that say what stands still."""
    for options in ([], ["--stuck"]):
        code, lines = await perdure("list", *options)
        assert code == 0
        assert [(line["session"], line["waits_for"]["cause"]) for line in lines] == [(house.session, "workflow_task")]
    code, (shown,) = await perdure("show", house.session)
    assert (code, shown["waits_for"]["cause"]) == (0, "workflow_task")
    code, (found,) = await perdure("doctor")
    assert code == 1
    assert any(house.session in check["text"] and "own code fails" in check["text"] for check in found["checks"])
    (item,) = (await http.get("/v1/sessions")).json()["items"]
    assert (item["session"], item["waits_for"]["cause"]) == (house.session, "workflow_task")
    detail = (await http.get(f"/v1/sessions/{house.session}")).json()
    assert detail["waits_for"]["cause"] == "workflow_task"


@pytest.mark.deep
async def test_a_server_that_reports_no_problems_is_asked_about_each_turn(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One before 1.31 refuses the query."""
    async with raising(house, monkeypatch), gateway(house) as door:
        await until_it_fails(house)

        async def reported() -> object:
            return await list_reported_turns(house.temporal, house.settings.task_queue)

        assert [run.id for run in await eventually(reported)] == [house.session]
        assert (await FleetFigures(house.store, house.temporal, house.settings).read()).failing == 1
        monkeypatch.setattr(unopened, "REPORTED", "TemporalNoSuchAttribute")
        assert await reported() is None
        await look_everywhere(house, door.http)
        (outcome,) = await house.client.cancel_all("broken", dry_run=False, force=True)
        assert (outcome.session, outcome.outcome) == (house.session, "terminated")
        result = await (await house.client.attach(house.session, 1)).result()
        assert (result.stop_reason, result.error) == ("cancelled", "Operation aborted: broken")
        monkeypatch.undo()


async def test_a_signal_does_not_hide_that_a_turns_code_fails(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server counts the attempts anew for it."""
    handle = house.temporal.get_workflow_handle(house.session)
    async with undecodable(house, monkeypatch):
        await until_it_fails(house)

        async def is_counted_anew() -> bool:
            await handle.signal("cancel", {"reason": "none reads it"})
            assert await house.client._runs.fails(house.session)
            return 1 <= (await handle.describe()).raw_description.pending_workflow_task.attempt < FAILING

        await eventually(is_counted_anew)
        assert await house.client._runs.fails(house.session)


async def test_an_errand_whose_own_code_fails_counts_as_an_errand_and_as_no_turn(house: House) -> None:
    data = b'{"session": ' + b"[" * 400 + b"]" * 400 + b"}"
    given = RawValue(Payload(metadata={"encoding": b"json/plain"}, data=data))
    async with house.worker(AGENT):
        errand = await house.temporal.start_workflow(
            KNOCK, given, id=house.session, task_queue=house.settings.task_queue, task_timeout=QUICK
        )

        async def counted() -> bool:
            figures = await FleetFigures(house.store, house.temporal, house.settings).read()
            assert figures.failing == 0
            return figures.failed_errands["schedule"] == 1

        await eventually(counted)
        await errand.terminate()


async def test_a_turn_that_was_ended_by_force_goes_on_with_the_next_message(house: House) -> None:
    """A healthy one too, over HTTP; its running call is not asked."""
    async with ScriptedProvider([say("done").after(faults.hang())]) as provider, house.worker(AGENT):
        house.use(provider)
        async with gateway(house) as door:
            await house.start()
            await provider.wait_for_requests(1)
            assert (await house.client.cancel_all(force=True))[0].outcome == "would_cancel"
            answer = await door.http.post(f"/v1/sessions/{house.session}/cancel", json={"force": True})
            assert (answer.status_code, answer.json()["stops"]) == (202, True)
            result = await (await house.client.attach(house.session, 1)).result()
            assert (result.stop_reason, result.reason_code) == ("cancelled", "runtime.aborted")
            with pytest.raises(RequestRefusedError, match="leave the number out"):
                await house.client.cancel(house.session, turn=1, force=True)
            assert (await (await house.client.send(house.session, "more")).result()).output == "done"
