"""The time budget of a turn: one timer a run and after each wait for people, and none without a budget."""

import asyncio
from datetime import timedelta

from temporalio import workflow

from perdure.engine.state import TurnState


class Deadline:
    """Watches the time budget; ``past`` says that it is used up."""

    def __init__(self) -> None:
        self.past = False
        self._watching: asyncio.Task[None] | None = None
        self._counts = False

    def watch(self, state: TurnState) -> None:
        """Count from the turn's beginning, without the time it waited for people."""
        self._counts = True
        limit = state.policy.budgets.seconds
        if limit is None:
            return

        async def watch() -> None:
            left = state.started_at + state.waited + limit - workflow.now()
            await workflow.sleep(max(left, timedelta(0)))
            self.past = True

        self._watching = asyncio.create_task(watch())

    def changed(self, state: TurnState) -> None:
        """Count to another limit, unless the turn waits for people right now."""
        if self._counts:
            self.stop()
            self.watch(state)

    def stop(self) -> None:
        """Count no longer."""
        self._counts = False
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None
