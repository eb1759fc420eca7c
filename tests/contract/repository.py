"""Where things stand in the repository, for the contract tests."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
APPLICATION = ("workflows", "activities", "worker")
"""Folders of the repository that ``perdure`` holds through symbolic links."""
PACKAGES = ("perdure", *APPLICATION)
PURE = ("perdure/contracts", "perdure/agents", "perdure/security", "perdure/llm", "perdure/engine")


def sources(*folders: str) -> Iterator[Path]:
    """Every Python file below these folders of the repository, as a path relative to it."""
    for folder in folders:
        yield from sorted(path.relative_to(ROOT) for path in (ROOT / folder).rglob("*.py"))


def modules(*folders: str) -> list[str]:
    """The dotted name of every module that is there to be imported: no main module, no migration script."""
    return [
        ".".join(in_the_package(path).with_suffix("").parts).removesuffix(".__init__")
        for path in sources(*folders)
        if path.name != "__main__.py" and "migrations" not in path.parts
    ]


def in_the_package(path: Path) -> Path:
    """Where a file of the repository stands in the installed package."""
    return Path("perdure", path) if path.parts[0] in APPLICATION else path


def copy_of_the_code(target: Path) -> Path:
    """The packages and their build configuration, copied to where a fault may be planted."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, target / package, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", target)
    return target


def run(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run this interpreter in a folder, with our code of that folder, and return what it printed."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
