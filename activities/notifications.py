"""Who is told that a turn has ended or waits: one workflow ``Notify`` for each subscription that wants to know.

The activity that writes the event starts them before it returns. Lost in between, it runs again and starts those that
are missing: a workflow's id names subscription and message, so none is started twice.
"""

from collections.abc import Sequence
from datetime import timedelta
from urllib.parse import urlsplit

from temporalio import activity
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
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
"""Wait before an activity tries again what the Temporal server did not take."""

_REFUSALS = frozenset({RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNAUTHENTICATED, RPCStatusCode.INVALID_ARGUMENT})
"""What no further attempt changes: the turn must not wait for it."""


class Notifications:
    """What one worker tells of its turns.

    Args:
        store: Where subscriptions and events are.
        on: Whether anything is told; nothing is in a replay of recordings.
    """

    def __init__(self, store: Store, *, on: bool = True) -> None:
        self._store = store
        self._on = on

    async def tell_ended(self, session: str, turn: int | None) -> None:
        """Tell that a turn has ended, after the store has its end; None is no turn. Safe to run twice."""
        if turn is None:
            return
        await self._tell(WebhookEvent.ENDED, session, turn, (f"{turn}/agent_end",))

    async def tell_waiting(self, session: str, turn: int, requests: Sequence[str]) -> None:
        """Tell that a turn waits for a person, after its questions are in the log. Safe to run twice."""
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
        if event is WebhookEvent.WAITING:  # a turn may do so again
            message += f":{events[-1].seq}"
        body = _body(event, start.agent, events)
        for webhook in webhooks:
            if webhook.wants(agent=start.agent, tenant=start.tenant, session=session):
                await _start(webhook, Notify(webhook=webhook.id, message=message, body=body, store=self._store.id))


def _body(event: WebhookEvent, agent: str, events: Sequence[Envelope]) -> str:
    """What is told: where to look, and nothing that was said. Made of the log alone, so it is the same each time."""
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
        )
    except WorkflowAlreadyStartedError:  # by an attempt that was lost
        return
    except RPCError as error:
        if error.status in _REFUSALS:
            activity.logger.error("webhook %s is not told of %s: %s", webhook.id, notify.message, error.message)
            return
        message = f"the delivery of {notify.message} to webhook {webhook.id} could not be started ({error.message})"
        raise transient(runtime_error(ReasonCode.WEBHOOK_UNDELIVERED, message), START_RETRY) from None
