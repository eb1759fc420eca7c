"""The loop on which async tools run, as a worker closes it."""

import asyncio
import gc
import threading
from typing import Any

import pytest

from perdure import tool
from perdure.lanes import loops
from perdure.lanes.bodies import Bodies

NO_CONTEXT: Any = None


def test_async_bodies_that_run_are_cancelled_when_the_worker_closes(caplog: pytest.LogCaptureFixture) -> None:
    """asyncio tells of a task that is destroyed while it waits when it is collected: in workflow code, too."""
    began, ended = threading.Event(), threading.Event()

    @tool
    async def wait() -> str:
        """Wait."""
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return "never"

    bodies = Bodies(1)
    running = bodies.start(wait, {}, NO_CONTEXT)
    assert began.wait(120)
    bodies.close()
    assert ended.is_set()
    assert running.future.cancelled()
    del bodies, running
    gc.collect()
    assert "destroyed" not in caplog.text


def test_one_that_ignores_its_cancel_is_left_behind_and_told_of(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = threading.Event()

    @tool
    async def ignore() -> str:
        """Ignore a cancel."""
        began.set()
        while True:
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue

    monkeypatch.setattr(loops, "CANCELLING_SECONDS", 0.1)
    bodies = Bodies(1)
    running = bodies.start(ignore, {}, NO_CONTEXT)
    assert began.wait(120)
    bodies.close()
    assert not running.future.done()
    assert "1 async tools ignore that they are cancelled" in caplog.text
    del bodies, running
    gc.collect()  # here, and not in the middle of another test
    assert "destroyed" in caplog.text
