"""Agents as tools of agents: each call is a turn of its own, and what it uses and comes to is its caller's."""

import asyncio
import contextlib
import json
from typing import Any

import pytest
from temporalio.client import WorkflowQueryFailedError

from perdure import Delegate, ask_user, tool
from perdure.testing import ChatRequest, Reply, ScriptedProvider, answer, call, faults, say
from tests.house import House, eventually
from tests.memory import Run
from tests.workflow.cancelling import BOTH_WAYS, How, cancel, cancelled
from tests.workflow.delegating import DONE, agent, asks, children, in_order, played, query_of, results_in, transcript


def echoing(request: ChatRequest) -> Reply:
    return say(f"answer to {query_of(request)}")


async def test_two_delegates_of_one_answer_get_only_their_queries_and_come_back_in_one_message(run: Run) -> None:
    """S-62."""
    lead, helper = agent("tester", delegates=["helper"]), agent("helper", description="Helps.")
    answers = played(tester=in_order(asks("one", "two"), DONE), helper=echoing)
    result = await run(lead, script=answers, agents=[helper])
    last = run.requests[-1].request
    queries = {query_of(made.request) for made in run.requests if "helper" in made.request.system}
    alone = [len(made.request.messages) for made in run.requests if "helper" in made.request.system]
    assert (result["stop_reason"], result["output"]) == ("finished", "all done")
    assert results_in(last) == ["answer to one", "answer to two"]
    assert queries == {"one", "two"}
    assert alone == [2, 2]  # the system prompt and the query
    assert (result["steps"], result["delegated_steps"]) == (2, 2)
    total = [made.request for made in run.requests]
    assert result["usage"]["input_tokens"] == sum(request.tokens for request in total)


async def test_delegates_of_one_answer_work_at_the_same_time(house: House) -> None:
    """S-62: each asks its model before another one has its answer."""
    lead, helper = agent("tester", delegates=["helper"]), agent("helper")
    hanging = say("late").after(faults.hang())
    answers = played(tester=in_order(asks("one", "two", "three"), DONE), helper=lambda _: hanging)
    async with ScriptedProvider(answers) as provider, house.worker(lead, helper):
        house.use(provider)
        handle = await house.start()
        await provider.wait_for_requests(4)
        await cancel(handle, "signal")
        await cancelled(house, handle, "signal")


async def test_the_history_holds_no_query_and_little_of_an_output(house: House) -> None:
    """S-62: what a delegate reads and says stands in the store."""
    lead, helper = agent("tester", delegates=["helper"]), agent("helper")
    query, output = "needle in " + "hay " * 500, "straw " * 6_000
    answers = played(tester=in_order(asks(query), DONE), helper=lambda _: say(output))
    async with ScriptedProvider(answers) as provider, house.worker(lead, helper):
        house.use(provider)
        await house.run()
        read = results_in(provider.requests[-1].request)[0]
    ((child, turn),) = await children(house)
    texts: list[str] = []
    for session in (house.session, child.session):
        history = await house.temporal.get_workflow_handle(session).fetch_history()
        texts.append(history.to_json())
    assert all(query not in text and output[:1_100] not in text for text in texts)
    assert (await transcript(house, child.session))[0] == ("user", query)
    assert turn.result is not None
    assert turn.result.output == output
    artifact = (await house.events("tool_end"))[0]["artifact"]
    assert artifact in read
    assert (await house.store.artifact(artifact, session=house.session)).text == output


async def test_tools_come_before_delegates_and_delegates_before_people(run: Run) -> None:
    """S-65: mixed calls of one answer."""

    @tool
    def look() -> str:
        """Look."""
        return "looked"

    lead = agent("tester", delegates=["helper"], tools=[look, ask_user])
    mixed = call(("ask_user", {"question": "which?"}), ("helper", {"query": "one"}), ("look", {}))
    answers = played(tester=in_order(mixed, DONE), helper=echoing)
    result = await run(lead, script=answers, agents=[agent("helper")], people=[answer("this", seconds=60)])
    read = results_in(run.requests[-1].request)
    order = [(line["type"], line.get("tool")) for line in await run.events()]
    places = [
        order.index(event)
        for event in [
            ("tool_end", "look"),
            ("delegate_start", "helper"),
            ("delegate_end", "helper"),
            ("tool_end", "helper"),
            ("user_input_required", "ask_user"),
        ]
    ]
    assert places == sorted(places)
    assert (result["stop_reason"], read) == ("finished", ["this", "answer to one", "looked"])


