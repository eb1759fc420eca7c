"""Delegates in the background: the caller goes on, waits for them later or never, and pays for each exactly once."""

import json
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus

from perdure import Budgets, spawn_agent
from perdure.testing import ChatRequest, Reply, ScriptedProvider, call, faults, say
from tests.house import House, eventually
from tests.memory import Run
from tests.workflow.backgrounds import HANGING, awaiting, lead, look, starts, statuses, steps
from tests.workflow.bodies import Body, happened
from tests.workflow.delegating import DONE, agent, children, in_order, played, query_of, results_in

pytestmark = pytest.mark.deep


async def test_a_caller_works_on_while_its_delegate_does_and_reads_the_result_later(house: House) -> None:
    """S-64: the delegate ends only when the caller's other work is done."""
    body = Body()
    helper = agent("helper", tools=[body.held()])
    answers = played(
        tester=steps(starts("one"), call(("look", {})), awaiting(0), DONE),
        helper=in_order(call(("held", {})), say("helped")),
    )
    async with ScriptedProvider(answers) as provider, house.worker(lead(), helper):
        house.use(provider)
        handle = await house.start()
        await happened(body.started)
        await house.wait_for_event("tool_end", 2)
        body.released.set()
        result = await handle.result()
        began, looked, read = results_in(provider.requests[-1].request)
    ((child, _),) = await children(house)
    assert json.loads(began)["session"] == child.session
    assert (looked, read) == ("looked", "helped")
    assert (result["stop_reason"], result["steps"], result["delegated_steps"]) == ("finished", 4, 2)
    assert result["usage"]["input_tokens"] == sum(request.request.tokens for request in provider.requests)
    assert len(await house.events("delegate_start")) == len(await house.events("delegate_end")) == 1


async def test_one_call_waits_for_several_and_gives_errors_beside_results(run: Run) -> None:
    """S-63 S-64: as each call itself would have given them; a second call gives them again."""
    replies = {"good": say("helped"), "bad": say("").after(faults.bad_key())}
    answers = played(
        tester=steps(starts("good", "bad"), awaiting(0, 1), awaiting(1), awaiting(), DONE),
        helper=lambda request: replies[query_of(request)],
    )
    result = await run(lead(), script=answers, agents=[agent("helper")])
    *_, both, again, none = results_in(run.requests[-1].request)
    good, bad = json.loads(both)["results"]
    assert (good["agent"], good["result"]) == ("helper", "helped")
    assert (bad["error"]["code"], bad["error"]["type"]) == ("tool.delegate_failed", "llm.auth_error")
    assert json.loads(again)["error"] == bad["error"]
    assert "nothing to wait for" in none
    errors = [event["tool"] for event in await run.events("tool_end") if event["error"]]
    assert errors == ["await_delegate", "await_delegate"]
    assert (result["stop_reason"], result["delegated_steps"]) == ("finished", 1)


async def test_waiting_for_all_comes_behind_the_starts_of_the_same_answer(run: Run) -> None:
    """S-64 S-65: and a session that this turn has not started is said to be unknown."""
    begin = starts("one", "two").calls
    wait, unknown = call(("await_delegate", {})).calls, call(("await_delegate", {"sessions": ["nowhere"]})).calls
    everything = DONE.model_copy(update={"text": None, "calls": (*wait, *unknown, *begin)})
    answers = played(tester=in_order(everything, DONE), helper=lambda request: say(f"answer to {query_of(request)}"))
    await run(lead(), script=answers, agents=[agent("helper")])
    came, missing, *_ = results_in(run.requests[-1].request)
    assert [result["result"] for result in json.loads(came)["results"]] == ["answer to one", "answer to two"]
    assert "no agent works in the background as nowhere" in missing


async def test_a_delegate_that_nobody_waits_for_ends_with_its_caller(house: House) -> None:
    """S-57 S-64: cancelled and charged, with a whole transcript."""
    helper = agent("helper", tools=[look])
    answers = played(tester=in_order(starts("one"), DONE), helper=in_order(call(("look", {})), HANGING))
    async with ScriptedProvider(answers) as provider:
        house.use(provider)
        async with house.worker(lead(), helper):
            result = await house.run()
            assert await statuses(house) == [WorkflowExecutionStatus.COMPLETED]
    ((child, turn),) = await children(house)
    assert turn.result is not None
    assert (result["stop_reason"], turn.result.stop_reason) == ("finished", "cancelled")
    assert result["delegated_steps"] == turn.result.steps
    (end,) = await house.events("delegate_end")
    assert (end["stop_reason"], end["delegate"]) == ("cancelled", child.session)
    messages = await house.store.transcript(child.session)
    assert sum(len(message.tool_calls) for message in messages if message.role == "assistant") == sum(
        message.role == "tool" for message in messages
    )


