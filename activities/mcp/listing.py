"""The list of a server's tools, page by page: what can be used of it, and a line for each flaw."""

from dataclasses import dataclass, field
from typing import cast

from mcp import Client
from mcp_types import ListToolsResult, Tool

from perdure.activities.mcp.failures import McpError, call_failures
from perdure.activities.mcp.reading import LEFT_OUT

MOST_PAGES = 100
"""Pages of a list of tools that are read, so that a server with endless pages cannot hang a turn."""


@dataclass
class Listing:
    """The tools of a server.

    Attributes:
        tools: Those that can be used. A name stands there twice only if one page has it twice.
        left_out: The names of those that cannot be used, each with the reason.
        flaws: What is wrong with the list as a whole.
    """

    tools: list[Tool] = field(default_factory=list[Tool])
    left_out: dict[str, str] = field(default_factory=dict[str, str])
    flaws: list[str] = field(default_factory=list[str])

    def add(self, page: ListToolsResult) -> None:
        """Take the tools of a page. Of tools with one name on several pages the first one stays."""
        known = {tool.name for tool in self.tools}
        self.tools += [tool for tool in page.tools if tool.name not in known]
        self.left_out.update(cast("list[tuple[str, str]]", (page.meta or {}).get(LEFT_OUT, [])))


async def list_all_pages(client: Client, server: str) -> Listing:
    """Ask for all pages of the list of tools, up to the first cursor that was there before."""
    listing = Listing()
    cursor: str | None = None
    seen: set[str] = set()
    for _ in range(MOST_PAGES):
        try:
            with call_failures(server, "tools/list", 0):
                page = await client.list_tools(cursor=cursor)
        except McpError:
            if cursor != "":  # to some servers an empty one is the end, to others a cursor
                raise
            return listing
        listing.add(page)
        cursor = page.next_cursor
        if cursor is None:
            return listing
        if cursor in seen:
            listing.flaws.append(
                "its list of tools goes round in a circle: a page names a next one that was read before"
            )
            return listing
        seen.add(cursor)
    listing.flaws.append(f"its list of tools has more than {MOST_PAGES} pages; the rest is left out")
    return listing
