"""``--started FILE`` keeps the seconds of each test and the processes that it started or killed: so its lane."""

import sys
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path, PurePath
from typing import Any

import pytest

STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system", "tests.forked"}
KILLS = {"os.kill", "os.killpg"}

_seen: list[str] = []


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event in STARTS:
        _seen.append(f"starts {PurePath(str(arguments[0] if arguments else event)).name}")
    elif event in KILLS and arguments[1] != 0:
        _seen.append(f"kills with {arguments[1]}")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--started", metavar="FILE", help="keep the seconds and the processes of each test in FILE")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--started") is not None:
        sys.addaudithook(_audit)
        config.pluginmanager.register(_Keeper(Path(config.getoption("--started"))), "perdure-started")


class _Keeper:
    def __init__(self, file: Path) -> None:
        self._file = file
        self._rows = defaultdict[str, dict[str, Any]](dict)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        report.user_properties += [("started", f"{report.when}: {event}") for event in _seen]
        _seen.clear()
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        row = self._rows[report.nodeid]
        row[report.when] = report.duration
        if report.when == "teardown":
            row["events"] = sorted({str(value) for name, value in report.user_properties if name == "started"})

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workerinput"):
            return
        self._file.parent.mkdir(parents=True, exist_ok=True)
        lines = [
            "\t".join(
                [name, *(f"{row.get(phase, 0):.3f}" for phase in ("setup", "call", "teardown")), *row.get("events", [])]
            )
            for name, row in self._rows.items()
        ]
        self._file.write_text("\n".join(lines) + "\n", encoding="utf-8")
