"""Agents as functions from a goal to what came of it, for evaluations and optimisers."""

import asyncio
import contextlib
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol, Unpack

from perdure.client.errors import ClientError, NoWorkerError
from perdure.client.read import end_of
from perdure.client.requests import Content, session_id
from perdure.client.turn import Turn
from perdure.contracts.turn_options import TaskOptions, TurnOptions
from perdure.contracts.turns import TurnResult
from perdure.store.errors import StoreError
from perdure.trajectory import Trajectory

CANCEL_WAIT = timedelta(seconds=5)
"""Longest time that a cancelled call waits until its job was told so."""

WORKER_WAIT = timedelta(seconds=30)
"""A job that has not ended for so long may have no worker, which is then looked for once."""


class Jobs(Protocol):
    """The methods of a :class:`perdure.client.Client` that a task calls."""

    async def start(
        self, agent: str, prompt: Content, *, session: str | None = None, **options: Unpack[TurnOptions]
    ) -> Turn:
        """Start a turn."""
        ...

    async def cancel(self, session: str, reason: str = "") -> bool:
        """Have the session's turn stopped."""
        ...

    async def check_worker(self) -> None:
        """Raise NoWorkerError if no worker is there."""
        ...

    async def trajectory(self, session: str, turn: int | None = None) -> Trajectory:
        """The turn as one value."""
        ...


@dataclass(frozen=True, kw_only=True)
class Task:
    """An agent as a function from a goal to a trajectory; made by :meth:`Client.task`.

    Each call is a job of its own in a fresh session. Any number of them may run at the same time.

    Attributes:
        name: What an evaluation calls it.
    """

    name: str
    agent: str
    client: Jobs = field(repr=False)
    options: TaskOptions = field(default_factory=TaskOptions, repr=False)

    async def __call__(self, goal: Content) -> Trajectory:
        """Have the agent work towards the goal, to the end of its turn; ``result`` says how that ended.

        The goal may hold images and files, as a prompt of :meth:`Client.start`.

        A job that fails raises nothing: its trajectory has what was done, and ``result.stop_reason`` and
        ``result.reason_code`` say what went wrong. Of one that was refused before it had a turn there are no steps.
        Who cancels the call cancels the job.
        """
        session = session_id(self.agent)
        try:
            result = await self._result(await self.client.start(self.agent, goal, session=session, **self.options))
        except asyncio.CancelledError:
            await self._give_up(session, f"the call of the task {self.name!r} was cancelled")
            raise
        except NoWorkerError:
            await self._give_up(session, f"no worker was there for the task {self.name!r}")
            raise
        if result.turn is None:
            return Trajectory(session=session, agent=result.agent, result=result, metadata=end_of(result))
        return await self.client.trajectory(session, result.turn)

    async def _result(self, turn: Turn) -> TurnResult:
        """Wait for the end, which never comes without a worker."""
        try:
            async with asyncio.timeout(WORKER_WAIT.total_seconds()):
                return await turn.result()
        except TimeoutError:
            await self.client.check_worker()
        return await turn.result()

    async def _give_up(self, session: str, reason: str) -> None:
        """Cancel the job, also if the call is cancelled once more meanwhile."""

        async def cancel() -> None:
            with contextlib.suppress(ClientError, StoreError):
                await self.client.cancel(session, reason)

        await asyncio.wait([asyncio.create_task(cancel())], timeout=CANCEL_WAIT.total_seconds())
