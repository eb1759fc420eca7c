"""Scripts of what models, tools and people do in a turn, and agents to go with them: choices out of bytes."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, TypeVar

from perdure.contracts import conditions
from perdure.contracts.agents import CompactionPolicy, ModelPolicy, TurnPolicy
from perdure.contracts.budgets import Budgets, Spent
from perdure.contracts.errors import ErrorDetail
from perdure.contracts.hooks import (
    AnyReaction,
    Continue,
    Fail,
    Finish,
    HookDeclaration,
    HookRule,
    Retry,
    RetryWithFeedback,
)
from perdure.contracts.openings import OpenedTurn
from perdure.contracts.tools import (
    AttemptCompletion,
    AwaitCall,
    ChangeTodos,
    ClearTodos,
    Delegated,
    DelegateSettings,
    FinishCall,
    PlannedCall,
    Todo,
    ToolPolicy,
)
from perdure.contracts.turns import Continuation, OpenTurn

Choice = TypeVar("Choice")

NOW = datetime(2026, 11, 21, tzinfo=UTC)

HELPER = DelegateSettings(agent="helper", background=True)

FUNCTIONS = ("first", "second")
"""The hooks that are functions. What they want is a matter of the script."""

EVENTS: tuple[Any, ...] = ("step_end", "generation_end", "agent_start", "tool_end", "tool_error")
RARE_EVENTS: tuple[Any, ...] = ("generation_error", "agent_stalled")

REACTIONS: tuple[AnyReaction, ...] = (
    *(Continue("c"), Continue(), RetryWithFeedback("b"), Retry(), Retry("m"), Continue("c"), RetryWithFeedback("b")),
    *(Fail("f"), Finish("d")),
)

TOOLS = (
    *(*["work"] * 24, *["other"] * 4, *["helper"] * 4, *["todo"] * 4, "question", "question", "nothing", "invalid"),
    *(
        "await_delegate",
        "await_delegate",
        "guarded",
        "guarded",
        "guarded_helper",
        "guarded_todo",
        "clear_todo",
        "finish",
        "attempt_completion",
    ),
)
"""Tools that are called, some more often than others. Those that are guarded need an approval."""

DELEGATING = (*["work"] * 6, *["helper"] * 6, *["await_delegate"] * 4, "guarded_helper", "guarded_await", "question")
"""The same for models that mostly have others work for them."""

CONDITIONS: tuple[conditions.AnyCondition, ...] = (
    conditions.StepCount(count=2),
    conditions.StepCount(count=4),
    conditions.ToolUse(tool="work", count=2),
    conditions.AnyToolUse(count=3),
    conditions.ToolFailed(tool="work"),
    conditions.ToolFailed(),
    conditions.ConsecutiveErrors(count=2),
    conditions.EstimatedCost(limit=Decimal("0.4")),
    conditions.TokenUsage(limit=50),
    conditions.GenerationCount(count=3),
    conditions.NoToolCalls(steps=2),
    conditions.Never(),
    conditions.Always(),
    conditions.Output(pattern="done"),
)
"""Conditions whose truth can be told from what happened in a turn."""

HARSH: tuple[dict[str, Any], ...] = (
    {"on_child_error": "propagate"},
    {"on_unknown_tool": "abort"},
    {"on_child_error": "propagate", "on_unknown_tool": "abort"},
)
"""What ends a turn where the model is told of an error otherwise."""

DELEGATES = frozenset({"helper", "guarded_helper"})
WAITING = frozenset({"await_delegate", "guarded_await"})
"""Tools that wait for delegates in the background."""


class Script:
    """Choices, one byte each. A script that is used up always takes the first choice, which is the calmest."""

    def __init__(self, choices: bytes) -> None:
        self._choices = iter(choices)
        self.tools: tuple[str, ...] = TOOLS

    def of(self, *choices: Choice) -> Choice:
        return choices[next(self._choices, 0) % len(choices)]

    def often(self, calm: Choice, *others: Choice) -> Choice:
        """The first choice in seven of eight cases."""
        number = next(self._choices, 0)
        return others[number // 8 % len(others)] if number % 8 == 7 else calm

    def some(self, choices: Sequence[Choice]) -> tuple[Choice, ...]:
        """Each of them in one of four cases."""
        return tuple(one for one in choices if next(self._choices, 0) % 4 == 3)


def request(script: Script) -> tuple[OpenTurn, OpenedTurn]:
    """A turn that is about to begin: of an agent, a delegate, or a person who has replied or wants a compaction."""
    script.tools = script.of(TOOLS, TOOLS, DELEGATING)
    kind = script.of(*["prompt"] * 16, "reply", "reply", "compact", "delegated", "session")
    policy = agent(script)
    asking: tuple[PlannedCall, ...] = ()
    if kind == "reply":
        asking = tuple(
            call.model_copy(update={"rejected": None, "needs": call.needs or "approval"})
            for call in calls(script, 0, 3)
        )
    if kind == "compact":
        policy = policy.model_copy(update={"compaction": CompactionPolicy()})
    asked = Continuation(agent="a", prompt="go", compact=kind == "compact")
    if kind == "delegated":
        above = Delegated(session="up", turn=1, step=1, call_id="c", tool="t", definition="d", root="up")
        asked = asked.model_copy(update={"delegated": above})
    earlier = Spent()
    if kind == "session":
        earlier = Spent(cost_usd=Decimal("0.3"), llm_calls=1, tool_calls=1, events=2, patches=1, delegated_steps=1)
    opening = OpenTurn(session="s", request=asked, request_id="r", run_started_at=NOW)
    return opening, OpenedTurn(
        turn=1,
        tip="t0",
        definition="d",
        policy=policy,
        asking=asking,
        call_ids=tuple(call.call_id for call in asking),
        expires_at=script.of(None, NOW + timedelta(hours=1)) if asking else None,
        todos=script.often((), (Todo(title="before"),)),
        earlier=earlier,
    )


def agent(script: Script) -> TurnPolicy:
    return TurnPolicy(
        agent="a",
        model="p/m",
        max_steps=script.of(12, 12, 12, 10, 10, 8, 8, 5, 3, 2, 1),
        finish_tool=script.of(None, None, "finish", "finish", "attempt_completion"),
        budgets=script.of(Budgets(), limits(script)),
        tools={
            **dict.fromkeys(sorted(DELEGATES), ToolPolicy(delegate=HELPER)),
            "question": ToolPolicy(answer={"type": "string"}),
        },
        compaction=script.of(CompactionPolicy(), CompactionPolicy(above_tokens=100), CompactionPolicy(), None),
        output_corrections=script.of(0, 1, 2),
        interactive=script.often("wait", "stop"),
        approvals_expire=script.of(None, timedelta(hours=1)),
        stop_conditions=tuple(condition(script, 0) for _ in range(script.of(0, 0, 0, 1, 2))),
        hooks=script.of((), hooks(script)),
        max_tool_turns=script.often(None, 1, 3),
        fallbacks=tuple(fallback(script, number) for number in range(script.of(0, 0, 1, 2))),
        **script.often({}, *HARSH),
    )


def limits(script: Script) -> Budgets:
    seconds = script.often(None, 10, 60, 5_000)
    return Budgets(
        cost_usd=script.often(None, Decimal("0.5"), Decimal(1), Decimal("0.01")),
        llm_calls=script.often(None, 1, 2, 4, 7),
        tool_calls=script.often(None, 0, 1, 3, 6),
        behavior_calls=script.often(None, 0, 1, 2, 5),
        events=script.often(None, 1, 2, 5, 9),
        seconds=None if seconds is None else timedelta(seconds=seconds),
        patches=script.often(None, 0, 1, 3),
        depth=script.often(None, 0, 1),
    )


def condition(script: Script, depth: int) -> conditions.AnyCondition:
    """One of them, or several combined."""
    kind = script.of("simple", "simple", "and", "or", "not") if depth < 2 else "simple"
    if kind == "simple":
        return script.of(*CONDITIONS)
    if kind == "not":
        return conditions.Not(condition=condition(script, depth + 1))
    both = (condition(script, depth + 1), condition(script, depth + 1))
    return conditions.AllOf(conditions=both) if kind == "and" else conditions.AnyOf(conditions=both)


def hooks(script: Script) -> tuple[HookRule | HookDeclaration, ...]:
    made: list[HookRule | HookDeclaration] = []
    for number in range(script.of(1, 2, 3)):
        events = script.some((*EVENTS, *RARE_EVENTS)) or (script.of(*EVENTS),)
        if number < len(FUNCTIONS) and script.of(True, False):
            made.append(HookDeclaration(name=FUNCTIONS[number], on=events, reference="m:f"))
            continue
        rule = HookRule(
            name=f"rule{number}",
            on=events,
            reaction=script.of(*REACTIONS),
            tool=script.often(None, "work"),
            when=condition(script, 1) if script.of(False, False, True) else None,
            times=script.of(None, 1, 2),
        )
        made.append(rule)
    return tuple(made)


def fallback(script: Script, number: int) -> ModelPolicy:
    return ModelPolicy(
        model=f"p/other{number}",
        max_retries=1,
        generation_timeout=timedelta(seconds=60),
        compaction=CompactionPolicy(),
        also_on=script.of((), ("llm.context_overflow", "llm.empty_response")),
    )


def calls(script: Script, step: int, most: int, begun: tuple[str, ...] = ()) -> tuple[PlannedCall, ...]:
    """Calls of one answer; ``begun`` are sessions of delegates in the background."""
    return tuple(_call(script, f"{step}/{number}", begun) for number in range(script.of(*range(1, most + 1))))


def _call(script: Script, call_id: str, begun: tuple[str, ...]) -> PlannedCall:
    tool = script.of(*script.tools)
    call = PlannedCall(call_id=call_id, tool=tool)
    if tool in {"nothing", "invalid"}:
        code = "tool.unknown_tool" if tool == "nothing" else "tool.invalid_input"
        return call.model_copy(update={"rejected": ErrorDetail(code=code, title=tool, message="no")})
    if tool == "question":
        return call.model_copy(update={"needs": "answer", "question": "Which?"})
    if tool.startswith("guarded"):
        call = call.model_copy(update={"needs": "approval", "digest": call_id})
    if tool in DELEGATES:
        return call.model_copy(update={"background": script.of(False, True)})
    if tool in WAITING:
        some = script.of((), (), begun[-1:], (*begun[:1], *begun[-1:]), begun[::-1])
        named = script.often(some, (*some, "nowhere"))
        return call.model_copy(update={"builtin": AwaitCall(sessions=named)})
    return call.model_copy(update={"builtin": _builtin(script, tool)})


def _builtin(script: Script, tool: str) -> Any:
    if tool.endswith("todo") and tool != "clear_todo":
        return ChangeTodos(new_titles=script.of((), ("one",)), completed=script.of((), (0,), (0, 1), (7,)))
    if tool == "clear_todo":
        return ClearTodos()
    if tool == "attempt_completion":
        return AttemptCompletion()
    return FinishCall() if tool == "finish" and script.of(False, True) else None
