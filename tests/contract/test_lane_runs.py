"""A lost race refuses nothing, and nothing else slips through tests/lane.py: small suites with a planted fault each."""

import json
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.contract.repository import ROOT, run
from tests.lane import BESIDE, MOST_RACES, faults_of, run_beside
from tests.plugins.outcomes import Outcomes

DEEP = pytest.mark.deep

GREEN = "def test_green(): pass\n"

RACE = """
from pathlib import Path
def test_race():
    mark = Path("build/first")
    if not mark.exists():
        mark.touch()
        raise AssertionError("lost")
"""

FAILS_BESIDE_OTHERS = """
import os
def test_beside():
    assert "PYTEST_XDIST_WORKER" not in os.environ
"""

DIES = """
import os, signal
from pathlib import Path
def test_dies():
    mark = Path("build/first")
    if {always} or not mark.exists():
        mark.touch()
        os._exit(7)
"""

ONE_CANNOT_COLLECT = """
import os
if os.environ.get("PYTEST_XDIST_WORKER") == "gw1":
    raise ImportError("only here")
def test_a(): pass
"""

SKIPPED = "import pytest\ndef test_skipped(): pytest.skip('not here')\n"

BROKEN_FIXTURE = """
import pytest
@pytest.fixture(scope="session")
def server():
    raise RuntimeError("no server")
@pytest.mark.parametrize("n", range(11))
def test_many(server, n): pass
"""

HANGS = "import time\ndef test_hangs(): time.sleep(60)\n"

LEAVES_A_PROCESS = """
import subprocess
from tests.plugins.lanes import excused
def test_leaves():
    with excused():
        subprocess.Popen(["sleep", "60"], start_new_session=True)
"""

LEAVES_A_FILE = "def test_leaves(): open('24', 'w').close()\n"


class Ended(NamedTuple):
    """A small suite that was run."""

    code: int
    said: str
    last: str
    raced: str


def run_suite(folder: Path, text: str, *, ci: bool = True, lane: str = "fast", seconds: float = 60.0) -> Ended:
    """Run a lane of two files of tests, one of them green, in a checkout of its own."""
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    (folder / ".gitignore").write_text("build/\n__pycache__/\n.pytest_cache/\n", encoding="utf-8")
    for name, content in (("test_a.py", text), ("test_green.py", GREEN)):
        (folder / name).write_text(content, encoding="utf-8")
    if lane == "deep":
        deep = "import pytest\n@pytest.mark.deep\ndef test_deep(): pass\n"
        (folder / "test_deep.py").write_text(deep, encoding="utf-8")
    stale = folder / "build" / f"{lane}-outcomes.json"
    stale.parent.mkdir()
    stale.write_text(json.dumps({"code": 0, "collected": ["a"], "passed": ["a"]}), encoding="utf-8")
    start = f"import sys, tests.lane as it; it.RUN_SECONDS[{lane!r}] = {seconds}; it.END_SECONDS = 1.0; "
    start += "import functools; it.run_deep = functools.partial(it.run_deep, beside={}); "
    plugins = " ".join(f"-p tests.plugins.{name}" for name in ("lanes", "no_skips", "outcomes"))
    done = run(
        *("-c", f"{start}sys.exit(it.main({lane!r}))"),
        cwd=folder,
        PYTHONPATH=str(ROOT),
        PYTEST_ADDOPTS=plugins,
        CI="true" if ci else "",
    )
    said = done.stdout + done.stderr
    raced = folder / "build" / "raced.txt"
    return Ended(done.returncode, said, done.stdout.rstrip().splitlines()[-1], raced.read_text(encoding="utf-8"))


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """An empty checkout."""
    done = run("-c", "import subprocess; subprocess.run(['git', 'init', '-q'], check=True)", cwd=tmp_path)
    assert done.returncode == 0
    return tmp_path


