"""No more turns of an agent, or of a tenant, run at once than may, whichever door they came through."""

from datetime import timedelta

import pytest
import temporalio.client
from temporalio.client import WorkflowFailureError

from perdure import Agent, caller_tool
from perdure.activities.telling.store_gauges import Queued
from perdure.client import ResultRequest, SessionBusyError
from perdure.client.connect import DATA_CONVERTER
from perdure.contracts.names import AGENT_TURN
from perdure.contracts.turns import RunState, TurnResult
from perdure.contracts.waits import Cause
from perdure.testing import ChatRequest, Reply, ScriptedProvider, call, say
from perdure.worker.fleet_figures import FleetFigures
from tests.gateway import gateway
from tests.house import House, eventually
from tests.workflow.cancelling import BOTH_WAYS, How, cancel, cancelled
from tests.workflow.delegating import agent, asks, in_order, played
from tests.workflow.slots import SCRIPT, Work, queued, start_queued, take_slot
from tests.workflow.test_closed_by_temporal import listed, perdure

pytestmark = pytest.mark.deep


async def test_five_turns_run_two_at_a_time_in_the_order_in_which_they_came(home: House) -> None:
    house, work = home, Work()
    names = [f"{house.session}-{number}" for number in range(5)]
    tester = work.agent(max_running=2)
    second = await temporalio.client.Client.connect(house.server.address, data_converter=DATA_CONVERTER)
    async with ScriptedProvider(SCRIPT) as provider, house.worker(tester), house.worker(tester, client=second):
        house.use(provider)
        for name in names[:2]:
            await house.client.start("tester", "go", session=name)
        await work.wait_for(*names[:2])
        for place, name in enumerate(names[2:], start=3):
            await house.temporal.start_workflow(
                AGENT_TURN, {"agent": "tester", "prompt": "go"}, id=name, task_queue=house.settings.task_queue
            )
            await queued(house, *names[2:place])
        for place, name in enumerate(names[2:]):
            work.end(names[place])
            await work.wait_for(name)
            await queued(house, *names[place + 3 :])
        work.end(*names)
        for name in names:
            assert (await (await house.client.attach(name)).result()).stop_reason == "finished"
    assert work.begun == names or set(work.begun[:2]) == set(names[:2])
    assert work.begun[2:] == names[2:]
    assert work.most == 2
    assert await house.store.queued_turns() == ()


async def test_a_tenants_limit_holds_beside_an_agents_and_holds_up_no_other_tenant(house: House) -> None:
    house.settings = house.settings.model_copy(update={"tenant_max_running": {"acme": 1, "*": 2}})
    work = Work()
    one, two, three, four, five = (f"{house.session}-{number}" for number in range(1, 6))
    async with ScriptedProvider(SCRIPT) as provider, house.worker(work.agent(max_running=2), work.agent("other")):
        house.use(provider)
        await house.client.start("tester", "go", session=one, tenant="acme")
        await work.wait_for(one)
        await start_queued(house, two, agent="other", tenant="acme")
        await start_queued(house, three, behind=[two], tenant="acme")
        await house.client.start("tester", "go", session=four, tenant="beta")
        await work.wait_for(four)
        await start_queued(house, five, behind=[two, three], tenant="beta")
        wait = await eventually(lambda: house.client.waits_for(five))
        assert "2 turns run of agent 'tester', whose limit is 2 (max_running)" in wait.text
        work.end(one, two, three, four, five)
        for name in (one, two, three, four, five):
            assert (await (await house.client.attach(name)).result()).stop_reason == "finished"


async def test_an_agent_that_calls_itself_needs_no_second_slot(house: House) -> None:
    answers = played(
        tester=in_order(asks("help", tool="helper"), say("all done")),
        helper=in_order(asks("help", tool="tester"), say("helped")),
    )
    helper = agent("helper", max_running=1)
    tester = agent("tester", max_running=1, delegates=[helper])
    async with ScriptedProvider(answers) as provider, house.worker(tester, helper):
        house.use(provider)
        result = await house.run()
    assert (result["stop_reason"], result["output"]) == ("finished", "all done")


@BOTH_WAYS
async def test_a_turn_that_waits_is_cancelled_at_once_and_the_store_says_so(house: House, how: How) -> None:
    async with take_slot(house) as taken:
        handle = await house.start()
        await queued(house, house.session)
        await cancel(handle, how)
        result = await cancelled(house, handle, how)
        assert (result.steps, taken.provider.request_count) == (0, 1)
        assert await house.store.queued_turns() == ()
        taken.work.end(taken.holder)


async def test_a_cancel_that_names_the_request_ends_the_wait_too(house: House) -> None:
    async with take_slot(house) as taken:
        turn = await start_queued(house, house.session)
        assert await turn.cancel("not needed")
        assert (await turn.result()).stop_reason == "cancelled"
        taken.work.end(taken.holder)


