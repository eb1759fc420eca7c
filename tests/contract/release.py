"""Whether this checkout may be released: ``python -m tests.contract.release``, as ``make release`` does.

The version has a dated section at the top of the changelog, with its line about replay, and histories of its own; the
deep lane has passed on this very commit.
"""

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tests.contract.repository import ROOT


def faults(root: Path, commit: str) -> Iterator[str]:
    """What is missing for a release of this commit, a sentence each."""
    version = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    changelog = re.sub(r"<!--.*?-->", "", (root / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    titles = re.findall(r"^## (.+)$", changelog, re.MULTILINE)
    if not titles or not re.fullmatch(rf"\[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d", titles[0]):
        yield f"CHANGELOG.md begins with {titles[:1]}; its first section has to be '## [{version}] - YYYY-MM-DD'"
    section = changelog.partition("\n## ")[2].partition("\n## ")[0]
    if not re.search(r"^Replay compatibility: \S", section, re.MULTILINE):
        yield "the first section of CHANGELOG.md has no line 'Replay compatibility: …'"
    if not any((root / "tests" / "replay" / "histories" / version).glob("*.json")):
        yield f"no history of {version} is recorded; run `make histories`"
    file = root / "build" / "deep.json"
    deep = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    if deep != {"commit": commit, "passed": True}:
        yield f"the deep lane has not passed on the commit {commit[:9]}; run `make deep` on it"


def head() -> str:
    """The commit that is checked out."""
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


if __name__ == "__main__":
    found = list(faults(ROOT, head()))
    sys.stdout.write("\n".join(found or ["ready: tag it, and build with `hatchling build`"]) + "\n")
    sys.exit(bool(found))
