"""An agent's definition as it is frozen at the start of a turn: canonical JSON, named by its hash."""

import hashlib
from datetime import timedelta
from typing import Literal, Self

from pydantic import Field, model_validator

from perdure.contracts.budgets import Budgets
from perdure.contracts.retries import RetryPolicy
from perdure.contracts.tools import ToolDeclaration, ToolPolicy
from perdure.contracts.values import JsonValue, Value

DEFAULT_MAX_STEPS = 1000
"""Generations a turn may use when the author says nothing."""

DEFAULT_GENERATION_TIMEOUT = timedelta(seconds=600)
"""Longest time one model call may take, from sending to the last byte."""

OnToolError = Literal["abort", "feed_back"]
"""What an exception outside a tool's ``catch`` does: ends the turn, or goes to the model."""


class TurnPolicy(Value):
    """The part of a definition that the workflow decides by; it is in the history, so it stays small."""

    agent: str
    model: str
    max_steps: int = DEFAULT_MAX_STEPS
    max_retries: int = 8
    generation_timeout: timedelta = DEFAULT_GENERATION_TIMEOUT
    on_tool_error: OnToolError = "abort"
    finish_tool: str | None = None
    budgets: Budgets = Budgets()
    tools: dict[str, ToolPolicy] = {}


class AgentDefinition(Value):
    """Everything an activity needs to know about an agent, with no code in it."""

    name: str = Field(min_length=1, max_length=200)
    description: str = ""
    model: str = Field(min_length=1)
    instructions: str = ""
    tools: tuple[ToolDeclaration, ...] = ()
    max_steps: int = Field(default=DEFAULT_MAX_STEPS, ge=1)
    generation_timeout: timedelta = Field(default=DEFAULT_GENERATION_TIMEOUT, gt=timedelta(0))
    generate_params: dict[str, JsonValue] = {}
    retry: RetryPolicy = RetryPolicy()
    on_tool_error: OnToolError = "abort"
    finish_tool: str | None = None
    budgets: Budgets = Budgets()

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        names = [tool.name for tool in self.tools]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            msg = f"agent {self.name!r} has two tools named {', '.join(twice)}; rename one with @tool(name=…)"
            raise ValueError(msg)
        if self.finish_tool is not None and self.finish_tool not in names:
            msg = f"finish_tool {self.finish_tool!r} is not among the tools of agent {self.name!r}"
            raise ValueError(msg)
        return self

    def canonical(self) -> str:
        """The one JSON text of this definition, what the hash is taken of."""
        return self.model_dump_json()

    def digest(self) -> str:
        """The first 32 hexadecimal digits of the SHA-256 of the canonical text."""
        return hashlib.sha256(self.canonical().encode()).hexdigest()[:32]

    def tool(self, name: str) -> ToolDeclaration | None:
        """The tool of that wire name, or None."""
        return next((tool for tool in self.tools if tool.name == name), None)

    def policy(self) -> TurnPolicy:
        """What the workflow needs of this definition."""
        return TurnPolicy(
            agent=self.name,
            model=self.model,
            max_steps=self.max_steps,
            max_retries=self.retry.max_retries,
            generation_timeout=self.generation_timeout,
            on_tool_error=self.on_tool_error,
            finish_tool=self.finish_tool,
            budgets=self.budgets,
            tools={tool.name: ToolPolicy(timeout=tool.timeout, task_queue=tool.task_queue) for tool in self.tools},
        )
