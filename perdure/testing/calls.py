"""Activities called without a server: their attempts follow each other as Temporal's would, in virtual time."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from temporalio.exceptions import ActivityError, ApplicationError, CancelledError
from temporalio.testing import ActivityEnvironment

from perdure.client.connect import DATA_CONVERTER
from perdure.testing.clock import Clock
from perdure.workflows.options import ActivityOptions

MOST_ATTEMPTS = 1_000
"""An activity that fails so often does so forever."""

LONGEST_WAIT = timedelta(days=36_500)
"""Before the next attempt, if nothing bounds that."""

_numbers = itertools.count(1)


class Call:
    """An activity under way; ``outcome`` is its result or its failure, once it is done."""

    def __init__(
        self,
        clock: Clock,
        function: Callable[..., Awaitable[Any]],
        argument: object,
        *,
        name: str,
        session: str,
        options: ActivityOptions,
    ) -> None:
        self._clock = clock
        self._function = function
        self._argument = argument
        self._name = name
        self._session = session
        self._options = options
        self._cancelled = False
        self._attempt = 0
        self._id = str(next(_numbers))
        self._environment = ActivityEnvironment()
        self.task = clock.start(self._attempts())

    def done(self) -> bool:
        """Whether it has come to an end."""
        return self.task.done()

    @property
    def outcome(self) -> Any:  # noqa: ANN401 - as an activity handle's
        """Its result, or the failure that the turn would see."""
        return self.task.result()

    def cancel(self) -> None:
        """Have it end: the attempt that runs, or the wait for the next one."""
        if not self._cancelled and not self.done():
            self._cancelled = True
            self._environment.cancel()
            self._clock.look()

    def _begin(self) -> ActivityEnvironment:
        """The surroundings of the next attempt."""
        self._attempt += 1
        environment = ActivityEnvironment()
        environment.payload_converter = DATA_CONVERTER.payload_converter
        environment.info = replace(
            environment.info,
            activity_id=self._id,
            activity_type=str(self._name),
            workflow_id=self._session,
            workflow_run_id=self._session,
            attempt=self._attempt,
            # By its time an attempt is told from the one before.
            started_time=self._clock.now + timedelta(microseconds=self._attempt),
        )
        return environment

    async def _run(self) -> Any:  # noqa: ANN401 - as an activity handle's
        """Make one attempt."""
        return await self._environment.run(self._function, self._argument)

    async def _attempts(self) -> Any:  # noqa: ANN401 - as an activity handle's
        most = self._options["retry_policy"].maximum_attempts or MOST_ATTEMPTS
        for attempt in itertools.count(1):
            self._environment = self._begin()
            try:
                return await self._run()
            except asyncio.CancelledError:
                if not self._cancelled:
                    raise
            except Exception as error:  # noqa: BLE001 - the edge: as Temporal takes whatever an activity raises
                failure = error
                if not isinstance(failure, ApplicationError):
                    failure = ApplicationError(str(error), type=type(error).__name__)
                    failure.__cause__ = error
                if failure.non_retryable or attempt >= most:
                    return self._to_activity_error(failure)
                until = self._clock.now + (failure.next_retry_delay or self._wait(attempt))
                await self._clock.wait(lambda: self._cancelled, until)
            if self._cancelled:
                return self._to_activity_error(CancelledError("Cancelled"))
        return None

    def _wait(self, attempt: int) -> timedelta:
        policy = self._options["retry_policy"]
        longest = policy.maximum_interval or LONGEST_WAIT
        factor = policy.backoff_coefficient ** min(attempt - 1, 50)
        return min(policy.initial_interval * min(factor, longest / policy.initial_interval), longest)

    def _to_activity_error(self, cause: ApplicationError | CancelledError) -> ActivityError:
        error = ActivityError(
            "Activity task failed",
            scheduled_event_id=0,
            started_event_id=0,
            identity="",
            activity_type=self._name,
            activity_id=self._id,
            retry_state=None,
        )
        error.__cause__ = cause
        return error
