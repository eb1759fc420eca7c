"""Hooks and their reactions as data: the events that they are called at, and what the turn then does.

A hook is a rule, which the workflow decides by alone, or the declaration of a Python function, which an activity calls.
"""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Literal, get_args

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from perdure.contracts.budgets import Spent
from perdure.contracts.conditions import AnyCondition
from perdure.contracts.tools import Todo, ToolOutcome
from perdure.contracts.values import Authored, Tagged, Value, for_code, is_like, refuse_unknown_fields

MAX_HOOKS = 50
"""Most hooks of an agent: their declarations are in the history of each of its turns."""

MAX_TEXT_BYTES = 64 * 1024
"""Most that a reaction may say to the model, in UTF-8; it travels in Temporal payloads."""

DEFAULT_HOOK_TIMEOUT = timedelta(seconds=30)
"""A hook that runs longer has failed, unless its author says otherwise."""

Boundary = Literal["start", "generation", "step", "error", "stalled", "end"]
"""Places of a turn at which hooks run: once it is open, after an answer, after all results of a step, after a model
call that failed for good, where the turn would end stalled, and at its end."""

RuleEvent = Literal[
    "agent_start",
    "generation_end",
    "generation_error",
    "tool_end",
    "tool_error",
    "step_end",
    "agent_stalled",
    "budget_warning",
    "budget_changed",
    "model_fallback",
    "todos_changed",
]
"""Events that the workflow itself knows."""

FunctionEvent = Literal[
    "compaction_event",
    "user_message",
    "generation_start",
    "generation_wait",
    "generation_adapted",
    "generation_retry",
    "generation_content",
    "generation_step",
    "tool_start",
    "tool_recovery",
    "tool_progress",
    "tool_step",
    "user_input_required",
    "user_input_received",
    "delegate_start",
    "delegate_end",
    "stop_condition_met",
    "agent_error",
    "agent_end",
]
"""Events that stand in the log only: Python functions can react to them, rules cannot."""

HookEvent = RuleEvent | FunctionEvent

HOOK_EVENTS: tuple[HookEvent, ...] = (*get_args(RuleEvent), *get_args(FunctionEvent))
"""Every event that a hook can be on; the events of hooks themselves are left out."""

OF_DELEGATES = frozenset({"delegate_start", "delegate_end"})
"""Delegate events. For background delegates, hooks run when the caller learns that the delegate ended."""

EVENTS_AT: dict[Boundary, frozenset[str]] = {
    "start": frozenset({"agent_start"}),
    "generation": frozenset(
        {
            *("compaction_event", "user_message", "generation_start", "generation_wait", "generation_retry"),
            *("generation_adapted", "generation_content", "generation_end", "generation_error", "generation_step"),
        }
    ),
    "step": frozenset(
        {
            *("tool_start", "tool_recovery", "tool_progress", "tool_end", "tool_error", "tool_step"),
            *("user_input_required", "user_input_received", *OF_DELEGATES, "step_end"),
            *("budget_warning", "budget_changed", "model_fallback", "todos_changed"),
        }
    ),
    "error": frozenset(
        {"compaction_event", "generation_start", "generation_wait", "generation_retry", "generation_error"}
    ),
    "stalled": frozenset({"agent_stalled"}),
    "end": frozenset({"stop_condition_met", "agent_error", "agent_end"}),
}
"""Events that hooks receive at each boundary; ``tests/contract/test_recipes.py`` names what a new one lacks."""


def _one_or_many(value: object) -> object:
    return (value,) if isinstance(value, str) else value


Texts = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_one_or_many)]
"""User messages; a single text counts as one message."""


