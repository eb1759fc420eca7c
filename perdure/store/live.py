"""Deltas, the pieces of an answer while a model writes it: published by workers, followed by readers, and not kept.

They are outside of the store's transactions: losing one costs a preview, never an answer. The port :class:`Live` has
three implementations: in the memory of a process, in a second SQLite file beside the store's, and in an unlogged table
of PostgreSQL with notifications that hold the deltas.

Long, because the three implementations differ in little and are best read together.
"""

import asyncio
import contextlib
import json
import logging
import math
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import groupby
from pathlib import Path
from typing import TypeVar

from sqlalchemy import Connection, Engine, bindparam, delete, select, text, tuple_
from sqlalchemy.exc import DBAPIError

from perdure.contracts.deltas import START, Delta, Place
from perdure.contracts.values import replace
from perdure.store import schema
from perdure.store.attendant import Attendant
from perdure.store.database import Address, connect, create_file, write_ahead
from perdure.store.doorbell import DELTAS_CHANNEL, Doorbell
from perdure.store.errors import StoreError
from perdure.store.keys.sealing import Content, TextSealer
from perdure.store.rows import upsert

LONGEST_PAYLOAD = 7_000
"""Largest notification in bytes; of a larger delta it holds the key alone. PostgreSQL's limit is 8,000."""

GLANCE_EVERY = timedelta(milliseconds=20)
"""Interval at which the file is checked for writes, while somebody follows."""

LOOK_EVERY = timedelta(seconds=1)
"""Interval at which the table is read, while somebody follows: the most that a lost notification costs."""

KEPT = timedelta(hours=1)
"""Age at which the deltas that a lost worker left behind are deleted."""

LAST_STEP = 2**31 - 1
"""A number above that of every step."""

SWEEP_EVERY = timedelta(minutes=10)

LEASE = timedelta(seconds=30)
"""Time that a session counts as followed after its followers last renewed their lease."""

RENEW_EVERY = timedelta(seconds=10)

FAILURES = (DBAPIError, sqlite3.Error, OSError, StoreError)
"""Failures of a database that lose previews at most."""

logger = logging.getLogger("perdure.store")

T = TypeVar("T")


class Feed:
    """The newest attempt of one session, as far as this process knows it; shared by its followers here.

    Attributes:
        place: The place of the last delta that was added.
        version: Rises with each change.
    """

    def __init__(self, session: str) -> None:
        self.session = session
        self.place: Place = START
        self.version = 0
        self.followers = 0
        self._deltas: list[Delta] = []
        self._news = asyncio.Event()

    def add(self, delta: Delta) -> bool:
        """Add the next delta; False if deltas before it are missing. Older ones than the last are ignored."""
        if delta.place <= self.place:
            return True
        is_next = delta.place[:3] == self.place[:3] and delta.n == self.place[3] + 1
        if not is_next and delta.n != 0:
            return False
        if not is_next:
            self._deltas.clear()
        self._deltas.append(delta)
        self.place = delta.place
        self.version += 1
        news, self._news = self._news, asyncio.Event()
        news.set()
        return True

    def take(self, after: Place) -> tuple[Delta, ...]:
        """The deltas after a place, merged to one for each run of deltas of one kind."""
        if after >= self.place:
            return ()
        first = after[3] + 1 if after[:3] == self.place[:3] else 0
        return merge(self._deltas[first:])

    async def wait(self, version: int) -> None:
        """Wait until the feed has changed since ``version``."""
        while self.version <= version:
            await self._news.wait()


def watch(connection: Connection, session: str) -> None:
    """Renew the lease of a session's followers, which each generation reads. The session need not exist yet."""
    now = datetime.now(UTC)
    upsert(connection, schema.watches, [{"session": session, "until": now + LEASE}])
    connection.execute(delete(schema.watches).where(schema.watches.c.until < now - LEASE))


def merge(deltas: Iterable[Delta]) -> tuple[Delta, ...]:
    """The deltas of one attempt, with neighbours of the same kind merged into one."""
    merged: list[Delta] = []
    for _, run in groupby(deltas, lambda delta: (delta.kind, delta.offset if delta.kind == "tool_call" else -1)):
        first, *others = run
        last = others[-1] if others else first
        whole = "".join((first.text, *(delta.text for delta in others)))
        tool = next((delta.tool for delta in (last, first) if delta.tool), "")
        merged.append(replace(first, n=last.n, text=whole, tool=tool, characters=last.characters))
    return tuple(merged)


