"""Worker deployments: which version of the workers has a turn, and when it moves, by Temporal's own command line."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import temporalio.client
from click.testing import CliRunner
from temporalio.client import WorkflowExecutionStatus
from temporalio.common import VersioningBehavior
from temporalio.exceptions import CancelledError

from perdure import Agent, Delegate, ToolContext, tool
from perdure.cli.fleet_versions import look_at_versions
from perdure.cli.main import cli
from perdure.client.deliveries import find_delivery_id
from perdure.client.versions import Version, move_command
from perdure.contracts.waits import Cause, TurnWait
from perdure.testing import Script, ScriptedProvider, call, faults, say
from tests.house import House, eventually
from tests.temporal_cli import carry_out, temporal
from tests.temporal_cli import make_current as set_current
from tests.workflow.agents_with_state import agent as with_state
from tests.workflow.asking import COLOUR, asker, waiting
from tests.workflow.bodies import Body, happened
from tests.workflow.delegating import agent, asks, in_order, played
from tests.workflow.killing import result_of
from tests.workflow.test_from_workflows import failure_of, started, their_worker
from tests.workflow.workflows_of_users import Single

pytestmark = pytest.mark.deep

HELD = call(("held", {}))
LOOK = call(("look", {}))


@tool
def look() -> str:
    """Look."""
    return "looked"


@asynccontextmanager
async def version(house: House, build: str, policy: str, *agents: Agent) -> AsyncIterator[None]:
    """A worker of this build of the test's deployment."""
    house.settings = house.settings.model_copy(
        update={"deployment": house.settings.task_queue, "build_id": build, "versioning": policy}
    )
    async with house.worker(*agents):
        yield


async def make_current(house: House, build: str) -> None:
    """The version with this build is the current one of the test's deployment."""
    await set_current(house.temporal, house.settings.task_queue, house.settings.deployment, build)


@asynccontextmanager
async def current_version(house: House, build: str, policy: str, *agents: Agent) -> AsyncIterator[None]:
    """A worker of this build, which is the current one from here on."""
    async with version(house, build, policy, *agents):
        await make_current(house, build)
        yield


async def builds(house: House, session: str) -> list[list[str]]:
    """Which builds had the workflow tasks of each run of the session, the oldest run first."""

    async def closed() -> list[Any] | None:
        found = [run async for run in house.temporal.list_workflows(f'WorkflowId = "{session}"')]
        found.sort(key=lambda run: run.start_time)
        goes_on = (
            not found or found[-1].status is WorkflowExecutionStatus.CONTINUED_AS_NEW
        )  # the next is not listed yet
        return None if goes_on or not all(run.close_time for run in found) else found

    runs = await eventually(closed)
    histories = [await house.temporal.get_workflow_handle(run.id, run_id=run.run_id).fetch_history() for run in runs]
    return [
        list(
            dict.fromkeys(
                event.workflow_task_completed_event_attributes.deployment_version.build_id
                for event in history.events
                if event.HasField("workflow_task_completed_event_attributes")
            )
        )
        for history in histories
    ]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("auto_upgrade", [["1", "2"], ["2"]]), ("rotate", [["1"], ["2"], ["2"]]), ("pinned", [["1"], ["2"]])],
)
async def test_a_running_turn_stays_on_its_version_or_moves_as_the_setting_says(
    house: House, policy: str, expected: list[list[str]]
) -> None:
    """The message that waits is another turn: it begins on the current version whatever the setting is."""
    body = Body()
    script = Script(replies=(LOOK, HELD, LOOK, LOOK, say("first"), say("second")))
    tester = Agent(name="tester", model="openai/scripted", tools=[look, body.held()])
    async with ScriptedProvider(script) as provider, current_version(house, "1", policy, tester):
        house.use(provider)
        handle = await house.start()
        await happened(body.started)
        await handle.execute_update("send", {"prompt": "second"}, id="second")
        async with current_version(house, "2", policy, tester):
            body.released.set()
            result = await result_of(handle)
            assert (result["turn"], result["output"]) == (2, "second")
            assert await builds(house, house.session) == expected
    events = await house.events()
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert [event["step"] for event in events if event["type"] == "generation_end"] == [1, 2, 3, 4, 5, 1]


