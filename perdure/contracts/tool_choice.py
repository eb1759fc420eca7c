"""The choice of tools: calls that a request wants from the model of its turn."""

from typing import Literal

from pydantic import Field

from perdure.contracts.values import Value


class NamedTool(Value):
    """A tool by its wire name."""

    name: str = Field(min_length=1, max_length=200)


ToolChoice = Literal["none", "required"] | NamedTool
"""Tools that a model has to call.

``required``: any tool with each answer, until it has called one: one that the caller runs, if the turn has any. A named
tool: that tool, until it has called it. ``none``: no tool. Source: ``tool_choice`` of OpenAI, whose response ends with
the first call, while a turn goes on behind those that perdure runs.
"""
