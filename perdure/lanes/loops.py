"""An event loop, with a thread of its own, for the code of authors."""

import asyncio
import contextlib
import logging
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from perdure.contracts.exceptions import repr_of

logger = logging.getLogger("perdure.tools")

CANCELLING_SECONDS = 1.0
"""Longest time that async code has to end when the worker closes."""


class CodeLoop:
    """An event loop with a thread, which starts with its first work."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._name = name
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=f"perdure-async-{name}s", daemon=True)

    @property
    def task(self) -> "asyncio.Task[Any] | None":
        """The task that holds the loop at this moment."""
        return asyncio.current_task(self.loop)

    @property
    def frame(self) -> FrameType | None:
        """The frame in which its thread is."""
        return sys._current_frames().get(self._thread.ident or 0)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]

    def start(self) -> None:
        """Run it, if it does not run yet."""
        if self._thread.ident is None:
            self._thread.start()

    def cancel(self, task: "asyncio.Task[Any]") -> None:
        """Cancel a task of the loop, from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(task.cancel)

    def stop(self) -> None:
        """Have it cancel what still runs, and stop, without waiting for that."""
        if self._thread.ident is None:
            self.loop.close()
            return
        self._closing = True
        with contextlib.suppress(RuntimeError):  # it has closed
            self.loop.call_soon_threadsafe(self.loop.stop)

    def close(self) -> None:
        """Cancel what still runs, and stop. Code that does not end is abandoned."""
        self.stop()
        if self._thread.ident is not None:
            self._thread.join(timeout=2 * CANCELLING_SECONDS + 1)

    def _run(self) -> None:
        """Run the loop until it closes: a task of an author's that exits would stop it."""
        while not self._closing:
            self._contain(self.loop.run_forever)
        self._contain(lambda: self.loop.run_until_complete(_cancel_others(self._name)))
        self.loop.close()

    def _contain(self, run: Callable[[], object]) -> None:
        try:
            run()
        except BaseException as error:  # noqa: BLE001 - the edge: asyncio lets an exit through
            logger.warning("a task of an async %s tried to end the process: %s", self._name, repr_of(error))


async def _cancel_others(name: str) -> None:
    """Cancel every other task of the loop: asyncio logs a task that is destroyed while pending."""
    running = asyncio.all_tasks() - {asyncio.current_task()}
    for task in running:
        task.cancel()
    if running and (stubborn := (await asyncio.wait(running, timeout=CANCELLING_SECONDS))[1]):
        logger.warning("%d async %ss ignore that they are cancelled, and are left behind", len(stubborn), name)
