"""What is installed is what was locked, and nothing runs at the start of the interpreter that nobody allowed."""

import re
import sysconfig
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.contract.repository import ROOT

LOCKS = ("run.txt", "build.txt", "dev.txt")
COMPROMISED = re.compile(r"1\.82\.[78]|1\.107(\..*)?")
"""Releases of litellm that carried somebody else's code."""

ALLOWED_AT_START = {"_perdure.pth", "distutils-precedence.pth", "_virtualenv.pth"}
"""Our editable install, and what virtual environments of Python 3.11 and uv bring."""


def requirements(lock: str) -> dict[str, list[str]]:
    """The options of each requirement of a lock, by ``name==version``."""
    text = (ROOT / "requirements" / lock).read_text(encoding="utf-8").replace("\\\n", " ")
    return {line.split()[0]: line.split()[1:] for line in text.splitlines()}


@pytest.mark.parametrize("lock", LOCKS)
def test_every_requirement_has_one_version_and_hashes(lock: str) -> None:
    locked = requirements(lock)
    assert [name for name in locked if not re.fullmatch(r"[a-z0-9._-]+(\[[a-z,]+\])?==[\w.+!]+", name)] == []
    assert [name for name, options in locked.items() if not any(o.startswith("--hash=sha256:") for o in options)] == []


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_names_no_host_and_no_path(lock: str) -> None:
    text = (ROOT / "requirements" / lock).read_text(encoding="utf-8")
    assert re.findall(r"^-.*|\S*://\S*|@ .*|\S*/\S+", text, flags=re.MULTILINE) == []


def test_every_action_of_a_workflow_is_named_by_its_commit_with_its_release_as_a_comment() -> None:
    """A tag can be moved to other code; a commit cannot."""
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / ".github" / "workflows").glob("*.yml")]
    used = [line for text in texts for line in re.findall(r"\buses: *(.*)", text)]
    assert used
    assert [line for line in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line)] == []


@pytest.mark.parametrize("lock", LOCKS)
def test_what_is_shipped_is_a_part_of_what_is_tested(lock: str) -> None:
    assert requirements(lock).keys() <= requirements("dev.txt").keys()


@pytest.mark.parametrize("lock", ["run.txt", "dev.txt"])
def test_no_compromised_release_is_locked(lock: str) -> None:
    (litellm,) = [name for name in requirements(lock) if name.startswith("litellm==")]
    assert not COMPROMISED.fullmatch(litellm.partition("==")[2])


def test_no_compromised_release_is_installed() -> None:
    assert not COMPROMISED.fullmatch(version("litellm"))


@pytest.mark.parametrize("release", ["1.82.7", "1.82.8", "1.107.0", "1.107.3"])
def test_the_compromised_releases_are_known(release: str) -> None:
    assert COMPROMISED.fullmatch(release)


def test_nothing_unknown_runs_when_the_interpreter_starts() -> None:
    folders = {Path(sysconfig.get_path(kind)) for kind in ("purelib", "platlib")}
    hooks = {path.name for folder in folders for path in folder.glob("*.pth")}
    hooks |= {path.name for folder in folders for path in folder.glob("*customize*")}
    assert hooks - ALLOWED_AT_START == set()
