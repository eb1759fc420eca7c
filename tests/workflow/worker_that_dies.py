"""A worker with a door at each of the store's writes; by itself it dies right after the one that ``DIE_AFTER`` names.

``tests/chaos`` opens the same doors for other faults.
"""

import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any

from perdure.store import Store
from perdure.worker.__main__ import main

WRITES = (
    "open_turn",
    "begin_generation",
    "finish_generation",
    "append_events",
    "claim_call",
    "finish_call",
    "commit_turn",
)
"""The writes of a turn, each one transaction."""

Reached = Callable[[str, Any], Awaitable[None]]
"""Is told a boundary (``before``, ``after`` or ``failed``, and the write) and the id of the call it is about."""


def at_each_write(reached: Reached) -> None:
    """Tell of each write of this process, before it begins and once it is committed."""
    for name in WRITES:
        setattr(Store, name, _told(name, getattr(Store, name), reached))


def _told(name: str, write: Callable[..., Awaitable[Any]], reached: Reached) -> Callable[..., Awaitable[Any]]:
    async def telling(store: Store, *arguments: Any, **options: Any) -> Any:
        call_id = options.get("call_id")
        await reached(f"before {name}", call_id)
        try:
            result = await write(store, *arguments, **options)
        except BaseException:
            await reached(f"failed {name}", call_id)
            raise
        await reached(f"after {name}", call_id)
        return result

    return telling


def die_after(name: str) -> None:
    """Die before anyone hears of this write."""

    async def die(boundary: str, _: Any) -> None:
        if boundary == f"after {name}":
            os.kill(os.getpid(), signal.SIGKILL)

    at_each_write(die)


if __name__ == "__main__":
    die_after(os.environ["DIE_AFTER"])
    main()
