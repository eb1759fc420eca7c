"""The agents of the other workers that poll, as they tell them."""

import asyncio
import time
from collections.abc import Callable, Sequence

import temporalio.client

from perdure.client.worker_stores import WorkerStore, ask_workers, told_build
from perdure.contracts.queues import Role
from perdure.contracts.waits import MissingVersion
from perdure.settings import Settings
from perdure.worker.versions import build_of

KEPT_SECONDS = 2.0
"""Time for which an answer of the server counts: many turns may ask at once."""


class Polling:
    """Asks Temporal which workers poll a task queue for turns, and what they tell of themselves."""

    def __init__(
        self, temporal: temporalio.client.Client, settings: Settings, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._temporal = temporal
        self._queue = settings.task_queue
        self._bound_to = told_build(build_of(settings)) if settings.deployment else None
        self._monotonic = monotonic
        self._told: Sequence[WorkerStore] | None = None
        self._asked_at = -KEPT_SECONDS
        self._one = asyncio.Lock()

    async def has(self, agent: str) -> bool | None:
        """Whether a worker of turns has the agent of a name; None if the server or a worker does not tell."""
        return find_agent(await self._ask(), agent)

    async def takes(self, missing: MissingVersion) -> bool:
        """Whether a worker says that it has a part, and is of the version to which the calls of this worker go."""
        told = [worker for worker in await self._ask() or () if self._bound_to in {None, worker.build}]
        if missing.is_whole:
            return any(worker.has(missing.name) for worker in told)
        return any(worker.has_version(missing.definition) for worker in told)

    async def differ(self, mark: str) -> bool | None:
        """Whether a worker of turns makes agents of requests of other parts; None if the server or one does not tell.

        Args:
            mark: The one of this worker's parts.
        """
        told = await self._ask()
        if told is None:
            return None
        same = {worker.has(mark) for worker in told if not worker.roles or Role.TURNS in worker.roles}
        return True if False in same else None if None in same else False

    async def _ask(self) -> Sequence[WorkerStore] | None:
        async with self._one:
            if self._monotonic() - self._asked_at >= KEPT_SECONDS:
                self._told = await ask_workers(self._temporal, self._queue)
                self._asked_at = self._monotonic()
        return self._told


def find_agent(told: Sequence[WorkerStore] | None, agent: str) -> bool | None:
    """Whether one of these workers opens turns of the agent; None if that cannot be known."""
    if told is None:
        return None
    answers = {worker.has(agent) for worker in told if not worker.roles or Role.TURNS in worker.roles}
    return True if True in answers else None if None in answers else False
