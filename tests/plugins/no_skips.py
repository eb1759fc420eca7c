"""In CI nothing is skipped: a run that skipped a test fails there, and says which."""

import os

import pytest

_skipped = pytest.StashKey[list[str]]()


def is_ci() -> bool:
    """Whether this is CI, by the variable that runners of CI set."""
    return os.environ.get("CI", "").lower() in {"1", "true"}


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_skipped] = []
    if is_ci():
        config.pluginmanager.register(_NoSkips(config), "perdure-no-skips")


class _NoSkips:
    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._note(report)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._config.stash[_skipped] and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for name in self._config.stash[_skipped]:
            terminalreporter.write_line(f"SKIPPED IN CI, which fails the run: {name}", red=True)

    def _note(self, report: pytest.CollectReport | pytest.TestReport) -> None:
        # An expected failure is reported as skipped too; it is told by its reason.
        if report.skipped and not hasattr(report, "wasxfail"):
            self._config.stash[_skipped].append(report.nodeid)
