"""Starts the deliveries to webhooks when a turn ends or waits: a workflow ``Notify`` for each webhook that wants it.

The activity that writes the event starts them before it returns. If it is lost in between, it runs again and starts the
missing ones. A workflow's id names webhook and message, so none is started twice.
"""

from collections.abc import Sequence
from datetime import timedelta
from urllib.parse import urlsplit

from temporalio import activity
from temporalio.common import AutoUpgradeVersioningOverride, WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from perdure.activities.errors import runtime_error, transient
from perdure.contracts.errors import ReasonCode
from perdure.contracts.events import AgentEnd, AgentStart, Envelope, UserInputRequired
from perdure.contracts.names import NOTIFY
from perdure.contracts.turns import RunState
from perdure.contracts.values import JsonValue
from perdure.contracts.webhooks import Notify, Webhook, WebhookEvent, message_body
from perdure.store import Store

START_RETRY = timedelta(seconds=2)
"""Wait before the activity is retried because the Temporal server did not take a start."""

_REFUSALS = frozenset({RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNAUTHENTICATED, RPCStatusCode.INVALID_ARGUMENT})
"""Errors that no retry helps: the delivery is given up, so that the turn does not wait for it."""


class Notifications:
    """The notifications of one worker's turns.

    Args:
        store: Where webhooks and events are.
        on: Whether anything is sent; off in a replay of recordings.
    """

    def __init__(self, store: Store, *, on: bool = True) -> None:
        self._store = store
        self._on = on

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
        webhooks = await self._store.webhooks(event) if self._on else ()
        if not webhooks:
            return
        first, *events = await self._store.events_by_key(session, (f"{turn}/agent_start", *keys))
        start = first.event
        if not isinstance(start, AgentStart) or not events:
            return
        if event is WebhookEvent.ENDED and start.delegated_by is not None:
            return
        message = f"{session}:{turn}:{event}"
        if event is WebhookEvent.WAITING:  # a turn may wait more than once
            message += f":{events[-1].seq}"
        body = _body(event, start.agent, events)
        for webhook in webhooks:
            if webhook.wants(agent=start.agent, tenant=start.tenant, session=session):
                await _start(webhook, Notify(webhook=webhook.id, message=message, body=body, store=self._store.id))


def _body(event: WebhookEvent, agent: str, events: Sequence[Envelope]) -> str:
    """The message: where to look, without any content. Made of the log alone, so that it is the same each time."""
    last = events[-1]
    data: dict[str, JsonValue] = {"session": last.session, "turn": last.turn, "agent": agent, "seq": last.seq}
    if isinstance(last.event, AgentEnd):
        data |= {
            "state": RunState.ENDED,
            "stop_reason": last.event.stop_reason,
            "reason_code": last.event.reason_code,
        }
    else:
        asked = [found.event.request_id for found in events if isinstance(found.event, UserInputRequired)]
        data |= {"state": RunState.WAITING_FOR_INPUT, "stop_reason": None, "reason_code": None, "requests": [*asked]}
    return message_body(f"turn.{event}", last.at, data)


async def _start(webhook: Webhook, notify: Notify) -> None:
    try:
        await activity.client().start_workflow(
            NOTIFY,
            notify,
            id=notify.workflow_id,
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
            activity.logger.error("webhook %s is not told of %s: %s", webhook.id, notify.message, error.message)
            return
        message = f"the delivery of {notify.message} to webhook {webhook.id} could not be started ({error.message})"
        raise transient(runtime_error(ReasonCode.WEBHOOK_UNDELIVERED, message), START_RETRY) from None
