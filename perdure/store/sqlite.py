"""The file of an SQLite store: who may read it, whether it still is the one that was opened, and its log."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from perdure.local_files import make_folder, open_private
from perdure.store.errors import StoreUnavailableError

_PARTS = ("", "-wal", "-shm")
"""Endings of the names of the files that make up a store while it is open."""

_BLINK_MS = 50
_WIPED = "perdure_wiped"
_TRUNCATE = "PRAGMA wal_checkpoint(TRUNCATE)"


def create_file(path: Path) -> None:
    """Make an empty store and its folder, for their owner alone; SQLite gives the files beside it the same mode."""
    make_folder(path.absolute().parent)
    os.close(open_private(str(path), os.O_RDWR | os.O_CREAT))


class SqliteFile:
    """The file of a store, and the two beside it while it is open."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._parts = [Path(f"{path.absolute()}{ending}") for ending in _PARTS]
        self._opened: dict[Path, tuple[int, int]] = {}
        self._has_wiped = True  # by a process that was killed, maybe

    def require_same(self) -> None:
        """Refuse to write when another file, or none, stands where this one was opened.

        A connection goes on with a file that was deleted, and nobody else would ever see what it writes. The files
        beside it are there as long as any connection is open.

        Raises:
            StoreUnavailableError: The file, its log or their index was deleted or replaced.
        """
        for part in self._parts:
            now = _identity_of(part)
            before = self._opened.get(part) if now is None else self._opened.setdefault(part, now)
            if now != before:
                msg = (
                    f"the file {part} was deleted or replaced while this process had it open, so nothing more is "
                    f"written; put back what was there, or stop all that use {self.path} and start them again"
                )
                raise StoreUnavailableError(msg)

    def note_wiped(self, connection: Connection) -> None:
        """Take note of a transaction that has wiped what nobody may read any more."""
        self._has_wiped = connection.info.pop(_WIPED, False) or self._has_wiped

    def shorten_log(self, engine: Engine) -> None:
        """Empty the file's log, if what was wiped from the file may stand there; a reader at work delays it."""
        if not self._has_wiped:
            return
        try:
            with engine.connect() as connection, _hurried(connection):
                busy, _, _ = connection.exec_driver_sql(_TRUNCATE).one()
        except DBAPIError:  # a full disk, for example: what was to be written is, and the next write tries again
            return
        self._has_wiped = bool(busy)


def mark_wiped(connection: Connection) -> None:
    """Say that this transaction wipes what nobody may read any more."""
    connection.info[_WIPED] = True


def _identity_of(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


@contextmanager
def _hurried(connection: Connection) -> Generator[None]:
    """Wait for readers for a blink only: writers of this process queue behind this."""
    patience = connection.exec_driver_sql("PRAGMA busy_timeout").scalar_one()
    connection.exec_driver_sql(f"PRAGMA busy_timeout={_BLINK_MS}")
    try:
        yield
    finally:
        connection.exec_driver_sql(f"PRAGMA busy_timeout={patience}")
