"""Sitting out a server or a store that is away for a while, and saying so in one line of the log ``perdure.client``."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeVar

PATIENCE = timedelta(seconds=60)
"""How long somebody who waits for a turn sits out a server or a store that does not answer."""

PAUSE = timedelta(milliseconds=500)
"""Between two attempts to reach what does not answer."""

SERVER = "the Temporal server"
STORE = "the transcript store"

Result = TypeVar("Result")

logger = logging.getLogger("perdure.client")


class Wait:
    """One wait for what is away. It is over when a call succeeds again, or has not failed for long."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._deadline: float | None = None
        self._failed_at = 0.0

    async def go_on(self, error: Exception) -> None:
        """Wait a moment; a minute after the first failure, the failure is raised."""
        now = asyncio.get_running_loop().time()
        quiet = now - self._failed_at
        self._failed_at = now
        if self._deadline is None or quiet > PATIENCE.total_seconds():
            self._deadline = now + PATIENCE.total_seconds()
            logger.warning("%s does not answer; trying again for %.0f s", self._what, PATIENCE.total_seconds())
        elif now > self._deadline:
            raise error
        await asyncio.sleep(PAUSE.total_seconds())

    def over(self) -> None:
        """It answers; said only if there was a wait."""
        if self._deadline is not None:
            logger.warning("%s answers again", self._what)
            self._deadline = None


async def call_patiently(what: str, away: type[Exception], call: Callable[[], Awaitable[Result]]) -> Result:
    """Make a call, and make it again while it fails because ``what`` is away, for up to a minute."""
    wait = Wait(what)
    while True:
        try:
            result = await call()
        except away as error:
            await wait.go_on(error)
        else:
            wait.over()
            return result
