"""The trace of one session: each boundary that any of its processes reached, in order, and where the fault struck.

Every process of a session writes it, the runner included; a lock on the file makes counting and writing one step.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import BaseModel

from tests.chaos.faults import Fault

BLOW_BEGINS, BLOW_ENDS = "blow begins", "blow ends"
"""Lines of the runner: when it carried a fault out; the session went on since the mark."""


class Line(BaseModel):
    """A boundary was reached.

    Attributes:
        pid: The worker's process; 0 is the runner.
        n: How often the label has been reached, this time included.
        call_id: The tool call it is about, if it is about one.
        struck: Whether the fault strikes here.
    """

    pid: int
    at: float
    label: str
    n: int
    call_id: str = ""
    struck: bool = False


class Trace:
    """The file, and the fault that strikes when the trace comes to its point."""

    def __init__(self, folder: Path, fault: Fault | None) -> None:
        self.fault = fault
        self._file = folder / "trace"
        self._file.touch()

    def lines(self) -> list[Line]:
        """What was reached so far."""
        text = self._file.read_text(encoding="utf-8")
        return [Line.model_validate_json(line) for line in text.splitlines()]

    def struck(self) -> list[Line]:
        """Where the fault struck."""
        text = self._file.read_text(encoding="utf-8")
        return [Line.model_validate_json(line) for line in text.splitlines() if '"struck":true' in line]

    @contextmanager
    def blow(self) -> Iterator[None]:
        """Note that the runner begins to carry out the fault, and that it has done so."""
        self.reached(BLOW_BEGINS, pid=0)
        yield
        self.reached(BLOW_ENDS, pid=0)

    def reached(self, label: str, call_id: str = "", *, pid: int | None = None) -> bool:
        """Note that the boundary is reached; whether the fault strikes here."""
        with self._file.open("r+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            n = 1 + sum(f'"label":"{label}"' in line for line in file)
            strikes = (
                self.fault is not None
                and label == self.fault.point.label
                and self.fault.point.n <= n <= self.fault.last
            )
            line = Line(
                pid=os.getpid() if pid is None else pid,
                at=time.time(),
                label=label,
                n=n,
                call_id=call_id,
                struck=strikes,
            )
            file.write(line.model_dump_json() + "\n")
        return strikes
