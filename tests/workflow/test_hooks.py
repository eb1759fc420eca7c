"""Hooks: each reaction at each boundary, in the result, the log and what a model reads."""

import asyncio
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from perdure import (
    Agent,
    Budgets,
    Continue,
    Fail,
    Finish,
    Hook,
    HookContext,
    HookRule,
    Retry,
    RetryPolicy,
    RetryWithFeedback,
    StepEnd,
    hook,
    stop,
    tool,
)
from perdure.contracts.events import AgentEnd, AgentStart, GenerationEnd, GenerationError, ToolEnd, ToolError
from perdure.contracts.hooks import HOOK_EVENTS, AnyReaction, RuleEvent
from perdure.testing import Script, ScriptedProvider, call, faults, say
from tests.house import House
from tests.memory import Run

WORK, FAIL, DONE = call(("work", {"text": "it"})), call(("work", {"text": "fail"})), say("done")
NEVER = say("never said")


@tool(catch=True)
def work(text: str) -> str:
    """Do some work."""
    if text == "fail":
        raise ValueError(text)
    return f"did {text}"


def agent(*hooks: Hook | HookRule, **settings: Any) -> Agent:
    return Agent(name="tester", model="openai/scripted", tools=[work], hooks=hooks, **settings)


def once(event: RuleEvent, reaction: AnyReaction, **settings: Any) -> HookRule:
    return HookRule(name="rule", on=event, reaction=reaction, times=1, **settings)


def function(event: RuleEvent, reaction: AnyReaction) -> Hook:
    """The same as a function: a hook that reacts to the first such event."""
    left = [reaction]

    @hook(event, name="rule")
    def rule(_: object) -> AnyReaction | None:
        return left.pop() if left else None

    return rule


ASKED = ("user", "go")
CALLED = ("assistant", "")
DID = ("tool", "did it")
OUTCOMES: dict[tuple[RuleEvent, str], tuple[list[Any], AnyReaction, tuple[str, int], list[tuple[str, str]]]] = {
    ("generation_end", "finish"): ([WORK, NEVER], Finish("enough"), ("finished", 1), [ASKED]),
    ("generation_end", "fail"): ([WORK, NEVER], Fail("bad"), ("error", 1), [ASKED]),
    ("generation_end", "retry"): ([WORK, DONE], Retry(), ("finished", 3), [ASKED, CALLED, DID]),
    ("generation_end", "retry with messages"): (
        [WORK, DONE],
        Retry("no tools, please"),
        ("finished", 3),
        [ASKED, ("user", "no tools, please"), CALLED, DID],
    ),
    ("generation_end", "continue"): (
        [WORK, DONE],
        Continue("go on"),
        ("finished", 2),
        [ASKED, CALLED, DID, ("user", "go on")],
    ),
    ("tool_end", "finish"): ([WORK, NEVER], Finish("enough"), ("finished", 1), [ASKED]),
    ("tool_end", "fail"): ([WORK, NEVER], Fail("bad"), ("error", 1), [ASKED]),
    ("tool_end", "retry"): ([WORK, DONE], Retry(), ("finished", 3), [ASKED, CALLED, DID]),
    ("tool_end", "feedback"): (
        [WORK, DONE],
        RetryWithFeedback("better"),
        ("finished", 2),
        [ASKED, CALLED, DID, ("user", "better")],
    ),
    ("tool_end", "continue"): (
        [WORK, DONE],
        Continue(["one", "two"]),
        ("finished", 2),
        [ASKED, CALLED, DID, ("user", "one"), ("user", "two")],
    ),
    ("step_end", "continue behind a text"): (
        [say("half"), DONE],
        Continue(),
        ("finished", 2),
        [ASKED, ("assistant", "half"), ("user", "Go on.")],
    ),
    ("step_end", "retry a text"): ([say("half"), DONE], Retry(), ("finished", 2), [ASKED]),
    ("step_end", "feedback on a text"): (
        [say("half"), DONE],
        RetryWithFeedback("all of it"),
        ("finished", 2),
        [ASKED, ("assistant", "half"), ("user", "all of it")],
    ),
    ("agent_start", "continue"): ([DONE], Continue("be brief"), ("finished", 1), [ASKED, ("user", "be brief")]),
}


