"""The doorbell wakes followers of a session when something was written for it, so that they need not poll.

A ring only says that there may be news: a lost one costs a moment, an extra one a read. Writers ring after their
commit, on a thread of its own, so that no transaction waits for a follower. A process listens once for each store,
however many follow, and only while somebody does.

Long, because a ring promises the same for memory, for a file and for PostgreSQL.
"""

import asyncio
import contextlib
import logging
import math
import sqlite3
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Collection, Generator, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from sqlalchemy import Connection, Engine, NullPool, create_engine
from sqlalchemy.exc import DBAPIError

from perdure.store.attendant import Attendant
from perdure.store.database import Address, connect
from perdure.store.errors import StoreError

if TYPE_CHECKING:
    from psycopg import Notify

    from perdure.store.postgresql import AnsweringConnection

CHANNEL = "perdure_events"
"""PostgreSQL's notification channel for events; a payload is ``SESSION:LAST_SEQ``."""

DELTAS_CHANNEL = "perdure_live"
"""The channel for deltas (:mod:`perdure.store.live`), which the same connection listens to."""

LOOK_EVERY = timedelta(seconds=1)
"""Interval of the query for the last events of all followed sessions: the most that a lost ring costs."""

GLANCE_EVERY = timedelta(milliseconds=20)
"""Interval at which a SQLite file is checked for writes, while somebody follows."""

RING_EVERY = timedelta(milliseconds=10)
"""Least interval between two rings of a process; sessions written meanwhile ring together."""

PING_EVERY = timedelta(seconds=10)
"""Interval at which the connection that listens is checked."""

TRY_EVERY = timedelta(seconds=2)
"""Wait before a lost connection is opened again."""

LINGER = timedelta(seconds=10)
"""Time that a connection goes on listening after the last follower has left."""

CLOSE_TIMEOUT = timedelta(seconds=6)
"""Longest wait of the close for a ring under way."""

CHECK_TIMEOUT = timedelta(seconds=5)
"""Timeout of the ring that ``perdure doctor`` sends as a check."""

LONGEST_PAYLOAD = 7_999
"""Bytes; PostgreSQL refuses more."""

ReadLast = Callable[[Collection[str]], Awaitable[Mapping[str, int]]]
"""Reads the numbers of the last events of sessions."""

logger = logging.getLogger("perdure.store")


class Bell:
    """The bell of one session, in one event loop: it rings when something may have been written.

    Attributes:
        rung: Number of rings. A reader notes it before it reads, and then waits for a higher one.
        last_seq: Highest sequence number that this process knows of.
    """

    def __init__(self) -> None:
        self.rung = 0
        self.last_seq = 0
        self.followers = 0
        self._news = asyncio.Event()

    def ring(self) -> None:
        """Wake all who wait."""
        self.rung += 1
        news, self._news = self._news, asyncio.Event()
        news.set()

    def note(self, last_seq: int) -> None:
        """Ring if an event of that number is news."""
        if last_seq > self.last_seq:
            self.last_seq = last_seq
            self.ring()

    async def wait(self, rung: int, longest: timedelta) -> bool:
        """Wait until the bell has rung more than ``rung`` times, at most ``longest``; False if it has not."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(longest.total_seconds()):
                while self.rung <= rung:
                    await self._news.wait()
        return self.rung > rung


def _ignore(_payload: str) -> None:
    """Drop a notification: nobody follows deltas."""


class Doorbell:
    """The doorbell of a store in memory, whose writers and followers share one process; the base of the others.

    Attributes:
        take_delta: Takes each notification of a delta, in the event loop of the followers.
    """

    def __init__(self, read_last: ReadLast) -> None:
        self._read_last = read_last
        self._bells: dict[str, Bell] = {}
        self.take_delta: Callable[[str], None] = _ignore
        self._loop: asyncio.AbstractEventLoop | None = None

    @contextmanager
    def follow(self, session: str) -> Iterator[Bell]:
        """The session's bell, within this block. To be called in the event loop of all followers."""
        self._loop = asyncio.get_running_loop()
        bell = self._bells.setdefault(session, Bell())
        bell.followers += 1
        self._begin()
        try:
            yield bell
        finally:
            bell.followers -= 1
            if not bell.followers:
                self._bells.pop(session, None)

    def ring(self, last: Mapping[str, int]) -> None:
        """Ring for a committed transaction. Never waits and never fails; to be called on any thread.

        Args:
            last: Sequence number of the last event written, by session.
        """
        if self._bells and self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._hear, dict(last))

    async def answers(self) -> bool:
        """Whether a ring of this process arrives."""
        return True

    async def close(self) -> None:
        """Stop listening and ringing."""

    def _begin(self) -> None:
        """Begin to listen, if nothing listens yet."""

    def _hear(self, last: Mapping[str, int]) -> None:
        for session, seq in last.items():
            if (bell := self._bells.get(session)) is not None:
                bell.note(seq)


