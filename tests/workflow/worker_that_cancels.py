"""A worker that dies as soon as Temporal has a cancel that it has requested, before anybody hears of that."""

import os
import signal
from typing import Any

from temporalio.client import WorkflowHandle

from perdure.worker.__main__ import main

cancel = WorkflowHandle[Any, Any].cancel


async def request_and_die(handle: WorkflowHandle[Any, Any], **options: Any) -> None:
    """Request the cancel, and die."""
    await cancel(handle, **options)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    setattr(WorkflowHandle, "cancel", request_and_die)  # noqa: B010 - both checkers allow it
    main()