@pytest.mark.parametrize(
    ("policy", "of_the_new"), [("auto_upgrade", [["2", "1"]]), ("rotate", [["2"], ["1"]]), ("pinned", [["2"]])]
)
async def test_a_rollout_that_is_undone_drains_and_loses_and_doubles_nothing(
    house: House, policy: str, of_the_new: list[list[str]]
) -> None:
    """A turn from before the rollout, one from within and one from after the roll-back, each with two effects."""
    acted: list[str] = []

    @tool
    def act(context: ToolContext) -> str:
        """Act once."""
        acted.append(context.session)
        return "acted"

    old, new = Body(), Body()
    before, within, after = house.session, f"{house.session}.within", f"{house.session}.after"
    script = Script(replies=(call(("act", {})), HELD, call(("act", {})), say("done")))

    def tester(body: Body) -> Agent:
        return Agent(name="tester", model="openai/scripted", tools=[act, body.held()])

    async with ScriptedProvider(script) as provider, current_version(house, "1", policy, tester(old)):
        house.use(provider)
        turns = [await house.start(session=before)]
        await happened(old.started)
        async with current_version(house, "2", policy, tester(new)):
            turns.append(await house.start(session=within))
            await happened(new.started)
            await until_open_turns(house, "2", 1)
            await make_current(house, "1")  # the roll-back
            turns.append(await house.start(session=after))
            old.released.set()
            new.released.set()
            assert [(await result_of(turn))["output"] for turn in turns] == ["done"] * 3
            assert await builds(house, before) == [["1"]]
            assert await builds(house, within) == of_the_new
            assert await builds(house, after) == [["1"]]
            await until_open_turns(house, "2", 0)
    assert sorted(acted) == sorted([before, within, after] * 2)


async def until_open_turns(house: House, build: str, count: int) -> None:
    """Wait until so many open turns are on the build's workers; without one it is what Temporal calls drained."""
    version = f"{house.settings.deployment}:{build}"
    query = f"TemporalWorkerDeploymentVersion = '{version}' AND ExecutionStatus = 'Running'"

    async def is_so() -> bool:
        return (await house.temporal.count_workflows(query)).count == count

    await eventually(is_so)


async def test_a_turn_that_waits_for_a_person_moves_with_the_reply(house: House) -> None:
    """Nothing wakes it before; the old worker takes the reply, and hands the turn on."""
    async with ScriptedProvider(Script(replies=(COLOUR, say("done")))) as provider:
        house.use(provider)
        async with current_version(house, "1", "rotate", asker()):
            handle = await house.start()
            (request,) = await waiting(house)
            async with current_version(house, "2", "rotate", asker()):
                await house.client.answer(house.session, request["request_id"], "red")
                assert (await result_of(handle))["output"] == "done"
    assert await builds(house, house.session) == [["1"], ["2"]]


async def test_an_operator_moves_a_turn_whose_version_is_gone(house: House) -> None:
    """What docs/upgrades.md says of turns that wait for people while an old version is to be taken down."""
    async with ScriptedProvider(Script(replies=(COLOUR, say("done")))) as provider:
        house.use(provider)
        async with current_version(house, "1", "pinned", asker()):
            handle = await house.start()
            (request,) = await waiting(house)
        async with current_version(house, "2", "pinned", asker()):
            code, said = await temporal(
                *("workflow", "update-options", "--workflow-id", house.session),
                *("--versioning-override-behavior", "pinned", "--versioning-override-build-id", "2"),
                *("--versioning-override-deployment-name", house.settings.deployment),
            )
            assert code == 0, said
            await house.client.answer(house.session, request["request_id"], "red")
            assert (await result_of(handle))["output"] == "done"
    assert await builds(house, house.session) == [["1", "2"]]


