"""What tests cost in CPU is measured with all of their processes, and a folder far above its budget is told."""

import subprocess
import sys
from pathlib import Path

import psutil  # type: ignore[import-untyped] # it has no types
import pytest

from tests.contract.repository import ROOT, run
from tests.plugins.cpu import COLLECTION, by_folder, read_budgets, seconds_of, too_dear

BURN = "import time\nwhile time.process_time() < 1.0: sum(range(1000))\n"
IN_A_CHILD = (
    f"import subprocess, sys\n\ndef test_a():\n    subprocess.run([sys.executable, '-c', {BURN!r}], check=True)\n"
)
CHEAP = "def test_b():\n    pass\n"


def test_a_child_counts_while_it_runs_and_after_it_has_ended() -> None:
    me = psutil.Process()
    before = seconds_of(me)
    waits = f"{BURN}print('done', flush=True)\ninput()\n"
    with subprocess.Popen([sys.executable, "-c", waits], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"done\n"
        assert seconds_of(me) - before >= 0.9
        child.communicate(b"\n")
    assert seconds_of(me) - before >= 0.9


@pytest.mark.deep
@pytest.mark.parametrize("processes", [(), ("-n", "2", "--dist", "loadfile")], ids=["one", "xdist"])
def test_the_table_has_what_the_children_of_each_file_cost(processes: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    for file, text in (("dear/test_a.py", IN_A_CHILD), ("cheap/test_b.py", CHEAP)):
        (tmp_path / file).parent.mkdir()
        (tmp_path / file).write_text(text, encoding="utf-8")
    done = run(
        *("-m", "pytest", "-p", "tests.plugins.cpu", "-p", "no:cacheprovider", "--cpu", str(tmp_path / "cpu.tsv")),
        *processes,
        cwd=tmp_path,
        PYTHONPATH=str(ROOT),
        PYTEST_ADDOPTS="",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (line.partition("\t") for line in (tmp_path / "cpu.tsv").read_text(encoding="utf-8").splitlines())
    found = {name: float(seconds) for seconds, _, name in lines}
    assert found["dear"] == found["dear/test_a.py"] >= 0.9
    assert found["cheap/test_b.py"] < 0.9
    assert found["total"] > found["dear"] + found[COLLECTION] - 0.2
    assert done.stdout.rstrip().splitlines()[-1].startswith("=")


def test_only_a_folder_that_passes_its_budget_by_a_third_is_told() -> None:
    files = {"tests/a/test_x.py": 9.0, "tests/a/test_y.py": 5.0, "tests/b/test_z.py": 13.0, COLLECTION: 99.0}
    assert by_folder(files) == {"tests/a": 14.0, "tests/b": 13.0, COLLECTION: 99.0}
    (told,) = too_dear(files, {"tests/a": 10.0, "tests/b": 10.0})
    assert told.startswith("CPU BUDGET PASSED: tests/a took 14 s of 10 s")


def test_each_budget_is_that_of_a_folder_with_tests() -> None:
    assert read_budgets()
    for folder, seconds in read_budgets().items():
        assert seconds > 0
        assert list((ROOT / folder).glob("test_*.py")), folder
