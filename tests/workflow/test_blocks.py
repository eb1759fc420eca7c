"""The kill switch: a block stops the turns that it means and refuses new ones at every door, until it is lifted."""

import asyncio
import json
import uuid
from typing import Any

import pytest

from perdure import Agent, Fallback
from perdure.client import BlockedError, Client, RequestRefusedError, TurnOptions, UnknownBlockError
from perdure.contracts.turns import TurnResult
from perdure.testing import Script, ScriptedProvider, faults, say
from tests.gateway import gateway, token_lines
from tests.house import House, eventually
from tests.temporal_cli import workflow
from tests.workflow.asking import COLOUR, DONE, asker, waiting
from tests.workflow.bodies import Body, happened
from tests.workflow.delegating import agent, asks, in_order, played, results_in
from tests.workflow.test_cancel_all import HELD, running, state_of
from tests.workflow.test_command_line import perdure
from tests.workflow.test_schedules import ran

BLOCKED = "request.blocked"


async def result_of(client: Client, agent: str, **options: Any) -> TurnResult:
    given: TurnOptions = {}
    turn = await client.start(agent, "go", **{**given, **options})
    return await turn.result()


def refused_samples(house: House) -> dict[tuple[str, str, str], float]:
    """Refusals that this worker has counted: by agent, code and tenant."""
    return {
        (sample.labels["agent"], sample.labels["reason_code"], sample.labels["tenant"]): sample.value
        for family in house.registry.collect()
        for sample in family.samples
        if sample.name == "perdure_turns_refused_total"
    }


async def test_a_block_stops_what_it_means_and_refuses_it_until_it_is_lifted(home: House) -> None:
    """Others go on; the message behind a turn that is stopped ends too; the rows of the block stay."""
    body = Body()
    tester, other = (Agent(name=name, model="openai/scripted", tools=[body.held()]) for name in ("tester", "other"))
    async with ScriptedProvider(HELD) as provider, home.worker(tester, other):
        home.use(provider)
        await running(home, ("a", "tester", "acme"), ("b", "tester", ""), ("c", "other", "acme"))
        queued = await home.client.send("a", "next")
        outcome = await home.client.block("a bad release", by="ann", agent="tester", tenant="acme")
        assert [(each.session, each.turn, each.outcome) for each in outcome.turns] == [("a", 1, "cancelled")]
        block = outcome.block
        assert (outcome.changed, outcome.refuses, block.by, block.reason) == (True, ("tester",), "ann", "a bad release")
        stopped = await (await home.client.attach("a", 1)).result()
        assert (stopped.stop_reason, stopped.error) == (
            "cancelled",
            f"Operation aborted: blocked by ann: a bad release ({block.id})",
        )
        behind = await queued.result()
        assert (behind.stop_reason, behind.reason_code) == ("error", BLOCKED)
        assert [await state_of(home, session) for session in "bc"] == ["running"] * 2
        refused = await result_of(home.client, "tester", tenant="acme")
        assert (refused.stop_reason, refused.reason_code, refused.turn) == ("error", BLOCKED, None)
        assert refused.error == block.describe()
        assert "agent tester, tenant acme are blocked by ann since 20" in refused.error
        assert f": a bad release; lift the block with 'perdure unblock {block.id}'" in refused.error
        assert refused_samples(home)["tester", BLOCKED, "acme"] == 1
        with pytest.raises(BlockedError, match="a bad release"):
            await home.client.send("a", "more")
        body.released.set()
        assert (await result_of(home.client, "tester", tenant="evil")).stop_reason == "finished"
        again = await home.client.block(agent="tester", tenant="acme")
        assert (again.changed, again.block, again.turns) == (False, block, ())
        assert [await home.client.unblock(block.id, by=who) for who in ("bob", "eve")] == [True, False]
        assert (await result_of(home.client, "tester", tenant="acme")).stop_reason == "finished"
        assert (await (await home.client.send("a", "more")).result()).stop_reason == "finished"
    (row,) = await home.client.blocks(lifted=True)
    assert (row.id, row.by, row.lifted_by, row.lifted_at is not None) == (block.id, "ann", "bob", True)
    assert await home.client.blocks() == []


