"""A clerk: it books meetings with the tools of two MCP servers, and hands in what it booked as data.

pip install mcp-server-time
CALENDAR_FILE=calendar.json perdure dev --agents examples/clerk/agent.py
perdure run clerk "Book an hour with Ann on Monday morning, Berlin time."
"""

import sys
from datetime import datetime
from pathlib import Path

from pydantic import BaseModel, Field

from perdure import Agent, StdioServerConfig


class Meeting(BaseModel):
    """A meeting that was booked."""

    title: str
    begins: datetime
    minutes: int = Field(ge=5, le=480)
    attendees: list[str]


time = StdioServerConfig(
    name="time",
    command=sys.executable,
    args=("-m", "mcp_server_time", "--local-timezone", "Europe/Berlin"),
)

calendar = StdioServerConfig(
    name="calendar",
    command=sys.executable,
    args=(str(Path(__file__).with_name("calendar_server.py")),),
    env={"CALENDAR_FILE": "${CALENDAR_FILE}"},  # from the worker's environment
)

agent = Agent(
    name="clerk",
    model="openai/gpt-5-mini",
    instructions="Book what is asked for. Look at the clock and the calendar first; never book a time twice.",
    mcp_servers=[time, calendar],
    output_schema=Meeting,
    output_corrections=2,  # so often an answer that does not fit goes back to the model
)
