"""Parts of a delivery: the id of its workflow, and the message of a turn, from its log.

The store signs the id, so that nobody else can begin the workflow first.
"""

import temporalio.client

from perdure.client.connect import unless_missing
from perdure.contracts.events import AgentStart
from perdure.contracts.ids import Signed, delivery_stem
from perdure.contracts.turn_messages import TurnMessage
from perdure.contracts.webhooks import WebhookEvent
from perdure.store import Store


async def find_delivery_id(temporal: temporalio.client.Client, store: Store, webhook: str, message: str) -> str:
    """The id of the message's delivery: that of a workflow which an older secret of the store has named, or the newest.

    Raises:
        RPCError: The server does not answer.
        StoreError: The store does not.
    """
    newest, *older = await store.sign_ids(Signed.NOTIFY, "", delivery_stem(webhook, message))
    for known in older:
        if await unless_missing(temporal.get_workflow_handle(known).describe()) is not None:
            return known
    return newest


async def find_message(store: Store, session: str, turn: int) -> TurnMessage | None:
    """The message of a turn's end, or of what it waits for now; None if there is nothing to tell.

    Raises:
        StoreError: The store does not answer.
    """
    first = [found.event for found in await store.events_by_key(session, (f"{turn}/agent_start",))]
    if not first or not isinstance(start := first[0], AgentStart):
        return None  # no worker has opened the turn, or its log is deleted
    event, events = WebhookEvent.ENDED, await store.events_by_key(session, (f"{turn}/agent_end",))
    if not events:
        asked = await store.open_requests(session)
        keys = [f"{turn}/{one.request_id}/user_input_required" for one in asked if one.turn == turn]
        event, events = WebhookEvent.WAITING, await store.events_by_key(session, keys)
    return TurnMessage(event, start, events) if events else None
