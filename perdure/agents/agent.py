"""Agent: the one value an author writes; a turn runs its frozen definition."""

from collections.abc import Iterator
from datetime import timedelta
from functools import cached_property
from inspect import cleandoc
from typing import Annotated, Any, cast

from jsonschema import Draft202012Validator, SchemaError
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012, EMPTY_REGISTRY

from perdure.agents.tool import Tool, tool
from perdure.contracts.agents import (
    DEFAULT_GENERATION_TIMEOUT,
    DEFAULT_MAX_STEPS,
    MAX_CORRECTIONS,
    AgentDefinition,
    Compaction,
    OnToolError,
)
from perdure.contracts.budgets import Budgets
from perdure.contracts.mcp import AnyServerConfig
from perdure.contracts.names import Activity
from perdure.contracts.people import ApprovalPolicy, Interactive
from perdure.contracts.retries import RetryPolicy
from perdure.contracts.values import JsonValue, Value, known_fields


class AgentDefinitionError(ValueError):
    """An agent's settings cannot be used; the message is one line that names the field and the reason."""


class Agent(Value):
    """An agent: a model, instructions, tools, limits and policies. Frozen; checked where it is defined.

    Attributes:
        name: How callers start it; unique among the agents of a task queue.
        model: ``provider/model``, as litellm takes it.
        instructions: The system prompt; indentation is removed.
        tools: Functions or ``@tool`` objects.
        mcp_servers: Servers whose tools the agent may use too; they are listed anew when a turn opens.
        max_steps: Generations a turn may use, exactly.
        generation_timeout: Longest time one model call may take.
        generate_params: Further arguments of the model call, such as ``temperature``.
        retry: How transient failures of model calls are retried.
        on_tool_error: What an exception outside a tool's ``catch`` does: ``abort`` ends the turn with an error,
            ``feed_back`` tells the model.
        finish_tool: The turn is finished when this tool has succeeded; text alone is then ``stalled``.
        budgets: Limits beside ``max_steps``.
        compaction: When and how a conversation that grows too long is summarised.
        output_schema: What the last answer must be, as JSON: a JSON schema, or a pydantic class for its schema. The
            turn's ``value`` then holds it.
        output_corrections: How often an answer that does not fit may be sent back to the model, in a turn.
        interactive: What a turn does that needs a person: ``wait`` for one, or ``stop`` with ``waiting_for_input``,
            so that the reply starts the next turn.
        approvals: Which tool calls need somebody's approval, as rules over tool and arguments.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
    model: str
    instructions: str = ""
    description: str = ""
    tools: tuple[Tool[..., Any], ...] = ()
    mcp_servers: tuple[AnyServerConfig, ...] = ()
    max_steps: int = Field(default=DEFAULT_MAX_STEPS, ge=1)
    generation_timeout: timedelta = Field(default=DEFAULT_GENERATION_TIMEOUT, gt=timedelta(0))
    generate_params: dict[str, JsonValue] = {}
    retry: Annotated[RetryPolicy, known_fields(RetryPolicy)] = RetryPolicy()
    on_tool_error: OnToolError = "abort"
    finish_tool: str | None = None
    budgets: Annotated[Budgets, known_fields(Budgets)] = Budgets()
    compaction: Annotated[Compaction, known_fields(Compaction)] = Compaction()
    output_schema: dict[str, JsonValue] | None = None
    output_corrections: int = Field(default=0, ge=0, le=MAX_CORRECTIONS)
    interactive: Interactive = "wait"
    approvals: Annotated[ApprovalPolicy, known_fields(ApprovalPolicy)] = ApprovalPolicy()

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401 - pydantic checks each field
        """Check the settings.

        Raises:
            AgentDefinitionError: A setting cannot be used.
        """
        try:
            super().__init__(**settings)
            _ = self.definition
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(str(part) for part in first["loc"])
            reason = first["msg"].removeprefix("Value error, ")
            got = "" if first["type"] in {"missing", "value_error"} else f" (got {first['input']!r})"
            msg = f"agent {settings.get('name', '?')!r}: {field + ': ' if field else ''}{reason}{got}"
            raise AgentDefinitionError(msg) from error

    @field_validator("tools", mode="before")
    @classmethod
    def _functions_become_tools(cls, value: Any) -> Any:  # noqa: ANN401 - whatever the author wrote
        if not isinstance(value, list | tuple):
            return value
        return tuple(_as_tool(item) for item in cast("list[Any]", value))

    @field_validator("tools")
    @classmethod
    def _names_are_not_ours(cls, value: tuple[Tool[..., Any], ...]) -> tuple[Tool[..., Any], ...]:
        for item in value:
            if item.name in set(Activity):
                msg = f"a tool may not be named {item.name!r}: that is an activity of perdure; use @tool(name=…)"
                raise ValueError(msg)
        return value

    @field_validator("mcp_servers")
    @classmethod
    def _servers_have_names(cls, value: tuple[AnyServerConfig, ...]) -> tuple[AnyServerConfig, ...]:
        names = [server.name for server in value]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            msg = f"two servers are named {', '.join(twice)}; rename one"
            raise ValueError(msg)
        return value

    @field_validator("model")
    @classmethod
    def _model_names_its_provider(cls, value: str) -> str:
        provider, slash, model = value.partition("/")
        if not (provider and slash and model):
            msg = f"write it as provider/model, for example openai/gpt-5-mini (got {value!r})"
            raise ValueError(msg)
        return value

    @field_validator("output_schema", mode="before")
    @classmethod
    def _class_becomes_schema(cls, value: Any) -> Any:  # noqa: ANN401 - whatever the author wrote
        if isinstance(value, type) and issubclass(value, BaseModel):
            return value.model_json_schema()
        return cast("object", value)

    @field_validator("output_schema")
    @classmethod
    def _schema_is_one(cls, value: dict[str, JsonValue] | None) -> dict[str, JsonValue] | None:
        if value is not None:
            _check_schema(value)
        return value

    @field_validator("approvals")
    @classmethod
    def _rules_have_schemas(cls, value: ApprovalPolicy) -> ApprovalPolicy:
        for rule in value.rules:
            if rule.arguments is not None:
                _check_schema(rule.arguments)
        return value

    @field_validator("instructions")
    @classmethod
    def _dedent(cls, value: str) -> str:
        return cleandoc(value)

    @cached_property
    def definition(self) -> AgentDefinition:
        """The agent as data: what is frozen at the start of a turn."""
        fields = {
            name: getattr(self, name) for name in AgentDefinition.model_fields if name not in {"tools", "recording"}
        }
        return AgentDefinition(**fields, tools=tuple(item.declaration for item in self.tools))

    def tool(self, name: str) -> Tool[..., Any] | None:
        """The tool of that wire name, or None."""
        return next((item for item in self.tools if item.name == name), None)

    def mcp_server(self, name: str) -> AnyServerConfig | None:
        """The MCP server of that name, or None."""
        return next((server for server in self.mcp_servers if server.name == name), None)


def _check_schema(value: dict[str, JsonValue]) -> None:
    """Refuse what is no JSON schema, or refers to something outside itself."""
    try:
        Draft202012Validator.check_schema(value, format_checker=Draft202012Validator.FORMAT_CHECKER)
    except SchemaError as error:
        msg = f"this is no JSON schema: at {error.json_path}: {error.message}"
        raise ValueError(msg) from error
    resolver = EMPTY_REGISTRY.with_resource("", DRAFT202012.create_resource(value)).resolver()
    for reference in _references(value):
        try:
            resolver.lookup(reference)
        except Unresolvable:
            msg = f"$ref {reference!r} leads nowhere in the schema; what it names must stand there, as in $defs"
            raise ValueError(msg) from None


def _references(schema: JsonValue) -> Iterator[str]:
    """Every ``$ref`` of a schema."""
    if isinstance(schema, list):
        for part in schema:
            yield from _references(part)
    elif isinstance(schema, dict):
        for name, part in schema.items():
            if name == "$ref" and isinstance(part, str):
                yield part
            else:
                yield from _references(part)


def _as_tool(item: Any) -> Any:  # noqa: ANN401 - whatever the author wrote; pydantic refuses what is no tool
    if isinstance(item, Tool):
        return cast("object", item)
    return tool(item) if callable(item) else item