async def test_a_cancel_of_a_users_workflow_reaches_its_turn_on_another_version(house: House) -> None:
    """S-82: the move has given the turn a fresh history."""
    body = Body()
    theirs = await temporalio.client.Client.connect(house.server.address)
    tester = Agent(name="tester", model="openai/scripted", tools=[look, body.held()])
    script = Script(replies=(HELD, LOOK, say("late").after(faults.hang())))
    async with ScriptedProvider(script) as provider, current_version(house, "1", "rotate", tester):
        house.use(provider)
        async with their_worker(theirs, house):
            caller = await started(theirs, house, Single, agent="tester", prompt="go", session=house.session)
            await happened(body.started)
            async with current_version(house, "2", "rotate", tester):
                body.released.set()
                await provider.wait_for_requests(3)
                await caller.cancel()
                assert isinstance(await failure_of(caller), CancelledError)
                assert await builds(house, house.session) == [["1"], ["2"]]
    (turn,) = await house.store.turns(house.session)
    assert turn.result is not None
    assert turn.result.stop_reason == "cancelled"


async def test_a_delegate_and_its_caller_move_each_at_its_own_boundary(house: House) -> None:
    """The caller waits for its delegate, and both end on the current version."""
    body = Body()
    answers = played(tester=in_order(asks("one"), say("done")), helper=in_order(HELD, LOOK, say("helped")))
    agents = (agent("tester", delegates=[Delegate("helper")]), agent("helper", tools=[body.held(), look]))
    async with ScriptedProvider(answers) as provider, current_version(house, "1", "rotate", *agents):
        house.use(provider)
        handle = await house.start()
        await happened(body.started)
        async with current_version(house, "2", "rotate", *agents):
            body.released.set()
            result = await result_of(handle)
            (delegate,) = [line["session"] for line in await house.events("delegate_start")]
            assert (result["output"], result["delegated_steps"]) == ("done", 3)
            assert await builds(house, delegate) == [["1"], ["2"]]
            assert await builds(house, house.session) == [["1"], ["2"]]


async def test_calls_of_a_server_with_state_reach_its_process_from_another_version(house: House) -> None:
    """S-77: the queue of that process has no version, so the turn's move does not cut it off."""
    who = call(("peer__whoami", {}))
    script = Script(replies=(who, who.after(faults.delay(1.0)), say("done")))
    async with ScriptedProvider(script) as provider, current_version(house, "1", "auto_upgrade", with_state):
        house.use(provider)
        handle = await house.start()
        await provider.wait_for_requests(2)
        async with current_version(house, "2", "auto_upgrade", with_state):
            assert (await result_of(handle))["stop_reason"] == "finished"
        first, second = [m["content"] for m in provider.requests[-1].request.messages if m["role"] == "tool"]
    assert first == second
    assert str(first).isdigit()


async def test_an_errand_is_bound_to_no_version_and_a_ramping_one_takes_its_share(house: House) -> None:
    """A delivery that is sent again for days would hold a version that long; all of the share is all new turns."""
    tester = Agent(name="tester", model="openai/scripted")
    async with ScriptedProvider(Script(replies=(say("done"),))) as provider:
        house.use(provider)
        async with version(house, "2", "pinned", tester), current_version(house, "1", "pinned", tester):
            added = await house.client.webhooks.add("https://gone.invalid/hook", ["ended"])
            code, said = await temporal(
                *("worker", "deployment", "set-ramping-version", "--yes", "--percentage", "100"),
                *("--deployment-name", house.settings.deployment, "--build-id", "2"),
            )
            assert code == 0, said
            assert (await house.run())["stop_reason"] == "finished"
            assert await builds(house, house.session) == [["2"]]
            (delivery,) = await house.client.webhooks.deliveries(added.id)
            errand = house.temporal.get_workflow_handle(
                await find_delivery_id(house.temporal, house.store, added.id, delivery.message)
            )
            described = await errand.describe()
    bound = described.raw_description.workflow_execution_info.versioning_info
    assert bound.versioning_override.behavior == VersioningBehavior.AUTO_UPGRADE.value
    assert bound.deployment_version.build_id == "2"