@pytest.mark.parametrize("kind", ["error", "steps"])
async def test_a_delegate_that_fails_is_an_error_result_and_the_caller_goes_on(run: Run, kind: str) -> None:
    """S-63: with the session in which to look for the cause."""
    lead, helper = agent("tester", delegates=["helper"]), agent("helper", max_steps=1, delegates=["deep"])
    refused = say("no").after(faults.bad_key())
    failing = refused if kind == "error" else asks("deeper", tool="deep")
    answers = played(tester=in_order(asks("one"), DONE), helper=lambda _: failing, deep=echoing)
    result = await run(lead, script=answers, agents=[helper, agent("deep")])
    (read,) = results_in(run.requests[-1].request)
    assert (result["stop_reason"], result["output"]) == ("finished", "all done")
    (end,) = await run.events("delegate_end")
    error = json.loads(read)["error"]
    why, code = ("error", "llm.auth_error") if kind == "error" else ("max_steps_reached", None)
    assert (end["stop_reason"], end["reason_code"]) == (why, code)
    assert (error["code"], error["session"]) == ("tool.delegate_failed", end["delegate"])
    assert error["type"] == (code or why)
    assert end["delegate"] in error["message"]


async def test_propagate_ends_the_caller_with_the_error_of_the_delegate(run: Run) -> None:
    """S-63."""
    lead = agent("tester", delegates=["helper"], on_child_error="propagate")
    refused = say("no").after(faults.bad_key())
    answers = played(tester=in_order(asks("one"), DONE), helper=lambda _: refused)
    result = await run(lead, script=answers, agents=[agent("helper")])
    assert (result["stop_reason"], result["reason_code"], result["steps"]) == ("error", "tool.delegate_failed", 1)
    ((child, _),) = await children(run)
    assert child.session in result["error"]


async def test_a_delegate_that_is_terminated_is_an_error_result_that_says_so(house: House) -> None:
    """S-63: whatever ends it."""
    lead, helper = agent("tester", delegates=["helper"]), agent("helper")
    hanging = say("late").after(faults.hang())
    answers = played(tester=in_order(asks("one"), DONE), helper=lambda _: hanging)
    async with ScriptedProvider(answers) as provider, house.worker(lead, helper):
        house.use(provider)
        handle = await house.start()
        await provider.wait_for_requests(2)
        ((child, _),) = await children(house)
        await house.temporal.get_workflow_handle(child.session).terminate()
        result: dict[str, Any] = await handle.result()
        (read,) = results_in(provider.requests[-1].request)
    assert result["stop_reason"] == "finished"
    assert "workflow was terminated" in read
    assert child.session in read


@BOTH_WAYS
async def test_a_cancel_ends_delegates_at_every_depth_and_their_transcripts_are_whole(house: House, how: How) -> None:
    """S-57: the caller waits for them, and charges what they used."""
    lead, helper, deep = agent("tester", delegates=["helper"]), agent("helper", delegates=["deep"]), agent("deep")
    hanging = say("late").after(faults.hang())
    answers = played(
        tester=in_order(asks("one"), DONE),
        helper=in_order(asks("two", tool="deep"), DONE),
        deep=lambda _: hanging,
    )
    async with ScriptedProvider(answers) as provider, house.worker(lead, helper, deep):
        house.use(provider)
        handle = await house.start()
        await provider.wait_for_requests(3)
        await cancel(handle, how)
        async with asyncio.timeout(10):  # two seconds are promised, and measured by the histogram of cancels
            result = await cancelled(house, handle, how)
        ended = [turn.result.stop_reason if turn.result else None for _, turn in await children(house)]
    assert ended == ["cancelled", "cancelled"]
    assert (result.steps, result.delegated_steps) == (1, 1)
    roles = [role for role, _ in await transcript(house, house.session)]
    assert roles == ["user", "assistant", "tool"]
    (end,) = await house.events("tool_end")
    assert end["error"]["code"] == "tool.cancelled"


