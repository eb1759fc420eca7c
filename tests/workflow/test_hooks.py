"""Hooks on the real server: each reaction at each boundary, in the result, the log and what a model reads."""

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


async def ran(house: House, tester: Agent, *replies: Any, **request: Any) -> tuple[dict[str, Any], ScriptedProvider]:
    async with ScriptedProvider(Script(replies=replies)) as provider, house.worker(tester):
        house.use(provider)
        return await house.run(**request), provider


def read(provider: ScriptedProvider, request: int = -1) -> list[tuple[str, str]]:
    """What a request of the model had: the role and the text of each message."""
    messages = provider.requests[request].request.messages
    return [(str(one["role"]), str(one.get("content") or "")) for one in messages]


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
async def test_a_reaction_does_what_it_says(house: House, case: tuple[RuleEvent, str], kind: str) -> None:
    """S-36: Retry replaces, Continue appends, feedback keeps history; a rule and a function do the same."""
    replies, reaction, (stop_reason, steps), messages = OUTCOMES[case]
    made = once if kind == "rule" else function
    result, provider = await ran(house, agent(made(case[0], reaction)), *replies)
    assert (result["stop_reason"], result["steps"]) == (stop_reason, steps)
    assert read(provider) == messages
    (won,) = await house.events("react_step")
    assert (won["hook_name"], won["reaction"]["type"]) == ("rule", reaction.type)
    asked = [one["call_id"] for line in await house.events("generation_content") for one in line["tool_calls"]]
    assert [line["call_id"] for line in await house.events("tool_end")] == asked
    has_activity = "react" in await activities(house)
    assert has_activity is (kind == "function")


async def activities(house: House) -> list[str]:
    """The types of the activities of the session's run, in order."""
    history = await house.temporal.get_workflow_handle(house.session).fetch_history()
    scheduled = [event for event in history.events if event.HasField("activity_task_scheduled_event_attributes")]
    return [event.activity_task_scheduled_event_attributes.activity_type.name for event in scheduled]


async def test_finish_and_fail_say_which_hook_it_was(house: House) -> None:
    """S-36: in the result, by name."""
    finished, _ = await ran(house, agent(once("tool_end", Finish("enough"))), WORK)
    assert (finished["stopped_by"], finished["error"]) == ("rule: enough", None)
    failed, _ = await ran(house, agent(once("tool_end", Fail("bad"))), WORK, WORK, turn=2)
    assert (failed["reason_code"], failed["error"]) == ("runtime.failed_by_hook", "hook rule: bad")


@pytest.mark.parametrize("reaction", [Finish(), Fail(), Retry(), RetryWithFeedback("other")], ids=lambda one: one.type)
async def test_a_call_that_a_hook_holds_back_does_not_run_and_has_its_error(
    house: House, reaction: AnyReaction
) -> None:
    """S-36 S-54: nothing stays open in the ledger; its budget is free for others."""
    tester = agent(once("generation_end", reaction), budgets=Budgets(tool_calls=1))
    _, provider = await ran(house, tester, WORK, DONE)
    first, *others = await house.events("tool_end")
    assert (first["error"]["code"], "did not run" in first["error"]["message"]) == ("tool.denied", True)
    assert len(await house.events("tool_start")) == len(others) == (1 if isinstance(reaction, Retry) else 0)
    if isinstance(reaction, RetryWithFeedback):
        told = read(provider)
        assert [role for role, _ in told] == ["user", "assistant", "tool", "user"]
        assert told[-1] == ("user", "other")
    # The conversation has a result for each call that it shows: a provider takes it.
    again, _ = await ran(house, agent(), *[DONE] * 5, turn=2)
    assert again["stop_reason"] == "finished"


@pytest.mark.parametrize(("order", "first"), [("crfde", "d"), ("crf", "f"), ("cbr", "b"), ("cb", "b"), ("cC", "c")])
async def test_finish_comes_before_fail_before_retry_before_continue(house: House, order: str, first: str) -> None:
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
    await ran(house, agent(*hooks, max_steps=1), WORK)
    assert [line["hook_name"] for line in await house.events("react_step")] == [first]