async def wait_for(house: House, cause: Cause) -> TurnWait:
    """The wait of the session's turn, once it has this cause."""

    async def there() -> TurnWait | None:
        wait = (await house.client.waits([house.session])).get(house.session)
        return wait if wait is not None and wait.cause is cause else None

    found: TurnWait = await eventually(there)
    return found


@pytest.mark.parametrize("policy", ["auto_upgrade", "pinned"])
async def test_a_turn_whose_version_lacks_its_tool_goes_on_by_the_advice_as_it_stands(
    house: House, policy: str
) -> None:
    """A roll-back sends its calls to workers that cannot carry them out, beside some that could; so may a move."""
    body = Body()
    old = Agent(name="tester", model="openai/scripted", tools=[body.held()])
    new = Agent(name="tester", model="openai/scripted", tools=[body.held(), look])
    script = Script(replies=(HELD, LOOK, say("done")))
    async with ScriptedProvider(script) as provider, current_version(house, "1", "auto_upgrade", old):
        house.use(provider)
        async with current_version(house, "2", policy, new):
            handle = await house.start()
            await happened(body.started)
            if policy == "auto_upgrade":
                await make_current(house, "1")
            else:
                await carry_out(move_command(house.session, Version(house.settings.deployment, "1")))
            body.released.set()
            wait = await wait_for(house, Cause.VERSION)
            assert f"no worker of version {house.settings.deployment}.1, to which the turn's calls go" in wait.text
            assert "has tool 'look' of this version" in wait.text
            listed = await asyncio.to_thread(CliRunner().invoke, cli, ["list", "--needs-version"])
            assert f"{house.settings.deployment}.1" in listed.stdout
            await carry_out(wait.advice)
            assert (await result_of(handle))["output"] == "done"


async def test_new_turns_of_a_version_that_nobody_polls_for_go_on_by_the_advice_as_it_stands(house: House) -> None:
    """So do pinned ones; the doctor names both versions and how many turns wait."""
    tester = asker()
    script = Script(replies=(COLOUR, say("done")), repeat=True)
    async with ScriptedProvider(script) as provider:
        house.use(provider)
        async with current_version(house, "1", "pinned", tester):
            pinned = await house.start()
            (request,) = await waiting(house)
        async with version(house, "2", "pinned", tester):
            first, stuck = f"{house.settings.deployment}.1", f"{house.session}.new"
            await house.client.start("tester", "go", session=stuck)

            async def gone() -> TurnWait | None:  # a worker that has ended counts for 75 seconds
                wait = (await house.client.waits([stuck])).get(stuck)
                return wait if wait is not None and first in wait.text else None

            wait = await eventually(gone, seconds=150)
            assert f"the turn goes to version {first}, and no worker of it polls" in wait.text
            findings = {finding.text: finding for finding in await look_at_versions(house.client)}
            assert [text.partition(", ")[0] for text in findings] == [
                f"version {first} is current",
                f"1 running turn is pinned to version {first}",
            ]
            person = (await house.client.waits([house.session]))[house.session]
            assert person.cause is Cause.PERSON
            assert f"PERDURE_DEPLOYMENT={house.settings.deployment} and PERDURE_BUILD_ID=1" in person.advice
            await carry_out(person.advice)
            await house.client.answer(house.session, request["request_id"], "red")
            assert (await result_of(pinned))["output"] == "done"
            await carry_out(wait.advice)
            asked = await eventually(lambda: house.client.inbox(agent="tester"))
            await house.client.answer(stuck, asked[0].request_id, "red")
            assert (await result_of(house.temporal.get_workflow_handle(stuck)))["output"] == "done"
            assert [finding.ok for finding in await look_at_versions(house.client)] == [True]
