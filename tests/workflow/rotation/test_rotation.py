"""A long turn goes on in a fresh history when the server suggests it, and nobody can tell from the outside."""

from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError
from temporalio.exceptions import ApplicationError

from perdure import Agent, ask_user, tool
from perdure.client.connect import DATA_CONVERTER
from perdure.contracts.turns import TurnResult
from perdure.testing import ChatRequest, Reply, Script, ScriptedProvider, call, faults, say
from tests.house import House, eventually
from tests.workflow.asking import COLOUR, refusal, update, waiting
from tests.workflow.bodies import Body, happened
from tests.workflow.cancelling import BOTH_WAYS, How, cancel, cancelled
from tests.workflow.resetting import completed_tasks, reset

pytestmark = pytest.mark.deep


@tool
def count(number: int) -> str:
    """Say the number."""
    return f"number {number}"


def steps(first: int, last: int) -> list[Any]:
    return [call(("count", {"number": number})) for number in range(first, last + 1)]


def agent(*tools: Any, **settings: Any) -> Agent:
    return Agent(name="tester", model="openai/scripted", tools=[count, *tools], **settings)


async def runs(house: House) -> list[WorkflowExecutionStatus | None]:
    """The status of each run of the session, the oldest first; visibility is eventually consistent."""

    async def closed() -> list[WorkflowExecutionStatus | None] | None:
        query = f'WorkflowId = "{house.session}"'
        found = [execution async for execution in house.temporal.list_workflows(query)]
        found.sort(key=lambda execution: execution.start_time)
        statuses = [execution.status for execution in found]
        return statuses if statuses and WorkflowExecutionStatus.RUNNING not in statuses else None

    seen: list[WorkflowExecutionStatus | None] = await eventually(closed)
    return seen


async def test_a_turn_that_rotates_is_one_turn_with_one_transcript_and_a_gapless_log(house: House) -> None:
    """S-46: the same messages, numbers and result as if it had never moved."""
    script = Script(replies=(*steps(1, 20), say("twenty")))
    async with ScriptedProvider(script) as provider, house.worker(agent()):
        house.use(provider)
        result = await house.run()
        statuses = await runs(house)
    *earlier, last = statuses
    assert len(earlier) >= 2
    assert set(earlier) == {WorkflowExecutionStatus.CONTINUED_AS_NEW}
    assert last is WorkflowExecutionStatus.COMPLETED
    assert (result["turn"], result["steps"], result["output"]) == (1, 21, "twenty")
    assert len(await house.store.turns(house.session)) == 1
    events = await house.events()
    assert [line["seq"] for line in events] == list(range(1, len(events) + 1))
    assert [line["step"] for line in events if line["type"] == "generation_end"] == list(range(1, 22))
    assert [line["type"] for line in events].count("agent_start") == 1
    transcript = await house.store.transcript(house.session)
    assert [message.content for message in transcript if message.role == "tool"] == [
        f"number {number}" for number in range(1, 21)
    ]
    assert provider.request_count == 21
    assert result["usage"]["input_tokens"] == sum(
        line["usage"]["input_tokens"] for line in events if line["type"] == "generation_end"
    )


async def test_what_waits_for_a_turn_that_rotates_is_carried_along(house: House) -> None:
    """Queued messages become the next turns, in their order; a steered one is read after the rotation, once."""
    body = Body()
    script = Script(
        replies=(*steps(1, 4), call(*[("held", {})] * 8), *steps(5, 9), say("first"), say("second"), say("third"))
    )
    async with ScriptedProvider(script) as provider, house.worker(agent(body.held())):
        house.use(provider)
        handle = await house.start()
        await happened(body.started)
        for prompt, steered in (("second", False), ("third", False), ("hurry", True)):
            await handle.execute_update("send", {"prompt": prompt, "request_id": prompt, "steer": steered})
        before = await _run_id(handle)
        body.released.set()
        result = await house.temporal.get_workflow_handle(house.session).result()
        rotated = house.temporal.get_workflow_handle(house.session, run_id=before)
        assert (await _input_of_the_next_run(rotated))["carried"]["turn"]["origin"]["turn"] == 1
    assert (result["turn"], result["output"]) == (3, "third")
    assert [record.result.output for record in await house.store.turns(house.session) if record.result] == [
        "first",
        "second",
        "third",
    ]
    prompts = [m["content"] for m in provider.requests[-1].request.messages if m["role"] == "user"]
    assert prompts == ["go", "hurry", "second", "third"]