class Live:
    """Deltas in memory, for models and readers in one process; the base of the other implementations."""

    def __init__(self) -> None:
        self._feeds: dict[str, Feed] = {}
        self._kept: dict[str, list[Delta]] = {}

    async def publish(self, deltas: Sequence[Delta]) -> None:
        """Publish deltas of one attempt, in order.

        Raises:
            Exception: They could not be published. The caller is to go on without them.
        """
        for delta in deltas:
            self._kept.setdefault(delta.session, []).append(delta)
            self._hear(delta)

    async def since(self, session: str, after: Place = START) -> tuple[Delta, ...]:
        """Kept deltas of the session's newest attempt after a place, in order."""
        return _newest(delta for delta in self._kept.get(session, ()) if delta.place > after)

    async def forget(self, session: str, turn: int, step: int) -> None:
        """Delete the deltas of the steps up to this one: their answers are stored."""
        kept = [delta for delta in self._kept.pop(session, ()) if delta.place[:2] > (turn, step)]
        if kept:
            self._kept[session] = kept

    async def erase(self, session: str, turn: int) -> None:
        """Delete the deltas of a session's turns up to this one. A failure is only logged: a later sweep gets them."""
        try:
            await self.forget(session, turn, LAST_STEP)
        except FAILURES as error:
            logger.info("pieces of answers are left to be swept away: %s", type(error).__name__)

    @asynccontextmanager
    async def follow(self, session: str) -> AsyncIterator[Feed]:
        """The session's feed within this block, filled with the deltas that are kept."""
        feed = self._feeds.setdefault(session, Feed(session))
        feed.followers += 1
        try:
            with contextlib.suppress(*FAILURES):  # whoever looks for news tries it again
                await self._fill(feed)
            self._begin()
            yield feed
        finally:
            feed.followers -= 1
            if not feed.followers:
                self._feeds.pop(session, None)

    async def close(self) -> None:
        """Stop publishing and following."""

    def _begin(self) -> None:
        """Begin to look for deltas of other processes."""

    async def _fill(self, feed: Feed) -> None:
        """Read the deltas that the feed lacks."""
        for delta in await self.since(feed.session, feed.place):
            if not feed.add(delta) and feed.place != START:  # swept away meanwhile
                break

    def _hear(self, delta: Delta) -> bool:
        """Add a delta to its session's feed, if anybody follows; False if the feed lacks deltas before it."""
        feed = self._feeds.get(delta.session)
        return feed is None or feed.add(delta)


def _newest(deltas: Iterable[Delta]) -> tuple[Delta, ...]:
    """The deltas of the newest attempt."""
    found = sorted(deltas, key=lambda delta: delta.place)
    return tuple(delta for delta in found if delta.place[:3] == found[-1].place[:3])


SEALED = "\x00~"
"""Prefix of a sealed delta's text. No answer begins with it."""

_PLACE = "live.text"


class _Attended(Live):
    """Deltas that processes share: one thread for the database, and a task that looks for news while somebody follows.

    A subclass implements the thread's work: statements that run one after another.
    """

    def __init__(self, sealer: TextSealer) -> None:
        super().__init__()
        self._sealer = sealer
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="perdure-live")
        self._is_used = False
        self._attendant = Attendant("perdure-live", self._attend)
        self._swept = -math.inf

    async def publish(self, deltas: Sequence[Delta]) -> None:
        """Publish deltas of one attempt, in order."""
        sealed = [await self._seal(delta) for delta in deltas]
        await self._run(lambda: self._insert(sealed))

    async def since(self, session: str, after: Place = START) -> tuple[Delta, ...]:
        """Kept deltas of the session's newest attempt after a place, in order."""
        found = await self._run(lambda: self._select(session, after))
        return _newest([await self._open(delta) for delta in found])

    async def forget(self, session: str, turn: int, step: int) -> None:
        """Delete the deltas of the steps up to this one; every ``SWEEP_EVERY`` also those older than ``KEPT``."""
        now = time.monotonic()
        sweeps = now - self._swept > SWEEP_EVERY.total_seconds()
        self._swept = now if sweeps else self._swept
        await self._run(lambda: self._delete(session, turn, step, datetime.now(UTC) - KEPT if sweeps else None))

    async def close(self) -> None:
        """Stop looking for news, and close the connections."""
        await self._attendant.end()
        if self._is_used:
            await self._run(self._disconnect)
            await asyncio.to_thread(self._thread.shutdown)
            self._is_used = False

    async def _seal(self, delta: Delta) -> Delta:
        text = await self._sealer.seal_text(Content(delta.session, delta.text), _PLACE)
        return delta if text is delta.text else replace(delta, text=f"\x00{text}")

    async def _open(self, delta: Delta) -> Delta:
        if not delta.text.startswith(SEALED):
            return delta
        return replace(delta, text=await self._sealer.open_text(delta.text[1:], _PLACE))

    async def _run(self, work: Callable[[], T]) -> T:
        self._is_used = True
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _begin(self) -> None:
        self._attendant.begin()

    async def _attend(self) -> None:
        while self._feeds:
            try:
                await self._wait_for_news()
                for feed in list(self._feeds.values()):
                    await self._fill(feed)
            except FAILURES as error:
                logger.info("pieces of answers cannot be read at the moment: %s", type(error).__name__)
                await asyncio.sleep(LOOK_EVERY.total_seconds())

    async def _wait_for_news(self) -> None:
        """Wait until a query for news is due, at most ``LOOK_EVERY``."""
        raise NotImplementedError

    def _insert(self, deltas: Sequence[Delta]) -> None:
        raise NotImplementedError

    def _select(self, session: str, after: Place) -> list[Delta]:
        raise NotImplementedError

    def _delete(self, session: str, turn: int, step: int, before: datetime | None) -> None:
        raise NotImplementedError

    def _disconnect(self) -> None:
        raise NotImplementedError


