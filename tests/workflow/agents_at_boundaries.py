"""Agents for workers that are killed between steps: one for each setting that a start request cannot bring itself."""

from datetime import timedelta
from typing import Any

from perdure import (
    Agent,
    Budgets,
    Continue,
    Delegate,
    Fail,
    Finish,
    Hook,
    HookContext,
    Retry,
    RetryPolicy,
    RetryWithFeedback,
    ask_user,
    clear_todo,
    hook,
    spawn_agent,
    stop,
    todo,
    tool,
)
from perdure.contracts.hooks import AnyReaction

MODEL = "openai/gpt-4o-mini"
"""Its price is known: $0.15 for a million tokens read, $0.60 written."""

ONCE_AGAIN = RetryPolicy(max_retries=1, base=timedelta(milliseconds=10), jitter=timedelta(0))


# All may run twice: a worker that is too busy to beat in time changes no result.
@tool(idempotent=True, catch=True)
async def work(text: str = "it") -> str:
    """Do some work."""
    if text == "fail":
        raise ValueError(text)
    return f"did {text}"


@tool(idempotent=True)
async def other() -> str:
    """Do something else."""
    return "a needle"


@tool(idempotent=True)
async def crash() -> str:
    """Fail in a way that nobody foresaw."""
    raise ArithmeticError("not foreseen")


def agent(name: str, **settings: Any) -> Agent:
    """An agent of the model, which tries each call twice."""
    fields: dict[str, Any] = {"name": name, "model": MODEL, "tools": [work, other, crash], "retry": ONCE_AGAIN}
    return Agent(**{**fields, **settings})


def second(reaction: AnyReaction) -> Hook:
    """A function that reacts to the result of the second step, as the rules of the table do."""

    @hook("tool_end", name="hook")
    def react(_: object, context: HookContext) -> AnyReaction | None:
        return reaction if context.step == 2 else None

    return react


@hook("tool_end", name="broken")
def broken(_: object, context: HookContext) -> None:
    """Fail at the second step."""
    if context.step == 2:
        raise ValueError("broken")


HELPERS = ["helper", "one-step", "one-call", "middle"]

tester = agent("tester", tools=[work, other, crash, todo, clear_todo], delegates=HELPERS)
propagating = agent("propagating", delegates=["helper", "failing"], on_child_error="propagate")
beside = agent("beside", tools=[work, ask_user], delegates=[Delegate("helper", background=True)])
feeding = agent("feeding", on_tool_error="feed_back")
asking = agent("asking", tools=[work, ask_user], interactive="stop")
finishing = agent("finishing", completion="finish_tool")
working = agent("working", finish_tool="other")
attempting = agent("attempting", completion="attempt_completion")
turning = agent("turning", max_tool_turns=2)
spawning = agent("spawning", tools=[work, spawn_agent])
answering = agent(
    "answering",
    output_schema={"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
    output_corrections=1,
)

hooked_finish = agent("hooked-finish", hooks=[second(Finish("enough"))])
hooked_fail = agent("hooked-fail", hooks=[second(Fail("bad"))])
hooked_retry = agent("hooked-retry", hooks=[second(Retry("other"))])
hooked_feedback = agent("hooked-feedback", hooks=[second(RetryWithFeedback("better"))])
hooked_continue = agent("hooked-continue", hooks=[second(Continue(["one", "two"]))])
hooked_broken = agent("hooked-broken", hooks=[broken])
hooked_counting = agent("hooked-counting", hooks=[second(Continue("more"))], budgets=Budgets(behavior_calls=2))

# Behind a refusal the calls of a key take turns: these have keys of their own, and no other turn waits for theirs.
refused = agent("refused", generate_params={"api_key": "${REFUSED_KEY}"})
unreached = agent("unreached", generate_params={"api_key": "${UNREACHED_KEY}"})
retrying = agent("retrying", generate_params={"api_key": "${RETRYING_KEY}"})

helper = agent("helper")
one_step = agent("one-step", max_steps=1)
one_call = agent("one-call", budgets=Budgets(llm_calls=1))
deep = agent("deep")
middle = agent("middle", delegates=["deep"], stop_conditions=[stop.tool_use("deep")])
failing = agent("failing", delegates=["deep"], on_child_error="propagate")
