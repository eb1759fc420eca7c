"""The store's public interface: each method is one transaction, run on a thread of the store's own.

An operation is a function over a connection, documented in the module of its subject. If the caller of a method is
cancelled, its transaction still ends; therefore every write is idempotent.

Long, because every operation has its line here.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack

from sqlalchemy import Connection

import perdure.store.agents as agent_rows
import perdure.store.blocks as block_rows
import perdure.store.checkpoints as checkpoint_rows
import perdure.store.commit_turn as turn_commit
import perdure.store.keys.tombstones as tombstone_rows
import perdure.store.open_turn as turn_opening
import perdure.store.standing_approvals as standing
import perdure.store.steps as step_rows
import perdure.store.webhooks as webhook_rows
from perdure.contracts.values import replace
from perdure.store import (
    admission,
    behind,
    delegates,
    figures,
    fill,
    garbage,
    ids,
    live,
    log,
    provider_refusals,
    queries,
    retention,
    session_lock,
    slots,
    tenants,
    tool_calls,
    tries,
    turn_lists,
)
from perdure.store.artifact_files import open_files
from perdure.store.database import (
    POSTGRESQL_CONNECTIONS,
    SQLITE_READERS,
    Address,
    Database,
    translate_errors,
)
from perdure.store.doorbell import make_doorbell
from perdure.store.errors import OtherStoreError, RefusalCause, StoreKeyError, StoreUnavailableError
from perdure.store.keys import erase, moves
from perdure.store.keys.key_store import KeyStore, wipe_key
from perdure.store.keys.sealing import Content, current_sealer
from perdure.store.keys.vault import (
    GIVE_KEYS,
    Keyring,
    OpenVault,
    Vault,
    check_keys,
    count_keys,
    key_id_of,
    open_vault,
    rewrap_slice,
)
from perdure.store.migrate import prepare
from perdure.store.outages import UndoneError, write_and_undo
from perdure.store.records import Artifact, SessionFilter, SessionRecord, TurnRecord, Written
from perdure.store.shelf import Shelf, unpack
from perdure.store.shelf import key_id_of as key_id_of_file
from perdure.store.tool_calls import FinishedCall

P = ParamSpec("P")
T = TypeVar("T")

Observe = Callable[[str, float], None]
"""Takes the name of an operation and the seconds it took."""

Refused = Callable[[RefusalCause], None]
"""Takes the cause of each operation that the database did not do."""

Listen = Callable[[Sequence[Written]], None]
"""Takes committed events, each once. It is called on a thread of the store, and must not raise."""


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
    """The function as a method of the store that only reads; ``name`` is the operation's, if not the function's."""

    @wraps(function)
    async def method(store: "Store", /, *args: P.args, **kwargs: P.kwargs) -> T:
        operation = name or function.__name__
        return await store.read(operation, lambda connection: function(connection, *args, **kwargs))

    return method


class Store:
    """A transcript store. Every method may raise :class:`StoreUnavailableError`; waiting may then help."""

    def __init__(
        self,
        url: str,
        observe: Observe | None = None,
        listen_url: str = "",
        keyring: Keyring | None = None,
        artifacts: str = "",
        key_store: str = "",
    ) -> None:
        """Prepare for the address without opening it. Callers use :meth:`open`.

        Raises:
            StoreConfigError: The address is not valid, or its driver is missing.
        """
        self._id = ""
        self.key_store = KeyStore(key_store) if key_store else None
        self._vault = Vault(keyring, self.key_store)
        self.shelf = Shelf(open_files(artifacts), self._vault)
        self._observe = observe
        self._listen: Listen | None = None
        self._refused: Refused | None = None
        self._address = Address(url)
        self._database = Database(self._address)
        if self._address.sqlite:
            # One thread writes, so writers of this process queue in order instead of polling for the file's lock.
            self._writers = ThreadPoolExecutor(max_workers=1, thread_name_prefix="perdure-store-write")
            self._readers = self._writers
            if not self._address.in_memory:
                self._readers = ThreadPoolExecutor(SQLITE_READERS, thread_name_prefix="perdure-store-read")
        else:
            self._writers = ThreadPoolExecutor(POSTGRESQL_CONNECTIONS, thread_name_prefix="perdure-store")
            self._readers = self._writers
        self.doorbell = make_doorbell(self._address, self.last_seqs, listen_url)
        self.live = live.open_live(self._address, self.doorbell, self)

    @classmethod
    async def open(  # noqa: PLR0913 - a part each, and most stores need none
        cls,
        url: str,
        *,
        upgrade: bool = False,
        observe: Observe | None = None,
        listen_url: str = "",
        keyring: Keyring | None = None,
        artifacts: str = "",
        key_store: str = "",
    ) -> Self:
        """Open the store at ``sqlite:///FILE`` or ``postgresql://…``; ``upgrade`` creates and migrates its tables.

        ``observe`` is told the name and the seconds of each operation, its wait for a thread included. ``listen_url``
        is an address of the same PostgreSQL database on which LISTEN works, if ``url`` leads through a pool. With a
        ``keyring``, what sessions hold is encrypted on its way in; without one, what is written stays plain. Large
        ``artifacts`` go to ``s3://BUCKET/PREFIX`` or ``file:///FOLDER``; that place is tried if ``upgrade`` is set.
        ``key_store`` is the address of a second database, which keeps the keys of the sessions.

        Raises:
            StoreUnavailableError: It cannot be reached, or is a missing file that may not be created.
            StoreVersionError: Its schema is not this release's.
            StoreKeyError: It holds encrypted sessions, and the keyring lacks a key of theirs, or their keys stand
                elsewhere.
        """
        store = cls(url, observe, listen_url, keyring, artifacts, key_store)
        try:
            await store._run_on(store._writers, lambda: store._prepare(upgrade=upgrade))
            if upgrade:
                await store.fill(only_open=True)
                await store.shelf.check()
        except BaseException:
            await store.close()
            raise
        return store

    def listen(self, listener: Listen) -> None:
        """Have this listener, in place of another, take the events that this store writes, once they are committed."""
        self._listen = listener

    def tell_refusals(self, refused: Refused) -> None:
        """Have this listener, in place of another, take the cause of each operation that the database refuses."""
        self._refused = refused

    def _prepare(self, *, upgrade: bool) -> None:
        prepare(self._database.engine, self._address, upgrade=upgrade)
        self._id = self._read(queries.store_id)
        if (apart := self.key_store) is not None:
            apart.prepare(self._id, upgrade=upgrade)
            apart.read(lambda connection: check_keys(connection, self._vault))
            if upgrade:
                self._transaction(lambda connection: moves.choose_first_home(connection, apart))
        self._read(lambda connection: moves.check_home(connection, apart))
        self._read(lambda connection: check_keys(connection, self._vault))
        if self._database.file is not None:
            self._database.file.require_same()
        if upgrade:
            self._database.shorten_log()

    async def check_writes(self) -> None:
        """Write something and take it back, as a standby and a full disk answer every read.

        Raises:
            StoreUnavailableError: The database does not take it; the message says why, and what to do.
        """
        with suppress(UndoneError):
            await self.write("check_writes", write_and_undo)

    @property
    def id(self) -> str:
        """The store's id, as read when this process opened it. A copy of a database has the same id."""
        return self._id

    @property
    def public_url(self) -> str:
        """The store's address without secrets, with an absolute path if it is a file."""
        return self._address.public_url

    async def require(self, wanted: str) -> None:
        """Refuse to work for a turn of another store; a turn without a store's id may be of any.

        Raises:
            OtherStoreError: This store has another id.
        """
        if wanted in {"", self._id}:
            return
        self._id = await self.read("store_id", queries.store_id)  # the database may have been replaced meanwhile
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
        self._database.close()
        if self.key_store is not None:
            self.key_store.close()

    async def __aenter__(self) -> Self:
        """The store itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the store."""
        await self.close()

    async def _run_on(self, threads: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        def translating() -> T:
            with translate_errors(self._address):
                return work()

        if self._address.in_memory:  # no thread is needed without a disk, and there is only one connection
            return translating()
        return await asyncio.get_running_loop().run_in_executor(threads, translating)

    async def write(self, operation: str, work: Callable[[Connection], T]) -> T:
        """Do work in one transaction that writes."""
        with self._measure(operation):
            return await self._run_on(self._writers, lambda: self._transaction(work))

    @contextmanager
    def _measure(self, operation: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        except StoreUnavailableError as error:
            if self._refused is not None:
                self._refused(error.cause)
            raise
        finally:
            if self._observe is not None:
                self._observe(operation, time.monotonic() - began)

    async def read(self, operation: str, work: Callable[[Connection], T]) -> T:
        """Do work that only reads."""
        with self._measure(operation):
            return await self._run_on(self._readers, lambda: self._read(work))

    def _read(self, work: Callable[[Connection], T]) -> T:
        def reading(connection: Connection) -> T:
            with self._vault.using(connection) as opened:
                result = work(connection)
                opened.keep()
                return result

        return self._database.read(reading)

    def _transaction(self, work: Callable[[Connection], T]) -> T:
        def writing(connection: Connection) -> tuple[T, OpenVault, list[Written], dict[str, int]]:
            written: list[Written] = []
            last: dict[str, int] = {}
            # Reset, because a pooled connection may have the entries of an aborted transaction.
            connection.info.update({session_lock.WRITTEN: written, session_lock.LAST_SEQS: last})
            with self._vault.using(connection) as opened:
                return work(connection), opened, written, last

        result, opened, written, last = self._database.write(writing)
        opened.keep()
        if written and self._listen is not None:
            self._listen(written)
        if last:
            self.doorbell.ring(last)
        self._database.shorten_log()
        return result

    @property
    def encrypts(self) -> bool:
        """Whether what is written is encrypted."""
        return self._vault.keyring is not None and self._vault.keyring.encrypts

    async def seal_text(self, content: Content, place: str) -> str:
        """Seal a text with its session's key, made if there is none; without a keyring the text is unchanged."""
        if not self.encrypts:
            return content.text
        key = self._vault.find(content.session)
        if key is not None:
            return key.seal_text(content.text, place)
        return await self.write("seal_text", lambda _: current_sealer().seal(content, place))

    async def open_text(self, sealed: str, place: str) -> str:
        """Open a text that was sealed for that place.

        Raises:
            StoreKeyError: Its key is gone, or this process cannot unwrap it.
        """
        known = self.open_known(sealed, place)
        if known is not None:
            return known
        return await self.read("open_text", lambda _: current_sealer().open(sealed, place))

    def open_known(self, sealed: str, place: str) -> str | None:
        """Open a text without asking the database; None if this process does not have the key."""
        key = self._vault.find_by_id(key_id_of(sealed))
        return None if key is None else key.open_text(sealed, place)

    async def rewrap(self) -> int:
        """Wrap the data keys of all sessions with the newest key of the keyring; returns how many were not yet.

        Works in slices while turns run; what the data keys have sealed is not touched. If interrupted, call it again.

        Raises:
            StoreKeyError: There is no keyring, or it lacks a key that some are wrapped with.
        """
        if not self.encrypts:
            raise StoreKeyError(f"there is nothing to wrap keys with; {GIVE_KEYS}")
        total = 0
        while done := await self.write("rewrap", lambda connection: rewrap_slice(connection, self._vault)):
            total += done
        if (apart := self.key_store) is not None:

            def rewrap_apart(_: Connection) -> int:
                return apart.write(lambda connection: rewrap_slice(connection, self._vault))

            while done := await self.read("rewrap", rewrap_apart):
                total += done
        return total

    count_own_keys = _reads(count_keys, name="count_own_keys")

    async def count_keys(self) -> dict[str, int]:
        """Number of data keys, in the store and the key store, that each key of the keyring wraps."""
        counts = Counter(await self.count_own_keys())
        if (apart := self.key_store) is not None:
            counts.update(await self.read("count_keys", lambda _: apart.read(count_keys)))
        return dict(sorted(counts.items()))

    async def move_keys(self, *, out: bool) -> int:
        """Move the keys of sessions to the key store, or back; see :func:`perdure.store.keys.moves.move_keys`."""
        return await moves.move_keys(self, out=out)

    note_refusal = _writing_method_of(provider_refusals.note_refusal)
    read_refusals = _reads(provider_refusals.read_refusals)
    register_agents = _writing_method_of(agent_rows.register_agents)
    definition = _reads(agent_rows.definition)
    agents = _reads(agent_rows.agents)
    session_before = _reads(turn_opening.session_before)
    open_turn = _writing_method_of(turn_opening.open_turn)
    close_lost_turn = _writing_method_of(turn_commit.close_lost_turn)
    commit_turn = _writing_method_of(turn_commit.commit_turn)

    ask_for_slot = _writing_method_of(slots.ask_for_slot)
    find_in_the_way = _reads(slots.find_in_the_way)
    free_slot = _writing_method_of(slots.free_slot)
    leave_queue = _writing_method_of(slots.leave_queue)
    queued_turns = _reads(slots.queued_turns)

    begin_generation = _writing_method_of(step_rows.begin_generation)
    finish_generation = _writing_method_of(step_rows.finish_generation)
    finish_compaction = _writing_method_of(step_rows.finish_compaction)
    step = _reads(step_rows.find_step, name="step")
    conversation = _reads(step_rows.conversation)

    watch = _writing_method_of(live.watch)
    append_events = _writing_method_of(session_lock.append_events)
    retries = _reads(log.retries)
    adaptations = _reads(queries.adaptations)

    claim_call = _writing_method_of(tool_calls.claim_call)

    async def finish_call(self, *, artifacts: Sequence[Artifact] = (), **call: Unpack[FinishedCall]) -> bool:
        """Record the result of a call; see :func:`perdure.store.tool_calls.finish_call`."""
        kept = await self._shelve(artifacts)
        return await self.write("finish_call", lambda c: tool_calls.finish_call(c, artifacts=kept, **call))

    async def keep_artifacts(self, artifacts: Sequence[Artifact]) -> None:
        """Store files that people send with their messages; see :func:`perdure.store.tool_calls.keep_artifacts`."""
        kept = await self._shelve(artifacts)
        await self.write("keep_artifacts", lambda c: tool_calls.keep_artifacts(c, kept))

    async def artifact(self, artifact: str, *, session: str | None = None) -> Artifact:
        """A large output, an image or a file; see :func:`perdure.store.queries.artifact`."""
        found = await self.read("artifact", lambda c: queries.artifact(c, artifact, session=session))
        if not found.location:
            return found
        data = await self.shelf.fetch(found.location)
        key_id = key_id_of_file(data)
        key = await self.read("session_key", lambda _: open_vault().key_by_id(key_id)) if key_id else None
        return replace(found, text=unpack(data, key))

    async def _shelve(self, artifacts: Sequence[Artifact]) -> tuple[Artifact, ...]:
        """The artifacts, the large ones written to files."""
        for session in {artifact.session for artifact in artifacts if self.shelf.wants(artifact)}:
            await self.seal_text(Content(session, ""), "")  # loads or makes the session's key
        return tuple([await self.shelf.write(artifact) for artifact in artifacts])

    report_progress = _writing_method_of(tool_calls.report_progress)
    park_call = _writing_method_of(tool_calls.park_call)
    holds_call = _reads(tool_calls.holds_call)
    result_of_call = _reads(tool_calls.result_of_call)

    async def begin_erasure(
        self, session: str, *, closed: int | None = None, by: str = "", reason: tombstone_rows.Why = "request"
    ) -> erase.Erasure:
        """Delete a session's key and leave a tombstone; see :func:`perdure.store.keys.erase.begin_erasure`."""

        def begin(connection: Connection) -> erase.Erasure:
            return erase.begin_erasure(
                connection, session, closed=closed, by=by, reason=reason, move_file=self.shelf.move
            )

        erasure = await self.write("begin_erasure", begin)
        self._vault.forget(session)
        await self._erase_key(session)
        await self.shelf.delete(erasure.moved)
        return erasure

    async def erase_session(
        self, session: str, *, closed: int | None = None, by: str = "", reason: tombstone_rows.Why = "request"
    ) -> tombstone_rows.Tombstone:
        """Erase a session, or go on with an interrupted erasure. Raises as :meth:`begin_erasure`."""
        erasure = await self.begin_erasure(session, closed=closed, by=by, reason=reason)
        # Files are deleted before their rows, so that an interrupted erasure finds the rest by the rows.
        await self.shelf.delete(await self.read("locations", lambda c: garbage.locations_of(c, session)))
        while await self.erase_slice(erasure):
            pass
        await self.live.erase(session, erasure.turn)
        found = await self.tombstone(session)
        assert found is not None, "it was just written"  # noqa: S101 - narrows the type
        return found

    async def _erase_key(self, holder: str) -> None:
        if (apart := self.key_store) is not None:
            await self.read("erase_key", lambda _: apart.write(lambda keys: wipe_key(keys, holder)))

    erase_slice = _writing_method_of(erase.erase_slice)
    tombstone = _reads(tombstone_rows.find_tombstone, name="tombstone")
    tombstones = _reads(tombstone_rows.tombstones)

    async def collect_garbage(self, *, dry_run: bool = False) -> dict[str, int]:
        """Delete what nothing refers to any more; see :func:`perdure.store.garbage.collect`."""
        return await garbage.collect(self, dry_run=dry_run)

    async def fill(self, *, only_open: bool = False) -> int:
        """Record what an older release has written in events only; see :func:`perdure.store.fill.fill`."""
        return await fill.fill(self, only_open=only_open)

    sessions_below = _writing_method_of(delegates.sessions_below)
    running_delegates = _writing_method_of(delegates.running_delegates)
    retentions = _reads(retention.retentions)
    old_sessions = _reads(retention.old_sessions)
    forks_of = _reads(retention.forks_of)
    count_trimmed = _reads(retention.count_trimmed)
    trim_session = _writing_method_of(retention.trim_session)
    needs_trimming = _reads(retention.needs_trimming)
    keep_latest = _writing_method_of(retention.keep_latest)
    swept_seq = _reads(log.swept_seq)

    add_block = _writing_method_of(block_rows.add_block)
    lift_block = _writing_method_of(block_rows.lift_block)
    require_unblocked = _reads(block_rows.require_unblocked)
    find_block = _reads(block_rows.find_block)
    blocked_turns = _reads(block_rows.blocked_turns)
    blocked_agents = _reads(block_rows.blocked_agents)
    blocks = _reads(block_rows.blocks)
    count_blocks = _reads(block_rows.count_blocks)
    standing_approvals = _reads(standing.standing_approvals)
    revoke_standing = _writing_method_of(standing.revoke_standing)
    sign_id = _reads(ids.sign_id)
    sign_ids = _reads(ids.sign_ids)
    is_signed = _reads(ids.is_signed)
    rotate_id_secret = _writing_method_of(ids.rotate_id_secret)
    admit = _writing_method_of(admission.admit)
    note_outcome = _writing_method_of(admission.note_outcome)
    begin = _writing_method_of(admission.begin)
    join_try = _writing_method_of(tries.join)
    note_refused = _writing_method_of(tries.note_refused)
    note_alive = _writing_method_of(tries.note_alive)
    take_key = _writing_method_of(tenants.take_key)
    forget_begun = _writing_method_of(tenants.forget_begun)
    claim_session = _writing_method_of(tenants.claim_session)
    release_session = _writing_method_of(tenants.release_session)
    tenant_of = _reads(tenants.tenant_of)
    session = _reads(queries.session)
    last_seqs = _reads(queries.read_last_seqs, name="last_seqs")
    glances = _reads(queries.read_glances)
    open_runs = _reads(queries.open_runs)
    open_turns = _reads(figures.open_turns)
    table_bytes = _reads(figures.table_bytes)
    open_requests = _reads(queries.open_requests)
    turn = _reads(queries.turn)
    turn_by_request = _reads(queries.turn_by_request)
    turns = _reads(queries.turns)
    list_turns = _reads(turn_lists.list_turns)
    notice_of_behind = _reads(behind.notice_of_behind)
    events = _reads(log.events)
    input_events = _reads(log.input_events)
    traces = _reads(queries.traces)
    delegate_events = _reads(log.delegate_events)
    events_by_key = _reads(log.events_by_key)
    transcript = _reads(queries.transcript)
    checkpoints = _reads(checkpoint_rows.checkpoints)

    async def sessions(
        self, *, limit: int = 50, only: Collection[str] | None = None, **wanted: Unpack[SessionFilter]
    ) -> tuple[tuple[SessionRecord, TurnRecord], ...]:
        """Sessions with their last turns, the latest first; see :func:`perdure.store.queries.sessions`."""
        return await self.read("sessions", lambda connection: queries.sessions(connection, wanted, limit, only))

    steps = _reads(queries.steps)
    add_webhook = _writing_method_of(webhook_rows.add_webhook)
    count_webhooks = _reads(webhook_rows.count_webhooks)
    count_pushes = _reads(webhook_rows.count_pushes)
    pause_webhook = _writing_method_of(webhook_rows.pause_webhook)
    exchange_secret = _writing_method_of(webhook_rows.exchange_secret)

    async def remove_webhook(self, webhook: str) -> None:
        """Delete a webhook and its secrets; see :func:`perdure.store.webhooks.remove_webhook`."""
        await self.write("remove_webhook", lambda connection: webhook_rows.remove_webhook(connection, webhook))
        await self._erase_key(webhook_rows.key_holder_of(webhook))

    webhook_target = _reads(webhook_rows.webhook_target)
    webhooks = _reads(webhook_rows.webhooks)
