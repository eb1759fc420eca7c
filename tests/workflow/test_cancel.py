"""A cancel, by the signal or by Temporal's own, ends the turn and loses nothing that was said or done."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError
from temporalio.service import RPCError, RPCStatusCode

from perdure import Agent, tool
from perdure.agents.context import ToolContext
from perdure.contracts.retries import RetryPolicy
from perdure.testing import Script, ScriptedProvider, call, faults, say
from tests.house import WAIT_SECONDS, House, eventually
from tests.workflow.bodies import Body, happened
from tests.workflow.cancelling import BOTH_WAYS, REASONS, How, cancel, cancelled
from tests.workflow.holding import HeldRunner

pytestmark = pytest.mark.deep

HOURS = RetryPolicy(base=timedelta(hours=1), jitter=timedelta(0), max_time=None)


def agent(*tools: Any, **settings: Any) -> Agent:
    return Agent(name="tester", model="openai/scripted", tools=tools, **settings)


def leaving_at_once(house: House) -> House:
    """Workers of this house hand running calls over as soon as they are stopped."""
    house.settings = house.settings.model_copy(update={"shutdown_grace": timedelta(0)})
    return house


def said(provider: ScriptedProvider) -> Sequence[Mapping[str, Any]]:
    """What the model was last asked."""
    return provider.requests[-1].request.messages


async def next_prompt(house: House, provider: ScriptedProvider) -> Sequence[Mapping[str, Any]]:
    """What the model reads when the session goes on."""
    result = await house.run(prompt="and now?")
    assert (result["stop_reason"], result["turn"]) == ("finished", 2)
    return said(provider)


@BOTH_WAYS
async def test_a_cancel_during_a_model_call_closes_its_connection_and_ends_the_turn(house: House, how: How) -> None:
    """S-57, S-56: the user's message stays, and the next prompt goes on from it."""
    script = Script(replies=(say("here I am").after(faults.hang()),))
    async with ScriptedProvider(script) as provider, house.worker(agent()):
        house.use(provider)
        handle = await house.start(prompt="are you there?")
        await provider.wait_for_requests(1)
        await cancel(handle, how)
        result = await cancelled(house, handle, how)
        await provider.wait_for_disconnect()
        assert (result.steps, result.output) == (0, "")
        (error,) = await house.events("generation_error")
        assert (error["step"], error["error"]["message"]) == (1, "Operation aborted")
        assert [(m["role"], m["content"]) for m in await next_prompt(house, provider)] == [
            ("user", "are you there?"),
            ("user", "and now?"),
        ]


@BOTH_WAYS
async def test_a_cancel_during_an_async_tool_cancels_it_and_keeps_its_finished_sibling(house: House, how: How) -> None:
    """S-57, S-58: the tool is cancelled; the next prompt's model reads its error result."""
    body = Body()

    @tool
    async def endless() -> str:
        body.started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            body.stopped.set()
            raise
        return "never"

    @tool
    def quick() -> str:
        return "done at once"

    script = Script(replies=(call(("quick", {}), ("endless", {}), text="I will try"), say("sorry")))
    async with ScriptedProvider(script) as provider, house.worker(agent(endless, quick)):
        house.use(provider)
        handle = await house.start(prompt="try both")
        await happened(body.started)
        await house.wait_for_event("tool_end")
        await cancel(handle, how)
        result = await cancelled(house, handle, how)
        await happened(body.stopped)
        assert result.steps == 1
        user, assistant, first, second, after = await next_prompt(house, provider)
    assert [user["content"], assistant["content"], after["content"]] == ["try both", "I will try", "and now?"]
    asked = [(wanted["id"], wanted["function"]["name"]) for wanted in assistant["tool_calls"]]
    assert asked == [(first["tool_call_id"], "quick"), (second["tool_call_id"], "endless")]
    assert first["content"] == "done at once"
    assert second["content"] == "Operation aborted: endless was cancelled while it ran; its effect is unknown"
    errors = {line["tool"]: (line["error"] or {}).get("code") for line in await house.events("tool_end")}
    assert errors == {"quick": None, "endless": "tool.cancelled"}


