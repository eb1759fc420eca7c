"""Lists of tools as an author writes them: functions, tools and toolsets; a mistake is refused with what to write."""

from collections.abc import Callable
from typing import Any, cast

from pydantic import BaseModel

from perdure.agents.delegates import Delegate
from perdure.agents.errors import ToolDefinitionError
from perdure.agents.hooks import Hook
from perdure.agents.tool import Tool, tool
from perdure.agents.toolset import ToolMethod, Toolset
from perdure.contracts.mcp import HttpServerConfig, StdioServerConfig


def listed(given: object, setting: str, parts: str) -> list[Any]:
    """The items of a setting.

    Raises:
        ValueError: It is no list, or a list stands in it.
    """
    if not isinstance(given, list | tuple):
        msg = f"write a list: {setting}=[…]"
        raise ValueError(msg)  # noqa: TRY004 - pydantic takes it for a mistake of the author
    items: list[Any] = [*given]
    if any(isinstance(item, list | tuple) for item in items):
        raise ValueError(_nested(setting, parts))
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


def _nested(setting: str, parts: str) -> str:
    return f"a list stands among the {setting}; write *[…] to put each of its {parts} in"


def _problem(item: object) -> str | None:
    """Why an item is nothing that a tool can be made of, and what to write; None if it may be a function."""
    if isinstance(item, list | tuple):
        return _nested("tools", "tools")
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
