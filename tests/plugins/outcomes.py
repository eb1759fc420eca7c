"""``--outcomes FILE`` keeps what was collected and how each test ended, for whoever judges the run (tests/lane.py).

pytest's own record of failures does not tell a run in which nothing ran from one in which nothing failed.
"""

import json
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Outcomes:
    """What became of a run; tests by their ids."""

    code: int = -1
    """pytest's exit code; -1 while it runs."""
    collected: Sequence[str] = ()
    passed: Sequence[str] = ()
    failed: Sequence[str] = ()
    skipped: Sequence[str] = ()
    crashed: Sequence[str] = ()
    """Tests that ended their process."""
    broken: Sequence[str] = ()
    """Files that a process of the run could not collect."""
    seconds: dict[str, float] = field(default_factory=dict)
    """What the tests of each file took, their fixtures included."""

    @classmethod
    def read(cls, file: Path) -> "Outcomes":
        """What a run has kept; of one that did not come to its end, the code only."""
        return cls(**json.loads(file.read_text(encoding="utf-8"))) if file.exists() else cls()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--outcomes", metavar="FILE", help="keep how each test ended in FILE")
    parser.addoption("--order", metavar="SEED", help="run the files in a random order, made from SEED")


def pytest_configure(config: pytest.Config) -> None:
    file = config.getoption("--outcomes")
    if file is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Keeper(Path(file)), "perdure-outcomes")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if (seed := config.getoption("--order")) is not None:
        files = sorted({item.path for item in items})
        random.Random(seed).shuffle(files)
        places = {path: place for place, path in enumerate(files)}
        items.sort(key=lambda item: places[item.path])


class _Keeper:
    def __init__(self, file: Path) -> None:
        self._file = file
        file.unlink(missing_ok=True)
        self._collected, self._broken, self._crashed = dict[str, None](), list[str](), list[str]()
        self._ended = dict[str, str]()
        self._seconds = defaultdict[str, float](float)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._collected |= dict.fromkeys(item.nodeid for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        self._collected |= dict.fromkeys(ids)

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str) -> None:
        self._crashed.append(crashitem)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._broken.append(report.nodeid)
        elif report.skipped:
            self._ended[report.nodeid] = "skipped"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test, before = report.nodeid, self._ended.get(report.nodeid)
        self._seconds[test.partition("::")[0]] += report.duration
        if report.failed:
            self._ended[test] = "failed"
        elif report.skipped and not hasattr(report, "wasxfail"):  # an expected failure is reported as skipped, too
            self._ended[test] = before or "skipped"
        elif report.when == "teardown":
            self._ended[test] = before or "passed"

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        def ended(outcome: str) -> list[str]:
            return [test for test, how in self._ended.items() if how == outcome]

        kept = Outcomes(
            code=int(exitstatus),
            collected=list(self._collected),
            passed=ended("passed"),
            failed=ended("failed"),
            skipped=ended("skipped"),
            crashed=self._crashed,
            broken=self._broken,
            seconds=dict(sorted(self._seconds.items())),
        )
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text(json.dumps(asdict(kept)), encoding="utf-8")
