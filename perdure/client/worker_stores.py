"""Which store, keys, build, agents and roles workers have: each tells them by the identity of a poller of its own.

That poller's queue never gets work, so the identity, longer than others, stands in no history.
"""

import asyncio
import base64
import contextlib
import hashlib
import os
import re
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Unpack

import temporalio.client
from temporalio.api.enums.v1 import TaskQueueType

from perdure.client.connect import ConnectOptions, connect, make_converter, pollers_of
from perdure.client.encryption import load_keyring
from perdure.client.errors import ClientError, KeysMismatchError, StoreMismatchError
from perdure.client.versions import POLLER_AGE
from perdure.security.keyring import PLAIN, Keyring
from perdure.settings import ENCRYPTION_KEYS, Settings
from perdure.store import Store

PATIENCE_SECONDS = 2.0
"""Longest time for the server to say who polls; without its answer nothing is compared."""

LONGEST_ADDRESS = 400
"""Characters; the server refuses an identity of more than a thousand."""

SHOWN_ID = 8
"""Characters of a store's id that a message shows."""

MOST_KEYS = 10
"""Keys that a worker tells of, the primary one first."""

LONGEST_IDENTITY = 1_000
"""Bytes of an identity that the server takes."""

MARK = 4
"""Characters of the mark of an agent's name or definition: 24 bits of a hash. Where two share one, the missing one
waits."""

_IDENTITY = re.compile(
    r"(?P<worker>\S+)(?: keys=(?P<keys>\S+))? store=(?P<store>\w+) at (?P<address>.+?)"
    r"(?: build=(?P<build>\S+))?(?: agents=(?P<agents>[\w-]*))?(?: versions=(?P<versions>[\w-]*))?"
    r"(?: roles=(?P<roles>[a-z,]+))?"
)


@dataclass(frozen=True)
class WorkerStore:
    """A worker and its store.

    Attributes:
        worker: ``PID@HOST``, as Temporal names a worker.
        store: The store's own id.
        address: Its address without secrets.
        roles: What the worker does in a split fleet; empty if it does everything on one queue.
        keys: The keys of content in their order, each as ``ID.MARK``; ``plain`` is first if none encrypts.
        build: ``DEPLOYMENT.BUILD`` of a worker with a deployment version, else its build id; may be empty.
        agents: Marks of the names of its agents; None if it does not tell: an older release, or too many agents.
        versions: Marks of the definitions of its agents; None if it does not tell.
    """

    worker: str
    store: str
    address: str
    roles: frozenset[str] = frozenset()
    keys: tuple[str, ...] = ()
    build: str = ""
    agents: frozenset[str] | None = None
    versions: frozenset[str] | None = None

    @classmethod
    def worker_store_of(cls, store: Store, roles: Iterable[str] = (), keyring: Keyring | None = None) -> "WorkerStore":
        """Describe the store, the roles and the keys of this process."""
        worker = f"{os.getpid()}@{socket.gethostname()}"
        url = store.public_url[:LONGEST_ADDRESS]
        return cls(worker, store.id, url, frozenset(roles), marks_of(keyring))

    def with_agents(self, names: Iterable[str], build: str, definitions: Iterable[str] | None = None) -> "WorkerStore":
        """The same worker, with its build, and the names and definitions of its agents as far as they find room.

        Args:
            names: The names of its agents.
            build: Its build.
            definitions: The digests of their definitions.
        """
        told = None if definitions is None else frozenset(map(_mark_of, definitions))
        named = replace(self, build=told_build(build), agents=frozenset(map(_mark_of, names)))
        shorter = (replace(named, versions=told), named, replace(named, agents=None))
        return next((worker for worker in shorter if len(worker.identity.encode()) <= LONGEST_IDENTITY), shorter[-1])

    def has(self, agent: str) -> bool | None:
        """Whether the worker has the agent of a name; None if it does not tell its agents."""
        return None if self.agents is None else _mark_of(agent) in self.agents

    def has_version(self, definition: str) -> bool | None:
        """Whether the worker has the definition of a digest; None if it does not tell its definitions."""
        return None if self.versions is None else _mark_of(definition) in self.versions

    @classmethod
    def parse(cls, identity: str) -> "WorkerStore | None":
        """Parse the identity of a poller; None if it is not one of ours."""
        found = _IDENTITY.fullmatch(identity)
        if found is None:
            return None
        roles = (found["roles"] or "").split(",")
        keys = tuple(found["keys"].split(",")) if found["keys"] else ()
        agents, versions = _marks_in(found["agents"]), _marks_in(found["versions"])
        served, build = frozenset(filter(None, roles)), found["build"] or ""
        return cls(found["worker"], found["store"], found["address"], served, keys, build, agents, versions)

    @property
    def identity(self) -> str:
        """The identity of the poller that tells this."""
        roles = f" roles={','.join(sorted(self.roles))}" if self.roles else ""
        keys = f" keys={','.join(self.keys)}" if self.keys else ""
        build = f" build={self.build}" if self.build else ""
        agents = "" if self.agents is None else f" agents={''.join(sorted(self.agents))}"
        versions = "" if self.versions is None else f" versions={''.join(sorted(self.versions))}"
        # The release before reads all of this that it does not know as a part of the address, which it only shows.
        return f"{self.worker}{keys} store={self.store} at {self.address}{build}{agents}{versions}{roles}"

    def __str__(self) -> str:
        return f"{self.address} (id {self.store[:SHOWN_ID]})"


