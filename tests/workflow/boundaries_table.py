"""One scripted turn for each stop condition, stop reason, reaction, budget and way to complete."""

from typing import Any

from perdure import Continue, Fail, Finish, HookRule, Retry, RetryWithFeedback, stop
from perdure.contracts.conditions import AnyCondition
from perdure.contracts.hooks import AnyReaction, RuleEvent
from perdure.contracts.values import JsonValue
from perdure.testing import Fault, Reply, call, faults, say
from tests.house import House
from tests.workflow.boundaries import Scenario
from tests.workflow.delegating import asks

WORK, FAIL, OTHER = call(("work", {})), call(("work", {"text": "fail"})), call(("other", {}))
CRASH, TODO, DONE = call(("crash", {})), call(("todo", {"new_titles": ["look"]})), say("done")
HANGS = say("late").after(*[faults.hang()] * 50)
ATTEMPT: tuple[str, JsonValue] = ("attempt_completion", {})

WORKED, FAILED, OTHERED = ("work()", "= did it"), ("work()", "! tool.execution_error"), ("other()", "= a needle")
CRASHED = ("crash()", "! tool.execution_error")
LISTED = '= {"todos": [{"id": 0, "title": "look", "completed": false}]}'


def condition(
    name: str,
    tested: AnyCondition,
    *replies: Reply,
    transcript: tuple[str, ...],
    ends: str | None = None,
    agent: str = "tester",
) -> tuple[str, Scenario]:
    """A turn that the condition finishes, under its name in the table."""
    request = {"stop_conditions": [tested.named(name).model_dump(mode="json")]}
    return name, Scenario(replies, ends or f"finished by {name}", transcript, request=request, agent=agent)


CONDITIONS = dict(
    [
        condition("always", stop.always(), WORK, transcript=WORKED),
        condition("never", stop.never(), WORK, DONE, transcript=(*WORKED, "done"), ends="stalled"),
        condition("any_tool_use", stop.any_tool_use(3), WORK, FAIL, OTHER, transcript=(*WORKED, *FAILED, *OTHERED)),
        condition("tool_use", stop.tool_use("work", 2), WORK, OTHER, WORK, transcript=(*WORKED, *OTHERED, *WORKED)),
        condition(
            "consecutive_errors",
            stop.consecutive_errors(2),
            *(FAIL, WORK, FAIL, FAIL),
            transcript=(*FAILED, *WORKED, *FAILED, *FAILED),
        ),
        condition("tool_error", stop.tool_error("crash"), WORK, CRASH, transcript=(*WORKED, *CRASHED)),
        # However fast a machine is, two steps take longer than a millisecond; however slow, less than a day.
        condition(
            "elapsed_time",
            stop.elapsed_time(86_400) | stop.elapsed_time(0.001) & stop.step_count(2),
            *(WORK, WORK),
            transcript=WORKED * 2,
        ),
        condition("estimated_cost", stop.estimated_cost("0.003"), WORK, WORK, transcript=WORKED * 2),
        condition("token_usage", stop.token_usage(20_199), WORK, WORK, transcript=WORKED * 2),
        condition("tokens read", stop.token_usage(20_000, "in"), WORK, WORK, WORK, transcript=WORKED * 3),
        condition("tokens written", stop.token_usage(199, "out"), WORK, WORK, transcript=WORKED * 2),
        condition("generation_count", stop.generation_count(3), WORK, WORK, WORK, transcript=WORKED * 3),
        condition(
            "generations with retries",
            stop.generation_count(3, retries=True),
            *(WORK.after(faults.status(503)), WORK),
            transcript=WORKED * 2,
            agent="retrying",
        ),
        condition("step_count", stop.step_count(2), WORK, WORK, transcript=WORKED * 2),
        condition(
            "no_new_tool_used",
            stop.no_new_tool_used(2),
            *(WORK, OTHER, WORK, OTHER),
            transcript=(*WORKED, *OTHERED) * 2,
        ),
        condition("no_tool_calls", stop.no_tool_calls(), WORK, DONE, transcript=(*WORKED, "done")),
        condition("output", stop.output("DONE"), WORK, say("all done"), transcript=(*WORKED, "all done")),
        condition("tool_output", stop.tool_output("needle"), WORK, OTHER, transcript=(*WORKED, *OTHERED)),
        condition(
            "combined",
            stop.tool_use("work") & stop.tool_use("other") & ~stop.tool_error(),
            *(OTHER, WORK),
            transcript=(*OTHERED, *WORKED),
        ),
    ]
)


