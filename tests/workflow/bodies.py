"""Tools that a test holds by the hand: it knows when the body began, and says when it may end."""

import asyncio
import threading

from perdure.agents.context import ToolContext
from perdure.agents.tool import Tool, tool
from tests.house import WAIT_SECONDS


class Body:
    """What a tool's body says of itself; bodies run on threads of their own."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.stopped = threading.Event()
        self.released = threading.Event()
        self.ended = threading.Event()

    def held(self) -> Tool[[ToolContext], str]:
        """A blocking tool that ends when it is released, or told to."""

        @tool
        def held(context: ToolContext) -> str:
            self.started.set()
            while not self.released.is_set() and not context.wait(0.01):
                pass
            return "released"

        return held


async def happened(event: threading.Event) -> None:
    """Wait for it."""
    assert await asyncio.to_thread(event.wait, WAIT_SECONDS)
