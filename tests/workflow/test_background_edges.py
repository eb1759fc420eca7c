"""Delegates in the background beside people, limits that change and hooks: who is charged, who waits, who ends."""

from typing import Any

import pytest

from perdure import Budgets, Continue, Delegate, ask_user, hook
from perdure.agents.hooks import StepEnd
from perdure.contracts.events import DelegateEnd, DelegateStart
from perdure.testing import ScriptedProvider, call, say
from tests.house import House
from tests.workflow.asking import waiting
from tests.workflow.backgrounds import HANGING, awaiting, lead, look, starts, steps, waits_for_delegates
from tests.workflow.bodies import Body, happened
from tests.workflow.delegating import DONE, agent, children, in_order, of_helpers, played, results_in


@pytest.mark.parametrize("interactive", ["wait", "stop"])
async def test_a_delegate_that_was_approved_works_in_the_background(house: House, interactive: str) -> None:
    """S-64 S-66: once, in the turn that the approval goes on with, or starts."""
    answers = played(tester=steps(starts("one"), awaiting(0), DONE), helper=lambda _: say("helped"))
    helping = [Delegate("helper", background=True, requires_approval=True)]
    caller = lead(delegates=helping, interactive=interactive)
    async with ScriptedProvider(answers) as provider, house.worker(caller, agent("helper")):
        house.use(provider)
        await house.start()
        if interactive == "stop":
            await house.wait_for_event("agent_end")
        (asked,) = await house.wait_for_event("user_input_required")
        if interactive == "wait":
            await waiting(house)
        await house.client.approve(house.session, asked["request_id"], by="ann", digest=asked["digest"])
        result = await (await house.client.attach(house.session)).result()
        *_, read = results_in(provider.requests[-1].request)
        assert of_helpers(provider) == ["one"]
    assert (result.stop_reason, result.delegated_steps, read) == ("finished", 1, "helped")
    assert [(line["decision"], line["by"]) for line in await house.events("user_input_received")] == [
        ("approved", "ann")
    ]
    assert len(await house.events("delegate_end")) == 1


async def test_a_turn_that_stops_for_a_person_ends_its_delegates_and_the_next_has_none(house: House) -> None:
    """S-64 S-66: charged in the turn that began them, and only there."""
    asking = call(("ask_user", {"question": "Which?"}))
    answers = played(tester=steps(starts("one"), asking, awaiting(0), DONE), helper=lambda _: HANGING)
    caller = lead(tools=[ask_user], interactive="stop", budgets=Budgets(llm_calls=20, scope="session"))
    async with ScriptedProvider(answers) as provider, house.worker(caller, agent("helper")):
        house.use(provider)
        stopped = await house.run()
        ((_, turn),) = await children(house)
        assert turn.result is not None
        (request,) = stopped["requests"]
        await house.client.answer(house.session, request["request_id"], "this")
        result = await (await house.client.attach(house.session)).result()
        *_, read = results_in(provider.requests[-1].request)
    assert (stopped["stop_reason"], turn.result.stop_reason) == ("waiting_for_input", "cancelled")
    assert (stopped["delegated_steps"], result.delegated_steps) == (turn.result.steps, 0)
    assert result.stop_reason == "finished"
    assert "this turn has started none there" in read


async def test_a_caller_that_is_given_more_calls_goes_on_while_its_delegate_works(house: House) -> None:
    """S-64 S-70: it does not wait for a share that it no longer needs."""
    answers = played(tester=steps(starts("one"), call(("look", {})), DONE), helper=lambda _: HANGING)
    caller = lead(budgets=Budgets(llm_calls=3))
    async with ScriptedProvider(answers) as provider, house.worker(caller, agent("helper")):
        house.use(provider)
        handle = await house.start()
        await provider.wait_for_requests(3)
        await waits_for_delegates(handle)
        await handle.execute_update("extend", {"llm_calls": 5})
        result = await handle.result()
    assert (result["stop_reason"], result["steps"]) == ("finished", 3)


async def test_a_hook_hears_of_the_end_of_a_delegate_in_the_background_once(house: House) -> None:
    """S-36 S-64: behind the step in which the turn learns of it, and has its way."""
    body, heard = Body(), list[str]()

    @hook("delegate_start", "delegate_end")
    def watch(event: DelegateStart | DelegateEnd) -> Continue | None:
        heard.append(f"{event.type} {event.tool}")
        return Continue("helper has ended") if isinstance(event, DelegateEnd) else None

    answers = played(
        tester=steps(starts("one"), call(("held", {})), awaiting(0), call(("look", {})), DONE),
        helper=lambda _: say("helped"),
    )
    caller = lead(tools=[look, body.held()], hooks=[watch])
    async with ScriptedProvider(answers) as provider, house.worker(caller, agent("helper")):
        house.use(provider)
        handle = await house.start()
        await happened(body.started)
        await house.wait_for_event("delegate_end")
        body.released.set()
        result: dict[str, Any] = await handle.result()
        told = [message["content"] for message in provider.requests[-1].request.messages if message["role"] == "user"]
    assert (result["stop_reason"], told) == ("finished", ["go", "helper has ended"])
    assert heard == ["delegate_start helper", "delegate_end helper"]


async def test_a_hook_waits_for_what_a_delegate_in_the_background_gives_back(house: House) -> None:
    """S-36 S-64 S-70: each hook is called once a step, and the turn ends by its own answer."""
    body, seen = Body(), list[int]()

    @hook("step_end")
    def watch(event: StepEnd) -> None:
        seen.append(1)

    helper = agent("helper", tools=[body.held()])
    answers = played(
        tester=steps(starts("one"), call(("look", {})), DONE), helper=in_order(call(("held", {})), say("helped"))
    )
    caller = lead(hooks=[watch], budgets=Budgets(behavior_calls=4))
    async with ScriptedProvider(answers) as provider, house.worker(caller, helper):
        house.use(provider)
        handle = await house.start()
        await happened(body.started)
        await waits_for_delegates(handle)
        body.released.set()
        result: dict[str, Any] = await handle.result()
    assert (result["stop_reason"], len(seen)) == ("finished", 3)
    assert result["spent"]["behavior_calls"] == 4