@BOTH_WAYS
async def test_a_cancel_does_not_wait_for_a_blocking_tool_and_drops_its_late_outcome(house: House, how: How) -> None:
    """S-57, S-58: the body's flag is set, the turn ends while it blocks on, a metric counts it."""
    body = Body()

    @tool
    def stubborn(context: ToolContext) -> str:
        body.started.set()
        if context.wait(WAIT_SECONDS) and context.cancelled:
            body.stopped.set()
        body.released.wait(WAIT_SECONDS)
        body.ended.set()
        return "too late"

    script = Script(replies=(call(("stubborn", {})), say("sorry")))
    async with ScriptedProvider(script) as provider, house.worker(agent(stubborn)):
        house.use(provider)
        handle = await house.start()
        await happened(body.started)
        await cancel(handle, how)
        await cancelled(house, handle, how)
        await happened(body.stopped)
        assert not body.ended.is_set()
        abandoned = house.registry.get_sample_value("perdure_tools_abandoned_total", {"tool": "stubborn"})
        assert abandoned == 1
        body.released.set()
        await happened(body.ended)
        messages = await next_prompt(house, provider)
        first_turn = [line["type"] for line in await house.events() if line["turn"] == 1]
    assert [m["content"] for m in messages if m["role"] == "tool"] == [
        "Operation aborted: stubborn was cancelled while it ran; its effect is unknown"
    ]
    assert first_turn[-2:] == ["tool_end", "agent_end"]


@BOTH_WAYS
async def test_a_cancel_during_a_retry_wait_aborts_the_chain(house: House, how: How) -> None:
    """S-16, S-57: no further request is sent, and the log says that the operation was aborted."""
    script = Script(replies=(say("at last").after(faults.status(503)),))
    async with ScriptedProvider(script) as provider, house.worker(agent(retry=HOURS)):
        house.use(provider)
        handle = await house.start()
        await house.wait_for_event("generation_retry")
        await cancel(handle, how)
        await cancelled(house, handle, how)
        assert provider.request_count == 1
        assert [line["error"]["message"] for line in await house.events("generation_error")] == ["Operation aborted"]
        assert [m["content"] for m in await next_prompt(house, provider)] == ["go", "and now?"]


@BOTH_WAYS
async def test_a_cancel_between_two_tools_keeps_the_finished_work_of_earlier_steps(house: House, how: How) -> None:
    """S-56: what the model read and said before stays, word for word."""

    @tool
    def quick() -> str:
        return "done at once"

    script = Script(replies=(call(("quick", {})), say("all good").after(faults.hang())))
    async with ScriptedProvider(script) as provider, house.worker(agent(quick)):
        house.use(provider)
        handle = await house.start()
        await provider.wait_for_requests(2)
        before = said(provider)
        await cancel(handle, how)
        assert (await cancelled(house, handle, how)).steps == 1
        messages = await next_prompt(house, provider)
    assert [m["role"] for m in messages] == ["user", "assistant", "tool", "user"]
    assert messages[:3] == before


async def test_a_cancel_that_names_another_turn_is_ignored(house: House) -> None:
    script = Script(replies=(call(("held", {})), say("done")))
    body = Body()
    async with ScriptedProvider(script) as provider, house.worker(agent(body.held())):
        house.use(provider)
        handle = await house.start()
        await happened(body.started)
        await handle.signal("cancel", {"turn": 2})
        assert not (await handle.query("status"))["cancelling"]
        body.released.set()
        assert (await handle.result())["stop_reason"] == "finished"