async def test_messages_behind_a_turn_that_temporal_cancels_wait_for_no_slot(house: House) -> None:
    work, holder = Work(), f"{house.session}-holder"
    async with ScriptedProvider(SCRIPT) as provider, house.worker(work.agent(max_running=2)):
        house.use(provider)
        handle = await house.start()
        await work.wait_for(house.session)
        await house.client.send(house.session, "next")
        await house.client.start("tester", "go", session=holder)
        await work.wait_for(holder)
        await handle.cancel()
        with pytest.raises(WorkflowFailureError):
            await handle.result()
        assert [turn.result and turn.result.stop_reason for turn in await house.store.turns(house.session)] == [
            "cancelled",
            "cancelled",
        ]
        work.end(holder)


async def test_the_slot_of_a_turn_that_was_terminated_is_given_to_the_next(house: House) -> None:
    async with take_slot(house) as taken:
        turn = await start_queued(house, house.session)
        await house.temporal.get_workflow_handle(taken.holder).terminate()
        await taken.work.wait_for(house.session)
        taken.work.end(taken.holder, house.session)
        assert (await turn.result()).stop_reason == "finished"
        closed = await house.store.turn(taken.holder, 1)
    assert closed.result is not None
    assert closed.result.reason_code == "runtime.turn_closed"
    events = [event.event.type for event in await house.store.events(taken.holder, after=0, limit=500)]
    assert events[-2:] == ["agent_error", "agent_end"]


async def test_a_turn_that_was_terminated_while_it_waited_holds_up_nobody(house: House) -> None:
    gone = f"{house.session}-gone"
    async with take_slot(house) as taken:
        await start_queued(house, gone)
        await start_queued(house, house.session, behind=[gone])
        await house.temporal.get_workflow_handle(gone).terminate()
        taken.work.end(taken.holder, house.session)
        await taken.work.wait_for(house.session)
    assert gone not in taken.work.begun


async def test_turns_wait_through_the_restart_of_their_worker_and_a_new_limit_counts(house: House) -> None:
    work, names = Work(), [f"{house.session}-{number}" for number in range(3)]
    async with ScriptedProvider(SCRIPT) as provider:
        house.use(provider)
        async with house.worker(work.agent(max_running=1)):
            await house.client.start("tester", "go", session=names[0])
            await work.wait_for(names[0])
            await start_queued(house, names[1])
            await start_queued(house, names[2], behind=[names[1]])
            work.end(names[0])
            await (await house.client.attach(names[0])).result()
        async with house.worker(work.agent(max_running=2)):
            await work.wait_for(*names)
            work.end(*names)
            for name in names:
                assert (await (await house.client.attach(name)).result()).stop_reason == "finished"


async def test_the_next_message_of_a_session_asks_anew(house: House) -> None:
    async with take_slot(house) as taken:
        await start_queued(house, house.session)
        second = await house.client.send(taken.holder, "again")
        taken.work.end(taken.holder)
        assert (await (await house.client.attach(taken.holder, 1)).result()).stop_reason == "finished"
        await taken.work.wait_for(house.session)
        await queued(house, taken.holder)
        taken.work.end(house.session)
        assert (await second.result()).stop_reason == "finished"


async def test_a_first_turn_that_waits_says_why(house: House) -> None:
    async with take_slot(house) as taken:
        turn = await house.client.start("tester", "go", session=house.session)
        wait = await eventually(lambda: house.client.waits_for(house.session))
        assert wait.cause is Cause.QUEUED
        assert not wait.is_stuck
        assert wait.text == ("queued: 1 turn runs of agent 'tester', whose limit is 1 (max_running); 0 wait before it")
        description = await house.temporal.get_workflow_handle(house.session).describe()
        (pending,) = description.raw_description.pending_activities
        assert pending.last_failure.application_failure_info.type == "runtime.queued"
        taken.work.end(taken.holder, house.session)
        assert (await turn.result()).stop_reason == "finished"
        history = await house.temporal.get_workflow_handle(house.session).fetch_history()
    assert sum("open_turn" in str(event.activity_task_scheduled_event_attributes) for event in history.events) == 1


