"""Starts the deliveries to webhooks when a turn ends or waits: a workflow ``Notify`` for each webhook that wants it.

The activity that writes the event starts them before it returns, all in one go. If it is lost in between, it runs again
and starts the missing ones. A workflow's id names webhook and message, so none is started twice.

While the server takes no starts, the turn waits for it only for a while. Then the deliveries count as failed, and
``perdure webhooks redrive`` makes them from the log.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

import temporalio.client
from temporalio import activity
from temporalio.common import AutoUpgradeVersioningOverride, Priority, WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from perdure.activities.errors import runtime_error, transient
from perdure.contracts.errors import ReasonCode
from perdure.contracts.events import AgentStart
from perdure.contracts.names import NOTIFY
from perdure.contracts.queues import fairness_key_of
from perdure.contracts.turn_messages import TurnMessage
from perdure.contracts.webhooks import Notify, Webhook, WebhookEvent
from perdure.store import Store

START_RETRY = timedelta(seconds=2)
"""Wait before the activity is retried because the Temporal server did not take a start."""

AT_ONCE = 50
"""Starts that are under way at once."""

ONE_GO = timedelta(seconds=20)
"""Time of one attempt at the starts of an event: less than the activity has."""

LONGEST = timedelta(minutes=1)
"""Time since an event for which the turn waits for a server that takes no starts."""

_REFUSALS = frozenset({RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNAUTHENTICATED, RPCStatusCode.INVALID_ARGUMENT})
"""Errors that no retry helps: the delivery is given up, so that the turn does not wait for it."""


FindDelivery = Callable[[temporalio.client.Client, Store, str, str], Awaitable[str]]
"""Gives the id of the workflow that delivers a message, by the ids of webhook and message."""


class Notifications:
    """The notifications of one worker's turns.

    Args:
        store: Where webhooks and events are.
        find_delivery: Names the deliveries.
        on: Whether anything is sent; off in a replay of recordings.
        note_refused: Counts a delivery that the Temporal server refused to start.
    """

    def __init__(
        self,
        store: Store,
        find_delivery: FindDelivery,
        *,
        on: bool = True,
        note_refused: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._find_delivery = find_delivery
        self._on = on
        self._note_refused = note_refused

    async def tell_ended(self, session: str, turn: int | None) -> None:
        """Notify webhooks that a turn has ended, once the store has its end. Safe to run twice.

        ``turn`` is None if no turn was ended: then nothing happens.
        """
        if turn is None:
            return
        await self._tell(WebhookEvent.ENDED, session, turn, (f"{turn}/agent_end",))

    async def tell_waiting(self, session: str, turn: int, requests: Sequence[str]) -> None:
        """Notify webhooks that a turn waits for people, once its input requests are in the log. Safe to run twice."""
        keys = tuple(f"{turn}/{request}/user_input_required" for request in requests)
        await self._tell(WebhookEvent.WAITING, session, turn, keys)

    async def _tell(self, event: WebhookEvent, session: str, turn: int, keys: tuple[str, ...]) -> None:
        webhooks = await self._store.webhooks(event, turn=(session, turn)) if self._on else ()
        if not webhooks:
            return
        found = await self._store.events_by_key(session, (f"{turn}/agent_start", *keys))
        start, events = found[0].event if found else None, found[1:]
        if not isinstance(start, AgentStart) or not events:  # also of a session that was erased meanwhile
            return
        message = TurnMessage(event, start, events)
        told = [(webhook, notify) for webhook in webhooks if (notify := message.to(webhook, self._store.id))]
        untold = await self._start_all(told)
        if not untold:
            return
        if datetime.now(UTC) - events[-1].at < LONGEST:
            first, why = next(iter(untold.items()))
            text = f"{len(untold)} deliveries of {message.id} could not be started, such as to webhook {first} ({why})"
            raise transient(runtime_error(ReasonCode.WEBHOOK_UNDELIVERED, text), START_RETRY)
        for webhook, why in untold.items():
            self._note_untold(webhook, message.id, why)

    async def _start_all(self, told: Sequence[tuple[Webhook, Notify]]) -> Mapping[str, str]:
        """Start the deliveries, as many at once as there may be; returns why some were not started, by their webhooks.

        Raises:
            StoreError: The store does not answer.
        """
        slots = asyncio.Semaphore(AT_ONCE)
        starting = {webhook.id: asyncio.create_task(self._start(webhook, notify, slots)) for webhook, notify in told}
        try:
            if starting:
                await asyncio.wait(starting.values(), timeout=ONE_GO.total_seconds())
        finally:
            for task in starting.values():
                task.cancel()
            await asyncio.gather(*starting.values(), return_exceptions=True)
        return {webhook: why for webhook, task in starting.items() if (why := _error_of(task))}

    async def _start(self, webhook: Webhook, notify: Notify, slots: asyncio.Semaphore) -> None:
        """Start a delivery, unless it is started already or the server refuses it for good.

        Raises:
            RPCError: The server does not take it now.
        """
        client = activity.client()
        try:
            async with slots:
                await client.start_workflow(
                    NOTIFY,
                    notify,
                    id=await self._find_delivery(client, self._store, webhook.id, notify.message),
                    task_queue=activity.info().task_queue,
                    id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                    id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                    static_summary=f"{notify.message} to {urlsplit(webhook.url).hostname}"[:120],
                    priority=Priority(fairness_key=fairness_key_of(webhook.tenant)),
                    versioning_override=AutoUpgradeVersioningOverride(),  # up to three days: no version drains for it
                )
        except WorkflowAlreadyStartedError:  # a lost attempt has started it
            return
        except RPCError as error:
            if error.status not in _REFUSALS:
                raise
            self._note_untold(webhook.id, notify.message, error.message)

    def _note_untold(self, webhook: str, message: str, why: str) -> None:
        self._note_refused()
        again = f"'perdure webhooks redrive {webhook} {message}' sends it"
        activity.logger.error("webhook %s is not told of %s (%s); %s", webhook, message, why, again)


def _error_of(task: asyncio.Task[None]) -> str:
    """Cause of a failed start, in words; empty if it has not failed.

    Raises:
        StoreError: The store does not answer.
    """
    if task.cancelled():
        return f"the server did not answer within {ONE_GO.total_seconds():.0f} s"
    error = task.exception()
    if error is None:
        return ""
    if not isinstance(error, RPCError):
        raise error
    return error.message or error.status.name