async def test_a_cancel_that_names_the_running_turn_stops_it(house: House) -> None:
    script = Script(replies=(say("late").after(faults.hang()),))
    async with ScriptedProvider(script) as provider, house.worker(agent()):
        house.use(provider)
        handle = await house.start()
        await provider.wait_for_requests(1)
        await handle.signal("cancel", {"reason": REASONS["signal"], "turn": 1})
        await cancelled(house, handle, "signal")


async def test_of_two_cancels_the_first_one_gives_the_reason(house: House) -> None:
    script = Script(replies=(say("late").after(faults.hang()),))
    async with ScriptedProvider(script) as provider:
        leaving_at_once(house).use(provider)
        async with house.worker(agent()):
            handle = await house.start()
            await provider.wait_for_requests(1)
        # Without a worker both wait for the same workflow task.
        await handle.signal("cancel", {"reason": REASONS["signal"]})
        await handle.signal("cancel", {"reason": "a second thought"})
        await handle.signal("cancel")
        async with house.worker(agent()):
            await cancelled(house, handle, "signal")


@BOTH_WAYS
async def test_a_signal_and_temporals_cancel_together_end_the_execution_as_canceled(house: House, how: How) -> None:
    """Whichever comes first gives the reason; Temporal's cancel always ends as Canceled."""
    script = Script(replies=(say("late").after(faults.hang()),))
    async with ScriptedProvider(script) as provider:
        leaving_at_once(house).use(provider)
        async with house.worker(agent()):
            handle = await house.start()
            await provider.wait_for_requests(1)
        await cancel(handle, how)
        await cancel(handle, "temporal" if how == "signal" else "signal")
        async with house.worker(agent()):
            with pytest.raises(WorkflowFailureError):
                await handle.result()
        assert (await handle.describe()).status is WorkflowExecutionStatus.CANCELED
    stored = (await house.store.turn(house.session, 1)).result
    assert stored is not None
    assert stored.stop_reason == "cancelled"


@pytest.mark.parametrize("sent", [None, "stop it", 42, ["stop"], {"turn": "first"}])
async def test_a_cancel_signal_of_any_shape_stops_the_turn(house: House, sent: Any) -> None:
    """A signal cannot be refused; whoever sends one wants the turn to stop."""
    async with ScriptedProvider(always=faults.hang()) as provider, house.worker(agent()):
        house.use(provider)
        handle = await house.start()
        await provider.wait_for_requests(1)
        await handle.signal("cancel", sent)
        result = await handle.result()
    assert (result["stop_reason"], result["reason_code"]) == ("cancelled", "runtime.aborted")


async def test_a_cancel_of_a_session_that_has_finished_does_nothing(house: House) -> None:
    """S-59: Temporal says that nothing runs, our client that there was nothing to do."""
    async with ScriptedProvider(Script(replies=(say("done"),))) as provider, house.worker(agent()):
        house.use(provider)
        result = await house.run()
        with pytest.raises(RPCError) as refused:
            await house.temporal.get_workflow_handle(house.session).signal("cancel", {"reason": "late"})
        assert refused.value.status == RPCStatusCode.NOT_FOUND
        assert await house.client.cancel(house.session) is False
    stored = (await house.store.turn(house.session, 1)).result
    assert stored is not None
    assert stored.model_dump(mode="json") == result


@BOTH_WAYS
async def test_a_cancel_before_any_worker_has_seen_the_turn_keeps_the_prompt(house: House, how: How) -> None:
    """S-57, S-56: no model is asked, and the next prompt's model reads what the user had said."""
    async with ScriptedProvider(Script(replies=(say("done"),))) as provider:
        house.use(provider)
        handle = await house.start(prompt="first")
        await cancel(handle, how)
        async with house.worker(agent()):
            assert (await cancelled(house, handle, how)).steps == 0
            assert provider.request_count == 0
            assert [m["content"] for m in await next_prompt(house, provider)] == ["first", "and now?"]


