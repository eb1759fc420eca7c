"""What hooks hear of when no step of its own is left: at a person's reply, with another turn, at the end of one."""

import asyncio
from typing import Any

import pytest

from perdure import Agent, Continue, Fallback, Hook, HookRule, hook, stop, todo, tool
from perdure.agents.hooks import HookedEvent
from perdure.contracts.hooks import HookEvent
from perdure.testing import Script, ScriptedProvider, call, faults, say
from tests.house import House
from tests.memory import Run
from tests.workflow.asking import COLOUR, DONE, PAY, asker, several, waiting
from tests.workflow.backgrounds import HANGING, awaiting, lead, look, starts, steps
from tests.workflow.bodies import Body
from tests.workflow.delegating import agent, in_order, played
from tests.workflow.resetting import completed_tasks, reset

QUOTA = faults.error(429, "no more", name="insufficient_quota")


def noting(heard: list[str], *on: HookEvent) -> Hook:
    """A hook that notes what it hears, with the tool it is about."""

    @hook(*on)
    def note(event: HookedEvent) -> None:
        heard.append(" ".join([event.type, str(getattr(event, "tool", ""))]).strip())

    return note


async def reply(house: House, *decisions: str) -> None:
    """Decide about what is asked, in order: an answer is a colour."""
    asked = sorted(await waiting(house, len(decisions)), key=lambda pending: str(pending["request_id"]))
    for request, decision in zip(asked, decisions, strict=True):
        if decision == "deny":
            await house.client.deny(house.session, request["request_id"], by="ann")
        elif decision == "approve":
            await house.client.approve(house.session, request["request_id"], by="ann")
        else:
            await house.client.answer(house.session, request["request_id"], decision, by="ann")


async def test_a_hook_hears_of_every_reply_of_a_person_once(house: House) -> None:
    """S-36: an answer and a denial stand in the log with the next step only."""
    heard: list[str] = []
    hooks = [noting(heard, "user_input_received", "tool_end")]
    script = Script(replies=(several(COLOUR, PAY, PAY), DONE))
    async with ScriptedProvider(script) as provider, house.worker(asker(hooks=hooks)):
        house.use(provider)
        handle = await house.start()
        await reply(house, "red", "approve", "deny")
        result = await handle.result()
    assert result["stop_reason"] == "finished"
    assert sorted(heard) == sorted(
        f"{kind} {tool}" for kind in ("user_input_received", "tool_end") for tool in ("ask_user", "pay", "pay")
    )
    assert len(await house.events("user_input_received")) == 3


@pytest.mark.parametrize("kind", ["rule", "function"])
async def test_a_hook_guards_the_call_with_which_a_reply_goes_on(house: House, kind: str) -> None:
    """S-36: under interactive='stop' it runs in the turn of the reply."""
    guard = (
        HookRule(name="guard", on="tool_end", tool="pay", reaction=Continue("check it"))
        if kind == "rule"
        else hook("tool_end", tool="pay", name="guard")(lambda _: Continue("check it"))
    )
    agents = asker(interactive="stop", hooks=[guard])
    async with ScriptedProvider(Script(replies=(PAY, DONE))) as provider, house.worker(agents):
        house.use(provider)
        await house.run()
        (asked,) = await house.events("user_input_required")
        await house.client.approve(house.session, asked["request_id"], by="ann")
        result = await (await house.client.attach(house.session)).result()
        told = [message["content"] for message in provider.requests[-1].request.messages if message["role"] == "user"]
    assert (result.stop_reason, told) == ("finished", ["go", "check it"])