async def test_functions_and_rules_are_one_order(house: House) -> None:
    """S-36."""

    @hook("tool_end")
    def early(_: ToolEnd) -> Continue:
        return Continue("from the function")

    late = HookRule(name="late", on="tool_end", reaction=Continue("from the rule"))
    _, provider = await ran(house, agent(early, late), WORK, DONE)
    assert read(provider)[-1] == ("user", "from the function")
    _, provider = await ran(house, agent(late, early), WORK, DONE, WORK, DONE)
    assert read(provider)[-1] == ("user", "from the rule")


async def test_a_hook_for_the_end_is_called_under_its_condition_only(house: House) -> None:
    """S-36: counted over the whole turn."""
    seen: list[str] = []

    @hook("agent_end", when=stop.tool_use("work", 2))
    def worked(_: AgentEnd) -> None:
        seen.append("worked")

    @hook("agent_end", when=stop.tool_use("work", 3))
    def overworked(_: AgentEnd) -> None:
        seen.append("overworked")

    await ran(house, agent(worked, overworked), WORK, WORK, DONE)
    assert seen == ["worked"]


async def test_a_hook_sees_the_event_the_turn_and_the_conversation(house: House) -> None:
    """S-36: sync and async hooks alike."""
    seen: list[Any] = []

    @hook(AgentStart, "generation_end", ToolEnd, "tool_error", "step_end", AgentEnd)
    def look(event: Any, context: HookContext) -> None:
        seen.append((event.type, context.turn, context.step, context.usage.total_tokens > 0, context.cancelled))

    @hook("step_end")
    async def look_back(event: StepEnd, context: HookContext) -> None:
        messages = await asyncio.to_thread(context.messages, 1)
        seen.append((event.output, [one.result for one in event.results], messages[0].role))

    result, _ = await ran(house, agent(look, look_back), FAIL, DONE)
    assert result["stop_reason"] == "finished"
    assert seen[0] == ("agent_start", 1, 0, False, False)
    assert [one[0] for one in seen if len(one) == 5] == [
        *("agent_start", "generation_end", "tool_end", "tool_error", "step_end"),
        *("generation_end", "step_end", "agent_end"),
    ]
    ((text, results, role),) = [one for one in seen if len(one) == 3 and one[1]]
    assert (text, role) == ("", "assistant")
    assert "fail" in results[0]


async def test_a_hook_may_be_for_one_tool_and_under_a_condition(house: House) -> None:
    """S-36: conditions are those that stop turns."""
    hooks = (
        HookRule(name="other", on="tool_end", tool="other*", reaction=Fail("wrong tool")),
        HookRule(name="late", on="tool_end", tool="w?rk", when=stop.tool_use("work", 2), reaction=Finish("twice")),
    )
    result, provider = await ran(house, agent(*hooks), WORK, WORK, NEVER)
    assert (result["stop_reason"], result["stopped_by"], provider.request_count) == ("finished", "late: twice", 2)


async def test_a_condition_on_texts_holds_for_hooks_too(house: House) -> None:
    """S-36 S-34: beside those that stop the turn."""
    polite = HookRule(name="polite", on="step_end", when=stop.output("sorry"), reaction=RetryWithFeedback("try"))
    tester = agent(polite, stop_conditions=[stop.tool_output("did it")])
    result, provider = await ran(house, tester, say("sorry"), WORK, NEVER)
    assert (result["stop_reason"], result["steps"]) == ("finished", 2)
    assert read(provider)[-1] == ("user", "try")


