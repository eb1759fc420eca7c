"""Starts an MCP server's command, and ends all its processes when the server ends or the worker is gone.

Run as a program, ``reaper.py WORKER KEEP COMMAND …``, by an interpreter without site-packages. A server may ignore that
its input was closed, and npx, uvx or a shell start it as a process below their own. So the reaper leads a process group
and kills all of it. On Linux it is also a subreaper: it adopts processes that left the group when their parents end,
and kills them too. Only the standard library is imported.
"""

import contextlib
import os
import signal
import sys
import threading
import time

POLL_SECONDS = 0.25
"""Longest time that a server outlives a killed worker."""

GRACE_SECONDS = 1
"""Time from a signal to end until the server is killed. With a second more the SDK would kill the reaper first."""

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
    """Kill the child processes that the system lists, and return how many were killed."""
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
    # Caught instead of ignored, since the command would inherit that. It gets the group's signals itself.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _ignore_signal)
    signal.signal(signal.SIGTERM, _begin_to_end)
    signal.signal(signal.SIGALRM, _time_is_up)
    _adopt_orphans()
    if not keep_locale:  # Python sets LC_CTYPE in the C locale, but the server gets only variables its author named
        os.environ.pop("LC_CTYPE", None)
    try:
        server = os.posix_spawnp(command[0], command, os.environ, setsigdef=[signal.SIGPIPE, signal.SIGXFSZ])
    except OSError as error:
        sys.stderr.write(f"{command[0]} cannot be started: {error.strerror}\n")
        sys.exit(127)
    for inherited in (0, 1):  # or the server's streams would stay open after its end
        os.close(inherited)
    threading.Thread(target=_watch, args=(worker,), daemon=True).start()
    while os.waitpid(-1, 0)[0] != server:
        """Reap an orphan that has ended."""
    while _kill_children():  # children of a killed process become children of this one
        os.waitpid(-1, 0)
    _end_the_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] == "1", sys.argv[3:])
