"""Calls made again: while a server or a store is away, and while a turn ends under what is sent to it.

A wait for what is away is said in one line of the log ``perdure.client``, and so is its end.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeVar

PATIENCE = timedelta(seconds=60)
"""Longest time that a waiting caller sits out a server or a store that does not answer."""

PAUSE = timedelta(milliseconds=500)
"""Between two attempts."""

Result = TypeVar("Result")

logger = logging.getLogger("perdure.client")


async def call_patiently(what: str, away: type[Exception], call: Callable[[], Awaitable[Result]]) -> Result:
    """Make a call, and make it again while it fails because ``what`` is away, for up to a minute."""
    clock, deadline = asyncio.get_running_loop().time, None
    while True:
        try:
            result = await call()
        except away:
            if deadline is None:
                deadline = clock() + PATIENCE.total_seconds()
                logger.warning("%s does not answer; trying again for %.0f s", what, PATIENCE.total_seconds())
            elif clock() > deadline:
                raise
            await asyncio.sleep(PAUSE.total_seconds())
        else:
            if deadline is not None:
                logger.warning("%s answers again", what)
            return result
