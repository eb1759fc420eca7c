"""Agent: the one value an author writes; a turn runs its frozen definition.

Long, because the docstring of the class tells of every field.
"""

from collections.abc import Sequence
from datetime import timedelta
from functools import cached_property
from inspect import cleandoc, isasyncgenfunction, isfunction, isgeneratorfunction, ismethod, signature
from typing import TYPE_CHECKING, Annotated, Any, Self, Unpack, cast

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    GetPydanticSchema,
    PrivateAttr,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import core_schema

from perdure.agents.author_warnings import MEANT, RUNS, check_agent, tell_how_to_run, warn
from perdure.agents.builtin_tools import settle_completion
from perdure.agents.context import ToolDefinitionError
from perdure.agents.delegates import Delegate, await_tool_of, check
from perdure.agents.hooks import Hook
from perdure.agents.schemas import check_rule, check_schema, unknown_arguments
from perdure.agents.settings import AgentChanges, AgentSettings, InstructionsFunction, adapter_of, items_of, tools_of
from perdure.agents.skills import declare_skills
from perdure.agents.tool import Tool
from perdure.contracts.agents import (
    DEFAULT_GENERATION_TIMEOUT,
    DEFAULT_IDLE_TIMEOUT,
    DEFAULT_MAX_STEPS,
    MAX_CORRECTIONS,
    NO_TIMEOUT,
    AgentDefinition,
    CacheMode,
    Compaction,
    OnChildError,
    OnToolError,
    OnUnknownTool,
    Skill,
    StreamMode,
    ToolMode,
    check_params,
)
from perdure.contracts.budgets import Budgets
from perdure.contracts.conditions import StopConditions
from perdure.contracts.hooks import MAX_HOOKS, HookRule, OnHookError
from perdure.contracts.input_requests import ApprovalPolicy, Interactive
from perdure.contracts.mcp import AnyServerConfig
from perdure.contracts.names import Activity
from perdure.contracts.retention import Retention
from perdure.contracts.retries import Fallback, RetryPolicy, check_model
from perdure.contracts.tools import Completion, ToolDeclaration
from perdure.contracts.values import (
    JsonValue,
    Schema,
    Value,
    describe_mistake,
    find_repeated,
    guess_name,
    refuse_unknown_fields,
    translate_names,
)

_AS_IT_IS = GetPydanticSchema(lambda _source, _handler: core_schema.is_instance_schema(Tool))
"""Accepts ``Tool`` instances as they are and refuses everything else."""

_A_DELEGATE = GetPydanticSchema(lambda _source, _handler: core_schema.is_instance_schema(Delegate))


_LOOKED_AT = GetPydanticSchema(lambda _source, _handler: core_schema.any_schema())
"""Type of a field whose validator checks the value itself."""


class AgentDefinitionError(ValueError):
    """An agent's settings cannot be used; the message is one line that names the field and the reason."""


