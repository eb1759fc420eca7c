"""Small workflows beside the turns, each of one activity that Temporal runs until it is done.

A delivery of a webhook is one: its message is sent again until the receiver takes it, or three days are over.
"""

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from perdure.contracts.names import NOTIFY
from perdure.contracts.webhooks import Notify
from perdure.workflows import options, stubs


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
        try:
            return await sending
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