class _Listening(Doorbell):
    """A doorbell whose writers may be in other processes: a task listens while somebody follows."""

    linger = timedelta(0)

    def __init__(self, read_last: ReadLast) -> None:
        super().__init__(read_last)
        self._attendant = Attendant("perdure-doorbell", self._attend)

    def _begin(self) -> None:
        self._attendant.begin()

    async def close(self) -> None:
        """Stop listening."""
        if await self._attendant.end():
            self._hang_up()  # a loop that has stopped does not

    async def _attend(self) -> None:
        left = time.monotonic()
        try:
            while self._bells or time.monotonic() - left < self.linger.total_seconds():
                await self._listen()
                await self._look()
                if self._bells:
                    left = time.monotonic()
        finally:
            self._hang_up()

    async def _listen(self) -> None:
        """Listen for at most a second, or until a query for news is due."""
        raise NotImplementedError

    def _hang_up(self) -> None:
        """Close the connection that listens."""
        raise NotImplementedError

    async def _look(self) -> None:
        """Read the last events of all followed sessions with one query, and ring for news."""
        if not self._bells:
            return
        try:
            self._hear(await self._read_last(list(self._bells)))
        except StoreError:  # followers meet it with their own reads
            for bell in self._bells.values():
                bell.ring()


class FileDoorbell(_Listening):
    """The doorbell of a SQLite file: ``PRAGMA data_version`` tells that another connection has written to it."""

    def __init__(self, read_last: ReadLast, address: Address) -> None:
        super().__init__(read_last)
        arguments = {"isolation_level": None, "check_same_thread": False, "timeout": 0}
        self._engine = create_engine(address.url, connect_args=arguments, poolclass=NullPool, hide_parameters=True)
        self._connection: Connection | None = None
        self._version: object = None

    def ring(self, last: Mapping[str, int]) -> None:
        """Do nothing: the commit itself changes the file's version."""

    async def _listen(self) -> None:
        if self._connection is None:
            with contextlib.suppress(DBAPIError, OSError):
                self._connection = await asyncio.to_thread(self._engine.connect)
        for _ in range(LOOK_EVERY // GLANCE_EVERY):
            if not self._bells or self._is_changed():
                return
            await asyncio.sleep(GLANCE_EVERY.total_seconds())

    def _is_changed(self) -> bool:
        if self._connection is None:
            return False
        try:
            version = self._connection.exec_driver_sql("PRAGMA data_version").scalar()
        except (DBAPIError, sqlite3.Error):  # locked by who writes, for example
            return True
        before, self._version = self._version, version
        return version != before

    def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class PostgresqlDoorbell(_Listening):
    """The doorbell of PostgreSQL: NOTIFY on one connection beside the writers', LISTEN on another one.

    NOTIFY inside of the writing transaction would be simpler, but writers would wait for each other: until the commit
    PostgreSQL holds a lock over all databases.
    """

    linger = LINGER

    def __init__(self, read_last: ReadLast, address: Address, listen_url: str = "") -> None:
        super().__init__(read_last)
        self._ringer = _Ringer(address)
        self._engine = connect(Address(listen_url, "PERDURE_LISTEN_URL") if listen_url else address)
        self._connection: Connection | None = None
        self._reading: tuple[asyncio.AbstractEventLoop, int] | None = None
        self._is_deaf = False
        self._tried = self._pinged = -math.inf

    def ring(self, last: Mapping[str, int]) -> None:
        """Hand the ring over to the thread that sends notifications."""
        self._ringer.ring(last)

    async def answers(self) -> bool:
        """Whether a ring of this process arrives through the database."""
        probe = f":{uuid.uuid4().hex}"  # no session has such a name
        with self.follow(probe) as bell:
            for attempt in range(1, CHECK_TIMEOUT // LOOK_EVERY + 1):
                self.ring({probe: attempt})
                await bell.wait(0, LOOK_EVERY)
                if bell.rung:
                    return True
        return False

    async def close(self) -> None:
        """Send the notifications that are left, and stop listening."""
        await super().close()
        await asyncio.to_thread(self._ringer.close)
        self._engine.dispose()

    async def _listen(self) -> None:
        now = time.monotonic()
        if self._connection is None and now - self._tried >= TRY_EVERY.total_seconds():
            await self._call()
            if self._connection is not None:
                return  # query once for what was written before the connection listened
        elif self._connection is not None and now - self._pinged >= PING_EVERY.total_seconds():
            await self._ping(self._connection)
        await asyncio.sleep(LOOK_EVERY.total_seconds())

    async def _call(self) -> None:
        """Open the connection that listens. If that fails, followers depend on the queries alone."""
        self._tried, loop = time.monotonic(), asyncio.get_running_loop()
        try:
            await _finish(asyncio.to_thread(self._open, loop))
        except (DBAPIError, OSError) as error:
            if not self._is_deaf:
                logger.info("nothing listens for events; they are looked for every second: %s", type(error).__name__)
            self._is_deaf = True
            return
        if self._is_deaf:
            logger.info("a connection listens for events again")
        self._is_deaf = False
        self._pinged = time.monotonic()
        self._begin_reading()

    def _begin_reading(self) -> None:
        loop, number = asyncio.get_running_loop(), self._driver.fileno()
        loop.add_reader(number, self._read)
        self._reading = loop, number

    def _end_reading(self) -> None:
        """Stop reading the socket by its number, even if it is closed: the next socket may get the same number."""
        reading, self._reading = self._reading, None
        if reading is not None:
            loop, number = reading
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.remove_reader(number)

    def _open(self, loop: asyncio.AbstractEventLoop) -> None:
        def hand_over(heard: "Notify") -> None:
            loop.call_soon_threadsafe(self._take, heard.channel, heard.payload)

        connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        self._connection = connection
        try:
            connection.exec_driver_sql(f"LISTEN {DELTAS_CHANNEL}")
            connection.exec_driver_sql(f"LISTEN {CHANNEL}")
            self._driver.add_notify_handler(hand_over)  # for notifications that arrive during another statement
        except BaseException:
            self._connection = None
            _close(connection)
            raise

    @property
    def _driver(self) -> "AnsweringConnection":
        assert self._connection is not None, "it is open"  # noqa: S101 - narrows the type
        driver: AnsweringConnection = self._connection.connection.driver_connection  # type: ignore[assignment]  # ours
        return driver

    def _read(self) -> None:
        """Read the connection's notifications; called when its socket has something to read."""
        if self._connection is None:
            return
        driver = self._driver
        try:
            driver.pgconn.consume_input()
            while (heard := driver.pgconn.notifies()) is not None:
                self._take(heard.relname.decode(), heard.extra.decode())
        except Exception as error:  # noqa: BLE001 - whatever the driver raises, the connection is of no more use
            self._lose(error)

    def _take(self, channel: str, payload: str) -> None:
        if channel == DELTAS_CHANNEL:
            self.take_delta(payload)
            return
        session, _, seq = payload.rpartition(":")
        bell = self._bells.get(session)
        if bell is not None and seq.isascii() and seq.isdigit() and int(seq) > bell.last_seq:
            bell.ring()  # without its number: another schema of the database may have a session of that name

    async def _ping(self, connection: Connection) -> None:
        """Check that the server still answers: a firewall may have dropped an idle connection."""
        self._end_reading()  # one thread at a time uses a connection
        try:
            await _finish(asyncio.to_thread(connection.exec_driver_sql, "SELECT 1"))
        except (DBAPIError, OSError) as error:
            self._lose(error)
            return
        self._pinged = time.monotonic()
        self._begin_reading()

    def _lose(self, error: BaseException) -> None:
        logger.info("the connection that listens for events is lost: %s", type(error).__name__)
        self._hang_up()
        self._tried = time.monotonic()

    def _hang_up(self) -> None:
        self._end_reading()
        connection, self._connection = self._connection, None
        if connection is not None:
            _close(connection)


async def _finish(work: Awaitable[object]) -> None:
    """Wait for work on a thread to its end, even if this wait is cancelled."""
    doing = asyncio.ensure_future(work)
    try:
        await asyncio.shield(doing)
    except asyncio.CancelledError:
        await asyncio.wait([doing])
        doing.exception()
        raise


def _close(connection: Connection) -> None:
    """Close a connection for good: one that has listened must not go back to a pool."""
    connection.invalidate()
    connection.close()


class _Ringer:
    """A thread that sends this process's notifications; those that came since the last time go together."""

    # synchronous_commit is set for this transaction only, as a pool may give the connection to another client next.
    _NOTIFY = (
        "SELECT set_config('synchronous_commit', 'off', true), pg_notify(%s, payload)"
        " FROM unnest(%s::text[]) AS payload"
    )

    def __init__(self, address: Address) -> None:
        self._address = address
        self._engine: Engine | None = None
        self._last: dict[str, int] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None

    def ring(self, last: Mapping[str, int]) -> None:
        """Queue notifications, to be sent soon."""
        with self._changed:
            if self._closed:
                return
            self._last.update(last)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="perdure-doorbell", daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        """Send what is left, and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(CLOSE_TIMEOUT.total_seconds())

    def _run(self) -> None:
        self._engine = connect(self._address)
        connection: Connection | None = None
        try:
            for last in self._batches():
                payloads = [f"{session}:{seq}" for session, seq in last.items()]
                fitting = [payload for payload in payloads if len(payload.encode()) <= LONGEST_PAYLOAD]
                try:
                    if connection is None:
                        connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
                    connection.exec_driver_sql(self._NOTIFY, (CHANNEL, fitting))
                except (DBAPIError, OSError) as error:  # followers' own queries find the news a moment later
                    logger.info("writers cannot tell of events at once: %s", type(error).__name__)
                    if connection is not None:
                        _close(connection)
                        connection = None
                    self._pause(TRY_EVERY)
        finally:
            if connection is not None:
                _close(connection)
            self._engine.dispose()

    def _batches(self) -> Generator[Mapping[str, int], None, None]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._last or self._closed)
                last, self._last = self._last, {}
            if not last:
                return
            yield last
            self._pause(RING_EVERY)

    def _pause(self, pause: timedelta) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed, pause.total_seconds())


def make_doorbell(address: Address, read_last: ReadLast, listen_url: str = "") -> Doorbell:
    """The doorbell of the database at an address.

    Args:
        address: The database.
        read_last: Reads the sequence numbers of sessions' last events.
        listen_url: An address of the same PostgreSQL database on which LISTEN works, if ``address`` leads through a
            pool in transaction mode.
    """
    if address.in_memory:
        return Doorbell(read_last)
    return FileDoorbell(read_last, address) if address.sqlite else PostgresqlDoorbell(read_last, address, listen_url)