def told_build(build: str) -> str:
    """A build as a worker tells it: an identity is read word by word."""
    return "_".join(build.split())


def _mark_of(told: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(told.encode()).digest())[:MARK].decode()


def _marks_in(told: str | None) -> frozenset[str] | None:
    return None if told is None else frozenset(told[at : at + MARK] for at in range(0, len(told), MARK))


def marks_of(keyring: Keyring | None) -> tuple[str, ...]:
    """The keys as workers tell of them."""
    if keyring is None:
        return ()
    marks = tuple(f"{name}.{mark}" for name, mark in list(keyring.marks.items())[:MOST_KEYS])
    return marks if keyring.encrypts else (PLAIN, *marks)


def store_queue(task_queue: str) -> str:
    """The queue that workers of a task queue poll to tell their stores; nothing is ever put there."""
    return f"{task_queue}-stores"


async def worker_stores(temporal: temporalio.client.Client, task_queue: str) -> list[WorkerStore]:
    """Read the stores of the workers; nothing if the server does not answer at once, or does not say."""
    return await ask_workers(temporal, task_queue) or []


async def ask_workers(temporal: temporalio.client.Client, task_queue: str) -> list[WorkerStore] | None:
    """Read what the workers tell of themselves; None if the server does not answer at once."""
    queue = store_queue(task_queue)
    with contextlib.suppress(ClientError, TimeoutError):
        async with asyncio.timeout(PATIENCE_SECONDS):
            pollers = await pollers_of(temporal, queue, TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY, retry=False)
        oldest = datetime.now(UTC) - POLLER_AGE
        fresh = [poller for poller in pollers if poller.last_access_time.ToDatetime(UTC) > oldest]
        return [told for told in (WorkerStore.parse(poller.identity) for poller in fresh) if told is not None]
    return None


async def connect_to_fleet(settings: Settings, **options: Unpack[ConnectOptions]) -> temporalio.client.Client:
    """Connect with the keys of the settings, if the workers can read with theirs what this process will write.

    Raises:
        KeysMismatchError: A worker cannot read what this process encrypts, or this process what the worker does.
        SettingsError: The keys cannot be used.
    """
    keyring = load_keyring(settings)
    temporal = await connect(make_converter(keyring), **options)
    check_keys(marks_of(keyring), await worker_stores(temporal, settings.task_queue), settings.task_queue)
    return temporal


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
        "set PERDURE_STORE_URL to the workers' store, or PERDURE_TASK_QUEUE to your workers' queue"
    )


def check_keys(own: tuple[str, ...], told: Iterable[WorkerStore], task_queue: str) -> None:
    """See that the workers can read what this process writes, and that it can read what they write.

    Args:
        own: The keys of this process, by :func:`marks_of`.
        told: What the workers tell.
        task_queue: Theirs.

    Raises:
        KeysMismatchError: They cannot, or it cannot.
    """
    for worker in told:
        theirs = _by_id(worker.keys)
        if reason := _difference(_by_id(own), theirs, own[:1], worker.keys[:1]):
            raise KeysMismatchError(
                f"worker {worker.worker} of task queue {task_queue!r} {reason}; give every process the same keys in "
                f"{ENCRYPTION_KEYS}, a new one behind the others first (a worker that has ended counts for "
                f"{POLLER_AGE.total_seconds():.0f} s)"
            )


def _by_id(keys: Iterable[str]) -> dict[str, str]:
    return {name: mark for name, _, mark in (key.rpartition(".") for key in keys) if name}


def _difference(
    own: Mapping[str, str], theirs: Mapping[str, str], first: tuple[str, ...], their_first: tuple[str, ...]
) -> str:
    """Difference between this process and a worker; empty if nothing."""
    for name in own.keys() & theirs.keys():
        if own[name] != theirs[name]:
            return f"has another key than this process under the id {name!r}"
    mine, written = (next(iter(_by_id(key)), "") for key in (first, their_first))
    if mine and mine not in theirs:
        return f"does not have the key {mine!r}, with which this process encrypts"
    if written and written not in own:
        return f"encrypts with the key {written!r}, which this process does not have"
    return ""
