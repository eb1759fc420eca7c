"""Which transcript store the workers of a task queue use: each tells it by the identity of a poller of its own.

That poller's queue never gets work, so the identity, longer than others, stands in no history.
"""

import asyncio
import contextlib
import os
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

import temporalio.client
from temporalio.api.enums.v1 import TaskQueueType

from perdure.client.connect import pollers_of
from perdure.client.errors import ClientError, StoreMismatchError
from perdure.client.executions import POLLER_AGE
from perdure.store import Store

PATIENCE_SECONDS = 2.0
"""How long the server may take to say who polls; without its answer nothing is compared."""

LONGEST_ADDRESS = 400
"""Characters; the server refuses an identity of more than a thousand."""

SHOWN_ID = 8
"""Characters of a store's id that a message shows."""

_IDENTITY = re.compile(r"(?P<worker>\S+) store=(?P<store>\w+) at (?P<address>.+)")


@dataclass(frozen=True)
class WorkerStore:
    """A worker and its store.

    Attributes:
        worker: ``PID@HOST``, as Temporal names a worker.
        store: The store's own id.
        address: Its address without secrets.
    """

    worker: str
    store: str
    address: str

    @classmethod
    def worker_store_of(cls, store: Store) -> "WorkerStore":
        """What this process tells of its store."""
        return cls(f"{os.getpid()}@{socket.gethostname()}", store.id, store.public_url[:LONGEST_ADDRESS])

    @classmethod
    def parse(cls, identity: str) -> "WorkerStore | None":
        """What a poller tells; None if it is not one of ours."""
        found = _IDENTITY.fullmatch(identity)
        return cls(**found.groupdict()) if found is not None else None

    @property
    def identity(self) -> str:
        """The identity of the poller that tells this."""
        return f"{self.worker} store={self.store} at {self.address}"

    def __str__(self) -> str:
        return f"{self.address} (id {self.store[:SHOWN_ID]})"


def store_queue(task_queue: str) -> str:
    """The queue that workers of a task queue poll to tell their stores; nothing is ever put there."""
    return f"{task_queue}-stores"


async def worker_stores(temporal: temporalio.client.Client, task_queue: str) -> list[WorkerStore]:
    """What the workers tell; nothing if the server does not answer at once, or does not say."""
    queue = store_queue(task_queue)
    with contextlib.suppress(ClientError, TimeoutError):
        async with asyncio.timeout(PATIENCE_SECONDS):
            pollers = await pollers_of(temporal, queue, TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY, retry=False)
        oldest = datetime.now(UTC) - POLLER_AGE
        fresh = [poller for poller in pollers if poller.last_access_time.ToDatetime(UTC) > oldest]
        return [told for told in (WorkerStore.parse(poller.identity) for poller in fresh) if told is not None]
    return []


def check_stores(own: WorkerStore, told: Iterable[WorkerStore], task_queue: str) -> None:
    """See that some worker uses the store of this process, if any worker tells its store.

    Raises:
        StoreMismatchError: All use others.
    """
    stores = {worker.store: worker for worker in told}
    if not stores or own.store in stores:
        return
    theirs = " and ".join(f"{worker} on worker {worker.worker}" for worker in stores.values())
    raise StoreMismatchError(
        f"this process uses the store {own}, but the workers of task queue {task_queue!r} use {theirs}; "
        "set PERDURE_STORE_URL to the workers' store, or PERDURE_TASK_QUEUE to the queue of yours"
    )
