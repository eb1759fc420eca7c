"""The activity ``send_scheduled``: a schedule's message goes to its session as any client's would."""

from typing import Protocol

import temporalio.client
from temporalio import activity

from perdure.activities.errors import permanent, runtime_error, transient
from perdure.activities.heartbeat import keep_beating
from perdure.activities.places import NoPlaceError, Places
from perdure.activities.store_access import store_failures
from perdure.contracts.errors import ReasonCode
from perdure.contracts.names import Activity
from perdure.contracts.schedules import Knock, Knocked
from perdure.store import Store


class Send(Protocol):
    """Sends a message with a request id; returns the number of its turn, or None if the session was busy."""

    async def __call__(self, temporal: temporalio.client.Client, knock: Knock, request_id: str) -> int | None:
        """Send the message.

        Raises:
            ApplicationError: It was not sent; retryable if another attempt can help.
        """
        ...


class ScheduleActivity:
    """Sends the messages of schedules, in one worker."""

    def __init__(self, store: Store, send: Send | None, places: Places) -> None:
        self._store = store
        self._send = send
        self._places = places

    @activity.defn(name=Activity.SEND_SCHEDULED)
    async def send_scheduled(self, knock: Knock) -> Knocked:
        """Send the message. Safe to run twice: the workflow's id is its request id."""
        assert self._send is not None, "a worker has one"  # noqa: S101 - narrows the type
        request_id = activity.info().workflow_id or ""
        async with keep_beating():
            async with store_failures():
                await self._store.require(knock.store)
                tenant = await self._store.tenant_of(knock.session)
            if tenant != knock.tenant:
                message = (
                    f"there is no session {knock.session!r} any more; have the schedule name another, or remove it"
                )
                raise permanent(runtime_error(ReasonCode.REQUEST_UNKNOWN_SESSION, message))
            try:
                with self._places.take(knock.tenant, knock.session):
                    return Knocked(turn=await self._send(activity.client(), knock, request_id))
            except NoPlaceError as error:
                raise transient(runtime_error(ReasonCode.REQUEST_TOO_EARLY, str(error)), error.wait) from None
