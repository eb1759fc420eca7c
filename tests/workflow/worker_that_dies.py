"""A worker that kills itself right after the store's write that ``DIE_AFTER`` names, before anyone hears of it."""

import os
import signal
from typing import Any

from perdure.store import Store
from worker.__main__ import main


def die_after(name: str) -> None:
    write = getattr(Store, name)

    async def write_and_die(store: Store, *arguments: Any, **options: Any) -> None:
        await write(store, *arguments, **options)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(Store, name, write_and_die)


if __name__ == "__main__":
    die_after(os.environ["DIE_AFTER"])
    main()
