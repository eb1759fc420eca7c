"""Which tests call which functions of the product, and how long each test takes."""

import sys
import threading
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from types import CodeType, FrameType

import pytest

ROOT = Path(__file__).resolve().parents[2]

Place = tuple[str, int]
"""A function: its file and its first line."""


class Callers:
    """A plugin of pytest that notes, during a run, the functions that each test calls.

    A function that a module or a fixture of a session calls before the first test counts for every test of the file.

    Attributes:
        tests: Tests by function.
        seconds: Seconds of each test.
        failed: Tests that failed.
    """

    def __init__(self) -> None:
        self.tests: dict[Place, set[str]] = defaultdict(set)
        self.seconds: dict[str, float] = {}
        self.failed: list[str] = []
        self._known: dict[CodeType, Place | None] = {}
        self._test = ""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._test = item.nodeid
        sys.setprofile(self._note)
        threading.setprofile(self._note)
        try:
            return (yield)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration
        if report.failed:
            self.failed.append(report.nodeid)

    def tests_of(self, place: Place) -> list[str]:
        """The tests that call a function, the quickest first."""
        return sorted(self.tests.get(place, ()), key=lambda test: self.seconds[test])

    def _note(self, frame: FrameType, event: str, _argument: object) -> None:
        if event != "call":
            return
        code = frame.f_code
        if code not in self._known:
            file = Path(code.co_filename)
            inside = file.is_absolute() and file.is_relative_to(ROOT)
            self._known[code] = (str(file.resolve()), code.co_firstlineno) if inside else None
        place = self._known[code]
        if place is not None:
            self.tests[place].add(self._test)


class InMemoryOnly:
    """A plugin of pytest that leaves out the tests that start a server or a database."""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if not _starts_something(item)]


def _starts_something(item: pytest.Item) -> bool:
    names = set(getattr(item, "fixturenames", ()))
    values = getattr(getattr(item, "callspec", None), "params", {}).values()
    return bool(names & {"postgresql_url", "pgbouncer_url", "server", "env"}) or "postgresql" in map(str, values)