@pytest.mark.deep
async def test_every_door_is_closed(house: House) -> None:
    """Stock Temporal, the command line, a schedule, a rewind, a fork, a compaction, and again after the lift."""
    tester = Agent(name="tester", model="openai/scripted")
    async with ScriptedProvider(lambda _: say("done")) as provider, house.worker(tester):
        house.use(provider)
        await house.run()
        schedule = f"nightly-{house.session[-6:]}"
        await house.client.schedules.add(schedule, cron="0 7 * * 1-5", agent="tester", prompt="go")
        outcome = await house.client.block("stop", model="openai/scripted")

        async def doors(*, blocked: bool) -> list[str | None]:
            client = house.client
            queue, sent = house.settings.task_queue, json.dumps({"agent": "tester", "prompt": "go"})
            name = f"stock-{uuid.uuid4().hex}"
            stock = ["--type", "AgentTurn", "--task-queue", queue, "--workflow-id", name, "--input", sent]
            executed = await workflow("execute", *stock)
            code, _ = await perdure("run", "tester", "go", refused=blocked)
            assert code == blocked
            ends = [
                await (await client.resume(house.session, "again")).result(),
                await (await client.fork(house.session, "again")).result(),
                await (await client.compact(house.session)).result(),
            ]
            await client.schedules.trigger(schedule)
            return [executed["result"]["reason_code"], *(end.reason_code for end in ends)]

        assert await doors(blocked=True) == [BLOCKED] * 4
        assert provider.request_count == 1
        await ran(house, schedule, "failed")
        await house.client.unblock(outcome.block.id)
        assert await doors(blocked=False) == [None] * 4
        await ran(house, schedule, "ended", "failed")
        await house.client.schedules.remove(schedule)


async def test_a_delegate_is_refused_and_its_caller_reads_the_code(house: House) -> None:
    """The delegate that works is stopped, its caller goes on, and calls another one in vain."""
    lead, helper = agent("tester", delegates=["helper"]), agent("helper")
    hanging = say("late").after(faults.hang())
    answers = played(tester=in_order(asks("one"), asks("two"), DONE), helper=lambda _: hanging)
    async with ScriptedProvider(answers) as provider, house.worker(lead, helper):
        house.use(provider)
        handle = await house.start()
        await provider.wait_for_requests(2)
        outcome = await house.client.block("stop", by="ann", agent="helper")
        assert [(turn.agent, turn.outcome) for turn in outcome.turns] == [("helper", "cancelled")]
        result = await handle.result()
    assert (result["stop_reason"], result["output"]) == ("finished", "done")
    first, second = results_in(provider.requests[-1].request)
    assert '"tool.cancelled"' in first
    assert f"could not begin, {BLOCKED}: new turns of agent helper are blocked by ann" in second
    assert f"perdure unblock {outcome.block.id}" in second
    (*_, ended) = await house.events("tool_end")
    assert (ended["error"]["code"], ended["error"]["type"]) == ("tool.delegate_failed", BLOCKED)


async def test_open_turns_go_on_where_only_new_ones_are_refused(house: House) -> None:
    """A reply and a steered message reach the open turn; a reply that would begin a turn is refused."""
    script = Script(replies=(COLOUR, DONE, COLOUR, DONE))
    async with ScriptedProvider(script) as provider, house.worker(asker(), asker(name="stops", interactive="stop")):
        house.use(provider)
        handle = await house.start()
        (request,) = await waiting(house)
        stopped = await result_of(house.client, "stops", session="stopped")
        outcome = await house.client.block(everything=True, keep_running=True)
        assert outcome.turns == ()
        receipt = await house.client.answer(house.session, request["request_id"], "blue")
        assert (receipt.decision, (await handle.result())["stop_reason"]) == ("answered", "finished")
        with pytest.raises(BlockedError, match=outcome.block.id):
            await house.client.answer("stopped", stopped.requests[0].request_id, "blue")
        await house.client.unblock(outcome.block.id)
        await house.client.answer("stopped", stopped.requests[0].request_id, "blue")
        assert (await (await house.client.attach("stopped")).result()).stop_reason == "finished"


async def test_a_model_counts_wherever_a_turn_may_call_it(house: House) -> None:
    """As its own, as a fallback, and as what one request asks for."""
    own, falls = (
        Agent(name="own", model="openai/scripted"),
        Agent(name="falls", model="openai/scripted", fallback_models=[Fallback(model="openai/other")]),
    )
    async with ScriptedProvider(lambda _: say("done")) as provider, house.worker(own, falls):
        house.use(provider)
        block = (await house.client.block(model="openai/other")).block
        assert (await result_of(house.client, "own")).stop_reason == "finished"
        assert (await result_of(house.client, "falls")).reason_code == BLOCKED
        assert (await result_of(house.client, "own", model="openai/other")).reason_code == BLOCKED
        await house.client.unblock(block.id)
        assert (await result_of(house.client, "falls")).stop_reason == "finished"


