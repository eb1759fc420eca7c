"""Two lanes: ``deep`` tests start or kill processes, wait for a clock, or take long; all others are fast, by force.

A fast test that starts or kills a process fails and is told which: an audit hook of the interpreter sees it, whatever
the code is called. What a session's own fixtures start, the one Temporal server and the one PostgreSQL of a process of
the run, is :func:`excused`.
"""

import os
import signal
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import PurePath
from typing import Any

import pytest

MARK = "deep: starts or kills processes, waits for a clock, or takes long; `make deep` runs it, `make test` does not"

STARTS = {"subprocess.Popen", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "tests.forked"}
KILLS = {"os.kill", "os.killpg"}
"""Names of audit events, of https://docs.python.org/3/library/audit_events.html, and one of tests/forked.py."""

EXCUSED = {
    "tests/contract/test_cpu_budgets.py": "measures processes",
    "tests/contract/test_lane_runs.py": "runs small suites with pytest",
    "tests/contract/test_lanes.py": "runs small suites with pytest",
    "tests/contract/test_no_skips.py": "runs small suites with pytest",
    "tests/contract/test_deploy.py": "`make check` runs scripts of the image",
    "tests/contract/test_manifests.py": "`make check` renders the chart",
    "tests/contract/test_packaging.py": "`make check` builds the packages",
    "tests/replay/test_release_before.py": "`make replay` follows a session by the command line",
    "tests/typing/test_pages.py": "`make check` asks the type checkers",
}
"""Files outside of the deep lane whose tests start processes, and why."""

MOST_PROCESSES = 8
"""Each has a Temporal server, and in the deep lane workers forked from a process of its own: up to 1.5 GB."""

ASKED_BY_PYTHON = frozenset({"uname"})
"""Commands that the standard library runs, once for a process: ``platform.processor()``."""

_seen: list[str] = []
_excuses: list[bool] = []


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event in STARTS and not _excuses:
        name = PurePath(os.fsdecode(arguments[0]) if arguments else event).name
        if name not in ASKED_BY_PYTHON:
            _seen.append(f"starts {name}")
    elif event in KILLS and arguments[1] and arguments[0] != os.getpid() and not _excuses:  # 0 asks whether it lives
        _seen.append(f"sends {signal.Signals(arguments[1]).name}")


@contextmanager
def excused() -> Iterator[None]:
    """What starts or ends here is no test's."""
    _excuses.append(True)
    try:
        yield
    finally:
        _excuses.pop()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARK)
    sys.addaudithook(_audit)


def pytest_collection_finish() -> None:
    _seen.clear()  # files ask for tools while they are collected


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "teardown":
        file = item.path.relative_to(item.config.rootpath).as_posix()
        if _seen and item.get_closest_marker("deep") is None and file not in EXCUSED:
            report.outcome = "failed"
            what = ", ".join(sorted(set(_seen)))
            report.longrepr = f"{item.nodeid} is of the fast lane, and {what}: do without, or mark it `deep`"
        _seen.clear()
    return report


def pytest_xdist_auto_num_workers() -> int:
    """A process for each core: what the fast lane needs is time on one."""
    return min(max(os.cpu_count() or 1, 2), MOST_PROCESSES)