async def test_what_waits_is_listed_as_queued_by_every_door_and_cancelled_with_the_rest(house: House) -> None:
    work, holder, fresh = Work(), f"{house.session}-holder", f"{house.session}-fresh"
    other = f"{house.session}-other"
    async with ScriptedProvider(SCRIPT) as provider, house.worker(work.agent(max_running=1)), gateway(house) as door:
        house.use(provider)
        work.end(house.session)
        assert (await house.run())["turn"] == 1
        await house.client.start("tester", "go", session=holder)
        await work.wait_for(holder)
        await start_queued(house, fresh)
        await house.client.start("tester", "again", session=house.session)
        await queued(house, fresh, house.session)
        await eventually(lambda: house.client.waits_for(house.session))

        first, again = await listed("--state", "queued", "--agent", "tester")
        assert (first["session"], first["agent"], first["state"]) == (fresh, "tester", "queued")
        assert (again["session"], again["turn"], again["state"]) == (house.session, 1, "queued")
        for line in (first, again):
            assert line["waits_for"]["cause"] == "queued"
        assert {line["session"]: line["state"] for line in await listed()} == {
            fresh: "queued",
            house.session: "queued",
            holder: "running",
        }
        assert [line["session"] for line in await listed("--state", "running")] == [holder]
        assert await listed("--state", "ended") == await listed("--state", "queued", "--agent", other) == []
        table = (await perdure("list", "--state", "queued")).stdout
        assert f"{fresh}: has waited" in table
        assert "whose limit is 1 (max_running)" in (await perdure("show", fresh)).output

        assert "whose limit is 1 (max_running)" in (await perdure("show", house.session)).output
        figures = await FleetFigures(house.store, house.temporal, house.settings).read()
        assert (figures.queued, figures.for_slots) == (Queued(), {"tester": 2})

        page = (await door.http.get("/v1/sessions", params={"state": "queued", "limit": 1})).json()
        assert [item["session"] for item in page["items"]] == [house.session]
        page = (await door.http.get("/v1/sessions", params={"state": "queued", "cursor": page["next"]})).json()
        assert [(item["session"], item["agent"], item["state"]) for item in page["items"]] == [
            (fresh, "tester", "queued")
        ]
        assert page["next"] is None
        for session, turn in ((fresh, 1), (house.session, 2)):
            detail = (await door.http.get(f"/v1/sessions/{session}")).json()
            assert (detail["state"], detail["agent"], detail["waits_for"]["cause"]) == ("queued", "tester", "queued")
            assert (await door.http.get(f"/v1/sessions/{session}/turns/{turn}")).json()["state"] == "queued"

        found = await house.client.cancel_all("night", dry_run=False, state=RunState.QUEUED)
        assert {(each.session, each.turn, each.outcome) for each in found} == {
            (fresh, 1, "cancelled"),
            (house.session, 2, "cancelled"),
        }
        assert (await (await house.client.attach(fresh)).result()).stop_reason == "cancelled"
        work.end(holder)
        assert (await (await house.client.attach(holder)).result()).stop_reason == "finished"


async def test_a_message_for_a_turn_that_waits_is_taken_once_it_opens_and_says_so(house: House) -> None:
    house.environment.setattr("perdure.client.updates.TIMEOUT", timedelta(seconds=3))
    async with take_slot(house) as taken:
        await start_queued(house, house.session)
        with pytest.raises(SessionBusyError, match=r"is queued: 1 turn runs .*; it takes the message when it opens"):
            await house.client.send(house.session, "and this")
        taken.work.end(taken.holder, house.session)
        await taken.work.wait_for(house.session)

        async def second() -> TurnResult | None:
            return next((turn.result for turn in await house.store.turns(house.session) if turn.turn == 2), None)

        assert (await eventually(second)).stop_reason == "finished"


async def test_a_turn_of_a_lower_priority_key_opens_first(house: House) -> None:
    late = f"{house.session}-late"
    async with take_slot(house) as taken:
        await start_queued(house, late, priority=5)
        await start_queued(house, house.session, behind=[late])
        taken.work.end(taken.holder)
        await taken.work.wait_for(house.session)
        assert taken.work.begun == [taken.holder, house.session]
        taken.work.end(house.session, late)
        assert (await (await house.client.attach(late)).result()).stop_reason == "finished"


async def test_replies_that_begin_a_turn_which_waits_for_a_slot_are_taken(house: House) -> None:
    """S-88: a turn that stopped gave its slot back; who replies learns the number of the turn that is queued."""
    house.environment.setattr("perdure.client.updates.TIMEOUT", timedelta(seconds=1))
    look = caller_tool("look", "Look.", {"type": "object", "properties": {}})
    holder, work = f"{house.session}-holder", Work()
    own = Agent(name="tester", model="openai/scripted", tools=[look, work.tool], max_running=1)

    def brain(request: ChatRequest) -> Reply:
        last = request.messages[-1]
        return call((str(last["content"]), {})) if last["role"] == "user" else say("done")

    async with ScriptedProvider(brain) as provider, house.worker(own):
        house.use(provider)
        turn = await house.client.start("tester", "look", session=house.session, stop_for_results=True)
        (asked,) = (await turn.result()).requests
        await house.client.start("tester", "work", session=holder)
        await work.wait_for(holder)
        given = [ResultRequest(request=asked.request_id, value="seen")]
        said = [await house.client.reply(house.session, given) for _ in range(2)]
        assert [(one.turn, one.receipts[0].decision) for one in said] == [(2, "returned")] * 2
        work.end(holder)
        assert (await (await house.client.attach(house.session, 2)).result()).output == "done"