class Reaction(Tagged, Authored):
    """Change of the turn that a hook asks for."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @property
    def texts(self) -> tuple[str, ...]:
        """User messages that the reaction adds to the conversation."""
        return ()

    @model_validator(mode="after")
    def _is_bounded(self) -> "Reaction":
        size = sum(len(text.encode()) for text in self.texts)
        if size > MAX_TEXT_BYTES:
            msg = f"its messages are {size:,} bytes, the limit is {MAX_TEXT_BYTES:,}"
            raise ValueError(msg)
        return self


class Finish(Reaction):
    """The turn has ended, as ``finished``. Calls that have not run do not run."""

    type: Literal["finish"] = "finish"
    reason: str = Field(default="", max_length=2_000)

    @for_code
    def __init__(self, reason: str = "") -> None:
        Authored.__init__(self, reason=reason)


class Fail(Reaction):
    """The turn has ended, with an error: the reason. Calls that have not run do not run."""

    type: Literal["fail"] = "fail"
    reason: str = Field(default="", max_length=2_000)

    @for_code
    def __init__(self, reason: str = "") -> None:
        Authored.__init__(self, reason=reason)


class Retry(Reaction):
    """The step is taken back, and the model is asked again; calls that have not run do not run.

    The messages replace those that the step had added to the conversation, results of tools excepted.
    """

    type: Literal["retry"] = "retry"
    messages: Texts = ()

    @for_code
    def __init__(self, messages: str | tuple[str, ...] | list[str] = ()) -> None:
        Authored.__init__(self, messages=messages)

    @property
    def texts(self) -> tuple[str, ...]:
        """The messages."""
        return self.messages


class RetryWithFeedback(Reaction):
    """The step stays, with an error for each call that has not run, and the model is asked again with the feedback."""

    type: Literal["retry_with_feedback"] = "retry_with_feedback"
    feedback: str = Field(min_length=1)

    @for_code
    def __init__(self, feedback: str) -> None:
        Authored.__init__(self, feedback=feedback)

    @property
    def texts(self) -> tuple[str, ...]:
        """The feedback."""
        return (self.feedback,)


class Continue(Reaction):
    """The turn goes on, also where it would have ended; messages and feedback stand behind the step's results."""

    type: Literal["continue"] = "continue"
    messages: Texts = ()
    feedback: str = ""

    @for_code
    def __init__(self, messages: str | tuple[str, ...] | list[str] = (), *, feedback: str = "") -> None:
        Authored.__init__(self, messages=messages, feedback=feedback)

    @property
    def texts(self) -> tuple[str, ...]:
        """The messages, and then the feedback."""
        return (*self.messages, *([self.feedback] if self.feedback else []))


AnyReaction = Annotated[Finish | Fail | Retry | RetryWithFeedback | Continue, Field(discriminator="type")]
"""Any reaction; in JSON an object whose ``type`` says which."""


class HookSettings(Tagged):
    """Settings that hook rules and hook functions share.

    Attributes:
        name: Unique among the hooks of the agent; the event log and ``stopped_by`` name it.
        on: The events that call the hook.
        tool: For events of tools: the tool's wire name, or a pattern with ``*`` and ``?``; None is any tool.
        when: A further condition, counted over the turn as stop conditions are.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1, max_length=100)
    tool: str | None = Field(default=None, min_length=1, max_length=100)
    when: AnyCondition | None = None

    @property
    def events(self) -> tuple[str, ...]:
        """The events it is for."""
        raise NotImplementedError

    def is_about(self, tool: str) -> bool:
        """Whether events of the tool call the hook."""
        return self.tool is None or is_like(tool, self.tool)


class HookRule(HookSettings, Authored):
    """A hook that is data: its reaction is always the same. The workflow decides by it, without an activity.

    Attributes:
        times: Most steps of a turn in which the reaction is carried out; None means no limit.
    """

    type: Literal["rule"] = "rule"
    on: Annotated[tuple[RuleEvent, ...], BeforeValidator(_one_or_many)] = Field(min_length=1)
    reaction: AnyReaction
    times: int | None = Field(default=None, ge=1)

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            name: str,
            on: RuleEvent | Sequence[RuleEvent],
            reaction: AnyReaction,
            tool: str | None = None,
            when: AnyCondition | None = None,
            times: int | None = None,
        ) -> None: ...

    @property
    def events(self) -> tuple[str, ...]:
        """The events it is for."""
        return self.on


class HookDeclaration(HookSettings):
    """A Python function as it is frozen with its agent.

    Attributes:
        timeout: Longest time of one call.
        reference: ``module:qualified.name`` of the function.
    """

    type: Literal["function"] = "function"
    on: tuple[HookEvent, ...] = Field(min_length=1)
    timeout: timedelta = Field(default=DEFAULT_HOOK_TIMEOUT, gt=timedelta(0))
    reference: str

    @property
    def events(self) -> tuple[str, ...]:
        """The events it is for."""
        return self.on


AnyHook = Annotated[HookRule | HookDeclaration, Field(discriminator="type")]
"""Any hook of an agent."""

Hooks = Annotated[tuple[AnyHook, ...], Field(max_length=MAX_HOOKS)]
"""The hooks of an agent, in its order."""

Rules = Annotated[tuple[Annotated[HookRule, refuse_unknown_fields(HookRule)], ...], Field(max_length=MAX_HOOKS)]
"""The hook rules that a request brings in place of the agent's own."""

