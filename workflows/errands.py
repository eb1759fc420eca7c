"""Small workflows beside the turns, each of one activity that Temporal runs until it is done.

The delivery of a webhook's message is one, a schedule's message to a session another.
"""

from collections.abc import Awaitable
from typing import TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from perdure.contracts.names import KNOCK, NOTIFY
from perdure.contracts.schedules import Knock, Knocked
from perdure.contracts.webhooks import Notify
from perdure.workflows import options, stubs

Result = TypeVar("Result")


@workflow.defn(name=NOTIFY)
class NotifyWebhook:
    """One delivery of a webhook.

    Its input holds the bytes that are sent, its result is the status of the answer. Whatever secret or address the
    webhook has when an attempt is made, that attempt reads it from the store. A delivery that has failed for good is
    Failed in Temporal, with what the last attempt came to.
    """

    @workflow.run
    async def run(self, notify: Notify) -> int:
        """Deliver the message."""
        sending = workflow.execute_activity(
            stubs.deliver_webhook, notify, summary=notify.message[:100], **options.delivery(once=notify.once)
        )
        return await _await_errand(sending)


@workflow.defn(name=KNOCK)
class KnockAtSession:
    """A schedule's message to a session that is there: Temporal's schedules start workflows and send no messages.

    Its id, which the schedule makes of its own and a time, is the message's request id: sent twice, it is one message.
    """

    @workflow.run
    async def run(self, knock: Knock) -> Knocked:
        """Send the message."""
        sending = workflow.execute_activity(stubs.send_scheduled, knock, summary=knock.session, **options.knock())
        return await _await_errand(sending)


async def _await_errand(activity: Awaitable[Result]) -> Result:
    """What came of the activity; where it has failed for good, the workflow fails with its last attempt's words."""
    try:
        return await activity
    except ActivityError as error:
        last = _last_failure(error)
        if last is None:
            raise
        raise ApplicationError(last.message, type=last.type, non_retryable=True) from None


def _last_failure(error: BaseException) -> ApplicationError | None:
    """What the last attempt came to, also where the time for all attempts was over."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ApplicationError):
        cause = cause.__cause__
    return cause
