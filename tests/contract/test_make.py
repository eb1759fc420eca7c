"""The commands people and CI type are there, explain themselves, and start what exists."""

import json
import os
import re

import pytest
import yaml

from tests.contract.repository import ROOT

MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = dict(re.findall(r"^([a-z]+):.*## (.+)$", MAKEFILE, flags=re.MULTILINE))
CI = ROOT / ".ci/run"


def test_every_target_explains_itself() -> None:
    phony = re.findall(r"^\.PHONY: (.+)$", MAKEFILE, flags=re.MULTILINE)
    assert set(" ".join(phony).split()) == set(TARGETS)
    assert {"demo", "test", "check", "replay"} <= set(TARGETS)


@pytest.mark.parametrize("module", re.findall(r"\$\(PYTHON\) -m ((?:tests|benchmarks)\.\S+)", MAKEFILE))
def test_a_module_that_make_runs_exists(module: str) -> None:
    path = ROOT / module.replace(".", "/")
    assert path.with_suffix(".py").exists() or (path / "__main__.py").exists()


def test_ci_calls_make_only_and_the_tests_last() -> None:
    commands = re.findall(r"^ *(?:exec )?(make [a-z]+)$", CI.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert commands == ["make setup", "make deep", "make check", "make replay", "make test"]
    assert os.access(CI, os.X_OK)


def test_the_site_has_every_page_of_the_docs() -> None:
    """``make docs`` would refuse to build, in an environment of its own."""
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    pages = re.findall(r"[\w-]+\.md", json.dumps(site["nav"]))
    assert sorted(pages) == sorted(path.name for path in (ROOT / "docs").glob("*.md"))
