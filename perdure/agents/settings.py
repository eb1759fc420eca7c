"""What an author may write in ``Agent(…)``, for type checkers and editors; pydantic's fields say what becomes of it."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from types import UnionType
from typing import Any, TypedDict

from pydantic import TypeAdapter

from perdure.agents.delegates import Delegate, Named
from perdure.agents.hooks import Hook
from perdure.agents.toolset import Toolset
from perdure.contracts.agents import CacheMode, Compaction, OnChildError, OnToolError, OnUnknownTool, Skill, ToolMode
from perdure.contracts.budgets import Budgets
from perdure.contracts.conditions import AnyCondition
from perdure.contracts.hooks import HookRule, OnHookError
from perdure.contracts.input_requests import ApprovalPolicy, Interactive
from perdure.contracts.mcp import AnyServerConfig
from perdure.contracts.retries import Fallback, RetryPolicy
from perdure.contracts.tools import Completion
from perdure.contracts.turn_context import TurnContext
from perdure.contracts.values import JsonValue

OutputSchema = type[Any] | UnionType | TypeAdapter[Any] | Mapping[str, JsonValue] | None
"""A class, a generic such as ``list[int]``, a union, any other type in a ``TypeAdapter``, or a JSON schema."""

InstructionsFunction = Callable[[TurnContext], str | Awaitable[str]]
"""Makes the instructions of a turn when it opens."""


class WordsOfOthers(TypedDict, total=False):
    """Words of other systems, which ``perdure.contracts.values`` puts under our names."""

    maxSteps: int
    maxRetries: int
    generate_params_extra: Mapping[str, JsonValue]
    backoff_max_tries: int
    backoff_max_time: timedelta | float | None
    backoff_base_factor: timedelta | float
    backoff_jitter: bool | timedelta | float
    max_cost_usd: Decimal | float | str
    max_llm_calls: int
    max_tool_calls: int
    max_behavior_calls: int
    max_events: int
    max_seconds: timedelta | float
    max_patches: int
    max_depth: int


class CommonSettings(WordsOfOthers, total=False):
    """Every setting that an agent can do without. Attributes are explained at :class:`perdure.Agent`."""

    instructions: str | list[str] | tuple[str, ...] | InstructionsFunction | None
    description: str
    label: str
    tags: list[str] | tuple[str, ...]
    tools: Sequence[Callable[..., object] | Toolset]
    delegates: Sequence[Delegate | Named | str]
    on_child_error: OnChildError
    mcp_servers: Sequence[AnyServerConfig]
    max_steps: int
    generation_timeout: timedelta | float | None
    generate_params: Mapping[str, JsonValue]
    retry: RetryPolicy | dict[str, Any]
    on_tool_error: OnToolError
    on_unknown_tool: OnUnknownTool
    finish_tool: str | None
    completion: Completion | None
    max_tool_turns: int | None
    stop_conditions: Sequence[AnyCondition] | Mapping[str, AnyCondition]
    hooks: Sequence[HookRule | Hook]
    on_hook_error: OnHookError
    tool_mode: ToolMode
    budgets: Budgets | dict[str, Any]
    compaction: Compaction
    output_schema: OutputSchema
    output_corrections: int
    interactive: Interactive
    approvals: ApprovalPolicy
    skills: Sequence[Skill]
    fallback_models: Sequence[Fallback | str]
    cache: CacheMode


class AgentSettings(CommonSettings):
    """What a new agent is made of."""

    name: str
    model: str


class AgentChanges(CommonSettings, total=False):
    """What a copy of an agent may have different."""

    name: str
    model: str
