"""Lines of a log that a wait repeats: the first is written, and then fewer and fewer, each with how many were left out.

While the store or the server is away, each call says so each second, and all of them say the same.
"""

import logging
import re
from collections import OrderedDict
from dataclasses import dataclass
from datetime import timedelta
from threading import Lock

from perdure.contracts.errors import ReasonCode

FIRST_DISTANCE = timedelta(seconds=10)
"""Time between the first line of a wait and its second one; each further distance is twice the one before."""

LONGEST_DISTANCE = timedelta(minutes=10)
"""Upper bound of that time."""

MOST_KINDS = 200
"""Kinds of lines that are kept in mind, the latest."""

CORE = "temporalio.core"
"""The logger of the Temporal SDK's core, whose calls to the server all complain while it is away."""

WAITS = frozenset(
    {
        ReasonCode.RUNTIME_STORE_UNAVAILABLE,
        ReasonCode.RUNTIME_STORE_MISMATCH,
        ReasonCode.RUNTIME_TOOL_MISSING,
    }
)
"""Reasons for which work waits, however often it is tried."""

_NUMBERS = re.compile(r"\d+")


@dataclass
class _Kind:
    """Lines that say the same: when the last one was written and the last one came, and how many were left out."""

    written: float
    came: float
    distance: float
    left_out: int = 0


class Repeats(logging.Filter):
    """Lets the first line of a wait through, and then one at growing distances; every other line always.

    A kind of line that has not come for twice its distance has ended: the next one is a first one again.
    """

    def __init__(self) -> None:
        super().__init__()
        self._kinds: OrderedDict[tuple[str, str], _Kind] = OrderedDict()
        self._lock = Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is written; one after others that were not has their number as ``left_out``."""
        reason = str(getattr(record, "reason_code", ""))
        if record.name != CORE and reason not in WAITS:
            return True
        said = reason, _NUMBERS.sub("", record.getMessage())
        with self._lock:
            kind = self._kinds.pop(said, None)
            if kind is None or record.created - kind.came > 2 * kind.distance:
                self._kinds[said] = _Kind(record.created, record.created, FIRST_DISTANCE.total_seconds())
                if len(self._kinds) > MOST_KINDS:
                    self._kinds.popitem(last=False)
                return True
            self._kinds[said] = kind
            kind.came = record.created
            if record.created - kind.written < kind.distance:
                kind.left_out += 1
                return False
            if kind.left_out:
                record.left_out = kind.left_out
            kind.written, kind.left_out = record.created, 0
            kind.distance = min(2 * kind.distance, LONGEST_DISTANCE.total_seconds())
            return True