async def test_a_turn_that_waits_for_a_slot_is_refused_and_holds_up_nobody(house: House) -> None:
    body = Body()
    tester = Agent(name="tester", model="openai/scripted", tools=[body.held()], max_running=1)
    async with ScriptedProvider(HELD) as provider, house.worker(tester):
        house.use(provider)
        await running(house, ("a", "tester", ""))
        queued = await house.client.start("tester", "go")

        async def waits() -> bool:
            return len(await house.store.queued_turns()) == 1

        await eventually(waits)
        block = (await house.client.block(agent="tester", keep_running=True)).block
        assert (await queued.result()).reason_code == BLOCKED
        assert (await house.store.queued_turns(), await state_of(house, "a")) == ((), "running")
        await house.client.unblock(block.id)
        body.released.set()
        assert (await (await house.client.attach("a", 1)).result()).stop_reason == "finished"
        block = (await house.client.block(agent="tester")).block
        assert (await result_of(house.client, "tester")).reason_code == BLOCKED
        assert await house.store.queued_turns() == ()


@pytest.mark.deep
async def test_the_command_line_sets_lists_and_lifts_blocks(house: House) -> None:
    """A dry run and wrong input change nothing; the doctor names what is in force."""
    body = Body()
    tester = Agent(name="tester", model="openai/scripted", tools=[body.held()])
    async with ScriptedProvider(HELD) as provider, house.worker(tester):
        house.use(provider)
        await running(house, ("a", "tester", ""))
        code, (dry,) = await perdure("block", "--agent", "tester", "--dry-run")
        assert (code, dry["changed"], dry["refuses"], dry["block"]["id"]) == (0, False, ["tester"], "")
        assert [(turn["session"], turn["outcome"]) for turn in dry["turns"]] == [("a", "would_cancel")]
        assert (await house.client.blocks(lifted=True), await state_of(house, "a")) == ([], "running")
        for wrong in ([], ["--all", "--agent", "tester"], ["--agent", ""], ["--agent", "x" * 201]):
            code, _ = await perdure("block", *wrong, refused=True)
            assert code == 2, wrong
        assert await house.client.blocks(lifted=True) == []
        code, (kept,) = await perdure("block", "--agent", "tester", "--keep-running", "--by", "ann", "--reason", "x")
        assert (code, kept["changed"], kept["turns"], await state_of(house, "a")) == (0, True, [], "running")
        code, (done,) = await perdure("block", "--agent", "tester")
        assert (code, done["changed"], done["block"]["id"]) == (0, False, kept["block"]["id"])
        assert [(turn["session"], turn["outcome"]) for turn in done["turns"]] == [("a", "cancelled")]
        await (await house.client.attach("a", 1)).result()
        _, (listed,) = await perdure("blocks")
        assert listed == kept["block"]
        _, (report,) = await perdure("doctor")
        (found,) = [check for check in report["checks"] if check["check"] == "blocks"]
        assert "new turns of agent tester are blocked by ann since" in found["text"]
        assert (found["ok"], found["fix"]) == (None, f"perdure unblock {listed['id']}")
        lift = ("unblock", listed["id"], "--by", "bob")
        assert await perdure(*lift) == (0, [{"block": listed["id"], "lifted": True, "changed": True}])
        assert await perdure(*lift) == (0, [{"block": listed["id"], "lifted": True, "changed": False}])
        assert (await perdure("unblock", "bl_none", refused=True))[0] == 2
        _, (lifted,) = await perdure("blocks", "--lifted")
        assert (lifted["lifted_by"], lifted["by"], await perdure("blocks")) == ("bob", "ann", (0, []))
    with pytest.raises(UnknownBlockError, match="perdure blocks"):
        await house.client.unblock("bl_none")
    with pytest.raises(RequestRefusedError, match="name an agent, a tenant or a model"):
        await house.client.block("why")