async def cancel(house: House, session: str) -> None:
    await house.temporal.get_workflow_handle(session).signal("cancel", {"reason": "enough"})


async def cancel_by_temporal(house: House, session: str) -> None:
    await house.temporal.get_workflow_handle(session).cancel()


async def end_its_time(house: House, session: str) -> None:
    limits = {"seconds": 0.1, "end": True}
    await house.temporal.get_workflow_handle(session).execute_update("extend", limits)


def failing(code: str, *fault: Fault, said: tuple[str, ...] = (), paid: int = 1, agent: str = "tester") -> Scenario:
    """A turn that the failure of its second model call ends."""
    return Scenario((WORK, DONE.after(*fault)), f"error: {code}", (*WORKED, *said), steps=1, paid=paid, agent=agent)


AGAIN = "Answer again, with JSON only that fits the schema."
NO_JSON = "the answer is not the JSON that the agent's output asks for: EOF while parsing an object at line 1 column 1"
NO_NUMBER = "the answer does not fit the schema of the agent's output: at $.n: 'one' is not of type 'integer'"
ASKED = call(("ask_user", {"question": "Which?"}))

REASONS = {
    "finished": Scenario((WORK, DONE), "finished", (*WORKED, "done")),
    "max_steps_reached": Scenario((WORK, WORK), "max_steps_reached", WORKED * 2, request={"max_steps": 2}),
    "stalled": Scenario((WORK, DONE), "stalled", (*WORKED, "done"), agent="finishing"),
    "waiting_for_input": Scenario((WORK, ASKED), "waiting_for_input", (*WORKED, "ask_user()"), agent="asking"),
    "cancelled": Scenario((WORK, HANGS), "cancelled: runtime.aborted", WORKED, steps=1, acts=cancel),
    "cancelled by Temporal": Scenario(
        (WORK, HANGS), "cancelled: runtime.aborted", WORKED, steps=1, acts=cancel_by_temporal
    ),
    "bad key": failing("llm.auth_error", faults.bad_key()),
    "no quota": failing("llm.quota_exhausted", faults.quota_exhausted()),
    "bad request": failing("llm.request_error", faults.error(400, "this request is not for me")),
    "against the policy": failing("llm.content_filtered", faults.policy_violation()),
    "refused": failing("llm.refused", faults.refusal("no"), paid=2),
    "too long": failing("llm.context_overflow", faults.context_overflow(), faults.context_overflow()),
    "rate limited": failing("llm.rate_limited", faults.rate_limited(), faults.rate_limited(), agent="refused"),
    "not reached": failing("llm.network_error", faults.status(503), faults.close_before_reply(), agent="unreached"),
    "empty": failing("llm.empty_response", faults.empty_answer(), faults.empty_answer(), paid=3),
    "cut off": failing("llm.truncated", faults.truncated("it"), faults.truncated("it"), paid=3),
    "no JSON": Scenario(
        (WORK, say("{"), say("{")),
        "error: llm.parse_error",
        (*WORKED, "{", f"> {NO_JSON}. {AGAIN}", "{"),
        agent="answering",
    ),
    "not by the schema": Scenario(
        (WORK, say('{"n": "one"}'), say('{"n": "two"}')),
        "error: llm.schema_violation",
        (*WORKED, '{"n": "one"}', f"> {NO_NUMBER}. {AGAIN}", '{"n": "two"}'),
        agent="answering",
    ),
    "a tool fails": Scenario((WORK, CRASH), "error: tool.execution_error", (*WORKED, *CRASHED)),
    "ten tools fail": Scenario(
        (WORK, *[CRASH] * 10),
        "error: tool.execution_error",
        (*WORKED, *CRASHED * 10),
        agent="feeding",
    ),
    "max_tool_turns": Scenario((WORK, WORK), "error: tool.max_turns_exhausted", WORKED * 2, agent="turning"),
    "a hook fails": Scenario((WORK, WORK), "error: runtime.hook_failed", WORKED * 2, agent="hooked-broken"),
}


def reaction(
    name: str, tested: AnyReaction, ends: str, replies: tuple[Reply, ...], transcript: tuple[str, ...]
) -> dict[str, Scenario]:
    """The turn with a rule, and the same turn with a function; both react to the second step."""
    steps = len(replies) + isinstance(tested, Retry)  # a step that is taken back is used up, and paid for
    by_rule = Scenario(replies, ends, transcript, request=rule("tool_end", tested), steps=steps)
    by_function = Scenario(replies, ends, transcript, agent=f"hooked-{name}", steps=steps)
    return {f"{name} by a rule": by_rule, f"{name} by a function": by_function}