@pytest.mark.parametrize("kind", ["rule", "function"])
@pytest.mark.parametrize("case", OUTCOMES, ids=" ".join)
async def test_a_reaction_does_what_it_says(run: Run, case: tuple[RuleEvent, str], kind: str) -> None:
    """S-36: Retry replaces, Continue appends, feedback keeps history; a rule and a function do the same."""
    replies, reaction, (stop_reason, steps), messages = OUTCOMES[case]
    made = once if kind == "rule" else function
    result = await run(agent(made(case[0], reaction)), *replies)
    assert (result["stop_reason"], result["steps"]) == (stop_reason, steps)
    assert run.read() == messages
    (won,) = await run.events("react_step")
    assert (won["hook_name"], won["reaction"]["type"]) == ("rule", reaction.type)
    answers = await run.events("generation_content")
    asked = [tool_call["call_id"] for line in answers for tool_call in line["tool_calls"]]
    assert [line["call_id"] for line in await run.events("tool_end")] == asked


@pytest.mark.parametrize("kind", ["rule", "function"])
async def test_a_function_is_called_by_an_activity_and_a_rule_costs_none(house: House, kind: str) -> None:
    """S-36: on the server, where the reaction is what it is in memory."""
    made = once if kind == "rule" else function
    tester = agent(made("tool_end", Continue("go on")))
    async with ScriptedProvider(Script(replies=(WORK, DONE))) as provider, house.worker(tester):
        house.use(provider)
        result = await house.run()
    assert (result["stop_reason"], result["steps"]) == ("finished", 2)
    assert provider.requests[-1].request.messages[-1] == {"role": "user", "content": "go on"}
    (won,) = await house.events("react_step")
    assert (won["hook_name"], won["reaction"]["type"]) == ("rule", "continue")
    assert ("run_hooks" in await activities(house)) is (kind == "function")


async def activities(house: House) -> list[str]:
    """The types of the activities of the session's run, in order."""
    history = await house.temporal.get_workflow_handle(house.session).fetch_history()
    scheduled = [event for event in history.events if event.HasField("activity_task_scheduled_event_attributes")]
    return [event.activity_task_scheduled_event_attributes.activity_type.name for event in scheduled]


async def test_finish_and_fail_say_which_hook_it_was(run: Run) -> None:
    """S-36: in the result, by name."""
    finished = await run(agent(once("tool_end", Finish("enough"))), WORK)
    assert (finished["stopped_by"], finished["error"]) == ("rule: enough", None)
    failed = await run(agent(once("tool_end", Fail("bad"))), WORK, WORK)
    assert (failed["reason_code"], failed["error"]) == ("runtime.failed_by_hook", "hook rule: bad")


@pytest.mark.parametrize(
    "reaction", [Finish(), Fail(), Retry(), RetryWithFeedback("other")], ids=lambda reaction: reaction.type
)
async def test_a_call_that_a_hook_holds_back_does_not_run_and_has_its_error(run: Run, reaction: AnyReaction) -> None:
    """S-36 S-54: nothing stays open in the ledger; its budget is free for others."""
    tester = agent(once("generation_end", reaction), budgets=Budgets(tool_calls=1))
    await run(tester, WORK, DONE)
    first, *others = await run.events("tool_end")
    assert (first["error"]["code"], "did not run" in first["error"]["message"]) == ("tool.denied", True)
    assert len(await run.events("tool_start")) == len(others) == (1 if isinstance(reaction, Retry) else 0)
    if isinstance(reaction, RetryWithFeedback):
        told = run.read()
        assert [role for role, _ in told] == ["user", "assistant", "tool", "user"]
        assert told[-1] == ("user", "other")
    # The conversation has a result for each call that it shows: a provider takes it.
    again = await run(agent(), *[DONE] * 5)
    assert again["stop_reason"] == "finished"