OnHookError = Literal["fail", "ignore"]
"""Effect of a hook that raises: the turn ends with an error, or an event is all that comes of it."""


def conditions_of(hooks: tuple[HookRule | HookDeclaration, ...]) -> Iterator[AnyCondition]:
    """The conditions of the hooks that have one."""
    return (hook.when for hook in hooks if hook.when is not None)


class BudgetWarning(Tagged):
    """A share of a budget is used up; ``used`` names the amount and the limit."""

    type: Literal["budget_warning"] = "budget_warning"
    dimension: str
    share: Decimal
    used: str


class StopConditionMet(Tagged):
    """A stop condition has ended the turn; ``condition`` is its name."""

    type: Literal["stop_condition_met"] = "stop_condition_met"
    condition: str


class ReactStep(Tagged):
    """A hook's reaction that the turn carries out at this boundary of the step."""

    type: Literal["react_step"] = "react_step"
    hook_name: str
    boundary: Boundary
    reaction: AnyReaction


class ModelFallback(Tagged):
    """A model failed for good with this code, and another model continues the turn."""

    type: Literal["model_fallback"] = "model_fallback"
    failed: str
    code: str
    model: str


class TodosChanged(Tagged):
    """The agent changed its todos; the event holds the whole list."""

    type: Literal["todos_changed"] = "todos_changed"
    todos: tuple[Todo, ...]


class BudgetChanged(Tagged):
    """Somebody changed a limit of the running turn; ``before`` is None if there was no limit."""

    type: Literal["budget_changed"] = "budget_changed"
    dimension: str
    before: str | None
    after: str


DecidedEvent = BudgetWarning | StopConditionMet | ReactStep | ModelFallback | TodosChanged | BudgetChanged
"""An event that the engine decides, in the workflow."""


class Decided(Value):
    """A decision on its way into the event log, which takes each key once a turn."""

    key: str
    step: int
    event: Annotated[DecidedEvent, Field(discriminator="type")]


class RunHooks(Value):
    """The input of the activity ``run_hooks``: call these hooks with the events of a step.

    Attributes:
        step: The step whose events the hooks get.
        tip: The last step of the conversation.
        calling: The names of the hooks.
        spent: The turn's use so far, which hooks can read.
        left: Calls of hooks that the turn's budget still allows; None means no limit.
        failed: Results that only the workflow knows; the event log has no entry yet.
        decided: Decisions of the workflow that hooks are on; the activity writes those that the log lacks.
        ended: Calls of background delegates that ended and that no hook has received yet.
        store: The id of the store that the turn lives in.
        trace: The trace context of the turn's span; empty if the turn is not traced.
    """

    session: str
    turn: int
    step: int
    tip: str
    definition: str
    boundary: Boundary
    calling: tuple[str, ...]
    spent: Spent = Spent()
    left: int | None = None
    failed: tuple[ToolOutcome, ...] = ()
    decided: tuple[Decided, ...] = ()
    ended: tuple[str, ...] = ()
    store: str = ""
    trace: str = ""


class HookResult(Value):
    """The reaction that a hook asked for."""

    hook: str
    reaction: AnyReaction


class HookResults(Value):
    """The result of the activity ``run_hooks``.

    Attributes:
        reactions: The reactions, in the order in which the hooks were called.
        calls: Number of hook calls.
        refused: The hook for which the turn's budget had no call left.
    """

    reactions: tuple[HookResult, ...] = ()
    calls: int = 0
    refused: str | None = None
