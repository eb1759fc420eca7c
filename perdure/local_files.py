"""Files for their owner alone (stores, logs), and the address file of ``perdure dev``.

With the address file, verbs and clients in a folder need no environment variables. ``perdure dev`` holds a lock on it
while it runs, which the kernel releases with the process: a file without a lock was left by a killed process.
"""

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

FOLDER_MODE = 0o700
FILE_MODE = 0o600
UMASK = 0o077
"""For child processes all of whose files are for their owner alone."""


def make_folder(folder: Path) -> None:
    """Make the folder, and the missing ones above it, for their owner alone; an existing folder keeps its mode.

    Raises:
        OSError: The folder cannot be made, or is a file.
    """
    for above in reversed(folder.parents):
        if not above.exists():
            above.mkdir(mode=FOLDER_MODE, exist_ok=True)
    folder.mkdir(mode=FOLDER_MODE, exist_ok=True)


def open_private(path: str, flags: int) -> int:
    """Open a file, making it for its owner alone: the ``opener`` of the function ``open``."""
    return os.open(path, flags, FILE_MODE)


FOLDER = Path(".perdure")
"""The folder of the server, the store and the logs of ``perdure dev``, below the working directory."""

FILE = FOLDER / "dev.json"

LOCK_SECONDS = 1.0
"""Longest wait of a start for the lock. Readers take it for a moment, to see whether anybody holds it."""


class AlreadyRunningError(Exception):
    """Another ``perdure dev`` runs in this folder; the message names its process."""


class DevAddresses(BaseModel):
    """Processes that ``perdure dev`` of a folder started, and their addresses.

    Attributes:
        store_url: The store's address without secrets, with an absolute path if it is a file.
        metrics_address: HOST:PORT of the worker's metrics; empty if they are off.
        gateway_url: Address of the HTTP gateway; None if it is off.
    """

    model_config = ConfigDict(frozen=True)

    pid: int
    temporal_address: str
    namespace: str
    task_queue: str
    store_url: str
    ui_url: str | None
    metrics_address: str
    gateway_url: str | None = None


class DevFile:
    """An address file that was found."""

    def __init__(self, path: Path, addresses: DevAddresses, *, is_live: bool) -> None:
        self.path = path
        self.addresses = addresses
        self.is_live = is_live
        """Whether the ``perdure dev`` that wrote it still runs."""


def find() -> DevFile | None:
    """The address file of the working directory, or of the nearest folder above that has one of this user."""
    if sys.platform == "win32":
        return None
    here = Path.cwd()
    for folder in (here, *here.parents):
        path = folder / FILE
        with contextlib.suppress(OSError, ValidationError), path.open("rb") as opened:
            if os.fstat(opened.fileno()).st_uid != os.getuid():
                continue  # another user's file could lead to a server of theirs
            addresses = DevAddresses.model_validate_json(opened.read())
            return DevFile(path, addresses, is_live=not _take(opened.fileno(), alone=False))
    return None


@contextlib.contextmanager
def hold_address() -> Iterator["HeldFile"]:
    """Hold the address file of the working directory; it is removed at the end.

    Raises:
        AlreadyRunningError: Another process holds it.
    """
    make_folder(FOLDER.absolute())
    path = FILE.absolute()
    descriptor = _lock(path)
    try:
        os.truncate(descriptor, 0)  # what a killed process left
        yield HeldFile(descriptor)
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


class HeldFile:
    """The address file of this process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, addresses: DevAddresses) -> None:
        """Publish the addresses."""
        os.pwrite(self._descriptor, addresses.model_dump_json(indent=2).encode() + b"\n", 0)


def _lock(path: Path) -> int:
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        descriptor = open_private(str(path), os.O_RDWR | os.O_CREAT)
        # The last holder may have removed the file meanwhile; nobody would read it then.
        if _take(descriptor, alone=True) and _is_at(descriptor, path):
            return descriptor
        os.close(descriptor)
        if time.monotonic() > deadline:
            found = find()
            process = f" (process {found.addresses.pid})" if found is not None else ""
            msg = f"another 'perdure dev' runs in this folder{process}; stop it, or start this one in another folder"
            raise AlreadyRunningError(msg)
        time.sleep(0.05)


def _is_at(descriptor: int, path: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), path.stat())
    return False


def _take(descriptor: int, *, alone: bool) -> bool:
    """Take the lock, which is kept until the descriptor is closed; False if another process has it."""
    import fcntl  # noqa: PLC0415 - Windows has none, and clients run there too

    try:
        fcntl.flock(descriptor, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