@pytest.mark.parametrize(("order", "first"), [("crfde", "d"), ("crf", "f"), ("cbr", "b"), ("cb", "b"), ("cC", "c")])
async def test_finish_comes_before_fail_before_retry_before_continue(run: Run, order: str, first: str) -> None:
    """S-36: whatever the order of the hooks; of one kind the first of the agent's order counts."""
    reactions: dict[str, AnyReaction] = {
        "c": Continue("c"),
        "C": Continue("C"),
        "r": Retry(),
        "b": RetryWithFeedback("b"),
        "f": Fail("f"),
        "d": Finish("d"),
        "e": Finish("e"),
    }
    hooks = [HookRule(name=name, on="tool_end", reaction=reactions[name], times=1) for name in order]
    await run(agent(*hooks, max_steps=1), WORK)
    assert [line["hook_name"] for line in await run.events("react_step")] == [first]


async def test_functions_and_rules_are_one_order(run: Run) -> None:
    """S-36."""

    @hook("tool_end")
    def early(_: ToolEnd) -> Continue:
        return Continue("from the function")

    late = HookRule(name="late", on="tool_end", reaction=Continue("from the rule"))
    await run(agent(early, late), WORK, DONE)
    assert run.read()[-1] == ("user", "from the function")
    await run(agent(late, early), WORK, DONE, WORK, DONE)
    assert run.read()[-1] == ("user", "from the rule")


async def test_a_hook_for_the_end_is_called_under_its_condition_only(run: Run) -> None:
    """S-36: counted over the whole turn."""
    seen: list[str] = []

    @hook("agent_end", when=stop.tool_use("work", 2))
    def worked(_: AgentEnd) -> None:
        seen.append("worked")

    @hook("agent_end", when=stop.tool_use("work", 3))
    def overworked(_: AgentEnd) -> None:
        seen.append("overworked")

    await run(agent(worked, overworked), WORK, WORK, DONE)
    assert seen == ["worked"]


async def test_a_hook_sees_the_event_the_turn_and_the_conversation(run: Run) -> None:
    """S-36: sync and async hooks alike."""
    seen: list[Any] = []

    @hook(AgentStart, "generation_end", ToolEnd, "tool_error", "step_end", AgentEnd)
    def look(event: Any, context: HookContext) -> None:
        seen.append((event.type, context.turn, context.step, context.usage.total_tokens > 0, context.cancelled))

    @hook("step_end")
    async def look_back(event: StepEnd, context: HookContext) -> None:
        messages = await asyncio.to_thread(context.messages, 1)
        seen.append((event.output, [result.result for result in event.results], messages[0].role))

    result = await run(agent(look, look_back), FAIL, DONE)
    assert result["stop_reason"] == "finished"
    assert seen[0] == ("agent_start", 1, 0, False, False)
    assert [heard[0] for heard in seen if len(heard) == 5] == [
        *("agent_start", "generation_end", "tool_end", "tool_error", "step_end"),
        *("generation_end", "step_end", "agent_end"),
    ]
    ((text, results, role),) = [heard for heard in seen if len(heard) == 3 and heard[1]]
    assert (text, role) == ("", "assistant")
    assert "fail" in results[0]


async def test_a_hook_may_be_for_one_tool_and_under_a_condition(run: Run) -> None:
    """S-36: conditions are those that stop turns."""
    hooks = (
        HookRule(name="other", on="tool_end", tool="other*", reaction=Fail("wrong tool")),
        HookRule(name="late", on="tool_end", tool="w?rk", when=stop.tool_use("work", 2), reaction=Finish("twice")),
    )
    result = await run(agent(*hooks), WORK, WORK, NEVER)
    assert (result["stop_reason"], result["stopped_by"], len(run.requests)) == ("finished", "late: twice", 2)


async def test_a_condition_on_texts_holds_for_hooks_too(run: Run) -> None:
    """S-36 S-34: beside those that stop the turn."""
    polite = HookRule(name="polite", on="step_end", when=stop.output("sorry"), reaction=RetryWithFeedback("try"))
    tester = agent(polite, stop_conditions=[stop.tool_output("did it")])
    result = await run(tester, say("sorry"), WORK, NEVER)
    assert (result["stop_reason"], result["steps"]) == ("finished", 2)
    assert run.read()[-1] == ("user", "try")


