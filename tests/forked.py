"""Workers forked from a process that has loaded what each of them loads: most of a worker's start is its imports."""

import multiprocessing
import os
import runpy
import subprocess
import sys
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from perdure.cli.server import _end_with_parent

FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(["tests.nursery"])

ROOT = Path(__file__).parent.parent


class Forked:
    """A forked process, used as one that :mod:`subprocess` has started."""

    def __init__(self, process: ForkServerProcess) -> None:
        self._process = process
        sys.audit("tests.forked", process.name)  # its server starts it, which raises no event here
        process.start()
        self.pid = process.pid or 0

    def poll(self) -> int | None:
        """The exit code once it has ended, negative for a signal."""
        return self._process.exitcode

    @property
    def returncode(self) -> int | None:
        """The same."""
        return self.poll()

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end."""
        self._process.join(timeout)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired("a worker", timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """kill -9."""
        self._process.kill()


def forked_worker(main: str, agents: str, environment: dict[str, str], log: Path) -> Forked:
    """A worker of this main module with this environment, and no other."""
    return forked(main, ("--agents", agents), environment, log)


def forked(main: str, arguments: tuple[str, ...], environment: dict[str, str], log: Path) -> Forked:
    """``python -m MAIN ARGUMENTS …`` with this environment, and no other."""
    log.touch()
    return Forked(FORKED.Process(target=_run, args=(main, arguments, environment, str(log))))


def as_a_child(log: str) -> None:
    """End with the process of the tests, and write to this file."""
    if (ask := _end_with_parent()) is not None:
        ask()
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)


def _run(main: str, arguments: tuple[str, ...], environment: dict[str, str], log: str) -> None:
    as_a_child(log)
    os.chdir(ROOT)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [main, *arguments]
    runpy.run_module(main, run_name="__main__", alter_sys=True)
