"""A worker process of ``perdure dev``: started, waited for, stopped, and why it died."""

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from pathlib import Path

from pydantic import BaseModel, ValidationError

from perdure.cli.errors import CliError
from perdure.cli.server import open_log, spawn, stop_process

READY_TIMEOUT = timedelta(seconds=60)
"""How long the worker may take until it is ready; loading the model library alone takes about five seconds."""

STOP_MARGIN = timedelta(seconds=10)
"""What the worker gets beyond its own grace period before it is killed."""

POLL = timedelta(milliseconds=100)

STEADY = timedelta(seconds=60)
"""A worker that has lived for as long is replaced at once; those that die earlier in a row, ever later."""

FIRST_WAIT, LONGEST_WAIT = timedelta(seconds=1), timedelta(seconds=30)
"""The wait before the next start, doubled with each worker that was not steady."""

LAST_LINES = 5
"""Lines of a dead worker's log that are shown."""

TAIL_BYTES = 16 * 1024
"""The end of its log in which they are looked for."""

_GROUPS = (
    (re.compile(r"^\d+:(?:\w+,)*memory(?:,\w+)*:/(.*)$", re.MULTILINE), "memory", "memory.oom_control"),  # version 1
    (re.compile(r"^0::/(.*)$", re.MULTILINE), "", "memory.events"),
)
"""How a control group is named, below which folder it stands, and its file with the count."""

_COUNT = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


@dataclass(frozen=True)
class MemoryKills:
    """How many processes the kernel has killed for want of memory; None where it does not say.

    Attributes:
        group: In the control group of this process, so among few others.
        machine: On the whole machine.
    """

    group: int | None = None
    machine: int | None = None

    @classmethod
    def read(cls, proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> "MemoryKills":
        """The counts as they are now."""
        names = _text(proc / "self" / "cgroup")
        found = ((pattern.search(names), groups / folder, file) for pattern, folder, file in _GROUPS)
        # In a container the name may be that of the host, where the container sees its own group at the top.
        files = [path / file for name, top, file in found if name for path in (top / name[1], top)]
        group = next((count for count in map(_count, map(_text, files)) if count is not None), None)
        return cls(group, _count(_text(proc / "vmstat")))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


def _count(text: str) -> int | None:
    found = _COUNT.search(text)
    return int(found[1]) if found else None


def cause_of_death(code: int, before: MemoryKills, after: MemoryKills) -> str:
    """Why a process ended, by its return code and the kernel's counts before and after."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    if name != "SIGKILL":
        return f"was ended by {name}"
    if _rose(before.group, after.group):
        return "was killed by the kernel (SIGKILL): out of memory"
    if _rose(before.machine, after.machine):
        return "was killed (SIGKILL), probably for want of memory: the kernel has just killed a process for that"
    if after.machine is None:
        return "was killed (SIGKILL), by somebody or for want of memory"
    return "was killed (SIGKILL) by another process: the kernel killed none for want of memory"


def _rose(before: int | None, after: int | None) -> bool:
    return before is not None and after is not None and after > before


def wait_before_start(deaths: int) -> timedelta:
    """How long to wait after so many deaths in a row of workers that were not steady."""
    return min(FIRST_WAIT * 2 ** min(deaths - 1, 10), LONGEST_WAIT) if deaths else timedelta()


class WorkerProcess:
    """One process, and what it alone has written to the log."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self.log = log
        self._kills = MemoryKills.read()
        self._began = time.monotonic()
        with open_log(log) as output:
            self._start = os.fstat(output.fileno()).st_size
            self.process: subprocess.Popen[bytes] = spawn(list(command), output=output, env=environment)

    @property
    def has_ended(self) -> bool:
        """Whether it has."""
        return self.process.poll() is not None

    @property
    def was_steady(self) -> bool:
        """Whether it has lived for a while."""
        return time.monotonic() - self._began > STEADY.total_seconds()

    def death(self) -> str:
        """Why it ended."""
        return cause_of_death(self.process.returncode, self._kills, MemoryKills.read())

    def last_lines(self) -> tuple[str, ...]:
        """The end of what it wrote, each line as a person reads it."""
        with self.log.open("rb") as opened:
            size = opened.seek(0, os.SEEK_END)
            opened.seek(max(self._start, size - TAIL_BYTES))
            rows = opened.read().decode(errors="replace").splitlines()
        return tuple(plain_line(row) for row in rows if row.strip())[-LAST_LINES:]

    async def is_ready(self, address: str) -> bool:
        """Wait until it says so, or has ended; without a door for metrics there is nobody to ask.

        Raises:
            CliError: It does neither in time.
        """
        try:
            async with asyncio.timeout(READY_TIMEOUT.total_seconds()):
                while not (self.has_ended or not address or await _says_ready(address)):  # noqa: ASYNC110 - of a process
                    await asyncio.sleep(POLL.total_seconds())
        except TimeoutError:
            msg = f"the worker was not ready within {READY_TIMEOUT.total_seconds():.0f} s; see {self.log}"
            raise CliError(msg) from None
        return not self.has_ended

    async def stop(self, grace: timedelta, insisted: asyncio.Event) -> None:
        """Let it finish what runs; kill it when that takes too long, or somebody insists."""
        stopping = asyncio.create_task(stop_process(self.process, (grace + STOP_MARGIN).total_seconds()))
        insisting = asyncio.create_task(insisted.wait())
        await asyncio.wait({stopping, insisting}, return_when=asyncio.FIRST_COMPLETED)
        insisting.cancel()
        if not stopping.done():
            self.process.kill()
        await stopping


class _Record(BaseModel):
    logger: str = "worker"
    message: str
    exception: str = ""


def plain_line(row: str) -> str:
    """A line of the log: of a JSON record its logger and message, and the last line of its exception."""
    with contextlib.suppress(ValidationError):
        record = _Record.model_validate_json(row)
        last = record.exception.strip().splitlines()[-1:]
        return ": ".join([record.logger, record.message, *last])[:300]
    return row[:300]


async def _says_ready(address: str) -> bool:
    def ask() -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{address}/readyz", timeout=5) as reply:
            return bool(reply.status == HTTPStatus.OK)
        return False  # an error status is an OSError too

    return await asyncio.to_thread(ask)
