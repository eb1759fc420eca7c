"""``--judges FOLDER`` keeps a report of each judge that the tests ask: how many of the tests marked with it pass.

``pytest.mark.judged(standard, judge)`` names what is judged, and who judges: the name of an installed distribution,
whose version is looked up, or a name with a version.
"""

from collections import Counter
from collections.abc import Generator
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.conformance.report import Report

Judge = tuple[str, str]

MARK = "judged(standard, judge): a judge that nobody here wrote decides these tests"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--judges", metavar="FOLDER", help="keep a report of each judge of the tests in FOLDER")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARK)
    if (folder := config.getoption("--judges")) is not None:
        config.pluginmanager.register(_Keeper(Path(folder)), "perdure-judges")


class _Keeper:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._of, self._failed = Counter[Judge](), Counter[Judge]()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        report.user_properties += [("judged", mark.args) for mark in item.iter_markers("judged")]
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        judges: list[Judge] = [tuple(value) for name, value in report.user_properties if name == "judged"]  # type: ignore[arg-type,misc]
        for judge in set(judges):
            made = report.when == "call" or report.failed
            self._of[judge] += made
            self._failed[judge] += made and not report.passed

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workerinput"):
            return  # a process of the run knows its own tests only
        self._folder.mkdir(parents=True, exist_ok=True)
        for judge, of in self._of.items():
            standard, name = judge
            named = name if " " in name else f"{name} {version(name)}"
            Report(standard, named, of - self._failed[judge], of, "tests" if of > 1 else "test", "make judges").write(
                self._folder
            )
