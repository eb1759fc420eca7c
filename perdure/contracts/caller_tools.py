"""Tools that the caller runs, as an author, a file or a start request describes them: a schema and no body."""

import operator
from datetime import timedelta
from typing import Annotated

from pydantic import AfterValidator, ConfigDict, Field, field_validator

from perdure.contracts.input_requests import LONGEST_EXPIRY
from perdure.contracts.tools import CALLER_REFERENCE, DEFAULT_CALLER_TIMEOUT, WIRE_NAME_PATTERN, ToolDeclaration
from perdure.contracts.values import JsonValue, Schema, Value, find_repeated, size_of

MOST_CALLER_TOOLS = 64
"""Most tools that a start request may bring."""

MAX_TOOLS_BYTES = 64 * 1024
"""Largest tools of a start request, as JSON in UTF-8; they travel in Temporal payloads."""

NO_ARGUMENTS: dict[str, JsonValue] = {"type": "object", "properties": {}}
"""Schema of a tool without arguments."""

NO_OBJECT = "write the schema of an object: {'type': 'object', 'properties': {…}}"
"""Refusal of a schema of anything else."""


class CallerTool(Value):
    """A tool without a body, described by whoever runs its calls: an author, a file, or a start request.

    Attributes:
        name: The wire name: what the model calls.
        description: What the model reads.
        parameters: JSON schema of the arguments, which are an object.
        timeout: Time for a result, in seconds where it is JSON; then the model gets the error ``tool.timeout``.
        masked: Top-level arguments shown as ``***`` to everybody, the caller too.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_timedelta="float")

    name: str = Field(pattern=WIRE_NAME_PATTERN)
    description: str = Field(default="", max_length=10_000)
    parameters: Schema = NO_ARGUMENTS
    timeout: timedelta = Field(default=DEFAULT_CALLER_TIMEOUT, gt=timedelta(0), le=LONGEST_EXPIRY)
    masked: tuple[str, ...] = ()

    @field_validator("parameters")
    @classmethod
    def _are_an_object(cls, value: dict[str, JsonValue]) -> dict[str, JsonValue]:
        if value.get("type") != "object" and not isinstance(value.get("$ref"), str):
            raise ValueError(NO_OBJECT)
        return value

    @property
    def declaration(self) -> ToolDeclaration:
        """The tool as it is frozen with its agent."""
        return ToolDeclaration(**dict(self), reference=CALLER_REFERENCE, interactive=True, runs="caller")


class RequestTool(CallerTool):
    """A tool that a start request brings for its turn.

    Attributes:
        gives_way: Whether it is left out if the agent has a tool of that name, in place of the request being refused.
    """

    gives_way: bool = Field(default=False, exclude_if=operator.not_)

    @property
    def described(self) -> CallerTool:
        """The tool, however it came."""
        return CallerTool(**{name: value for name, value in self if name != "gives_way"})


def _are_few_and_small(tools: tuple[RequestTool, ...]) -> tuple[RequestTool, ...]:
    if len(tools) > MOST_CALLER_TOOLS:
        msg = f"there are {len(tools)}, the limit is {MOST_CALLER_TOOLS}"
        raise ValueError(msg)
    if twice := find_repeated(tool.name for tool in tools):
        msg = f"two are named {twice}; rename one"
        raise ValueError(msg)
    size = size_of(tools)
    if size > MAX_TOOLS_BYTES:
        msg = f"are {size:,} bytes, the limit is {MAX_TOOLS_BYTES:,}"
        raise ValueError(msg)
    return tools


CallerTools = Annotated[tuple[RequestTool, ...], AfterValidator(_are_few_and_small), Field(exclude_if=operator.not_)]
"""Tools of a start request, of at most 64 KiB together."""
