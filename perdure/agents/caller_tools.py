"""Schemas that a request brings, of tools that its caller runs and of its answer; a stranger has written them."""

from collections.abc import Collection, Sequence

from perdure.agents.schemas import check_schema, check_size
from perdure.agents.tool import ToolDefinitionError, caller_tool_of
from perdure.contracts.caller_tools import RequestTool
from perdure.contracts.names import Activity
from perdure.contracts.tools import REQUEST_REFERENCE, ToolDeclaration
from perdure.contracts.values import JsonValue, replace


def declare_caller_tools(tools: Sequence[RequestTool], taken: Collection[str] = ()) -> tuple[ToolDeclaration, ...]:
    """Declare the tools of a start request; those that give way are left out if their names are taken.

    Args:
        tools: The tools, as the request describes them.
        taken: Names of the tools that the agent has already.

    Raises:
        ToolDefinitionError: A name is taken, or a schema is none or too long; the message is one line.
    """
    own = set(Activity)
    brought = [tool for tool in tools if not (tool.gives_way and (tool.name in taken or tool.name in own))]
    for tool in brought:
        if tool.name in taken:
            raise ToolDefinitionError(f"tool {tool.name!r}: the agent has a tool of that name; rename yours")
        if tool.name in own:
            raise ToolDefinitionError(f"tool {tool.name!r}: that is a name of perdure's own; rename yours")
    try:
        check_size(tool.parameters for tool in brought)
    except ValueError as error:
        raise ToolDefinitionError(f"parameters: {error}") from None
    declared = (caller_tool_of(dict(tool.described)).declaration for tool in brought)
    return tuple(replace(tool, reference=REQUEST_REFERENCE) for tool in declared)


def check_output_schema(schema: dict[str, JsonValue]) -> None:
    """Refuse the form of an answer that a request wants, if it is not a JSON schema, or takes long to look at.

    Its regular expressions may be JavaScript's, and are passed over then.

    Raises:
        ValueError: It cannot be used; the message is one line.
    """
    check_size([schema])
    check_schema(schema, expressions=False)
