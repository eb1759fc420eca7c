"""``python -m benchmarks.memory``: a worker with 2,000 turns waiting in a slow model call and 200 busy ones."""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.bench import turn
from benchmarks.stage import Process, Stage, staged
from perdure.contracts.names import AGENT_TURN

WAITING_SECONDS = 3_000
BUSY_STEPS = 10
AT_ONCE = 50
"""Starts that are under way at a time."""

Figures = dict[str, Any]


async def waiting(stage: Stage, count: int) -> None:
    """Start turns whose model takes its time, and wait until each has asked it."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def start(number: int) -> None:
        async with gate:
            prompt = f"delay={WAITING_SECONDS} steps=1 job={number}"  # the same prompt twice would not be delayed again
            await stage.temporal.start_workflow(
                AGENT_TURN,
                {"agent": "patient", "prompt": prompt},
                id=f"waiting-{number}",
                task_queue=stage.settings.task_queue,
            )

    await asyncio.gather(*(start(number) for number in range(count)))
    store = await stage.client.store()
    for number in range(count):
        while not any(line.event.type == "generation_start" for line in await store.events(f"waiting-{number}")):
            await asyncio.sleep(0.1)


async def busy(stage: Stage, count: int) -> float:
    """Run turns of ten steps side by side; steps a second."""
    began = time.monotonic()
    await asyncio.gather(*(turn(stage, f"busy-{number}", f"steps={BUSY_STEPS}") for number in range(count)))
    return count * BUSY_STEPS / (time.monotonic() - began)


async def peak(worker: Process, during: "asyncio.Task[float]") -> float:
    """The largest memory seen until the task ends."""
    most = worker.megabytes()
    while not during.done():
        await asyncio.sleep(0.1)
        most = max(most, worker.megabytes())
    return most


async def beating_attempts(stage: Stage, count: int) -> int:
    """The highest attempt among the waiting model calls."""
    highest = 0
    for number in range(0, count, max(1, count // 100)):
        described = await stage.temporal.get_workflow_handle(f"waiting-{number}").describe()
        for pending in described.raw_description.pending_activities:
            highest = max(highest, pending.attempt)
    return highest


async def measured(waiters: int, workers: int) -> Figures:
    """Fill one worker and read its memory and CPU."""
    with tempfile.TemporaryDirectory(prefix="perdure-memory-") as folder:
        async with staged(Path(folder)) as stage:
            room = waiters + workers + 100
            stage.environment |= {"PERDURE_MAX_ACTIVITIES": str(room), "PERDURE_MAX_CACHED_WORKFLOWS": str(room)}
            worker = await stage.worker()
            await turn(stage, "warm", "steps=20")
            idle = worker.megabytes()
            began = time.monotonic()
            await waiting(stage, waiters)
            started = time.monotonic() - began
            full, cpu, since = worker.megabytes(), worker.cpu_seconds(), time.monotonic()
            await asyncio.sleep(10)
            beats = (worker.cpu_seconds() - cpu) / (time.monotonic() - since)
            running = asyncio.create_task(busy(stage, workers))
            most = await peak(worker, running)
            return {
                "waiting": waiters,
                "busy": workers,
                "idle_mb": idle,
                "waiting_mb": full,
                "kb_per_waiting_turn": 1000 * (full - idle) / waiters,
                "peak_with_busy_mb": most,
                "start_seconds": started,
                "cpu_while_waiting": beats,
                "busy_steps_per_second": await running,
                "highest_attempt": await beating_attempts(stage, waiters),
            }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--waiting", type=int, default=2_000)
    parser.add_argument("--busy", type=int, default=200)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    given = parser.parse_args()
    figures = asyncio.run(measured(given.waiting, given.busy))
    sys.stdout.write("\n".join(f"{name}: {value:,.1f}" for name, value in figures.items()) + "\n")
    if given.json:
        given.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
