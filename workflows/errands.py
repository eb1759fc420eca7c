"""Small workflows beside the turns, each around one activity that Temporal retries until it is done.

One delivers a webhook's message, one sends a schedule's message to a session, one sweeps the store.
"""

from collections.abc import Awaitable
from typing import TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from perdure.contracts.names import KNOCK, NOTIFY, SWEEP
from perdure.contracts.queues import deliveries_queue
from perdure.contracts.retention import SweepRequest, SweepSlice, Swept
from perdure.contracts.schedules import Knock, Knocked
from perdure.contracts.values import replace
from perdure.contracts.webhooks import Notify
from perdure.workflows import options, stubs

Result = TypeVar("Result")


@workflow.defn(name=NOTIFY)
class NotifyWebhook:
    """One delivery of a webhook.

    Its input holds the bytes to send, its result is the HTTP status of the answer. Each attempt reads the webhook's
    address and secrets from the store, so it uses those of that moment. A delivery that has failed for good is Failed
    in Temporal, with the failure of its last attempt.
    """

    @workflow.run
    async def run(self, notify: Notify) -> int:
        """Deliver the message."""
        sending = workflow.execute_activity(
            stubs.deliver_webhook,
            notify,
            summary=notify.message[:100],
            task_queue=deliveries_queue(workflow.info().task_queue),
            **options.delivery(once=notify.once),
        )
        return await _await_errand(sending)


@workflow.defn(name=KNOCK)
class KnockAtSession:
    """A schedule's message to an existing session: Temporal's schedules start workflows and send no messages.

    The schedule makes the workflow's id of its own id and the time. That id is the message's request id, so a message
    that is sent twice counts once.
    """

    @workflow.run
    async def run(self, knock: Knock) -> Knocked:
        """Send the message."""
        sending = workflow.execute_activity(
            stubs.send_scheduled,
            knock,
            summary=knock.session,
            task_queue=deliveries_queue(workflow.info().task_queue),
            **options.knock(),
        )
        return await _await_errand(sending)


@workflow.defn(name=SWEEP)
class SweepRetention:
    """A sweep of the sessions of all agents with a retention, in slices: one activity each.

    A slice is retried while the store is away. The result says what was deleted, and what was kept and why.
    """

    @workflow.run
    async def run(self, request: SweepRequest) -> Swept:
        """Sweep slice after slice until no session is left."""
        done = request.so_far
        part = done.going_on or SweepSlice(now=workflow.now(), dry_run=request.dry_run, store=request.store)
        while True:
            summary = f"{part.agent} after {part.after}" if part.agent else "all agents"
            sweeping = workflow.execute_activity(stubs.sweep_retention, part, summary=summary[:100], **options.sweep())
            done = done.plus(await _await_errand(sweeping))
            if done.going_on is None:
                return done
            part = done.going_on
            if workflow.info().is_continue_as_new_suggested():
                workflow.continue_as_new(replace(request, so_far=done))


async def _await_errand(activity: Awaitable[Result]) -> Result:
    """The activity's result. If it has failed for good, the workflow fails with the failure of its last attempt."""
    try:
        return await activity
    except ActivityError as error:
        last = _last_failure(error)
        if last is None:
            raise
        raise ApplicationError(last.message, type=last.type, non_retryable=True) from None


def _last_failure(error: BaseException) -> ApplicationError | None:
    """The application error at the end of a cause chain: that of the last attempt, even if the time ran out."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ApplicationError):
        cause = cause.__cause__
    return cause
