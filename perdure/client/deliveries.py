"""The id of the workflow that delivers a message: signed by the store, so that nobody else can begin it first."""

import temporalio.client

from perdure.client.connect import unless_missing
from perdure.contracts.ids import Signed, delivery_stem
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
