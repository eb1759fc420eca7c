"""How soon a job that is started over HTTP shows: the time to its first event, beside a bare workflow's start.

Each round starts a bare workflow that does nothing and waits for its result (one workflow task, no activity), then
posts a job to a gateway of its own process and follows it until its first event. Prints medians and their ratio.

``--beside FOLDER`` measures another checkout too, three times in turn with this one, on the same machine.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from benchmarks.bench import floor_run
from benchmarks.floor import BARE
from benchmarks.stage import ROOT, Stage, staged
from perdure.local_ports import find_free_port

ROUNDS = 40
TURNS = 3
"""Measurements of each of two checkouts, in turn."""
WARMING = 3
"""Rounds that do not count: connections are made, and modules loaded."""

Figures = dict[str, Any]


async def first_event(http: httpx.AsyncClient, session: str) -> tuple[float, float]:
    """Seconds from the request to its answer, and to the job's first event."""
    began = time.monotonic()
    body = {"agent": "bench", "prompt": "steps=1", "session": session}
    answer = await http.post("/v1/sessions", json=body, headers={"Idempotency-Key": session})
    answer.raise_for_status()
    accepted = time.monotonic() - began
    async with http.stream("GET", f"/v1/sessions/{session}/events") as stream:
        async for line in stream.aiter_lines():
            if line.startswith("id:"):
                return accepted, time.monotonic() - began
    msg = f"the stream of {session} ended without an event"
    raise RuntimeError(msg)


async def started(stage: Stage, rounds: int) -> Figures:
    """The figures of that many rounds."""
    await stage.worker()
    await stage.start("benchmarks.floor", BARE).says("polling")
    address = f"127.0.0.1:{find_free_port()}"
    await stage.start("perdure.cli", "gateway", "--address", address).says("http")
    bare, accepted, shown = [], [], []
    async with httpx.AsyncClient(base_url=f"http://{address}", timeout=60) as http:
        for number in range(-WARMING, rounds):
            workflow = await floor_run(stage, 0, f"start-{number}", BARE)
            answer, event = await first_event(http, f"first-{number + WARMING}")
            if number >= 0:
                bare.append(workflow)
                accepted.append(answer)
                shown.append(event)
    figures = {
        "bare_workflow_ms": statistics.median(bare) * 1000,
        "accepted_ms": statistics.median(accepted) * 1000,
        "first_event_ms": statistics.median(shown) * 1000,
    }
    return {**figures, "ratio": figures["first_event_ms"] / figures["bare_workflow_ms"]}


async def measured(rounds: int) -> Figures:
    """All figures, on a stage of their own."""
    with tempfile.TemporaryDirectory(prefix="perdure-first-") as folder:
        async with staged(Path(folder)) as stage:
            return await started(stage, rounds)


def compare(other: Path, rounds: int) -> dict[str, list[Figures]]:
    """Measure this checkout and another one in turn, each with its own benchmark."""
    found: dict[str, list[Figures]] = {}
    with tempfile.TemporaryDirectory(prefix="perdure-beside-") as folder:
        written = Path(folder) / "figures.json"
        command = [sys.executable, "-m", "benchmarks.first_event", f"--rounds={rounds}", f"--json={written}"]
        for _ in range(TURNS):
            for name, tree in (("this", ROOT), ("other", other.resolve())):
                sys.stdout.write(f"{name}: ")
                sys.stdout.flush()
                subprocess.run(command, cwd=tree, env={**os.environ, "PYTHONPATH": str(tree)}, check=True)
                found.setdefault(name, []).append(json.loads(written.read_text()))
    return found


def main() -> None:
    """Start jobs, print, and write the JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"jobs, one after the other, {ROUNDS} by default")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--beside", type=Path, help="another checkout to measure in turn with this one")
    given = parser.parse_args()
    if given.beside is not None and not (given.beside / "benchmarks/first_event.py").is_file():
        parser.error(f"--beside: {given.beside} is not a checkout with benchmarks/first_event.py")
    if given.beside is None:
        figures: Figures = asyncio.run(measured(given.rounds))
        sys.stdout.write(" · ".join(f"{name} {value:,.2f}" for name, value in figures.items()) + "\n")
    else:
        figures = compare(given.beside, given.rounds)
    if given.json is not None:
        given.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
