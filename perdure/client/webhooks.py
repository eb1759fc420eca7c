"""Webhooks as the client sees them: subscriptions in the store, and their deliveries, which are workflows."""

import asyncio
import re
import uuid
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowExecution, WorkflowExecutionStatus, WorkflowFailureError, WorkflowHandle
from temporalio.common import AutoUpgradeVersioningOverride, Priority, WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import FailureError
from temporalio.service import RPCError

from perdure.client.connect import is_missing, rpc_errors
from perdure.client.deliveries import find_delivery_id, find_message
from perdure.client.encryption import reveal_failure, reveal_pending
from perdure.client.errors import NoWorkerError, RequestRefusedError, UnknownWebhookError
from perdure.client.pushes import Pushes, check_address, new_secret, new_webhook
from perdure.client.requests import validate
from perdure.client.sessions import Sessions
from perdure.client.texts import refuses_odd_texts
from perdure.contracts.ids import delivery_stem, message_of
from perdure.contracts.names import NOTIFY
from perdure.contracts.queues import fairness_key_of
from perdure.contracts.webhooks import (
    Delivery,
    NewWebhook,
    Notify,
    Webhook,
    WebhookEvent,
    WebhookRequest,
    message_body,
)
from perdure.store.errors import NotFoundError

OVERLAP = timedelta(hours=24)
"""Time for which messages are signed with the old secret too, after it was exchanged."""

TEST_PATIENCE = timedelta(seconds=30)
"""Longest wait of a test for its outcome: longer than one attempt may take."""

MOST = 1_000
"""Deliveries that are looked at, of one subscription."""

_MESSAGE = re.compile(r"(?P<session>.+):(?P<turn>\d{1,9}):(?:ended|waiting:\d+)")
"""Id of a message about a turn."""

State = Literal["delivering", "delivered", "failed"]

_STATES: dict[WorkflowExecutionStatus | None, State] = {
    WorkflowExecutionStatus.RUNNING: "delivering",
    WorkflowExecutionStatus.COMPLETED: "delivered",
}


