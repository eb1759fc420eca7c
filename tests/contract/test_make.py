"""The commands people and CI type are there, explain themselves, and start what exists."""

import os
import re

import pytest

from tests.contract.repository import ROOT

MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = dict(re.findall(r"^([a-z]+):.*## (.+)$", MAKEFILE, flags=re.MULTILINE))
CI = ROOT / ".ci/run"


def test_every_target_explains_itself() -> None:
    (phony,) = re.findall(r"^\.PHONY: (.+)$", MAKEFILE, flags=re.MULTILINE)
    assert set(phony.split()) == set(TARGETS)
    assert {"demo", "test", "check", "replay"} <= set(TARGETS)


@pytest.mark.parametrize("module", re.findall(r"\$\(PYTHON\) -m ((?:tests|benchmarks)\.\S+)", MAKEFILE))
def test_a_module_that_make_runs_exists(module: str) -> None:
    path = ROOT / module.replace(".", "/")
    assert path.with_suffix(".py").exists() or (path / "__main__.py").exists()


def test_ci_calls_make_only_and_the_tests_last() -> None:
    commands = [line for line in CI.read_text(encoding="utf-8").splitlines() if line.startswith("make ")]
    assert commands == ["make check", "make replay", "make rest"]
    assert os.access(CI, os.X_OK)