async def test_rules_come_in_as_json_with_a_request(house: House) -> None:
    """S-36: in place of the agent's own rules; its functions stay."""
    own = HookRule(name="own", on="tool_end", reaction=Fail("replaced"))
    asked = {"name": "asked", "on": ["tool_end"], "reaction": {"type": "finish", "reason": "as asked"}}
    result, _ = await ran(house, agent(own), WORK, NEVER, rules=[asked])
    assert (result["stop_reason"], result["stopped_by"]) == ("finished", "asked: as asked")


async def test_a_turn_that_would_stall_goes_on(house: House) -> None:
    """S-33 S-36."""
    rule = HookRule(name="nudge", on="agent_stalled", reaction=Continue("use the tool"), times=1)
    tester = agent(rule, stop_conditions=[stop.tool_use("work")])
    result, provider = await ran(house, tester, say("I think"), WORK, NEVER)
    assert (result["stop_reason"], result["steps"]) == ("finished", 2)
    assert read(provider)[-1] == ("user", "use the tool")
    assert await house.events("agent_stalled") == []


async def test_a_failed_generation_is_asked_for_again(house: House) -> None:
    """S-36: after the retries are used up; it is another step."""
    seen: list[str] = []

    @hook(GenerationError)
    def again(event: GenerationError) -> Retry:
        seen.append(event.error.code)
        return Retry()

    policy = RetryPolicy(max_retries=1, base=timedelta(milliseconds=10), jitter=timedelta(0))
    answer = DONE.after(faults.status(503), faults.status(503))
    result, provider = await ran(house, agent(again, retry=policy), answer)
    assert (result["stop_reason"], result["steps"], result["output"]) == ("finished", 2, "done")
    assert (provider.request_count, len(seen)) == (3, 1)


async def test_a_tool_error_that_would_end_the_turn_can_be_gone_on_from(house: House) -> None:
    """S-36: the author's hook knows better than on_tool_error."""
    rule = HookRule(name="mend", on="tool_error", reaction=Continue("try without"))
    tester = Agent(name="tester", model="openai/scripted", tools=[work.with_(catch=False)], hooks=[rule])
    result, provider = await ran(house, tester, FAIL, DONE)
    assert result["stop_reason"] == "finished"
    assert [role for role, _ in read(provider)] == ["user", "assistant", "tool", "user"]


async def test_retries_in_a_row_are_bounded(house: House) -> None:
    """S-36: a hook that is never content ends the turn."""
    rule = HookRule(name="picky", on="generation_end", reaction=Retry())
    result, provider = await ran(house, agent(rule), *[say("no")] * 20)
    assert (result["reason_code"], provider.request_count) == ("runtime.failed_by_hook", 11)
    assert "10 retries in a row" in result["error"]


async def test_max_steps_bounds_retries_too(house: House) -> None:
    """S-38."""
    rule = HookRule(name="picky", on="generation_end", reaction=RetryWithFeedback("again"))
    result, provider = await ran(house, agent(rule, max_steps=3), *[WORK] * 20)
    assert (result["stop_reason"], provider.request_count) == ("max_steps_reached", 3)


@pytest.mark.parametrize("limit", [0, 1, 3])
async def test_the_budget_of_behaviors_allows_exactly_so_many_calls_of_hooks(house: House, limit: int) -> None:
    """S-70: rules are no calls."""
    calls: list[str] = []

    @hook("tool_end")
    def count(event: ToolEnd) -> None:
        calls.append(event.call_id)

    rule = HookRule(name="free", on="generation_end", reaction=Continue(), times=1)
    replies = [call(("work", {"text": "it"}), ("work", {"text": "it"}))] * 4
    result, _ = await ran(house, agent(rule, count, budgets=Budgets(behavior_calls=limit)), *replies)
    assert (result["stop_reason"], result["reason_code"]) == ("budget_exhausted", "budget.behavior_calls_exhausted")
    assert len(calls) == limit


def raises(event: Any) -> None:
    raise ValueError(f"broken at {event.type}")