@refuses_odd_texts
class Webhooks:
    """Subscriptions to the ends and waits of turns; made by :attr:`Client.webhooks`."""

    def __init__(self, sessions: Sessions, tenant: str | None = None) -> None:
        self._sessions = sessions
        self._tenant = tenant

    def of(self, tenant: str) -> "Webhooks":
        """The same for one tenant alone, the empty one included: others' subscriptions are not there."""
        return Webhooks(self._sessions, tenant)

    async def add(
        self,
        url: str,
        events: Sequence[WebhookEvent | str] = tuple(WebhookEvent),
        *,
        tenant: str = "",
        agents: Sequence[str] = (),
        session: str | None = None,
    ) -> NewWebhook:
        """Send turns' events to an address from now on. Only this call returns the secret of the signatures.

        Args:
            url: An https address whose host ``PERDURE_WEBHOOK_ALLOW`` allows.
            events: ``waiting``, when a turn waits for a person, and ``ended``.
            tenant: Only turns of this tenant; by default those without one.
            agents: Only turns of these agents; by default all.
            session: Only turns of this session.

        Raises:
            RequestRefusedError: The address may not be used, or there is no such event.
        """
        fields = {"url": url, "events": tuple(events), "agents": tuple(agents), "session": session}
        request = validate(WebhookRequest, {**fields, "tenant": tenant if self._tenant is None else self._tenant})
        check_address(self._sessions, request.url)
        webhook, secret = new_webhook(request)
        store = await self._sessions.store()
        await store.add_webhook(webhook, secret)
        return NewWebhook(**dict(webhook), secret=secret)

    @property
    def pushes(self) -> Pushes:
        """Push notifications of tasks of A2A."""
        return Pushes(self._sessions, self._tenant or "", self._start)

    async def list(self) -> tuple[Webhook, ...]:
        """The subscriptions, the oldest first; those of single turns are not among them."""
        store = await self._sessions.store()
        return await store.webhooks(tenant=self._tenant)

    async def get(self, webhook: str) -> Webhook:
        """A subscription.

        Raises:
            UnknownWebhookError: There is none of that id.
        """
        store = await self._sessions.store()
        for found in await store.webhooks(tenant=self._tenant, one=webhook):
            return found
        raise UnknownWebhookError(f"there is no webhook {webhook!r}; 'perdure webhooks list' lists the webhooks")

    async def pause(self, webhook: str, reason: str = "") -> Webhook:
        """Pause a webhook: messages on their way wait, and events that happen meanwhile are never sent.

        Raises:
            UnknownWebhookError: There is none of that id.
        """
        return await self._set_paused(webhook, paused=True, reason=reason)

    async def unpause(self, webhook: str) -> Webhook:
        """Send events to a webhook again, from now on.

        Raises:
            UnknownWebhookError: There is none of that id.
        """
        return await self._set_paused(webhook, paused=False, reason="")

    async def _set_paused(self, webhook: str, *, paused: bool, reason: str) -> Webhook:
        await self.get(webhook)
        store = await self._sessions.store()
        try:
            return await store.pause_webhook(webhook, paused=paused, reason=reason)
        except NotFoundError as error:
            raise UnknownWebhookError(str(error)) from None

    async def exchange_secret(self, webhook: str, *, overlap: timedelta = OVERLAP) -> NewWebhook:
        """Give a webhook a new secret; for ``overlap``, each message is signed with the old one too.

        Raises:
            UnknownWebhookError: There is none of that id.
            RequestRefusedError: The overlap is negative.
        """
        if overlap < timedelta(0):
            raise RequestRefusedError("overlap: a time cannot be negative; give 0 to have the old secret end at once")
        await self.get(webhook)
        store, secret = await self._sessions.store(), new_secret()
        try:
            changed = await store.exchange_secret(webhook, secret, datetime.now(UTC) + overlap)
        except NotFoundError as error:
            raise UnknownWebhookError(str(error)) from None
        return NewWebhook(**dict(changed), secret=secret)

    async def remove(self, webhook: str) -> None:
        """Remove a webhook; messages that are on their way fail at their next attempt.

        Raises:
            UnknownWebhookError: There is none of that id.
        """
        await self.get(webhook)
        store = await self._sessions.store()
        try:
            await store.remove_webhook(webhook)
        except NotFoundError as error:
            raise UnknownWebhookError(str(error)) from None

    async def test(self, webhook: str) -> Delivery:
        """Send one message of type ``webhook.test``, without retries, even while the webhook is paused.

        Raises:
            UnknownWebhookError: There is none of that id.
            NoWorkerError: No worker sent it.
        """
        await self.get(webhook)
        store, began = await self._sessions.store(), datetime.now(UTC)
        message = f"test:{uuid.uuid4().hex}"
        body = message_body("webhook.test", began, {"webhook": webhook})
        notify = Notify(webhook=webhook, message=message, body=body, store=store.id, once=True)
        delivery = Delivery(webhook=webhook, message=message, state="delivered", started_at=began, attempts=1)
        try:
            with rpc_errors():
                async with asyncio.timeout(TEST_PATIENCE.total_seconds()):
                    await (await self._start(notify)).result()
        except WorkflowFailureError as error:
            cause = error.cause
            said = cause.message if isinstance(cause, FailureError) else str(cause)
            delivery = delivery.model_copy(update={"state": "failed", "error": said})
        except TimeoutError:
            await self._sessions.check_worker()
            raise NoWorkerError(
                f"no worker sent the message within {TEST_PATIENCE.total_seconds():.0f} s; "
                f"'perdure webhooks deliveries {webhook}' says what came of it"
            ) from None
        return delivery.model_copy(update={"ended_at": datetime.now(UTC)})

    async def deliveries(self, webhook: str, *, state: State | None = None, limit: int = 50) -> tuple[Delivery, ...]:
        """List the deliveries of a webhook, the newest first, as long as Temporal keeps them.

        Raises:
            UnknownWebhookError: There is none of that id.
            ServerUnreachableError: The server does not answer.
        """
        await self.get(webhook)
        found: tuple[Delivery, ...] = ()
        with rpc_errors():
            async for run in self._runs(webhook, state):
                if len(found) == limit:
                    break
                delivery = await self._delivery(webhook, run.id)
                if state in {None, delivery.state}:
                    found += (delivery,)
        return tuple(sorted(found, key=lambda delivery: delivery.started_at, reverse=True))

    async def redrive(self, webhook: str, message: str | None = None) -> tuple[str, ...]:
        """Send one message again, for up to three days, or every message whose delivery failed; return their ids.

        The receiver gets the same bytes under the same id, so it can tell a message that it has taken before.

        Raises:
            UnknownWebhookError: There is no subscription of that id.
            RequestRefusedError: It has no delivery of that message.
            ServerUnreachableError: The server does not answer.
        """
        found = await self.get(webhook)
        if message is not None:
            messages: tuple[str, ...] = (message,)
        else:
            messages = tuple(one.message for one in await self.deliveries(webhook, state="failed", limit=MOST))
        with rpc_errors():
            for again in messages:
                await self._start(await self._sent(found, again), again=True)
        return messages

    async def _start(
        self,
        notify: Notify,
        *,
        again: bool = False,
        reuse: WorkflowIDReusePolicy = WorkflowIDReusePolicy.ALLOW_DUPLICATE,
    ) -> WorkflowHandle[Any, int]:
        """Start a delivery; ``again`` takes the place of one that is tried."""
        conflict = WorkflowIDConflictPolicy.TERMINATE_EXISTING if again else WorkflowIDConflictPolicy.USE_EXISTING
        temporal = self._sessions.temporal
        return await temporal.start_workflow(
            NOTIFY,
            notify,
            id=await find_delivery_id(temporal, await self._sessions.store(), notify.webhook, notify.message),
            task_queue=self._sessions.settings.task_queue,
            id_reuse_policy=reuse,
            id_conflict_policy=conflict,
            static_summary=notify.message[:120],
            priority=Priority(fairness_key=fairness_key_of(self._tenant or "")),
            versioning_override=AutoUpgradeVersioningOverride(),  # it may take three days: no version waits for its end
            result_type=int,
        )

    async def _runs(self, webhook: str, state: State | None) -> AsyncIterator[WorkflowExecution]:
        """A run of each delivery, the newest that Temporal's index knows in this state."""
        wanted = {
            None: "",
            "delivering": ' AND ExecutionStatus = "Running"',
            "delivered": ' AND ExecutionStatus = "Completed"',
            "failed": ' AND ExecutionStatus IN ("Failed", "Terminated", "TimedOut", "Canceled")',
        }[state]
        stem = delivery_stem(webhook, "")
        query = f'WorkflowType = "{NOTIFY}" AND WorkflowId STARTS_WITH "{stem}"{wanted}'
        seen: set[str] = set()
        async for run in self._sessions.temporal.list_workflows(query, limit=MOST):
            if run.id not in seen:
                seen.add(run.id)
                yield run

    async def _delivery(self, webhook: str, workflow: str) -> Delivery:
        """State of a delivery: its newest run, of which Temporal's index may not know yet."""
        newest = await self._sessions.temporal.get_workflow_handle(workflow).describe()
        delivery = Delivery(
            webhook=webhook,
            message=message_of(workflow, webhook),
            state=_STATES.get(newest.status, "failed"),
            started_at=newest.start_time,
            ended_at=newest.close_time,
        )
        changes: dict[str, object] = {}
        converter = self._sessions.temporal.data_converter
        await reveal_pending(converter, newest.raw_description.pending_activities)
        for pending in newest.raw_description.pending_activities:
            at = pending.next_attempt_schedule_time.ToDatetime(UTC) if pending.HasField("last_failure") else None
            changes = {"attempts": pending.attempt, "next_at": at, "error": pending.last_failure.message or None}
        if newest.close_time is not None:
            closed = self._sessions.temporal.get_workflow_handle(workflow, run_id=newest.run_id)
            async for event in closed.fetch_history_events():
                if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED:
                    changes["attempts"] = event.activity_task_started_event_attributes.attempt
                elif event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED:
                    failure = event.workflow_execution_failed_event_attributes.failure
                    await reveal_failure(converter, failure)
                    changes["error"] = failure.message
        return delivery.model_copy(update=changes)

    async def _sent(self, webhook: Webhook, message: str) -> Notify:
        """Message that was sent, from the history, or from the log if its delivery could not be started."""
        temporal, store = self._sessions.temporal, await self._sessions.store()
        delivery = await find_delivery_id(temporal, store, webhook.id, message)
        handle = temporal.get_workflow_handle(delivery)
        try:
            async for event in handle.fetch_history_events(page_size=1):
                payloads = event.workflow_execution_started_event_attributes.input.payloads
                (notify,) = await temporal.data_converter.decode(payloads, [Notify])
                return Notify.model_validate(notify)
        except RPCError as error:
            if not is_missing(error):
                raise
        named = _MESSAGE.fullmatch(message)
        made = await find_message(store, named["session"], int(named["turn"])) if named else None
        if made is not None and made.id == message and (notify := made.to(webhook, store.id)) is not None:
            return notify
        raise RequestRefusedError(
            f"webhook {webhook.id!r} has no delivery of {message!r}, or Temporal has it no longer; "
            f"'perdure webhooks deliveries {webhook.id}' lists those there are"
        )