class Agent(Value):
    """An agent: a model, instructions, tools, limits and policies. Frozen; checked where it is defined.

    Example::

        agent = Agent(name="writer", model="openai/gpt-5-mini", instructions="Write briefly.", tools=[word_count])

    Attributes:
        name: The name by which callers start the agent; unique among the agents of a task queue.
        model: ``provider/model``, as litellm takes it.
        instructions: The system prompt, or several texts that make it up; indentation is removed. By default none.
            ``{context.NAME}``, ``{turn.tenant}`` and ``{turn.by}`` are filled in when a turn opens. A function of the
            turn's context, sync or async, makes the text when a turn opens.
        label: Name for people, shown beside the name.
        tags: Words to choose agents by; ``perdure agents`` and exports show them.
        tools: Functions, ``@tool`` objects and instances of toolsets.
        delegates: Other agents that it may call as tools: agents, names of agents of the same workers, or ``Delegate``
            with settings. A call is a turn of its own that reads only the query.
        on_child_error: What a delegate that does not finish does: ``return`` gives the model an error result,
            ``propagate`` ends the turn with an error.
        mcp_servers: Servers whose tools the agent may use too; they are listed anew when a turn opens.
        max_steps: Generations a turn may use, exactly.
        generation_timeout: Longest time one model call may take; None sets no limit.
        idle_timeout: Longest silence of the provider in a model call, whole or streamed; None sets no limit. Comments
            and pings of the provider end a silence.
        stream_idle_timeout: Likewise behind the first word of a streamed answer; None is ``idle_timeout``.
        generate_params: Further arguments of the model call, such as ``temperature``. In those that say where it goes,
            such as ``api_key``, ``${NAME}`` is taken from the worker's environment.
        retry: How transient failures of model calls are retried.
        on_tool_error: What an exception outside a tool's ``catch`` does: ``abort`` ends the turn with an error,
            ``feed_back`` tells the model.
        on_unknown_tool: What a call of a tool that the agent does not have does: ``feed_back`` tells the model,
            ``abort`` ends the turn with an error.
        finish_tool: The turn is finished when this tool has succeeded; text alone is then ``stalled``.
        completion: What finishes a turn: ``text`` without a call, a ``finish_tool`` (without one of that name, the
            built-in ``finish``), or ``attempt_completion``, which gives the agent a list of todos: it is not done while
            one of them is open. None is ``finish_tool`` if one is named, and else ``text``.
        max_tool_turns: Answers of a turn that may call tools; when the calls of the last one have their results and the
            turn has not finished, it ends with ``tool.max_turns_exhausted``.
        stop_conditions: The turn is finished when one of these holds at the end of a step (``perdure.stop``); text
            alone is then ``stalled``.
        hooks: What reacts to the events of the turns: rules (``HookRule``) and functions made by ``@hook``, in order.
        on_hook_error: What a hook that raises does: ``fail`` ends the turn with an error, ``ignore`` leaves it at that.
        tool_mode: How the model calls tools: ``api`` by its provider, or in plain text as ``xml``, ``json``,
            ``json-in-xml``, ``json-with-tag`` or ``pythonic``; ``auto`` is ``api`` unless the model is known to have
            no calls, or its provider refuses so many tools, and then ``json-in-xml``.
        budgets: Limits beside ``max_steps``: dollars, calls, seconds and others.
        compaction: When and how a conversation that grows too long is summarised.
        output_schema: What the last answer must be, as JSON: a JSON schema, or a type for its schema and its own
            validators (a pydantic class, a dataclass, ``list[int]``, any that ``pydantic.TypeAdapter`` takes). The
            turn's ``value`` then holds it.
        output_corrections: How often an answer that does not fit may be sent back to the model, in a turn.
        interactive: What a turn does when it needs a person: ``wait`` for the reply, ``stop`` with
            ``waiting_for_input``, so that the reply starts the next turn, or ``refuse`` the call with ``tool.denied``.
        approvals: Which tool calls need somebody's approval, as rules over tool and arguments.
        fallback_models: Models that are called, in this order, when the one before has failed for good: its retries are
            used up, its provider refuses the key or has no quota left, or does not know the model. The next one stays
            for the rest of the turn. A name, or a ``Fallback`` with its own retry policy and time-out.
        cache: ``latest`` asks providers that take such marks (Anthropic's models) to keep the system prompt and the
            last two messages for the next call, which then costs less; ``off`` does not.
        stream: ``watched`` asks the provider for a stream only while somebody follows the session piece by piece,
            ``always`` every time, ``off`` never. The stored answer is the same.
        stream_thinking: Whether the pieces have the model's reasoning too.
        retention: How long the agent's sessions keep their events, artifacts and transcripts; None keeps them for good.
        max_running: Most turns of the agent that run at once, over all workers; others wait. Delegates do not count.
        skills: Skills that the model may read with the tool ``skill``, as ``perdure.skills.skills_in`` reads a folder.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, hide_input_in_errors=True)

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
    model: Annotated[str, AfterValidator(check_model)]
    instructions: Annotated[str | InstructionsFunction, _LOOKED_AT] = ""
    description: str = ""
    label: str = ""
    tags: tuple[str, ...] = ()
    tools: tuple[Annotated[Tool[..., Any], _AS_IT_IS], ...] = ()
    delegates: tuple[Annotated[Delegate, _A_DELEGATE], ...] = ()
    on_child_error: OnChildError = "return"
    mcp_servers: tuple[AnyServerConfig, ...] = ()
    max_steps: int = Field(default=DEFAULT_MAX_STEPS, ge=1)
    generation_timeout: timedelta = Field(default=DEFAULT_GENERATION_TIMEOUT, gt=timedelta(0))
    idle_timeout: timedelta = Field(default=DEFAULT_IDLE_TIMEOUT, gt=timedelta(0))
    stream_idle_timeout: timedelta | None = Field(default=None, gt=timedelta(0))
    generate_params: dict[str, JsonValue] = {}
    retry: Annotated[RetryPolicy, refuse_unknown_fields(RetryPolicy)] = RetryPolicy()
    on_tool_error: OnToolError = "abort"
    on_unknown_tool: OnUnknownTool = "feed_back"
    finish_tool: str | None = None
    completion: Completion | None = None
    max_tool_turns: int | None = Field(default=None, ge=1)
    stop_conditions: StopConditions = ()
    hooks: tuple[Annotated[HookRule | Hook, _LOOKED_AT], ...] = Field(default=(), max_length=MAX_HOOKS)
    on_hook_error: OnHookError = "fail"
    tool_mode: ToolMode = "auto"
    budgets: Annotated[Budgets, refuse_unknown_fields(Budgets)] = Budgets()
    compaction: Annotated[Compaction, refuse_unknown_fields(Compaction)] = Compaction()
    output_schema: Schema | None = None
    output_corrections: int = Field(default=0, ge=0, le=MAX_CORRECTIONS)
    interactive: Interactive = "wait"
    approvals: Annotated[ApprovalPolicy, refuse_unknown_fields(ApprovalPolicy)] = ApprovalPolicy()
    skills: tuple[Skill, ...] = ()
    fallback_models: tuple[Annotated[Fallback, refuse_unknown_fields(Fallback)], ...] = ()
    cache: CacheMode = "latest"
    stream: StreamMode = "watched"
    stream_thinking: bool = False
    retention: Annotated[Retention, refuse_unknown_fields(Retention)] | None = None
    max_running: int | None = Field(default=None, ge=1)
    _output_type: TypeAdapter[Any] | None = PrivateAttr(default=None)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            """Say how an agent is run; it is a value, which runs nothing."""
            if name in RUNS:
                raise AttributeError(tell_how_to_run(self.name, name))
            return super().__getattr__(name)

    def __init__(self, **settings: Unpack[AgentSettings]) -> None:
        """Check the settings.

        Raises:
            AgentDefinitionError: A setting cannot be used.
        """
        try:
            ours: dict[str, Any] = translate_names("Agent", settings)
        except ValueError as error:
            raise AgentDefinitionError(f"agent {settings.get('name', '?')!r}: {error}") from error
        try:
            super().__init__(**ours)
            self._output_type = adapter_of(ours.get("output_schema"))
            _check_rules(self.definition, self.mcp_servers)
            warn(check_agent(self.definition, self.mcp_servers))
        except ValidationError as error:
            first = error.errors()[0]
            said = describe_mistake(error)
            # Among the arguments of calls may be keys.
            unshown = (
                first["type"] in {"missing", "value_error", "recursion_depth_exceeded"}
                or "generate_params" in first["loc"]
            )
            got = "" if unshown else f" (got {first['input']!r})"
            if first["type"] == "extra_forbidden":
                wrong, known, got = str(first["loc"][0]), type(self).model_fields, ""
                guess = guess_name(wrong, known, MEANT) if len(first["loc"]) == 1 else ""
                told = guess or f"the settings are {', '.join(known)}"
                said = f"{said.partition(': ')[0]}: there is no such setting; {told}"
            if first["type"] == "recursion_depth_exceeded":
                said = f"{first['loc'][0]}: it is nested too deeply; use fewer levels"
            raise AgentDefinitionError(f"agent {settings.get('name', '?')!r}: {said}{got}") from error

    @field_validator("tools", mode="before")
    @classmethod
    def _functions_become_tools(cls, value: Any) -> Any:  # noqa: ANN401 - whatever the author wrote
        items = items_of(value, "tools", "tools")
        try:
            return tuple(made for item in items for made in tools_of(item))
        except ToolDefinitionError as error:
            if all(map(callable, items)):  # the mistake is in a function or in a class
                raise
            raise ValueError(str(error)) from None

    @field_validator("tools")
    @classmethod
    def _names_are_not_ours(cls, value: tuple[Tool[..., Any], ...]) -> tuple[Tool[..., Any], ...]:
        for item in value:
            if item.name in set(Activity):
                msg = f"a tool may not be named {item.name!r}: that is an activity of perdure; use @tool(name=…)"
                raise ValueError(msg)
        return value

    @field_validator("delegates", mode="before")
    @classmethod
    def _agents_become_delegates(cls, value: Any) -> Any:  # noqa: ANN401 - whatever the author wrote
        return tuple(
            item if isinstance(item, Delegate) else Delegate(item) for item in items_of(value, "delegates", "agents")
        )

    @model_validator(mode="after")
    def _can_finish(self) -> Self:
        settle_completion(self.completion, self.finish_tool, self.output_schema, self._declared_tools)
        return self

    @field_validator("generate_params")
    @classmethod
    def _credentials_are_not_written_out(cls, value: dict[str, JsonValue]) -> dict[str, JsonValue]:
        check_params(value)
        return value

    @field_validator("fallback_models")
    @classmethod
    def _nor_are_those_of_fallbacks(cls, value: tuple[Fallback, ...]) -> tuple[Fallback, ...]:
        for fallback in value:
            try:
                check_params(fallback.generate_params or {})
            except ValueError as error:
                raise ValueError(f"{fallback.model}: {error}") from None
        return value

    @model_validator(mode="after")
    def _delegates_are_bounded(self) -> Self:
        check(self.name, self.delegates, any(item.declaration.delegate for item in self.tools), self.budgets)
        return self

    @field_validator("mcp_servers")
    @classmethod
    def _servers_have_names(cls, value: tuple[AnyServerConfig, ...]) -> tuple[AnyServerConfig, ...]:
        if twice := find_repeated(server.name for server in value):
            raise ValueError(f"two servers are named {twice}; rename one")
        return value

    @field_validator("fallback_models", mode="before")
    @classmethod
    def _names_become_fallbacks(cls, value: Any) -> Any:  # noqa: ANN401 - whatever the author wrote
        if not isinstance(value, list | tuple):
            return value
        return tuple({"model": item} if isinstance(item, str) else item for item in cast("list[Any]", value))

    @field_validator("output_schema", mode="before")
    @classmethod
    def _class_becomes_schema(cls, value: Any) -> Any:  # noqa: ANN401 - whatever the author wrote
        adapter = adapter_of(value)
        return value if adapter is None else adapter.json_schema()

    @field_validator("output_schema")
    @classmethod
    def _schema_is_one(cls, value: dict[str, JsonValue] | None) -> dict[str, JsonValue] | None:
        if value is not None:
            check_schema(value)
        return value

    @field_validator("hooks", mode="before")
    @classmethod
    def _hooks_are_made(cls, value: Any) -> Any:  # noqa: ANN401 - whatever the author wrote
        hooks = items_of(value, "hooks", "hooks")
        for item in hooks:
            if not isinstance(item, HookRule | Hook):
                name = getattr(item, "__name__", repr(item))
                msg = f"{name} is no hook; decorate the function with @hook('tool_end'), or write a HookRule"
                raise ValueError(msg)  # noqa: TRY004 - pydantic takes it for a mistake of the author
        return tuple(hooks)

    @field_validator("approvals")
    @classmethod
    def _rules_have_schemas(cls, value: ApprovalPolicy) -> ApprovalPolicy:
        for rule in value.rules:
            if rule.arguments is not None:
                check_rule(rule.arguments)
        return value

    @field_validator("skills", mode="before")
    @classmethod
    def _skills_are_read(cls, value: Any) -> Any:  # noqa: ANN401 - whatever the author wrote
        if not isinstance(value, list | tuple) or not all(isinstance(item, Skill) for item in cast("list[Any]", value)):
            msg = "write skills=skills_in(Path(__file__).parent / 'skills'), from perdure.skills; of several folders "
            msg += "skills=[*skills_in(…), *skills_in(…)]"
            raise ValueError(msg)
        return cast("object", value)

    @field_validator("skills")
    @classmethod
    def _skills_have_ids(cls, value: tuple[Skill, ...]) -> tuple[Skill, ...]:
        if twice := find_repeated(skill.id for skill in value):
            raise ValueError(f"two skills are called {twice}; tell them apart with skills_in(…, capability=…)")
        return value

    @field_validator("instructions", mode="before")
    @classmethod
    def _texts_become_one(cls, value: Any) -> Any:  # noqa: ANN401 - whatever the author wrote
        if isinstance(value, list | tuple) and all(isinstance(text, str) for text in cast("list[Any]", value)):
            return "\n\n".join(cleandoc(text) for text in cast("list[str]", value) if text)
        if isinstance(value, str | None):
            return dedent_instructions(value or "")
        given = cast("object", value)
        problem = find_instructions_problem(given)
        if problem is not None:
            raise ValueError(problem)
        return given

    @field_validator("generation_timeout", "idle_timeout", mode="before")
    @classmethod
    def _none_is_no_timeout(cls, value: Any) -> Any:  # noqa: ANN401 - whatever the author wrote
        return NO_TIMEOUT if value is None else value

    @field_validator("stream_idle_timeout")
    @classmethod
    def _is_shorter_than_any_silence(cls, value: timedelta | None, info: ValidationInfo) -> timedelta | None:
        longest = info.data.get("idle_timeout")
        if value is not None and longest is not None and value > longest:
            seconds = f"{longest.total_seconds():g} s"
            raise ValueError(f"it is longer than idle_timeout ({seconds}), which bounds every silence; raise that one")
        return value

    def clone(self, **changes: Unpack[AgentChanges]) -> Self:
        """A copy with other settings, checked like a new agent.

        Raises:
            AgentDefinitionError: A setting cannot be used, or there is none of that name.
        """
        kept: dict[str, Any] = {name: getattr(self, name) for name in type(self).model_fields}
        if self._output_type is not None:
            kept["output_schema"] = self._output_type
        kept.update(translate_names("Agent", changes))
        return type(self)(**kept)

    @property
    def output_type(self) -> TypeAdapter[Any] | None:
        """The type whose schema ``output_schema`` is; None of an agent with a JSON schema, or with none."""
        return self._output_type

    @cached_property
    def definition(self) -> AgentDefinition:
        """The agent as data: what is frozen at the start of a turn."""
        fields = {
            name: getattr(self, name)
            for name in AgentDefinition.model_fields
            if name
            not in {"tools", "hooks", "instructions", "instructions_from", "inline", "recording", "wished", "unwished"}
        }
        if isinstance(self.instructions, str):
            fields["instructions"] = self.instructions
        else:
            fields["instructions_from"] = f"{self.instructions.__module__}:{self.instructions.__qualname__}"
        own = self._declared_tools
        fields["finish_tool"], added = settle_completion(self.completion, self.finish_tool, self.output_schema, own)
        fields["hooks"] = tuple(hook.declaration if isinstance(hook, Hook) else hook for hook in self.hooks)
        return AgentDefinition(**fields, tools=(*own, *added))

    @property
    def _declared_tools(self) -> tuple[ToolDeclaration, ...]:
        tools = (*(item.declaration for item in self.tools), *(item.declaration for item in self.delegates))
        return (*tools, *await_tool_of(tools), *declare_skills(self.skills))

    @property
    def models(self) -> tuple[str, ...]:
        """The models that a turn may use: its own, and those that stand in for it."""
        return (self.model, *(fallback.model for fallback in self.fallback_models))

    def tool(self, name: str) -> Tool[..., Any] | None:
        """The tool of that wire name, or None."""
        return next((item for item in self.tools if item.name == name), None)

    def hook(self, name: str) -> Hook | None:
        """The hook of that name that is a function, or None."""
        return next((hook for hook in self.hooks if isinstance(hook, Hook) and hook.name == name), None)

    def mcp_server(self, name: str) -> AnyServerConfig | None:
        """The MCP server of that name, or None."""
        return next((server for server in self.mcp_servers if server.name == name), None)


def dedent_instructions(instructions: str) -> str:
    """Instructions without the indentation of the code around them."""
    return cleandoc(instructions)


def find_instructions_problem(given: object) -> str | None:
    """Reason a value cannot be instructions, with the fix; None if it is a function that can make them."""
    if not isfunction(given) and not ismethod(given):
        return f"write a text, several in a list, or a function of the turn's context (got a {type(given).__name__})"
    name = given.__name__
    if isgeneratorfunction(given) or isasyncgenfunction(given):
        return f"{name} yields; return one text"
    if len(signature(given).parameters) != 1:
        return f"{name} takes the turn's context alone: def {name}(context: TurnContext) -> str"
    return None


def _check_rules(definition: AgentDefinition, servers: Sequence[AnyServerConfig]) -> None:
    """Refuse a rule that checks nothing, and a finish that nobody reaches. What servers offer is known later."""
    finish = definition.tool(definition.finish_tool or "")
    if finish is not None and finish.interactive:
        msg = f"agent {definition.name!r}: finish_tool: {finish.name} is a question, and an answer ends no work; use "
        raise AgentDefinitionError(msg + "a plain tool, with requires_approval=True if a person has to agree")
    names = [item.name for item in definition.tools]
    remote = tuple(f"{server.name}__" for server in servers)
    for rule in definition.approvals.idle_rules_of(names):
        if not rule.is_pattern and not rule.tool.startswith(remote):
            known = ", ".join([*names, *(f"{prefix}…" for prefix in remote)]) or "none"
            msg = f"agent {definition.name!r}: approvals: a rule is for the tool {rule.tool!r}; the tools are {known}"
            raise AgentDefinitionError(msg)
    for rule in definition.approvals.rules:
        about = [item for item in definition.tools if rule.matches(item.name)]
        if rule.arguments is None or not about or (remote and rule.is_pattern):
            continue
        unknown = set[str].intersection(*(unknown_arguments(rule.arguments, item) for item in about))
        if unknown:
            msg = f"agent {definition.name!r}: approvals: a rule for {rule.tool!r} names {', '.join(sorted(unknown))}, "
            raise AgentDefinitionError(msg + "which is no argument of it")