async def test_rules_come_in_as_json_with_a_request(run: Run) -> None:
    """S-36: in place of the agent's own rules; its functions stay."""
    own = HookRule(name="own", on="tool_end", reaction=Fail("replaced"))
    asked = {"name": "asked", "on": ["tool_end"], "reaction": {"type": "finish", "reason": "as asked"}}
    result = await run(agent(own), WORK, NEVER, rules=[asked])
    assert (result["stop_reason"], result["stopped_by"]) == ("finished", "asked: as asked")


async def test_a_turn_that_would_stall_goes_on(run: Run) -> None:
    """S-33 S-36."""
    rule = HookRule(name="nudge", on="agent_stalled", reaction=Continue("use the tool"), times=1)
    tester = agent(rule, stop_conditions=[stop.tool_use("work")])
    result = await run(tester, say("I think"), WORK, NEVER)
    assert (result["stop_reason"], result["steps"]) == ("finished", 2)
    assert run.read()[-1] == ("user", "use the tool")
    assert await run.events("agent_stalled") == []


async def test_a_failed_generation_is_asked_for_again(run: Run) -> None:
    """S-36: after the retries are used up; it is another step."""
    seen: list[str] = []

    @hook(GenerationError)
    def again(event: GenerationError) -> Retry:
        seen.append(event.error.code)
        return Retry()

    policy = RetryPolicy(max_retries=1, base=timedelta(milliseconds=10), jitter=timedelta(0))
    answer = DONE.after(faults.status(503), faults.status(503))
    result = await run(agent(again, retry=policy), answer)
    assert (result["stop_reason"], result["steps"], result["output"]) == ("finished", 2, "done")
    assert (len(run.requests), len(seen)) == (3, 1)


async def test_a_tool_error_that_would_end_the_turn_can_be_gone_on_from(run: Run) -> None:
    """S-36: the author's hook knows better than on_tool_error."""
    rule = HookRule(name="mend", on="tool_error", reaction=Continue("try without"))
    tester = Agent(name="tester", model="openai/scripted", tools=[work.with_(catch=False)], hooks=[rule])
    result = await run(tester, FAIL, DONE)
    assert result["stop_reason"] == "finished"
    assert [role for role, _ in run.read()] == ["user", "assistant", "tool", "user"]


async def test_retries_in_a_row_are_bounded(run: Run) -> None:
    """S-36: a hook that is never content ends the turn."""
    rule = HookRule(name="picky", on="generation_end", reaction=Retry())
    result = await run(agent(rule), *[say("no")] * 20)
    assert (result["reason_code"], len(run.requests)) == ("runtime.failed_by_hook", 11)
    assert "10 retries in a row" in result["error"]


async def test_max_steps_bounds_retries_too(run: Run) -> None:
    """S-38."""
    rule = HookRule(name="picky", on="generation_end", reaction=RetryWithFeedback("again"))
    result = await run(agent(rule, max_steps=3), *[WORK] * 20)
    assert (result["stop_reason"], len(run.requests)) == ("max_steps_reached", 3)


@pytest.mark.parametrize("limit", [0, 1, 3])
async def test_the_budget_of_behaviors_allows_exactly_so_many_calls_of_hooks(run: Run, limit: int) -> None:
    """S-70: rules are no calls."""
    calls: list[str] = []

    @hook("tool_end")
    def count(event: ToolEnd) -> None:
        calls.append(event.call_id)

    rule = HookRule(name="free", on="generation_end", reaction=Continue(), times=1)
    replies = [call(("work", {"text": "it"}), ("work", {"text": "it"}))] * 4
    result = await run(agent(rule, count, budgets=Budgets(behavior_calls=limit)), *replies)
    assert (result["stop_reason"], result["reason_code"]) == ("budget_exhausted", "budget.behavior_calls_exhausted")
    assert len(calls) == limit


