"""Packages that stand beside perdure in one environment: a resolver has to find releases for both.

Other packages for agents on Temporal, each in its newest release. If one of them resolves alone and not beside perdure,
a range of perdure's is too narrow.
"""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

NEIGHBOURS = (
    "pydantic-ai-slim[temporal]",
    "temporalio-openai-agents",
    "temporalio-deepagents",
    "temporal-agent-harness",
)

EXTRAS = ("", "[worker]")

RESOLVE_SECONDS = 300


def find_refusals(python: Path, wheel: Path) -> Iterator[str]:
    """A sentence for each neighbour that cannot be installed with perdure; nothing is installed."""
    for neighbour in NEIGHBOURS:
        (newest,) = resolve(python, "--no-deps", neighbour)
        name, _, extras = neighbour.partition("[")
        exact = f"{name}{'[' if extras else ''}{extras}=={newest[1]}"
        for extra in EXTRAS:
            found = dict(resolve(python, f"perdure{extra} @ {wheel.as_uri()}", exact))
            if found:
                print(f"ok      perdure{extra} beside {exact}: temporalio {found['temporalio']}", flush=True)
            elif resolve(python, exact):
                yield f"perdure{extra} cannot be installed beside {exact}"
            else:
                print(f"skipped {exact}, which cannot be installed by itself", flush=True)


def resolve(python: Path, *wanted: str) -> list[tuple[str, str]]:
    """Names and releases that pip would install into an empty environment; none if it finds no releases."""
    command = [str(python), "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", "-"]
    done = subprocess.run([*command, *wanted], capture_output=True, text=True, timeout=RESOLVE_SECONDS, check=False)
    if done.returncode:
        print(done.stderr[-2_000:], flush=True)
        return []
    chosen = [item["metadata"] for item in json.loads(done.stdout)["install"]]
    return [(each["name"], each["version"]) for each in chosen]
