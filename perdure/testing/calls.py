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
        self._name = name
        self._options = options
        self._cancelled = False
        self._environment = ActivityEnvironment()
        self._environment.payload_converter = DATA_CONVERTER.payload_converter
        self._environment.info = replace(
            self._environment.info,
            activity_id=str(next(_numbers)),
            activity_type=str(name),
            workflow_id=session,
            workflow_run_id=session,
        )
        self.task = clock.start(self._attempts(function, argument))

    @property
    def done(self) -> bool:
        """Whether it has come to an end."""
        return self.task.done()

    @property
    def outcome(self) -> Any:  # noqa: ANN401 - as an activity handle's
        """Its result, or the failure that the turn would see."""
        return self.task.result()

    def cancel(self) -> None:
        """Have it end: the attempt that runs, or the wait for the next one."""
        if not self._cancelled and not self.done:
            self._cancelled = True
            self._environment.cancel()
            self._clock.look()

    async def _attempts(self, function: Callable[..., Awaitable[Any]], argument: object) -> Any:  # noqa: ANN401
        most = self._options["retry_policy"].maximum_attempts or MOST_ATTEMPTS
        for attempt in itertools.count(1):
            # By its time an attempt is told from the one before.
            started = self._clock.now + timedelta(microseconds=attempt)
            self._environment.info = replace(self._environment.info, attempt=attempt, started_time=started)
            try:
                return await self._environment.run(function, argument)
            except asyncio.CancelledError:
                if not self._cancelled:
                    raise
            except Exception as error:  # noqa: BLE001 - the edge: as Temporal takes whatever an activity raises
                failure = error if isinstance(error, ApplicationError) else _to_application_error(error)
                if failure.non_retryable or attempt >= most:
                    return self._to_activity_error(failure)
                until = self._clock.now + (failure.next_retry_delay or self._wait(attempt))
                await self._clock.wait(lambda: self._cancelled, until)
            if self._cancelled:
                return self._to_activity_error(CancelledError("Cancelled"))
        return None

    def _wait(self, attempt: int) -> timedelta:
        policy = self._options["retry_policy"]
        wait = policy.initial_interval * policy.backoff_coefficient ** min(attempt - 1, 50)
        return min(wait, policy.maximum_interval or wait)

    def _to_activity_error(self, cause: ApplicationError | CancelledError) -> ActivityError:
        error = ActivityError(
            "Activity task failed",
            scheduled_event_id=0,
            started_event_id=0,
            identity="",
            activity_type=self._name,
            activity_id=self._environment.info.activity_id,
            retry_state=None,
        )
        error.__cause__ = cause
        return error


def _to_application_error(error: Exception) -> ApplicationError:
    failure = ApplicationError(str(error), type=type(error).__name__)
    failure.__cause__ = error
    return failure