@BOTH_WAYS
async def test_a_cancel_after_a_rotation_ends_the_one_turn(house: House, how: How) -> None:
    script = Script(replies=(*steps(1, 8), say("late").after(faults.hang())))
    async with ScriptedProvider(script) as provider, house.worker(agent()):
        house.use(provider)
        handle = await house.start()
        await provider.wait_for_requests(9)
        rotated = house.temporal.get_workflow_handle(house.session)
        assert await _run_id(rotated) != handle.first_execution_run_id
        await cancel(rotated, how)
        result = await cancelled(house, rotated, how)
    assert (result.turn, result.steps) == (1, 8)


@BOTH_WAYS
async def test_a_cancel_that_meets_a_rotation_is_not_lost(house: House, how: How) -> None:
    """It comes at about the moment at which the turn goes on in its next run."""
    body = Body()
    script = Script(replies=(*steps(1, 4), call(*[("held", {})] * 8), *steps(5, 99)))
    async with ScriptedProvider(script) as provider, house.worker(agent(body.held())):
        house.use(provider)
        handle = house.temporal.get_workflow_handle((await house.start()).id)
        await happened(body.started)
        body.released.set()
        await cancel(handle, how)
        result = await cancelled(house, handle, how)
    assert result.turn == 1
    calls = [m for m in await house.store.transcript(house.session) if m.role == "assistant" for _ in m.tool_calls]
    results = [m for m in await house.store.transcript(house.session) if m.role == "tool"]
    assert len(results) == len(calls)


async def test_no_message_is_lost_while_turns_rotate(house: House) -> None:
    """Each is taken exactly once, by the turn that its receipt names, and of one turn in the order of sending.

    A hint that comes while its turn ends is for a turn of its own, behind those that wait.
    """

    def answer(request: ChatRequest) -> Reply:
        """Twelve steps for each prompt, then its own words."""
        messages = request.messages
        last = max(index for index, message in enumerate(messages) if str(message.get("content")).startswith("turn"))
        done = sum(message["role"] == "tool" for message in messages[last:])
        return call(("count", {"number": done})) if done < 12 else say(f"end of {messages[last]['content']}")

    async with ScriptedProvider(answer) as provider, house.worker(agent()):
        house.use(provider)
        await house.start(prompt="turn 1")
        queued = [(await house.client.send(house.session, f"turn {n}")) for n in range(2, 6)]
        hints = [f"hint {n}" for n in range(12)]
        taken = [await (await house.client.send(house.session, hint, when_busy="steer")).number() for hint in hints]
        results = [await turn.result() for turn in queued]
        statuses = await runs(house)
    assert [result.output for result in results] == [f"end of turn {n}" for n in range(2, 6)]
    assert len(statuses) > 2 * 5
    said = [message.content for message in await house.store.transcript(house.session) if message.role == "user"]
    assert [text for text in said if text.startswith("turn")] == [f"turn {n}" for n in range(1, 6)]
    in_turns = sorted(range(len(hints)), key=lambda number: taken[number] or 0)
    assert [text for text in said if text.startswith("hint")] == [hints[number] for number in in_turns]


@BOTH_WAYS
async def test_a_cancel_that_comes_before_the_first_task_of_the_next_run_is_not_lost(house: House, how: How) -> None:
    """No worker has seen that run yet when the cancel is recorded."""
    house.settings = house.settings.model_copy(update={"shutdown_grace": timedelta(0)})
    script = Script(replies=(*steps(1, 6), say("late").after(faults.hang())))
    async with ScriptedProvider(script) as provider:
        house.use(provider)
        async with house.worker(agent()):
            await house.start()
            await provider.wait_for_requests(7)
        # The same run once more, as the server had started it, before any worker is there.
        first_task, *_ = await completed_tasks(house.temporal.get_workflow_handle(house.session))
        again = await reset(house, first_task)
        await cancel(again, how)
        async with house.worker(agent()):
            assert (await cancelled(house, again, how)).turn == 1
        assert provider.request_count == 7


async def test_the_time_budget_of_a_turn_runs_on_through_its_rotations(house: House) -> None:
    """The deadline is counted from the turn's beginning, not from its run's."""
    script = Script(replies=(*steps(1, 6), say("late").after(faults.hang())))
    async with ScriptedProvider(script) as provider, house.worker(agent()):
        house.use(provider)
        handle = await house.start(budgets={"seconds": 8})
        result = await handle.result()
        statuses = await runs(house)
    assert (result["stop_reason"], result["reason_code"]) == ("budget_exhausted", "budget.seconds_exhausted")
    assert statuses[0] is WorkflowExecutionStatus.CONTINUED_AS_NEW
    first, *later = await _timers(house)
    assert first == 8
    assert len(later) == len(statuses) - 1
    assert all(seconds < first for seconds in later)


