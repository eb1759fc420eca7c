"""The events of one step as an attempt at its model call reads and writes them: the tries that failed, and its end."""

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from temporalio import activity
from temporalio.exceptions import ApplicationError

from perdure.activities.errors import permanent
from perdure.activities.heartbeat import note_kept
from perdure.activities.store_access import store_failures, write_until_stored
from perdure.contracts.budgets import Paid
from perdure.contracts.errors import ReasonCode
from perdure.contracts.events import AnyEvent, Event, GenerationAdapted, GenerationError, GenerationRetry, NewEvent
from perdure.contracts.generations import Compact, Generate, StepRequest
from perdure.store import Store

T = TypeVar("T")

NOTHING_PAID = Paid()
"""The cost of failed calls if there were none."""

MOST_CUTS = 2
"""Streams of one step that may be cut; the call is then made without one, as nobody's watching may end a job."""

ENDED = "error"
"""The key of the failure that ends an activity."""


def event_of(request: StepRequest, key: str, event: Event) -> NewEvent:
    """An event of this step, ready for the log."""
    return NewEvent(key=key_of(request, key), turn=request.turn, step=request.step, event=event)


def key_of(request: StepRequest, key: str) -> str:
    """The key of an event of this step. It names a fallback, whose events are not those of the model before it."""
    model = f"fallback{request.fallback}/" if request.fallback else ""
    return f"{request.turn}/{request.step}/{model}{key}"


def own_key(key: str) -> str:
    """The key of an event that an activity writes once: a turn that was reset makes the same step with other ones."""
    info = activity.info()
    return f"{key}/{info.workflow_run_id}/{info.activity_id}"


def paid_of_retries(retries: Iterable[GenerationRetry]) -> Paid:
    """Cost of failed calls."""
    paid = Paid()
    for retry in retries:
        paid = paid.plus(retry.usage, retry.cost_usd)
    return paid


class StepLog:
    """Tries of a step, as one attempt knows them. They are read when they are first asked for, and not again.

    Attributes:
        request: The step.
        stored: Cost of the answer that the store has, once it has one; an error behind it may not lose it.
    """

    def __init__(self, store: Store, request: Generate | Compact) -> None:
        self.request = request
        self.stored = NOTHING_PAID
        self._store = store
        self._tries: list[GenerationRetry] | None = None

    def untold(self) -> Paid:
        """Cost of what is stored and the workflow has not heard of, with those failed tries that were read by now."""
        if self.stored == NOTHING_PAID:
            return NOTHING_PAID
        return paid_of_retries(self._own_tries(self._tries or ())).plus(self.stored.usage, self.stored.cost_usd)

    def look_again(self) -> None:
        """Forget what was read: during a call another attempt, which was taken for lost, may have written."""
        self._tries = None

    async def load_retries(self, keeping: Paid = NOTHING_PAID) -> list[GenerationRetry]:
        """The recorded retries of this call, in order, and not those of the step's summary or of another model."""
        return self._own_tries(await self._load_tries(keeping))

    def _own_tries(self, tries: Iterable[GenerationRetry]) -> list[GenerationRetry]:
        return [retry for retry in tries if retry.fallback == self.request.fallback]

    async def load_paid(self) -> Paid:
        """Cost of the failed tries of this call."""
        return paid_of_retries(await self.load_retries())

    async def count_retries(self) -> int:
        """Number of failed calls that were sent again for this step, of all models."""
        return len(await self._load_tries(NOTHING_PAID))

    async def may_stream(self) -> bool:
        """Whether the step's streams have not been cut too often; asked of a further attempt only."""
        if activity.info().attempt == 1:
            return True
        return sum(retry.code == ReasonCode.LLM_STREAM_CUT for retry in await self.load_retries()) < MOST_CUTS

    async def load_recorded_end(self) -> ApplicationError | None:
        """The failure that ended an earlier attempt of this activity, which was lost before Temporal had it."""
        event = await self.load_recorded(ENDED)
        if not isinstance(event, GenerationError):
            return None
        return permanent(event.error, (await self.load_paid()).plus(event.usage, event.cost_usd))

    async def load_recorded(self, key: str) -> AnyEvent | None:
        """The event that an earlier attempt of this activity has written under its own key, if one has."""
        if activity.info().attempt == 1:
            return None
        async with store_failures():
            found = await self._store.events_by_key(self.request.session, [key_of(self.request, own_key(key))])
        return found[0].event if found else None

    async def load_adaptations(self) -> list[GenerationAdapted]:
        """Events of what the models of the session have refused, in order; the first step of a session asks nobody."""
        request = self.request
        if not request.parent:
            return []
        return list(await _ask(lambda: self._store.adaptations(request.session), NOTHING_PAID))

    async def record(self, key: str, event: Event, keeping: Paid = NOTHING_PAID) -> None:
        """Write an event of the step, once for each key; one that tells of a cost waits for a store that is away."""
        request = self.request
        await _ask(lambda: self._store.append_events(request.session, [event_of(request, key, event)]), keeping)
        if keeping != NOTHING_PAID:
            note_kept()

    async def _load_tries(self, keeping: Paid) -> list[GenerationRetry]:
        if self._tries is None:
            request = self.request
            recorded = await _ask(lambda: self._store.retries(request.session, request.turn, request.step), keeping)
            retries = [line.event for line in recorded if isinstance(line.event, GenerationRetry)]
            self._tries = [retry for retry in retries if retry.compaction == isinstance(request, Compact)]
        return self._tries


async def _ask(work: Callable[[], Awaitable[T]], keeping: Paid) -> T:
    """Ask the store; while it is away, an attempt that has paid for what it holds waits, and any other one fails."""
    if keeping == NOTHING_PAID:
        async with store_failures():
            return await work()
    return await write_until_stored(work)
