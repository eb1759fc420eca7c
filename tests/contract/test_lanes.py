"""The processes of a test run: one waits, one has the time that is left, the others do the rest."""

import re
from collections import defaultdict
from pathlib import Path

import pytest

from tests.contract.repository import ROOT, run
from tests.plugins.lanes import LANES, PURE, STARTING, WAITING, is_of, lane_of


@pytest.mark.parametrize("beginning", [*WAITING, *PURE])
def test_each_file_of_a_lane_is_there(beginning: str) -> None:
    assert list(ROOT.glob(f"{beginning}*"))


def test_no_file_that_starts_processes_runs_at_the_lowest_priority() -> None:
    """They would wait until whatever else runs is done; mypy of tests/typing waits without a bound."""
    mine = [
        file for beginning in PURE if beginning != "tests/typing/" for file in (ROOT / beginning).rglob("test_*.py")
    ]
    starting = {str(file.relative_to(ROOT)) for file in mine if "subprocess" in file.read_text(encoding="utf-8")}
    assert starting == set(STARTING)
    assert not any(is_of(file, PURE) for file in STARTING)


@pytest.mark.parametrize(
    ("worker", "count", "lane"),
    [("gw0", 4, ()), ("gw1", 4, ()), ("gw2", 4, WAITING), ("gw3", 4, PURE), ("gw0", 2, ()), ("gw1", 2, ())],
)
def test_the_last_two_processes_are_the_lanes(worker: str, count: int, lane: tuple[str, ...]) -> None:
    assert lane_of(worker, count) == lane


def test_a_lane_runs_its_own_files_only_and_every_test_runs_once(tmp_path: Path) -> None:
    others = [f"tests/workflow/test_other_{number}.py" for number in range(4)]
    pure = [f"tests/unit/engine/test_pure_{number}.py" for number in range(4)]
    for file in [*WAITING[:4], *pure, *others]:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("def test_a(): pass\ndef test_b(): pass\n", encoding="utf-8")
    done = run(
        *("-m", "pytest", "-v", "--rootdir", str(tmp_path), "-p", "tests.plugins.lanes", "-p", "no:cacheprovider"),
        *("-n", str(2 + len(LANES)), "--dist", "loadfile", "--no-loadscope-reorder"),
        cwd=tmp_path,
        PYTHONPATH=str(ROOT),
        PYTEST_ADDOPTS="",
    )
    ran = defaultdict[str, list[str]](list)
    for worker, test in re.findall(r"\[(gw\d)\].*PASSED (\S+)", done.stdout):
        ran[worker].append(test)
    tests = [test for mine in ran.values() for test in mine]
    assert len(tests) == len(set(tests)) == 2 * 12, done.stdout + done.stderr
    assert all(test.startswith(WAITING) for test in ran["gw2"])
    assert all(test.startswith(PURE) for test in ran["gw3"])
    assert any(test.startswith("tests/workflow/test_other") for test in ran["gw0"] + ran["gw1"])