@pytest.mark.parametrize("how", ["signal", "temporal"])
async def test_a_cancel_reaches_delegates_in_the_background(house: House, how: str) -> None:
    """S-57 S-64: also while one of them is waited for."""
    answers = played(tester=steps(starts("one", "two"), awaiting(1)), helper=lambda _: HANGING)
    async with ScriptedProvider(answers) as provider, house.worker(lead(), agent("helper")):
        house.use(provider)
        handle = await house.start()
        await provider.wait_for_requests(4)
        if how == "signal":
            await handle.signal("cancel", {"reason": "enough"})
            assert (await handle.result())["stop_reason"] == "cancelled"
        else:
            await handle.cancel()
        await house.wait_for_event("agent_end")
        ends = await house.events("delegate_end")
        assert [end["stop_reason"] for end in ends] == ["cancelled"] * 2
        assert WorkflowExecutionStatus.RUNNING not in await statuses(house)


async def test_a_failure_that_is_to_propagate_ends_the_caller(run: Run) -> None:
    """S-63 S-64: at the latest when it is waited for; what works beside it ends too."""
    replies = {"good": HANGING, "bad": say("").after(faults.bad_key())}
    answers = played(
        tester=steps(starts("good", "bad"), awaiting(1), DONE), helper=lambda request: replies[query_of(request)]
    )
    result = await run(lead(on_child_error="propagate"), script=answers, agents=[agent("helper")])
    assert (result["stop_reason"], result["reason_code"]) == ("error", "tool.delegate_failed")
    ends = [turn.result.stop_reason for _, turn in await children(run) if turn.result is not None]
    assert sorted(ends) == ["cancelled", "error"]


async def test_a_caller_without_calls_of_its_own_left_waits_for_what_comes_back(house: House) -> None:
    """S-64 S-70: the delegate uses 2 of the 3 calls it was granted, and the caller the other one."""
    body = Body()
    helper = agent("helper", tools=[body.held()])
    answers = played(
        tester=steps(starts("one"), *[call(("look", {}))] * 2, call(("look", {})), awaiting(0), DONE),
        helper=in_order(call(("held", {})), say("helped")),
    )
    caller = lead(budgets=Budgets(llm_calls=7))
    async with ScriptedProvider(answers) as provider, house.worker(caller, helper):
        house.use(provider)
        handle = await house.start()
        await happened(body.started)
        await house.wait_for_event("tool_end", 4)  # of 7 calls, 4 are made, and 3 are the delegate's

        async def waits() -> bool:
            return str((await handle.query("status"))["activity"]).startswith("waiting for what delegates may spend")

        await eventually(waits)
        asked = sum("tester" in request.request.system for request in provider.requests)
        body.released.set()
        result = await handle.result()
    assert asked == 4
    assert (result["stop_reason"], result["reason_code"]) == ("budget_exhausted", "budget.llm_calls_exhausted")
    assert result["spent"]["llm_calls"] == 7


async def test_a_clone_may_work_in_the_background(run: Run) -> None:
    """S-64: spawn_agent, whose clone has no one to wait for."""
    spawning = agent("tester", tools=[spawn_agent.with_(background=True), look])
    begin = call(("spawn_agent", {"task": "look around", "agent_type": "explore", "run_in_background": True}))
    asked: list[ChatRequest] = []

    def answer(request: ChatRequest) -> Reply:
        if request.system.startswith("I am tester"):
            return steps(begin, awaiting(0), DONE)(request)
        asked.append(request)
        return say("seen")

    await run(spawning, script=answer)
    *_, read = results_in(run.requests[-1].request)
    told = json.loads(read)
    assert {name: told[name] for name in ("name", "task", "steps", "result")} == {
        "name": "spawn_agent",
        "task": "look around",
        "steps": 1,
        "result": "seen",
    }
    assert offered(asked[0]) == ["look"]


def offered(request: ChatRequest) -> list[str]:
    """The tools that the model was told of."""
    tools: list[Any] = list(request.tools)
    return [tool["function"]["name"] for tool in tools]


async def test_a_long_result_that_is_waited_for_is_an_artifact_of_the_caller(house: House) -> None:
    """S-64: the history has its first characters only."""
    answers = played(tester=steps(starts("one"), awaiting(0), DONE), helper=lambda _: say("long " * 20_000))
    async with ScriptedProvider(answers) as provider, house.worker(lead(), agent("helper")):
        house.use(provider)
        handle = await house.start()
        await handle.result()
        history = await handle.fetch_history()
        *_, read = results_in(provider.requests[-1].request)
    assert len(read) < 31_000
    end = next(event for event in await house.events("tool_end") if event["tool"] == "await_delegate")
    whole = await house.store.artifact(end["artifact"], session=house.session)
    assert whole.text == "long " * 20_000
    assert max(event.ByteSize() for event in history.events) < 20_000
