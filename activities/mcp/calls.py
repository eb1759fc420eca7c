"""A call as it goes to a server: with a tool's schema known, and with the answer to what the server asked before."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mcp import Client, MCPError
from mcp.shared.dispatcher import ProgressFnT
from mcp_types import HEADER_MISMATCH, CallToolResult, InputRequiredResult, ListToolsResult, Tool

from perdure.activities.mcp.listing import list_all_pages
from perdure.contracts.values import replace


@dataclass(frozen=True)
class Request:
    """A call as it is sent: after a question of the server with the responses, and with the server's own state."""

    tool: str
    arguments: Mapping[str, Any]
    responses: dict[str, Any] | None = None
    state: str | None = None


async def call_tool(
    client: Client, request: Request, limit: float, report: ProgressFnT
) -> CallToolResult | InputRequiredResult:
    """Call a tool; once more with the server's current list if it says that headers do not fit the tool's schema."""

    async def send() -> CallToolResult | InputRequiredResult:
        return await client.session.call_tool(
            request.tool,
            dict(request.arguments),
            read_timeout_seconds=limit,
            progress_callback=report,
            input_responses=request.responses,
            request_state=request.state,
            allow_input_required=True,
        )

    try:
        return await send()
    except MCPError as error:
        if error.code != HEADER_MISMATCH:
            raise
        await list_all_pages(client, request.tool)
        return await send()


def seed_tool(client: Client, tool: Tool) -> None:
    """Put the tool into the SDK's cache, or it would list all tools after the call, which may lose the result.

    The output schema is left out: the SDK would check it without a time limit. ``mark_unstructured`` does that.
    """
    shown = replace(tool, output_schema=None)
    known = ListToolsResult(tools=[shown], ttl_ms=0, cache_scope="private")
    client.session._absorb_tool_listing(known, complete=False)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