def test_what_fails_and_then_passes_alone_is_a_race_and_green(checkout: Path) -> None:
    ended = run_suite(checkout, RACE)
    assert ended.code == 0, ended.said
    assert "raced: test_a.py::test_race" in ended.said.splitlines()
    assert ended.raced == "test_a.py::test_race\n"
    assert ended.last == "2 passed, 0 failed"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("def test_fails(): assert False\n", "FAILED test_a.py::test_fails"),
        (ONE_CANNOT_COLLECT, "FAULT test_a.py could not be collected"),
        pytest.param(DIES.format(always=False), "FAULT test_a.py::test_dies ended its process", marks=pytest.mark.deep),
        pytest.param(
            SKIPPED, "FAULT test_a.py::test_skipped was skipped, and in CI nothing is", marks=pytest.mark.deep
        ),
        pytest.param(BROKEN_FIXTURE, "FAULT 11 tests failed; more than 10 are no lost races", marks=pytest.mark.deep),
        pytest.param(LEAVES_A_PROCESS, "FAULT left running: ", marks=pytest.mark.deep),
        (LEAVES_A_FILE, "FAULT left in the checkout: ?? 24"),
    ],
    ids=["fails", "one cannot collect", "dies once", "skipped", "fixture", "process", "file"],
)
def test_all_else_is_red_and_told(checkout: Path, text: str, told: str) -> None:
    ended = run_suite(checkout, text)
    assert ended.code == 1, ended.said
    assert any(line.startswith(told) for line in ended.said.splitlines()), ended.said
    assert ended.last.endswith(" failed")
    assert not ended.last.endswith(" 0 failed")
    assert ended.raced == ""


@pytest.mark.deep
@pytest.mark.parametrize("text", [DIES.format(always=True), HANGS], ids=["dies each time", "hangs"])
def test_a_run_without_an_end_is_ended_and_red(checkout: Path, text: str) -> None:
    ended = run_suite(checkout, text, seconds=20)
    assert ended.code == 1, ended.said
    assert "FAULT " in ended.said


@pytest.mark.deep
def test_elsewhere_a_skipped_test_refuses_nothing(checkout: Path) -> None:
    ended = run_suite(checkout, SKIPPED, ci=False)
    assert (ended.code, ended.last) == (0, "1 passed, 0 failed"), ended.said


@pytest.mark.deep
def test_the_deep_lane_tells_a_test_that_depends_on_its_neighbours(checkout: Path) -> None:
    """It fails in two runs of one order, and passes alone."""
    ended = run_suite(checkout, FAILS_BESIDE_OTHERS, lane="deep")
    assert ended.code == 1, ended.said
    assert "it depends on its neighbours" in ended.said
    assert json.loads((checkout / "build/deep.json").read_text(encoding="utf-8"))["passed"] is False


@pytest.mark.parametrize(
    ("outcomes", "told"),
    [
        (Outcomes(), "the run did not come to its end"),
        (Outcomes(code=0), "no test was collected"),
        (Outcomes(code=2, collected=["a"], passed=["a"]), "pytest ended with the code 2"),
        (Outcomes(code=1, collected=["a"], passed=["a"]), "pytest ended with the code 1"),
        (Outcomes(code=0, collected=["a", "b"], passed=["a"]), "1 of 2 tests did not run, the first is b"),
    ],
)
def test_a_run_that_is_not_whole_is_red(outcomes: Outcomes, told: str) -> None:
    assert told in list(faults_of(outcomes, ci=True))


def test_ten_failures_may_be_races_and_eleven_are_not() -> None:
    tests = [str(number) for number in range(MOST_RACES + 1)]
    assert list(faults_of(Outcomes(code=1, collected=tests[1:], failed=tests[1:]), ci=True)) == []
    assert len(list(faults_of(Outcomes(code=1, collected=tests, failed=tests), ci=True))) == 1


def test_the_deep_lane_tells_what_fails_beside_its_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each program runs, also behind one that failed."""
    ran: list[str] = []

    def fails(command: list[str], *, check: bool) -> subprocess.CompletedProcess[bytes]:
        ran.append(command[-1])
        return subprocess.CompletedProcess(command, int(check or command[-1] == "tests.newest"))

    monkeypatch.setattr(subprocess, "run", fails)
    (fault,) = run_beside(BESIDE)
    assert fault.startswith("an installation without the lock does not work")
    assert ran == ["tests.newest", "tests.conformance.run"]