_TABLE = """CREATE TABLE IF NOT EXISTS live (
    session TEXT, turn INTEGER, step INTEGER, attempt INTEGER, n INTEGER, body TEXT, at REAL,
    PRIMARY KEY (session, turn, step, attempt, n)
) WITHOUT ROWID"""


class FileLive(_Attended):
    """Deltas in a second SQLite file, which waits neither for the store's writers nor for the disk."""

    def __init__(self, store: Path, sealer: TextSealer) -> None:
        super().__init__(sealer)
        self._path = Path(f"{store}.live.db")
        self._opened: sqlite3.Connection | None = None
        self._watcher: sqlite3.Connection | None = None
        self._version: object = None

    @property
    def _connection(self) -> sqlite3.Connection:
        if self._opened is None:
            self._opened = self._connect()
        return self._opened

    def _connect(self) -> sqlite3.Connection:
        create_file(self._path)
        opened = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, timeout=1.0)
        try:
            write_ahead(opened.execute)
            opened.execute("PRAGMA synchronous=OFF")
            opened.execute("PRAGMA secure_delete=ON")
            opened.execute(_TABLE)
        except BaseException:
            opened.close()
            raise
        return opened

    def _insert(self, deltas: Sequence[Delta]) -> None:
        now = time.time()
        rows = [(delta.session, *delta.place, delta.model_dump_json(), now) for delta in deltas]
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            self._connection.executemany("INSERT OR IGNORE INTO live VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    def _select(self, session: str, after: Place) -> list[Delta]:
        query = "SELECT body FROM live WHERE session = ? AND (turn, step, attempt, n) > (?, ?, ?, ?)"
        return [Delta.model_validate_json(body) for (body,) in self._connection.execute(query, (session, *after))]

    def _delete(self, session: str, turn: int, step: int, before: datetime | None) -> None:
        if self._opened is None and not self._path.exists():  # no delta was ever published
            return
        done = "DELETE FROM live WHERE session = ? AND (turn, step) <= (?, ?)"
        self._connection.execute(done, (session, turn, step))
        if before is not None:
            self._connection.execute("DELETE FROM live WHERE at < ?", (before.timestamp(),))
        if step == LAST_STEP:  # an erasure: the file's log may still hold the deleted deltas
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _disconnect(self) -> None:
        for connection in (self._opened, self._watcher):
            if connection is not None:
                connection.close()
        self._opened = self._watcher = None

    async def _wait_for_news(self) -> None:
        if self._watcher is None:
            await self._run(lambda: self._connection)
            self._watcher = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, timeout=0)
        for _ in range(LOOK_EVERY // GLANCE_EVERY):
            before, self._version = self._version, self._watcher.execute("PRAGMA data_version").fetchone()
            if self._version != before or not self._feeds:
                return
            await asyncio.sleep(GLANCE_EVERY.total_seconds())


_L = schema.live
_SINCE = (
    select(_L.c.body)
    .where(_L.c.session == bindparam("session"))
    .where(
        tuple_(_L.c.turn, _L.c.step, _L.c.attempt, _L.c.n)
        > tuple_(bindparam("turn"), bindparam("step"), bindparam("attempt"), bindparam("n"))
    )
)
_FORGET = delete(_L).where(
    _L.c.session == bindparam("this_session"),
    tuple_(_L.c.turn, _L.c.step) <= tuple_(bindparam("this_turn"), bindparam("this_step")),
)
_SWEEP = delete(_L).where(_L.c.at < bindparam("before"))
_PUBLISH = text(
    "WITH written AS (INSERT INTO live (session, turn, step, attempt, n, body, at)"
    " SELECT r ->> 'session', (r ->> 'turn')::int, (r ->> 'step')::int, (r ->> 'attempt')::int, (r ->> 'n')::int,"
    " body, now() FROM unnest(CAST(:keys AS json[]), CAST(:bodies AS text[])) AS given (r, body)"
    " ON CONFLICT DO NOTHING)"
    " SELECT set_config('synchronous_commit', 'off', true), pg_notify(:channel, payload)"
    " FROM unnest(CAST(:payloads AS text[])) AS payload"
)
"""One statement, so that it costs one round trip; it does not wait for the disk."""


class PostgresqlLive(_Attended):
    """Deltas in an unlogged table of PostgreSQL, and in notifications."""

    def __init__(self, address: Address, doorbell: Doorbell, sealer: TextSealer) -> None:
        super().__init__(sealer)
        self._address = address
        doorbell.take_delta = self.take
        self._engine: Engine | None = None
        self._opened: Connection | None = None
        self._incomplete = asyncio.Event()  # a feed lacks deltas that only the table has

    def take(self, payload: str) -> None:
        """Take a notification; called in the event loop of the followers."""
        try:
            delta = Delta.model_validate_json(payload)
        except ValueError:  # the format of another release
            return
        feed = self._feeds.get(delta.session)
        if feed is None:
            return
        if delta.text.startswith(SEALED):
            text = self._sealer.open_known(delta.text[1:], _PLACE)
            delta = replace(delta, n=-1) if text is None else replace(delta, text=text)
        if delta.n < 0 or not feed.add(delta):
            self._incomplete.set()

    async def _attend(self) -> None:
        before, self._incomplete = self._incomplete, asyncio.Event()  # an event belongs to the loop that waits for it
        if before.is_set():
            self._incomplete.set()
        await super()._attend()

    async def _wait_for_news(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_EVERY.total_seconds()):
                await self._incomplete.wait()
        self._incomplete.clear()

    def _execute(self, work: Callable[[Connection], T]) -> T:
        if self._engine is None:
            self._engine = connect(self._address)
        if self._opened is None:
            self._opened = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        try:
            return work(self._opened)
        except (DBAPIError, OSError):
            self._opened.invalidate()
            self._opened.close()
            self._opened = None
            raise

    def _insert(self, deltas: Sequence[Delta]) -> None:
        given = {
            "keys": [json.dumps(_key_of(delta)) for delta in deltas],
            "bodies": [delta.model_dump_json() for delta in deltas],
            "payloads": [_payload_of(delta) for delta in deltas],
            "channel": DELTAS_CHANNEL,
        }
        self._execute(lambda connection: connection.execute(_PUBLISH, given))

    def _select(self, session: str, after: Place) -> list[Delta]:
        turn, step, attempt, n = after
        given = {"session": session, "turn": turn, "step": step, "attempt": attempt, "n": n}
        bodies = self._execute(lambda connection: connection.execute(_SINCE, given).scalars().all())
        return [Delta.model_validate_json(body) for body in bodies]

    def _delete(self, session: str, turn: int, step: int, before: datetime | None) -> None:
        given = {"this_session": session, "this_turn": turn, "this_step": step}
        self._execute(lambda connection: connection.execute(_FORGET, given))
        if before is not None:
            self._execute(lambda connection: connection.execute(_SWEEP, {"before": before}))

    def _disconnect(self) -> None:
        if self._opened is not None:
            self._opened.close()
        if self._engine is not None:
            self._engine.dispose()


def _key_of(delta: Delta) -> dict[str, object]:
    names = ("session", "turn", "step", "attempt", "n")
    return {name: getattr(delta, name) for name in names}


def _payload_of(delta: Delta) -> str:
    """The notification of a delta; of a large one only its key, with ``n`` -1: the reader then looks into the table."""
    whole = delta.model_dump_json(exclude_defaults=True)
    if len(whole.encode()) <= LONGEST_PAYLOAD:
        return whole
    return json.dumps({**_key_of(delta), "n": -1})


def open_live(address: Address, doorbell: Doorbell, sealer: TextSealer) -> Live:
    """The :class:`Live` of the store at an address; nothing is opened yet.

    Args:
        address: The store's address.
        doorbell: The store's doorbell. Its connection receives the deltas too.
        sealer: Seals deltas that leave this process.
    """
    if address.in_memory:
        return Live()
    if address.sqlite:
        assert address.file is not None, "it is a file"  # noqa: S101 - narrows the type
        return FileLive(address.file.absolute(), sealer) if address.has_plain_file else Live()
    return PostgresqlLive(address, doorbell, sealer)
