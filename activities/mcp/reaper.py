"""Starts an MCP server's command, and ends all its processes when the server ends or the worker is gone.

Run as a program, ``reaper.py WORKER KEEP COMMAND …``, by an interpreter without site-packages. A server may ignore that
its input was closed, and one started through npx, uvx or a shell is another process than the one that was started: so
the guard leads a process group of its own and kills the whole of it. On Linux it also adopts what left the group, when
the process that started it ends, and kills that too. Only the standard library is imported.
"""

import contextlib
import os
import signal
import sys
import threading
import time

POLL_SECONDS = 0.25
"""The server outlives a worker that was killed by no more than this."""

GRACE_SECONDS = 1
"""A server that is told to end is killed after this. Another second, and the SDK kills the guard before it can."""

PR_SET_CHILD_SUBREAPER = 36
"""An option of Linux: processes whose parent ends become children of this process. Source: prctl(2)."""


def _watch(worker: int) -> None:
    while os.getppid() == worker:
        time.sleep(POLL_SECONDS)
    if not _kill_children():
        _end_the_group()


def _ignore_signal(_number: int, _frame: object) -> None:
    """The command gets the signal too, and decides."""


def _begin_to_end(_number: int, _frame: object) -> None:
    """The command gets the signal too, and decides, but not for long."""
    signal.alarm(GRACE_SECONDS)


def _time_is_up(_number: int, _frame: object) -> None:
    _kill_children()


def _adopt_orphans() -> None:
    if sys.platform == "linux":
        with contextlib.suppress(ImportError, OSError):  # an interpreter built without it; the group is killed still
            import ctypes  # noqa: PLC0415 - not everywhere

            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _kill_children() -> int:
    """Kill the children of this process, as far as the system lists them; gives how many it could."""
    killed = 0
    for entry in os.listdir("/proc") if sys.platform == "linux" else ():  # noqa: PTH208 - quick to import
        with contextlib.suppress(OSError, ValueError):
            with open(f"/proc/{int(entry)}/stat", "rb") as file:  # noqa: PTH123 - the same
                parent = int(file.read().rpartition(b")")[2].split()[1])
            if parent == os.getpid():
                os.kill(int(entry), signal.SIGKILL)
                killed += 1
    return killed


def _end_the_group() -> None:
    os.killpg(os.getpgrp(), signal.SIGKILL)


def main(worker: int, keep_locale: bool, command: list[str]) -> None:
    """Run the command until it ends."""
    # Caught, not ignored: the command would inherit that. It gets the group's signals itself.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _ignore_signal)
    signal.signal(signal.SIGTERM, _begin_to_end)
    signal.signal(signal.SIGALRM, _time_is_up)
    _adopt_orphans()
    if not keep_locale:  # the interpreter sets it in the C locale; the server is given what its author named only
        os.environ.pop("LC_CTYPE", None)
    try:
        server = os.posix_spawnp(command[0], command, os.environ, setsigdef=[signal.SIGPIPE, signal.SIGXFSZ])
    except OSError as error:
        sys.stderr.write(f"{command[0]} cannot be started: {error.strerror}\n")
        sys.exit(127)
    for inherited in (0, 1):  # else the end of the server would not be the end of its streams
        os.close(inherited)
    threading.Thread(target=_watch, args=(worker,), daemon=True).start()
    while os.waitpid(-1, 0)[0] != server:
        """An orphan has ended."""
    while _kill_children():  # the children of one that dies are the next
        os.waitpid(-1, 0)
    _end_the_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] == "1", sys.argv[3:])
