"""The store's public face: each method is one transaction, run on a thread of the store's own.

An operation is a function over a connection, in the module of its subject, which says what it promises. A method whose
caller is cancelled still ends its transaction; every write is therefore harmless when it is repeated.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from perdure.contracts.events import Event
from perdure.store import (
    checkpoints,
    commit_turn,
    erase,
    open_turn,
    queries,
    session_lock,
    steps,
    tenants,
    tool_calls,
    watches,
    webhooks,
)
from perdure.store.database import (
    POSTGRESQL_CONNECTIONS,
    SQLITE_READERS,
    Address,
    SqliteFile,
    begin_writing,
    connect,
    translate_errors,
)
from perdure.store.doorbell import make_doorbell
from perdure.store.errors import OtherStoreError
from perdure.store.live import open_live
from perdure.store.migrate import prepare
from perdure.store.records import (
    SessionFilter,
    SessionRecord,
    TurnRecord,
)

P = ParamSpec("P")
T = TypeVar("T")

Observe = Callable[[str, float], None]
"""Takes the name of an operation and the seconds it took."""

Listen = Callable[[Sequence[tuple[str, Event]]], None]
"""Takes sessions and the events written for them, each once; called on a thread of the store."""


def _writing_method_of(
    function: Callable[Concatenate[Connection, P], T],
) -> Callable[Concatenate["Store", P], Coroutine[Any, Any, T]]:
    """The function as a method of the store: one transaction that writes."""

    @wraps(function)
    async def method(store: "Store", /, *args: P.args, **kwargs: P.kwargs) -> T:
        operation = function.__name__
        return await store.write(operation, lambda connection: function(connection, *args, **kwargs))

    return method


def _reads(
    function: Callable[Concatenate[Connection, P], T], name: str = ""
) -> Callable[Concatenate["Store", P], Coroutine[Any, Any, T]]:
    """The function as a method of the store that only reads; ``name`` is that of the operation if it has another."""

    @wraps(function)
    async def method(store: "Store", /, *args: P.args, **kwargs: P.kwargs) -> T:
        operation = name or function.__name__
        return await store.read(operation, lambda connection: function(connection, *args, **kwargs))

    return method


class Store:
    """A transcript store. Every method may raise :class:`StoreUnavailableError`; waiting may then help."""

    def __init__(self, url: str, observe: Observe | None = None, listen_url: str = "") -> None:
        """Prepare for the address without opening it; ``Store.open`` is what callers use.

        Raises:
            StoreError: The address is none, or its driver is missing.
        """
        self._id = ""
        self._observe = observe
        self._listen: Listen | None = None
        self._address = Address(url)
        self._engine = connect(self._address)
        self._file = SqliteFile(self._address.file) if self._address.file and self._address.has_plain_file else None
        self._reading = self._engine
        if self._address.sqlite:
            # One thread writes, so writers of this process queue in order instead of polling for the file's lock.
            self._writers = ThreadPoolExecutor(max_workers=1, thread_name_prefix="perdure-store-write")
            self._readers = self._writers
            if not self._address.in_memory:
                self._readers = ThreadPoolExecutor(SQLITE_READERS, thread_name_prefix="perdure-store-read")
        else:
            # A read is one statement, or of rows that never change: it needs no transaction around it.
            self._reading = self._engine.execution_options(isolation_level="AUTOCOMMIT")
            self._writers = ThreadPoolExecutor(POSTGRESQL_CONNECTIONS, thread_name_prefix="perdure-store")
            self._readers = self._writers
        self.doorbell = make_doorbell(self._address, self.last_seqs, listen_url)
        self.live = open_live(self._address, self.doorbell)

    @classmethod
    async def open(
        cls, url: str, *, upgrade: bool = False, observe: Observe | None = None, listen_url: str = ""
    ) -> Self:
        """Open the store at ``sqlite:///FILE`` or ``postgresql://…``; ``upgrade`` creates and migrates its tables.

        ``observe`` is told the name and the seconds of each operation, its wait for a thread included. ``listen_url``
        is an address of the same PostgreSQL database on which LISTEN works, if ``url`` leads through a pool.

        Raises:
            StoreUnavailableError: It cannot be reached, or is a missing file that may not be created.
            StoreVersionError: Its schema is not this release's.
        """
        store = cls(url, observe, listen_url)
        try:
            await store._run_on(store._writers, lambda: store._prepare(upgrade=upgrade))
        except BaseException:
            await store.close()
            raise
        return store

    def listen(self, listener: Listen) -> None:
        """Tell the listener, and no other any more, which events this store writes, once they are committed."""
        self._listen = listener

    def _prepare(self, *, upgrade: bool) -> None:
        prepare(self._engine, self._address, upgrade=upgrade)
        self._id = self._read_once(queries.store_id)
        if self._file is not None:
            self._file.require_same()
            if upgrade:
                self._file.shorten_log(self._engine)

    @property
    def id(self) -> str:
        """The store's own id, as it was when this process opened it; a copy of a database keeps it."""
        return self._id

    @property
    def public_url(self) -> str:
        """The store's address without secrets, with an absolute path if it is a file."""
        return self._address.public_url

    async def require(self, wanted: str) -> None:
        """Refuse to work for a turn that lives in another store; a turn that names none may live in any.

        Raises:
            OtherStoreError: This is not the store of that id.
        """
        if wanted in {"", self._id}:
            return
        self._id = await self.read("store_id", queries.store_id)  # the database may have been exchanged meanwhile
        if wanted != self._id:
            msg = (
                f"this worker looks at the store {self._address} ({self._id}), the turn lives in the store {wanted}; "
                "start this worker with the PERDURE_STORE_URL of the others, or, if the turn's store is gone for good, "
                "terminate the turn's workflow"
            )
            raise OtherStoreError(msg)

    async def close(self) -> None:
        """Wait for running transactions and close all connections."""
        await self.live.close()
        await self.doorbell.close()
        await asyncio.to_thread(self._shut_down)

    def _shut_down(self) -> None:
        self._writers.shutdown()
        self._readers.shutdown()
        self._engine.dispose()

    async def __aenter__(self) -> Self:
        """The store itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close it."""
        await self.close()

    async def _run_on(self, threads: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        def translating() -> T:
            with translate_errors(self._address):
                return work()

        if self._address.in_memory:  # nothing waits for a disk, and no other thread uses its one connection
            return translating()
        return await asyncio.get_running_loop().run_in_executor(threads, translating)

    async def write(self, operation: str, work: Callable[[Connection], T]) -> T:
        """Do the work in one transaction that writes."""
        with self._measure(operation):
            return await self._run_on(self._writers, lambda: self._transaction(work))

    @contextmanager
    def _measure(self, operation: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            if self._observe is not None:
                self._observe(operation, time.monotonic() - began)

    async def read(self, operation: str, work: Callable[[Connection], T]) -> T:
        """Do the work, which only reads, once more if its connection has died since its last use."""

        def reading() -> T:
            try:
                return self._read_once(work)
            except DBAPIError as error:
                if not error.connection_invalidated:
                    raise
                return self._read_once(work)

        with self._measure(operation):
            return await self._run_on(self._readers, reading)

    def _read_once(self, work: Callable[[Connection], T]) -> T:
        with self._reading.connect() as connection:
            return work(connection)

    def _transaction(self, work: Callable[[Connection], T]) -> T:
        committing = False

        def once() -> T:
            nonlocal committing
            written: list[tuple[str, Event]] = []
            last: dict[str, int] = {}
            with begin_writing(self._engine) as connection:
                # The connection lives on: an aborted transaction has left its own here.
                connection.info.update({session_lock.WRITTEN: written, session_lock.LAST_SEQS: last})
                if self._file is not None:
                    self._file.require_same()
                result = work(connection)
                if self._file is not None:
                    self._file.note_wiped(connection)
                committing = True
            if written and self._listen is not None:
                self._listen(written)
            if last:
                self.doorbell.ring(last)
            if self._file is not None:
                self._file.shorten_log(self._engine)
            return result

        try:
            return once()
        except DBAPIError as error:
            # A pooled connection may have died since its last use; this is found out by using it, not by asking first.
            # When the commit itself was cut off nobody knows whether it counts, and the caller decides.
            if committing or not error.connection_invalidated:
                raise
            return once()

    register_agents = _writing_method_of(open_turn.register_agents)
    agents = _reads(queries.agents)
    definition = _reads(queries.definition)
    session_before = _reads(open_turn.session_before)
    open_turn = _writing_method_of(open_turn.open_turn)
    commit_turn = _writing_method_of(commit_turn.commit_turn)

    begin_generation = _writing_method_of(steps.begin_generation)
    finish_generation = _writing_method_of(steps.finish_generation)
    finish_compaction = _writing_method_of(steps.finish_compaction)
    step = _reads(steps.find_step, name="step")
    conversation = _reads(steps.conversation)

    watch = _writing_method_of(watches.watch)

    append_events = _writing_method_of(session_lock.append_events)
    retries = _reads(session_lock.retries)

    claim_call = _writing_method_of(tool_calls.claim_call)
    finish_call = _writing_method_of(tool_calls.finish_call)
    report_progress = _writing_method_of(tool_calls.report_progress)
    holds_call = _reads(tool_calls.holds_call)
    result_of_call = _reads(tool_calls.result_of_call)
    keep_artifacts = _writing_method_of(tool_calls.keep_artifacts)

    begin_erasure = _writing_method_of(erase.begin_erasure)
    erase_slice = _writing_method_of(erase.erase_slice)

    claim_session = _writing_method_of(tenants.claim_session)
    release_session = _writing_method_of(tenants.release_session)
    claim_request = _writing_method_of(tenants.claim_request)
    answer_request = _writing_method_of(tenants.answer_request)
    tenant_of = _reads(tenants.tenant_of)
    count_running = _reads(tenants.count_running)

    session = _reads(queries.session)
    last_seqs = _reads(queries.read_last_seqs, name="last_seqs")
    glances = _reads(queries.read_glances)
    open_runs = _reads(queries.open_runs)
    people_waited_for = _reads(queries.people_waited_for)
    open_requests = _reads(queries.open_requests)
    turn = _reads(queries.turn)
    turn_by_request = _reads(queries.turn_by_request)
    turns = _reads(queries.turns)
    events = _reads(queries.events)
    delegate_events = _reads(queries.delegate_events)
    events_by_key = _reads(queries.events_by_key)
    transcript = _reads(queries.transcript)
    artifact = _reads(queries.artifact)
    checkpoints = _reads(checkpoints.checkpoints)

    async def sessions(
        self, *, limit: int = 50, only: Collection[str] | None = None, **wanted: Unpack[SessionFilter]
    ) -> tuple[tuple[SessionRecord, TurnRecord], ...]:
        """Sessions with their last turns, those that began last first; ``only`` these, if some are named."""
        return await self.read("sessions", lambda connection: queries.sessions(connection, wanted, limit, only))

    steps = _reads(queries.steps)

    add_webhook = _writing_method_of(webhooks.add_webhook)
    pause_webhook = _writing_method_of(webhooks.pause_webhook)
    exchange_secret = _writing_method_of(webhooks.exchange_secret)
    remove_webhook = _writing_method_of(webhooks.remove_webhook)
    webhook_target = _reads(webhooks.webhook_target)
    webhooks = _reads(webhooks.webhooks)