def rule(on: RuleEvent, tested: AnyReaction, after: int = 2) -> dict[str, Any]:
    """The field of a request with a rule that reacts once, when so many steps have been made."""
    made = HookRule(name="hook", on=on, when=stop.step_count(after), times=1, reaction=tested)
    return {"rules": [made.model_dump(mode="json")]}


REACTIONS = {
    **reaction("finish", Finish("enough"), "finished by hook: enough", (WORK, WORK), WORKED * 2),
    **reaction("fail", Fail("bad"), "error: runtime.failed_by_hook", (WORK, WORK), WORKED * 2),
    **reaction("retry", Retry("other"), "finished", (WORK, WORK, DONE), (*WORKED, "> other", *WORKED, "done")),
    **reaction(
        "feedback", RetryWithFeedback("better"), "finished", (WORK, WORK, DONE), (*WORKED * 2, "> better", "done")
    ),
    **reaction(
        "continue", Continue(["one", "two"]), "finished", (WORK, WORK, DONE), (*WORKED * 2, "> one", "> two", "done")
    ),
    "feedback before the calls": Scenario(
        (WORK, WORK, DONE),
        "finished",
        (*WORKED, "work()", "! tool.denied", "> better", "done"),
        request=rule("generation_end", RetryWithFeedback("better")),
    ),
    "retry of a failure": Scenario(
        (WORK, DONE.after(faults.bad_key())),
        "finished",
        (*WORKED, "> again", "done"),
        request={
            "rules": [HookRule(name="hook", on="generation_error", reaction=Retry("again")).model_dump(mode="json")]
        },
        steps=3,
        paid=2,
    ),
}


def budget(
    name: str, limit: object, *replies: Reply, transcript: tuple[str, ...], **others: Any
) -> tuple[str, Scenario]:
    """A turn that uses up a budget, under its name in the table."""
    by = name.removesuffix("_usd")
    fields: dict[str, Any] = {"request": {"budgets": {name: limit}}, **others}
    return f"budget {name}", Scenario(replies, f"budget_exhausted: budget.{by}_exhausted", transcript, **fields)


BUDGETS = dict(
    [
        # The third call costs $0.00156 as they all do, and less is left: it is not made.
        budget("cost_usd", "0.004", WORK, WORK, transcript=WORKED * 2),
        budget("llm_calls", 2, WORK, WORK, transcript=WORKED * 2),
        budget(
            *("tool_calls", 2, WORK, WORK, WORK),
            transcript=(*WORKED * 2, "work()", "! budget.tool_calls_exhausted"),
        ),
        budget(
            *("behavior_calls", 1, asks("budget behavior_calls/one"), asks("budget behavior_calls/two")),
            transcript=("helper()", "= helped", "helper()", "! budget.behavior_calls_exhausted"),
            helpers={"one": (say("helped"),)},
            delegated=1,
            children=("finished",),
        ),
        budget("events", 4, WORK, WORK, transcript=WORKED * 2),
        budget("patches", 1, TODO, TODO, transcript=("todo()", LISTED, "todo()", "! budget.patches_exhausted")),
        budget("depth", 0, WORK, asks("never/one"), transcript=(*WORKED, "helper()", "! budget.depth_exhausted")),
        budget("seconds", 86_400, WORK, HANGS, transcript=WORKED, steps=1, acts=end_its_time),
    ]
)
BUDGETS["budget of hooks"] = Scenario(
    (WORK, WORK, WORK),
    "budget_exhausted: budget.behavior_calls_exhausted",
    (*WORKED * 2, "> more", *WORKED),
    agent="hooked-counting",
)

COMPLETIONS = {
    "finish_tool": Scenario((WORK, OTHER), "finished", (*WORKED, *OTHERED), agent="working"),
    "finish": Scenario(
        (WORK, call(("finish", {"summary": "it is so"}))),
        *("finished", (*WORKED, "finish()", "= finished")),
        agent="finishing",
        output="it is so",
    ),
    "attempt with open todos": Scenario(
        (TODO, call(ATTEMPT), call(("todo", {"completed": [0]})), call(ATTEMPT, text="so it is")),
        "finished",
        (
            *("todo()", LISTED, "attempt_completion()", LISTED.replace("todos", "open_todos")),
            *("todo()", LISTED.replace("false", "true"), "so it is attempt_completion()", "= finished"),
        ),
        agent="attempting",
        output="so it is",
    ),
    "attempt without a text": Scenario(
        (WORK, call(ATTEMPT), say("the result")),
        *("finished", (*WORKED, "attempt_completion()", "= finished", "the result")),
        agent="attempting",
    ),
}
