"""Starts the deliveries to webhooks when a turn ends or waits: a workflow ``Notify`` for each webhook that wants it.

The activity that writes the event starts them before it returns. If it is lost in between, it runs again and starts the
missing ones. A workflow's id names webhook and message, so none is started twice.
"""

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from urllib.parse import urlsplit

import temporalio.client
from temporalio import activity
from temporalio.common import AutoUpgradeVersioningOverride, WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from perdure.activities.errors import runtime_error, transient
from perdure.contracts.errors import ReasonCode
from perdure.contracts.events import AgentStart
from perdure.contracts.names import NOTIFY
from perdure.contracts.turn_messages import TurnMessage
from perdure.contracts.webhooks import Notify, Webhook, WebhookEvent
from perdure.store import Store

START_RETRY = timedelta(seconds=2)
"""Wait before the activity is retried because the Temporal server did not take a start."""

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
        for webhook in webhooks:
            if (notify := message.to(webhook, self._store.id)) is not None:
                await self._start(webhook, notify)

    async def _start(self, webhook: Webhook, notify: Notify) -> None:
        client = activity.client()
        try:
            await client.start_workflow(
                NOTIFY,
                notify,
                id=await self._find_delivery(client, self._store, webhook.id, notify.message),
                task_queue=activity.info().task_queue,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                static_summary=f"{notify.message} to {urlsplit(webhook.url).hostname}"[:120],
                versioning_override=AutoUpgradeVersioningOverride(),  # up to three days: no version must drain for it
            )
        except WorkflowAlreadyStartedError:  # a lost attempt has started it
            return
        except RPCError as error:
            if error.status in _REFUSALS:
                self._note_refused()
                activity.logger.error("webhook %s is not told of %s: %s", webhook.id, notify.message, error.message)
                return
            message = f"the delivery of {notify.message} to webhook {webhook.id} could not be started ({error.message})"
            raise transient(runtime_error(ReasonCode.WEBHOOK_UNDELIVERED, message), START_RETRY) from None