async def sleeps(_: Any, context: HookContext) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("body", [raises, sleeps], ids=["raises", "hangs"])
async def test_a_hook_that_fails_ends_the_turn(house: House, body: Any) -> None:
    """S-37: with an error that names it."""
    bad = hook("tool_end", name="bad", timeout=timedelta(milliseconds=200))(body)
    result, _ = await ran(house, agent(bad), WORK, NEVER)
    assert (result["stop_reason"], result["reason_code"]) == ("error", "runtime.hook_failed")
    assert result["error"].startswith("hook bad, tool_end: ")
    (ended,) = await house.events("hook_end")
    assert ended["error"]["title"] == "bad"


@pytest.mark.parametrize("body", [raises, sleeps], ids=["raises", "hangs"])
async def test_a_hook_that_fails_is_ignored_if_the_agent_says_so(house: House, body: Any) -> None:
    """S-37: the log says that it failed."""
    bad = hook("tool_end", name="bad", timeout=timedelta(milliseconds=200))(body)
    rule = HookRule(name="good", on="tool_end", reaction=Continue("go on"))
    result, provider = await ran(house, agent(bad, rule, on_hook_error="ignore"), WORK, DONE)
    assert (result["stop_reason"], read(provider)[-1]) == ("finished", ("user", "go on"))
    (ended,) = await house.events("hook_end")
    assert ended["error"]["code"] == "runtime.hook_failed"


async def test_what_a_hook_returns_beside_reactions_is_ignored(house: House) -> None:
    """S-36."""

    @hook("tool_end")
    def chatty(event: ToolEnd) -> Any:
        return f"saw {event.tool}"

    result, _ = await ran(house, agent(chatty), WORK, DONE)
    assert (result["stop_reason"], await house.events("react_step")) == ("finished", [])


@pytest.mark.parametrize("kind", ["rule", "function"])
async def test_a_hook_may_say_something_when_a_budget_runs_low(house: House, kind: str) -> None:
    """S-36 S-70: behind the step that has passed the share."""
    made = once if kind == "rule" else function
    warned = agent(
        made("budget_warning", Continue("come to an end")), budgets=Budgets(tool_calls=4, warn_at=(Decimal("0.5"),))
    )
    result, provider = await ran(house, warned, WORK, WORK, WORK, DONE)
    assert result["stop_reason"] == "finished"
    assert [text for role, text in read(provider, 2) if role == "user"] == ["go", "come to an end"]
    assert [text for role, text in read(provider, 1) if role == "user"] == ["go"]
    assert len(await house.events("budget_warning")) == len(await house.events("react_step")) == 1


async def test_no_hook_is_called_with_what_hooks_did(house: House) -> None:
    """S-37: hooks on every event that there is never see react steps."""
    seen: list[str] = []

    @hook(*HOOK_EVENTS)
    def every(event: Any) -> None:
        seen.append(event.type)

    await ran(house, agent(every, once("tool_end", Continue("more"))), WORK, DONE)
    assert {"react_step", "hook_end"}.isdisjoint(seen)
    assert {"generation_start", "tool_start", "tool_step", "user_message", "agent_end"} <= set(seen)


async def test_an_unknown_failure_of_a_tool_is_seen_once(house: House) -> None:
    """S-45: a call that never ran has its error too."""
    seen: list[str] = []

    @hook(ToolError, ToolEnd, GenerationEnd)
    def look(event: Any) -> None:
        seen.append(event.type)

    await ran(house, agent(look), call(("nothing", {})), DONE)
    assert sorted(seen) == ["generation_end", "generation_end", "tool_end", "tool_error"]


async def test_secrets_that_a_hook_repeats_go_nowhere(house: House) -> None:
    house.environment.setenv("MY_API_KEY", "key-0123456789abcdef")

    @hook("tool_end")
    def leak(_: ToolEnd) -> Continue:
        return Continue("use key-0123456789abcdef")

    _, provider = await ran(house, agent(leak), WORK, DONE)
    assert "key-0123456789abcdef" not in str(await house.events())
    assert "key-0123456789abcdef" not in str(read(provider))
