"""Settings of ``Agent(…)``: types for editors, and the checks of lists of tools and of output types."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from inspect import isroutine
from types import UnionType
from typing import Any, TypedDict, cast

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import to_json

from perdure.agents.context import ToolDefinitionError
from perdure.agents.delegates import Delegate, Named
from perdure.agents.hooks import Hook
from perdure.agents.tool import Tool, tool
from perdure.agents.toolset import ToolMethod, Toolset
from perdure.contracts.agents import (
    CacheMode,
    Compaction,
    OnChildError,
    OnToolError,
    OnUnknownTool,
    Skill,
    StreamMode,
    ToolMode,
)
from perdure.contracts.budgets import Budgets
from perdure.contracts.conditions import AnyCondition
from perdure.contracts.exceptions import print_error
from perdure.contracts.hooks import HookRule, OnHookError
from perdure.contracts.input_requests import ApprovalPolicy, Interactive
from perdure.contracts.mcp import AnyServerConfig, HttpServerConfig, StdioServerConfig
from perdure.contracts.retention import Retention
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
    idle_timeout: timedelta | float | None
    stream_idle_timeout: timedelta | float | None
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
    stream: StreamMode
    stream_thinking: bool
    retention: Retention | dict[str, Any] | None
    max_running: int | None


class AgentSettings(CommonSettings):
    """Settings of a new agent."""

    name: str
    model: str


class AgentChanges(CommonSettings, total=False):
    """Settings that a copy of an agent may change."""

    name: str
    model: str


def adapter_of(wanted: Any) -> TypeAdapter[Any] | None:  # noqa: ANN401 - whatever the author wrote
    """The adapter of a type; None if a JSON schema or nothing is wanted."""
    if wanted is None or isinstance(wanted, Mapping):
        return None
    if isinstance(wanted, str) or isroutine(wanted):  # to pydantic they would be a name and a list of arguments
        raise ValueError(f"{wanted!r} is no type; write the type itself, or a JSON schema")
    try:
        adapter: TypeAdapter[Any] = cast("Any", wanted) if isinstance(wanted, TypeAdapter) else TypeAdapter(wanted)
        adapter.json_schema()
    except Exception as error:  # whatever a type's own hooks raise
        why = str(error).partition("\n")[0].rstrip(".")
        msg = f"no JSON schema can be made of {wanted!r} ({type(error).__name__}: {why}); "
        msg += "write a pydantic class, a dataclass, a type such as list[int], or a JSON schema"
        raise ValueError(msg) from error
    return adapter


def problem_of(adapter: TypeAdapter[Any], value: JsonValue) -> str | None:
    """Problem that the type's own checks find in an answer that fits its schema, in one sentence for the model."""
    try:
        adapter.validate_json(to_json(value))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
        return f"at ${place}: {first['msg'].removeprefix('Value error, ').removeprefix('Assertion failed, ')}"
    except BaseException as error:  # noqa: BLE001 - a validator with a bug must not cost the answer more than its corrections
        return f"a validator of output_schema raised {print_error(error)}; correct the validator"
    return None


def items_of(given: object, setting: str, parts: str) -> list[Any]:
    """The items of a setting."""
    if not isinstance(given, list | tuple):
        msg = f"write a list: {setting}=[…]"
        raise ValueError(msg)  # noqa: TRY004 - pydantic takes it for a mistake of the author
    items: list[Any] = [*given]
    if any(isinstance(item, list | tuple) for item in items):
        raise ValueError(_join_setting(setting, parts))
    return items


def tools_of(item: Any) -> tuple[Tool[..., Any], ...]:  # noqa: ANN401 - whatever the author wrote
    """The tools that an item stands for: of a toolset all that it offers.

    Raises:
        ToolDefinitionError: It is nothing that a model can call.
    """
    if isinstance(item, Toolset):
        return item.tools
    if isinstance(item, Tool):
        return (cast("Tool[..., Any]", item),)
    if (problem := _problem(item)) is not None:
        raise ToolDefinitionError(problem)
    return (tool(cast("Callable[..., object]", item)),)


def _join_setting(setting: str, parts: str) -> str:
    return f"a list stands among the {setting}; write *[…] to put each of its {parts} in"


def _problem(item: object) -> str | None:
    """Reason an item cannot become a tool, with the fix; None if it may be a function."""
    if isinstance(item, list | tuple):
        return _join_setting("tools", "tools")
    if isinstance(item, ToolMethod):
        name = cast("ToolMethod[..., Any]", item).function.__name__
        owner = cast("ToolMethod[..., Any]", item).function.__qualname__.rpartition(".")[0].rpartition(".")[2]
        return f"{name} is a method of a class of toolsets; take it from an instance, as in {owner}(…).{name}"
    if isinstance(item, type):
        if issubclass(item, Toolset):
            return f"{item.__name__} is a class of toolsets; write {item.__name__}(…) among the tools"
        return f"{item.__name__} is a class; put a function among the tools, or an instance of a Toolset"
    if isinstance(item, Delegate) or (isinstance(item, BaseModel) and hasattr(item, "delegates")):
        name = item.name if isinstance(item, Delegate) else getattr(item, "name", "")
        return f"the agent {name!r} stands among the tools; write delegates=[…] for agents to call"
    if isinstance(item, HttpServerConfig | StdioServerConfig):
        return f"the MCP server {item.name!r} stands among the tools; write mcp_servers=[…]"
    if isinstance(item, Hook):
        return f"{item.name} is a hook; write hooks=[…]"
    if not callable(item):
        shown = repr(item) if isinstance(item, str | int | float | None) else f"a {type(item).__name__}"
        return f"{shown[:60]} is no tool; write a function, or a tool that @tool has made"
    return None