async def _run_id(handle: Any) -> str:
    return str((await handle.describe()).run_id)


async def _input_of_the_next_run(run: Any) -> Any:
    """What a run that has rotated handed on."""
    last = (await run.fetch_history()).events[-1]
    payloads = last.workflow_execution_continued_as_new_event_attributes.input.payloads
    (carried,) = await DATA_CONVERTER.decode(payloads)
    return carried


async def _timers(house: House) -> list[float]:
    """Seconds of the timer of each run, the oldest run first."""
    query = f'WorkflowId = "{house.session}"'
    found = [execution async for execution in house.temporal.list_workflows(query)]
    seconds: list[float] = []
    for execution in sorted(found, key=lambda execution: execution.start_time):
        history = await house.temporal.get_workflow_handle(house.session, run_id=execution.run_id).fetch_history()
        seconds += [
            event.timer_started_event_attributes.start_to_fire_timeout.ToTimedelta().total_seconds()
            for event in history.events
            if event.HasField("timer_started_event_attributes")
        ]
    return seconds


async def test_tools_of_a_start_and_results_are_the_turns_after_a_rotation(house: House) -> None:
    """S-81: whoever began the turn still runs its calls, and the first result stands."""
    look = call(("lookup", {}))
    replies = (look, *steps(1, 6), look, say("done"))
    async with ScriptedProvider(Script(replies=replies)) as provider, house.worker(agent()):
        house.use(provider)
        handle = await house.start(tools=[{"name": "lookup"}])
        (first,) = await waiting(house)
        receipt = await update(house, "submit_result", request=first["request_id"], value="Ada")
        await house.wait_for_event("user_input_required", 2)
        (second,) = await waiting(house)
        assert await _run_id(house.temporal.get_workflow_handle(house.session)) != handle.first_execution_run_id
        assert await update(house, "submit_result", request=first["request_id"], value="Ada") == receipt
        assert "that stands" in await refusal(house, "submit_result", request=first["request_id"], value="Eve")
        await update(house, "submit_result", request=second["request_id"], value="Bob")
        result = await house.temporal.get_workflow_handle(house.session).result()
    assert (result["stop_reason"], result["steps"]) == ("finished", 9)


async def test_what_people_decided_is_remembered_after_a_rotation(house: House) -> None:
    """The same reply has the same receipt, another is refused with who was first; and the turn can ask again."""
    replies = (COLOUR, *steps(1, 6), COLOUR, say("done"))
    async with ScriptedProvider(Script(replies=replies)) as provider, house.worker(agent(ask_user)):
        house.use(provider)
        handle = await house.start()
        (first,) = await waiting(house)
        receipt = await update(house, "answer", request=first["request_id"], value="red", by="ann")
        await house.wait_for_event("user_input_required", 2)
        (second,) = await waiting(house)
        assert await _run_id(house.temporal.get_workflow_handle(house.session)) != handle.first_execution_run_id
        assert await update(house, "answer", request=first["request_id"], value="red") == receipt
        assert "by ann" in await refusal(house, "answer", request=first["request_id"], value="blue")
        await update(house, "answer", request=second["request_id"], value="blue")
        result = await house.temporal.get_workflow_handle(house.session).result()
    assert (result["stop_reason"], result["steps"]) == ("finished", 9)


@pytest.mark.parametrize("fails", [True, False])
async def test_a_turn_closes_as_the_worker_has_it_that_opened_it(house: House, fails: bool) -> None:
    """S-46: a rolling deployment of ``PERDURE_FAIL_WORKFLOWS`` changes no turn that runs, rotated or replayed."""
    body = Body()
    script = Script(replies=(*steps(1, 8), call(("held", {})), say("no").after(faults.bad_key())))
    async with ScriptedProvider(script) as provider:
        house.use(provider)
        async with house.worker(agent(body.held()), fail_workflows=fails):
            handle = await house.start()
            await happened(body.started)
            body.released.set()
        async with house.worker(agent(body.held()), fail_workflows=not fails):
            result = await (await house.client.attach(house.session)).result()
            *earlier, last = await runs(house)
    assert (result.stop_reason, result.reason_code) == ("error", "llm.auth_error")
    assert set(earlier) == {WorkflowExecutionStatus.CONTINUED_AS_NEW}
    assert last is (WorkflowExecutionStatus.FAILED if fails else WorkflowExecutionStatus.COMPLETED)
    if fails:
        with pytest.raises(WorkflowFailureError) as failed:
            await handle.result()
        assert isinstance(failed.value.cause, ApplicationError)
        assert TurnResult.model_validate(failed.value.cause.details[0]) == result
