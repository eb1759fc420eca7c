"""Virtual time: it stands still while anything works, and jumps to the next moment that is waited for."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Self, TypeVar

T = TypeVar("T")


class NothingComesError(Exception):
    """All that runs waits for something, and nothing is left that could bring it."""


@dataclass(eq=False)
class _Wait:
    condition: Callable[[], bool]
    until: datetime | None
    over: "asyncio.Future[None]"


class Clock:
    """The time of some tasks that wait for each other.

    Every task must be started by :meth:`start` and wait by :meth:`wait`, except for what goes on by itself, such as a
    thread: so the clock knows when nothing is left to do but to let time pass. The tasks live as long as the clock:
    where a ``with`` ends that it is opened by, those that still run are cancelled. One that was forgotten would find
    that its time has always come, and never rest.
    """

    def __init__(self, now: datetime) -> None:
        self.now = now
        self._began = now
        self._awake = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._waits: list[_Wait] = []
        self.on_pass: Callable[[timedelta], object] = lambda _: None
        """Called with the time that is about to pass."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Cancel the tasks that still run, and those that they start meanwhile."""
        while self._tasks:
            left = list(self._tasks)
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    def advance(self, to: datetime) -> None:
        """Let time pass, and wake nobody."""
        if to > self.now:
            self.on_pass(to - self.now)
            self.now = to

    def seconds(self) -> float:
        """Seconds that have passed."""
        return (self.now - self._began).total_seconds()

    def start(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Start a task."""
        task = asyncio.create_task(work)
        self._awake += 1
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(self._let_time_pass)
        return task

    async def wait(self, condition: Callable[[], bool], until: datetime | None = None) -> None:
        """Wait for a condition, at most until a moment.

        Raises:
            NothingComesError: Neither will ever come.
        """
        if condition() or (until is not None and until <= self.now):
            return
        waiting = _Wait(condition, until, asyncio.get_running_loop().create_future())
        self._waits.append(waiting)
        self._let_time_pass()
        try:
            await waiting.over
        except asyncio.CancelledError:
            if waiting in self._waits:
                self._waits.remove(waiting)
                self._awake += 1
            raise

    async def sleep(self, seconds: float) -> None:
        """Let so much time pass."""
        await self.wait(lambda: False, self.now + timedelta(seconds=seconds))

    def look(self) -> None:
        """Wake all whose condition holds by now."""
        for waiting in [waiting for waiting in self._waits if waiting.over.done() or waiting.condition()]:
            self._wake(waiting)

    def _let_time_pass(self, _: object = None) -> None:
        """One task less works: wake those that it has brought something; if nobody works, let time pass."""
        self._awake -= 1
        self.look()
        if self._awake or not self._waits:
            return
        moments = [waiting.until for waiting in self._waits if waiting.until is not None]
        if moments:
            self.advance(min(moments))
            for waiting in [wait for wait in self._waits if wait.until is not None and wait.until <= self.now]:
                self._wake(waiting)
            return
        for waiting in list(self._waits):
            self._wake(waiting, NothingComesError())

    def _wake(self, waiting: _Wait, error: Exception | None = None) -> None:
        self._waits.remove(waiting)
        self._awake += 1
        if waiting.over.done():  # its task was cancelled
            return
        if error is None:
            waiting.over.set_result(None)
        else:
            waiting.over.set_exception(error)
