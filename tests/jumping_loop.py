"""An event loop whose clock jumps to the next timer while nothing else is left to do: hours of silence take no time."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class JumpingLoop(asyncio.SelectorEventLoop):
    """Runs what waits for timers of its own, and for no socket or thread."""

    _ahead = 0.0

    def time(self) -> float:
        """The loop's clock, in seconds."""
        return super().time() + self._ahead

    def _run_once(self) -> None:
        own: Any = self
        timers = [timer.when() for timer in own._scheduled if not timer.cancelled()]
        if timers and not own._ready:
            self._ahead += max(min(timers) - self.time(), 0.0)
        super()._run_once()  # type: ignore[misc] # asyncio's own, which has no type


def run(work: Coroutine[Any, Any, T]) -> tuple[T, float]:
    """The result of some work, and the seconds that have passed by the loop's clock."""
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        loop = runner.get_loop()
        began = loop.time()
        result = runner.run(work)
        return result, loop.time() - began