def raises(event: Any) -> None:
    raise ValueError(f"broken at {event.type}")


async def sleeps(_: Any, context: HookContext) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("body", [raises, sleeps], ids=["raises", "hangs"])
async def test_a_hook_that_fails_ends_the_turn(run: Run, body: Any) -> None:
    """S-37: with an error that names it."""
    bad = hook("tool_end", name="bad", timeout=timedelta(milliseconds=200))(body)
    result = await run(agent(bad), WORK, NEVER)
    assert (result["stop_reason"], result["reason_code"]) == ("error", "runtime.hook_failed")
    assert result["error"].startswith("hook bad, tool_end: ")
    (ended,) = await run.events("hook_end")
    assert ended["error"]["title"] == "bad"


@pytest.mark.parametrize("body", [raises, sleeps], ids=["raises", "hangs"])
async def test_a_hook_that_fails_is_ignored_if_the_agent_says_so(run: Run, body: Any) -> None:
    """S-37: the log says that it failed."""
    bad = hook("tool_end", name="bad", timeout=timedelta(milliseconds=200))(body)
    rule = HookRule(name="good", on="tool_end", reaction=Continue("go on"))
    result = await run(agent(bad, rule, on_hook_error="ignore"), WORK, DONE)
    assert (result["stop_reason"], run.read()[-1]) == ("finished", ("user", "go on"))
    (ended,) = await run.events("hook_end")
    assert ended["error"]["code"] == "runtime.hook_failed"


async def test_what_a_hook_returns_beside_reactions_is_ignored(run: Run) -> None:
    """S-36."""

    @hook("tool_end")
    def chatty(event: ToolEnd) -> Any:
        return f"saw {event.tool}"

    result = await run(agent(chatty), WORK, DONE)
    assert (result["stop_reason"], await run.events("react_step")) == ("finished", [])


@pytest.mark.parametrize("kind", ["rule", "function"])
async def test_a_hook_may_say_something_when_a_budget_runs_low(run: Run, kind: str) -> None:
    """S-36 S-70: behind the step that has passed the share."""
    made = once if kind == "rule" else function
    warned = agent(
        made("budget_warning", Continue("come to an end")), budgets=Budgets(tool_calls=4, warn_at=(Decimal("0.5"),))
    )
    result = await run(warned, WORK, WORK, WORK, DONE)
    assert result["stop_reason"] == "finished"
    assert [text for role, text in run.read(2) if role == "user"] == ["go", "come to an end"]
    assert [text for role, text in run.read(1) if role == "user"] == ["go"]
    assert len(await run.events("budget_warning")) == len(await run.events("react_step")) == 1


async def test_no_hook_is_called_with_what_hooks_did(run: Run) -> None:
    """S-37: hooks on every event that there is never see react steps."""
    seen: list[str] = []

    @hook(*HOOK_EVENTS)
    def every(event: Any) -> None:
        seen.append(event.type)

    await run(agent(every, once("tool_end", Continue("more"))), WORK, DONE)
    assert {"react_step", "hook_end"}.isdisjoint(seen)
    assert {"generation_start", "tool_start", "tool_step", "user_message", "agent_end"} <= set(seen)


async def test_an_unknown_failure_of_a_tool_is_seen_once(run: Run) -> None:
    """S-45: a call that never ran has its error too."""
    seen: list[str] = []

    @hook(ToolError, ToolEnd, GenerationEnd)
    def look(event: Any) -> None:
        seen.append(event.type)

    await run(agent(look), call(("nothing", {})), DONE)
    assert sorted(seen) == ["generation_end", "generation_end", "tool_end", "tool_error"]


async def test_secrets_that_a_hook_repeats_go_nowhere(run: Run) -> None:
    run.environment.setenv("MY_API_KEY", "key-0123456789abcdef")

    @hook("tool_end")
    def leak(_: ToolEnd) -> Continue:
        return Continue("use key-0123456789abcdef")

    await run(agent(leak), WORK, DONE)
    assert "key-0123456789abcdef" not in str(await run.events())
    assert "key-0123456789abcdef" not in str(run.read())
