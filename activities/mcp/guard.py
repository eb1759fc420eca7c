"""Starts an MCP server's command, and ends all its processes when the server ends or the worker is gone.

Run as a program, ``guard.py WORKER KEEP COMMAND …``, by an interpreter without site-packages. A server may ignore that
its input was closed, and one started through npx, uvx or a shell is another process than the one that was started: so
the guard leads a process group of its own and kills the whole of it. Only the standard library is imported.
"""

import os
import signal
import sys
import threading
import time

POLL_SECONDS = 0.25
"""The server outlives a worker that was killed by no more than this."""


def _watch(worker: int) -> None:
    while os.getppid() == worker:
        time.sleep(POLL_SECONDS)
    _end_the_group()


def _caught(_number: int, _frame: object) -> None:
    """The command gets the signal too, and decides."""


def _end_the_group() -> None:
    os.killpg(os.getpgrp(), signal.SIGKILL)


def main(worker: int, keep_locale: bool, command: list[str]) -> None:
    """Run the command until it ends."""
    # Caught, not ignored: the command would inherit that. It gets the group's signals itself.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _caught)
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
    os.waitpid(server, 0)
    _end_the_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] == "1", sys.argv[3:])
