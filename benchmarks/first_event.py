"""How soon a job that is started over HTTP shows: the time to its first event, beside a bare workflow's start.

Each round starts a bare workflow that does nothing and waits for its result (one workflow task, no activity), then
posts a job to a gateway of its own process and follows it until its first event. Prints medians and their ratio.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from benchmarks.bench import floor_run
from benchmarks.floor import BARE
from benchmarks.stage import Stage, staged
from perdure.cli.server import find_free_port

ROUNDS = 40
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


def main() -> None:
    """Start jobs, print, and write the JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"jobs, one after the other, {ROUNDS} by default")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    given = parser.parse_args()
    figures = asyncio.run(measured(given.rounds))
    sys.stdout.write(" · ".join(f"{name} {value:,.2f}" for name, value in figures.items()) + "\n")
    if given.json is not None:
        given.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
