"""A small MCP server: the calendar of the clerk, kept in a JSON file."""

import json
import os
from pathlib import Path

from mcp.server.mcpserver import MCPServer

server = MCPServer("calendar")
FILE = Path(os.environ["CALENDAR_FILE"])


def bookings() -> dict[str, str]:
    """What is booked, by its time."""
    booked: dict[str, str] = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    return booked


@server.tool()
def list_bookings(day: str) -> dict[str, str]:
    """List what is booked on a day such as 2026-05-04."""
    return {time: title for time, title in bookings().items() if time.startswith(day)}


@server.tool()
def book(time: str, title: str) -> str:
    """Book a time such as 2026-05-04T10:00."""
    FILE.write_text(json.dumps({**bookings(), time: title}), encoding="utf-8")
    return f"booked {time}: {title}"


if __name__ == "__main__":
    server.run()