async def test_what_no_step_is_left_for_is_told_at_the_end(house: House) -> None:
    """S-36: a delegate that ends with its caller, a fallback that fails too, todos beside a question."""
    heard: dict[str, list[str]] = {name: [] for name in ("tester", "falling", "asking")}
    deciding = noting(heard["falling"], "model_fallback")
    falling = Agent(
        name="falling", model="openai/first", fallback_models=[Fallback(model="openai/other")], hooks=[deciding]
    )
    asking = asker(
        name="asking",
        model="openai/asking",
        interactive="stop",
        tools=[todo, *asker().tools],
        hooks=[noting(heard["asking"], "todos_changed")],
    )
    body = Body()
    caller = lead(tools=[body.held()], hooks=[noting(heard["tester"], "delegate_start", "delegate_end")])
    answers = played(tester=steps(starts("one"), call(("held", {})), DONE), helper=lambda _: HANGING)
    models: dict[str, Any] = {
        "scripted": answers,
        "first": lambda _: say("").after(QUOTA),
        "other": lambda _: say("").after(QUOTA),
        "asking": Script(replies=(several(call(("todo", {"new_titles": ["it"]})), COLOUR),)),
    }
    async with (
        ScriptedProvider(models=models) as provider,
        house.worker(caller, agent("helper"), falling, asking),
    ):
        house.use(provider)
        handles = [await house.start("tester")]
        for name in ("falling", "asking"):
            turn = await house.client.start(name, "go", session=f"{house.session}-{name}")
            handles.append(house.temporal.get_workflow_handle(turn.session))
        await house.wait_for_event("delegate_start")  # a delegate that has not begun when its caller ends never does
        body.released.set()
        results = await asyncio.gather(*(handle.result() for handle in handles))
    assert [result["stop_reason"] for result in results] == ["finished", "error", "waiting_for_input"]
    assert heard == {
        "tester": ["delegate_start helper", "delegate_end helper"],
        "falling": ["model_fallback"],
        "asking": ["todos_changed"],
    }


async def test_a_hook_that_only_waits_for_the_beginning_of_a_delegate_hears_of_it(house: House) -> None:
    """S-36 S-64: in the background."""
    body, heard = Body(), list[str]()
    answers = played(tester=steps(starts("one"), call(("held", {})), DONE), helper=lambda _: HANGING)
    caller = lead(tools=[body.held()], hooks=[noting(heard, "delegate_start")])
    async with ScriptedProvider(answers) as provider, house.worker(caller, agent("helper")):
        house.use(provider)
        handle = await house.start()
        await house.wait_for_event("delegate_start")
        body.released.set()
        await handle.result()
    assert heard == ["delegate_start helper"]


async def test_a_rule_under_a_condition_leaves_an_end_by_text_as_it_is(run: Run) -> None:
    """S-36 S-70: the example of the page about hooks."""
    rule = HookRule(
        name="wrap up", on="budget_warning", when=~stop.no_tool_calls(), reaction=Continue("Come to an end.")
    )
    agents = Agent(name="tester", model="openai/scripted", hooks=[rule], budgets={"llm_calls": 2, "warn_at": [0.5]})
    result = await run(agents, say("done"), say("never"))
    assert len(run.requests) == 1
    assert (result["stop_reason"], result["output"]) == ("finished", "done")


async def test_a_turn_that_is_reset_does_not_tell_the_end_of_a_delegate_again(house: House) -> None:
    """S-36 S-64: it is heard of in another step then, for its delegate has ended before."""
    body, heard = Body(), list[str]()

    @tool
    def release() -> str:
        """Let the delegate end."""
        body.released.set()
        return "released"

    caller = lead(tools=[look, release], hooks=[noting(heard, "delegate_end")])
    helper = agent("helper", tools=[body.held()])
    answers = played(
        tester=steps(starts("one"), call(("look", {})), call(("release", {})), awaiting(0), DONE),
        helper=in_order(call(("held", {})), say("helped")),
    )
    async with ScriptedProvider(answers) as provider, house.worker(caller, helper):
        house.use(provider)
        handle = await house.start()
        await handle.result()
        again = await reset(house, (await completed_tasks(handle))[2])
        result = await again.result()
    assert result["stop_reason"] == "finished"
    assert heard == ["delegate_end helper"]