async def test_over_http_an_admin_blocks_its_tenant_and_refused_starts_are_answered_at_once(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    """T-07: No workflow is started; others' turns and blocks stay out of reach; a steered message is no new turn."""
    lines, tokens = token_lines(ann=("acme", "read,run"), boss=("acme", "admin"), eve=("evil", "admin"))
    body = Body()
    tester = Agent(name="tester", model="openai/scripted", tools=[body.held()])
    caplog.set_level("INFO", "perdure.audit")
    async with (
        ScriptedProvider(HELD) as provider,
        house.worker(tester),
        gateway(house, gateway_tokens=lines) as door,
        door.holder(tokens["ann"]) as ann,
        door.holder(tokens["boss"]) as boss,
        door.holder(tokens["eve"]) as eve,
    ):
        house.use(provider)
        new, at = {"agent": "tester", "prompt": "go"}, f"/v1/sessions/{house.session}"
        await ann.post("/v1/sessions", json={**new, "session": house.session})
        await happened(body.started)
        for path in ("/v1/blocks", "/v1/blocks/bl_0000000000000000/lift"):
            refused = await ann.post(path, json={"agent": "tester"})
            assert (refused.status_code, refused.json()["code"]) == (403, "request.forbidden")
        for odd in ({}, {"tenant": "evil"}, {"agent": "a", "everything": True}, {"agent": ""}, {"reason": "x" * 201}):
            answer = await boss.post("/v1/blocks", json=odd)
            assert (answer.status_code, answer.json()["code"]) == (422, "request.invalid"), odd
        dry = (await boss.post("/v1/blocks", json={"agent": "tester", "dry_run": True})).json()
        assert [(turn["session"], turn["outcome"]) for turn in dry["turns"]] == [(house.session, "would_cancel")]
        assert (await boss.get("/v1/blocks")).json()["items"] == []
        asked = {"agent": "tester", "reason": "night", "keep_running": True}
        block = (await boss.post("/v1/blocks", json=asked)).json()["block"]
        assert (block["tenant"], block["by"]) == ("acme", "boss")
        requests = [
            ("/v1/sessions", new),
            ("/v1/sessions", {**new, "session": f"{house.session}-2"}),
            (f"{at}/messages", {"prompt": "next"}),
            (f"{at}/fork", {"prompt": "again"}),
        ]
        for path, sent in requests:
            answer = await ann.post(path, json=sent, headers={"Idempotency-Key": f"key{path}{len(sent)}"})
            assert (answer.status_code, answer.json()["code"]) == (403, BLOCKED), path
            assert "by boss since" in answer.json()["detail"]
        assert await house.store.tenant_of(f"{house.session}-2") is None
        assert not await house.client._runs.is_running(f"{house.session}-2")
        assert (await ann.post(f"{at}/messages", json={"prompt": "be brief", "when_busy": "steer"})).status_code == 202
        assert (await eve.post("/v1/sessions", json=new)).status_code == 202
        assert (await eve.get("/v1/blocks")).json()["items"] == []
        foreign = await eve.post(f"/v1/blocks/{block['id']}/lift")
        assert (foreign.status_code, foreign.json()["code"]) == (404, "request.unknown_block")
        done = (await boss.post("/v1/blocks", json={"agent": "tester"})).json()
        assert [(turn["session"], turn["outcome"]) for turn in done["turns"]] == [(house.session, "cancelled")]
        await ann.get(f"{at}/turns/1", headers={"Prefer": "wait=30"})
        lifted = (await boss.post(f"/v1/blocks/{block['id']}/lift")).json()
        assert lifted == {"block": block["id"], "lifted": True, "changed": True}
        assert (await boss.get("/v1/blocks", params={"lifted": True})).json()["items"][0]["lifted_by"] == "boss"
        body.released.set()
        path, sent = requests[0]
        again = await ann.post(path, json=sent, headers={"Idempotency-Key": f"key{path}{len(sent)}"})
        assert again.status_code == 202  # the same key, which was refused and not answered
    noted = [record for record in caplog.records if getattr(record, "block", None) == block["id"]]
    assert [(record.action, record.who, record.outcome) for record in noted] == [  # type: ignore[attr-defined]
        ("block_turns", "boss", "done"),
        ("lift_block", "eve", "request.unknown_block"),
        ("block_turns", "boss", "done"),
        ("lift_block", "boss", "done"),
    ]
    tried = [record for record in caplog.records if getattr(record, "outcome", "") == BLOCKED]
    assert len(tried) == len(requests)


@pytest.mark.deep
async def test_no_start_escapes_a_block_that_is_set_meanwhile(home: House) -> None:
    """Two workers open turns while the block is written: each start is refused or stopped, and none stays open."""
    agents = "tests.workflow.agents_that_stream"
    async with ScriptedProvider(always=faults.hang()) as provider:
        home.use(provider)
        workers = [home.spawn_worker(agents) for _ in range(2)]
        await asyncio.gather(*(worker.polling() for worker in workers))
        first = await home.client.start("tester", "go")
        await provider.wait_for_requests(1)
        starts = [asyncio.create_task(home.client.start("tester", "go")) for _ in range(30)]

        async def some_are_open() -> bool:
            return len(await home.store.open_runs()) > 3

        await eventually(some_are_open)
        outcome = await home.client.block("stop", agent="tester")
        turns = [first, *await asyncio.gather(*starts)]
        ends = await asyncio.gather(*(turn.result() for turn in turns))
        assert {end.reason_code if end.turn is None else end.stop_reason for end in ends} == {BLOCKED, "cancelled"}
        told = {turn.session for turn in outcome.turns}
        assert told == {end.session for end in ends if end.stop_reason == "cancelled"}
        assert await home.store.blocked_turns(outcome.block) == ()
        assert await home.store.open_runs() == {}
        late = await result_of(home.client, "tester")
        assert late.reason_code == BLOCKED
