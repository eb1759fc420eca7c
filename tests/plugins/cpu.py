"""The CPU seconds of each test file, with those of every process that it starts; a folder far above its budget is told.

A machine that is busy with other work makes a test slower, but hardly dearer. So the budgets of tests/cpu_budget.toml
are seconds of CPU, and a run of the fast lane that passes one says so at its end; it never fails by it. ``--cpu FILE``
writes the table.
What a fixture of the session costs counts for the file that first needs it.
"""

import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

import psutil  # type: ignore[import-untyped] # it has no types
import pytest
from xdist.workermanage import WorkerController  # type: ignore[import-untyped]

BUDGETS = Path(__file__).parent.parent / "cpu_budget.toml"

COLLECTION = "(start and collection)"
"""Stands in the table for what a process of the run needs before its first test."""

TOLERANCE = 4 / 3
"""A folder that is dearer than its budget by less than this is not told: measurements of a run differ."""


def seconds_of(process: psutil.Process) -> float:
    """The CPU seconds of a process, of those that it started, and of those among them that have ended."""
    total = 0.0
    for each in [process, *process.children(recursive=True)]:
        try:
            times = each.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def by_folder(files: Mapping[str, float]) -> dict[str, float]:
    """The sums of the folders in which the files stand."""
    folders = defaultdict[str, float](float)
    for file, seconds in files.items():
        folders[str(PurePosixPath(file).parent) if file != COLLECTION else COLLECTION] += seconds
    return dict(folders)


def too_dear(files: Mapping[str, float], budgets: Mapping[str, float]) -> list[str]:
    """A line for each folder that passes its budget by a third."""
    return [
        f"CPU BUDGET PASSED: {folder} took {seconds:.0f} s of {budgets[folder]:.0f} s"
        " (tests/cpu_budget.toml); `--cpu FILE` writes the table of files"
        for folder, seconds in sorted(by_folder(files).items())
        if folder in budgets and seconds > budgets[folder] * TOLERANCE
    ]


def table(files: Mapping[str, float]) -> str:
    """Folders and behind them files, the dearest first, in columns with tabs between."""
    rows = [sorted(part.items(), key=lambda row: -row[1]) for part in (by_folder(files), files)]
    lines = [f"{seconds:.1f}\t{name}" for name, seconds in [*rows[0], ("", 0.0), *rows[1]] if name]
    return "\n".join([f"{sum(files.values()):.1f}\ttotal", *lines, ""])


def read_budgets(path: Path = BUDGETS) -> dict[str, float]:
    """The budget of each folder, in seconds."""
    return dict(tomllib.loads(path.read_text(encoding="utf-8"))["seconds"])


class Meter:
    """What has been spent on each file, in this process or in all of the run."""

    def __init__(self, config: pytest.Config) -> None:
        self.files = defaultdict[str, float](float)
        self._config = config
        self._process = psutil.Process()
        self._since = 0.0
        self._name = COLLECTION

    def _next(self, name: str) -> None:
        """Count what has been spent since the last file for that file."""
        if name != self._name:
            now = seconds_of(self._process)
            # A process whose parent was killed takes its time with it.
            self.files[self._name] += max(now - self._since, 0.0)
            self._since, self._name = now, name

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._next(item.path.relative_to(self._config.rootpath).as_posix())
        return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        if hasattr(self._config, "workeroutput"):
            self._next("")
            self._config.workeroutput["cpu"] = dict(self.files)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: WorkerController) -> None:
        for file, seconds in getattr(node, "workeroutput", {}).get("cpu", {}).items():
            self.files[file] += seconds

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if hasattr(self._config, "workerinput"):
            return  # a process of the run knows its own files only
        if self._name not in {COLLECTION, ""}:
            self._next("")
        if given := self._config.getoption("--cpu"):
            Path(given).write_text(table(self.files), encoding="utf-8")
        if self._config.getoption("-m") == "not deep":  # the deep lane waits more than it works
            for line in too_dear(self.files, read_budgets()):
                terminalreporter.write_line(line, yellow=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu", metavar="FILE", help="write the CPU seconds of each folder and file of tests to FILE")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Meter(config), "perdure-cpu")