@BOTH_WAYS
async def test_a_cancel_while_the_turn_is_being_opened_ends_it_as_soon_as_it_is_open(house: House, how: How) -> None:
    """S-57: opening is not interrupted half-way, and nothing starts after it."""
    opening = house.hold("open_turn")
    async with ScriptedProvider() as provider, house.worker(agent()):
        house.use(provider)
        handle = await house.start()
        await opening.reached.wait()
        await cancel(handle, how)
        await _in_history(handle, how)
        opening.go_on.set()
        await cancelled(house, handle, how)
        assert provider.request_count == 0


async def test_a_cancel_for_another_turn_that_comes_before_this_one_is_open_is_ignored(house: House) -> None:
    """S-59: which turn this is becomes known only when it is open."""
    async with ScriptedProvider(Script(replies=(say("done"),))) as provider:
        house.use(provider)
        handle = await house.start()
        await handle.signal("cancel", {"turn": 7})
        async with house.worker(agent()):
            assert (await handle.result())["stop_reason"] == "finished"


async def test_a_cancel_for_another_turn_does_not_hide_the_one_that_follows_it(house: House) -> None:
    async with ScriptedProvider() as provider:
        house.use(provider)
        handle = await house.start()
        await handle.signal("cancel", {"turn": 7, "reason": "not you"})
        await handle.signal("cancel", {"turn": 1, "reason": REASONS["signal"]})
        async with house.worker(agent()):
            await cancelled(house, handle, "signal")


async def test_a_cancel_that_comes_while_the_end_is_recorded_is_too_late_to_change_it(house: House) -> None:
    committing = house.hold("commit_turn")
    async with ScriptedProvider(Script(replies=(say("done"),))) as provider, house.worker(agent()):
        house.use(provider)
        handle = await house.start()
        await committing.reached.wait()
        await cancel(handle, "signal")
        await _in_history(handle, "signal")
        committing.go_on.set()
        assert (await handle.result())["stop_reason"] == "finished"


async def _in_history(handle: Any, how: How) -> None:
    """Wait until the server has recorded the cancel."""
    wanted = {
        "signal": "workflow_execution_signaled_event_attributes",
        "temporal": "workflow_execution_cancel_requested_event_attributes",
    }[how]

    async def recorded() -> bool:
        history = await handle.fetch_history()
        return any(event.HasField(wanted) for event in history.events)

    await eventually(recorded)


@BOTH_WAYS
@pytest.mark.parametrize("during", ["generation", "tool"])
async def test_a_cancel_that_comes_together_with_the_end_of_the_work_ends_the_turn(
    house: House, how: How, during: str
) -> None:
    """S-57: the SDK drops a result that is cancelled in the activation that brings it; the store still has it."""
    runner, body = HeldRunner(), Body()
    storing = house.hold("finish_generation", lambda *_, **__: during == "generation")
    script = Script(replies=(call(("held", {}), text="half"),))
    async with ScriptedProvider(script) as provider, house.worker(agent(body.held()), runner=runner):
        house.use(provider)
        handle = await house.start()
        if during == "generation":
            await provider.wait_for_requests(1)
        else:
            await happened(body.started)
        runner.hold()
        await handle.signal("cancel", {"turn": 99})
        await happened(runner.held)
        storing.go_on.set()
        body.released.set()
        await house.wait_for_event("generation_end" if during == "generation" else "tool_end")
        await _nothing_runs(handle)
        await cancel(handle, how)
        runner.release()
        result = await cancelled(house, handle, how)
    assert (result.steps, result.output) == (1, "half")
    said = [(message.role, message.content) for message in await house.store.transcript(house.session)]
    of_tool = "Operation aborted: held was cancelled before it ran" if during == "generation" else "released"
    assert said[1:] == [("assistant", "half"), ("tool", of_tool)]
    assert body.started.is_set() == (during == "tool")


async def _nothing_runs(handle: Any) -> None:
    """Wait until the history holds the end of each activity."""

    async def ended() -> bool:
        return not (await handle.describe()).raw_description.pending_activities

    await eventually(ended)