async def test_the_caller_waits_in_a_history_that_its_delegates_do_not_grow(house: House) -> None:
    """S-62: a delegate's steps are in a history of its own, which names its caller."""
    lead, helper = agent("tester", delegates=["helper"]), agent("helper", delegates=["deep"])
    answers = played(
        tester=in_order(asks("one"), DONE),
        helper=in_order(*(asks(str(number), tool="deep") for number in range(5)), DONE),
        deep=echoing,
    )
    async with ScriptedProvider(answers) as provider, house.worker(lead, helper, agent("deep")):
        house.use(provider)
        handle = await house.start()
        await handle.result()
        history = await handle.fetch_history()
    assert len(history.events) <= 19 + 2 * 6 + 9
    (first, _), *_ = await children(house)
    description = await house.temporal.get_workflow_handle(first.session).describe()
    assert (description.parent_id, description.root_id) == (house.session, house.session)
    assert (await description.memo())["perdure_parent"] == house.session
    assert first.session.startswith(f"{house.session}.helper~d")
    of_caller = await house.store.sessions(caller=house.session)
    assert [record.session for record, _ in of_caller] == [first.session]
    assert [record.session for record, _ in await house.store.sessions(delegates=False)] == [house.session]


async def test_a_delegate_cannot_ask_people_or_wait_for_approvals(run: Run) -> None:
    """S-61: unless its caller lets it."""

    @tool(requires_approval=True)
    def pay() -> str:
        """Pay."""
        return "paid"

    lead, helper = agent("tester", delegates=["helper"]), agent("helper", tools=[ask_user, pay])
    wants = call(("ask_user", {"question": "which?"}), ("pay", {}))
    answers = played(tester=in_order(asks("one"), DONE), helper=in_order(wants, say("helped")))
    result = await run(lead, script=answers, agents=[helper])
    refusals = results_in(run.requests[-2].request)
    assert result["stop_reason"] == "finished"
    assert len(refusals) == 2
    assert all("nobody can be asked" in text for text in refusals)
    ((child, _),) = await children(run)
    assert [line["code"] for line in await errors_of(run, child.session)] == ["tool.denied", "tool.denied"]


async def errors_of(of: House | Run, session: str) -> list[Any]:
    page = await of.store.events(session, after=0, limit=500)
    return [event.line()["error"] for event in page if event.line()["type"] == "tool_error"]


async def test_an_interactive_delegate_waits_for_people_in_its_own_session(house: House) -> None:
    """S-61."""
    lead = agent("tester", delegates=[Delegate("helper", interactive=True)])
    helper = agent("helper", tools=[ask_user])
    wants = call(("ask_user", {"question": "which?"}))
    answers = played(tester=in_order(asks("one"), DONE), helper=in_order(wants, say("helped")))
    async with ScriptedProvider(answers) as provider, house.worker(lead, helper):
        house.use(provider)
        handle = await house.start()

        (start,) = await house.wait_for_event("delegate_start")
        inside = house.temporal.get_workflow_handle(start["delegate"])

        async def requests() -> Any:
            with contextlib.suppress(WorkflowQueryFailedError):  # it is being opened
                return (await inside.query("status"))["requests"]
            return None

        (asked,) = await eventually(requests)
        await inside.execute_update("answer", {"request": asked["request_id"], "value": "this"})
        result: dict[str, Any] = await handle.result()
    assert result["stop_reason"] == "finished"


async def test_a_delegate_that_no_worker_has_is_an_error_result(house: House) -> None:
    """S-63: as `perdure worker` would have refused it, this is another worker's."""
    lead = agent("tester", delegates=["nobody"])
    answers = played(tester=in_order(asks("one", tool="nobody"), DONE))
    async with ScriptedProvider(answers) as provider, house.worker(lead):
        house.use(provider)
        result = await house.run()
        (read,) = results_in(provider.requests[-1].request)
    assert result["stop_reason"] == "finished"
    assert "no worker that polls has an agent 'nobody'" in read


async def test_a_delegate_takes_no_message_for_a_turn_after(house: House) -> None:
    """S-62: its session is one call; steering it is allowed."""
    lead, helper = agent("tester", delegates=["helper"]), agent("helper")
    hanging = say("late").after(faults.delay(1.5))
    answers = played(tester=in_order(asks("one"), DONE), helper=lambda _: hanging)
    async with ScriptedProvider(answers) as provider, house.worker(lead, helper):
        house.use(provider)
        handle = await house.start()
        await provider.wait_for_requests(2)
        ((child, _),) = await children(house)
        inside = house.temporal.get_workflow_handle(child.session)
        with pytest.raises(Exception, match="update failed"):
            await inside.execute_update("send", {"prompt": "more"})
        await inside.execute_update("send", {"prompt": "hurry", "steer": True})
        result: dict[str, Any] = await handle.result()
    assert result["stop_reason"] == "finished"
    assert ("user", "hurry") in await transcript(house, child.session)
