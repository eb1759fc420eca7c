"""A worker that is told to stop among calls of every length: what its grace costs, and what it saves.

Two workers with 60 jobs: plain tools of 2, 30 and 120 seconds (60 %, 30 % and 10 % of the calls at work), and every
fifth job asks a model that takes a minute. One worker is told to stop and replaced. Prints for each grace how long
the stop took, the calls whose effect nobody knows, and the model calls that were made a second time.
"""

import argparse
import asyncio
import json
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.rolling import PATIENCE_SECONDS, attempts
from benchmarks.stage import Process, Stage, staged
from perdure.contracts.events import ToolRecovery

GRACES = (20, 60, 300)
JOBS = 60
LENGTHS = (2, 2, 2, 2, 2, 2, 30, 30, 30, 120)
SLOW_MODEL = "delay=60 steps=2"
Figures = dict[str, Any]


async def new_worker(stage: Stage, grace: int) -> Process:
    """A worker that polls."""
    process = stage.start("perdure.worker", "--agents", "benchmarks.agents", PERDURE_SHUTDOWN_GRACE=str(grace))
    await process.says('"polling"')
    return process


def prompt_of(number: int) -> str:
    """Work of a job, about two minutes long."""
    if number % 5 == 0:
        return f"job={number} {SLOW_MODEL}"
    seconds = LENGTHS[number // 5 % len(LENGTHS)]
    return f"job={number} tool=wait_for:{seconds} steps={1 + max(1, 120 // seconds)}"


async def drained(stage: Stage, grace: int) -> Figures:
    """The figures of one grace."""
    workers = [await new_worker(stage, grace) for _ in range(2)]
    sessions = [f"grace-{grace}-{number}" for number in range(JOBS)]
    turns = await asyncio.gather(
        *(stage.client.start("bench", prompt_of(number), session=name) for number, name in enumerate(sessions))
    )
    results = asyncio.gather(*(turn.result() for turn in turns))
    await asyncio.sleep(15)  # every call is at work somewhere in its length
    began = time.monotonic()
    workers[0].process.send_signal(signal.SIGTERM)
    replacement = await new_worker(stage, grace)
    await asyncio.to_thread(workers[0].process.wait, PATIENCE_SECONDS + grace)
    stopped = time.monotonic() - began
    async with asyncio.timeout(PATIENCE_SECONDS):
        ended = await results
    store = await stage.client.store()
    unknown = 0
    for name in sessions:
        lines = await store.events(name, after=0, limit=1_000)
        unknown += sum(isinstance(line.event, ToolRecovery) and line.event.decision == "given_up" for line in lines)
    models = [name for number, name in enumerate(sessions) if number % 5 == 0]
    again = [await attempts(stage, name) for name in models]
    for process in (workers[1], replacement):
        process.kill()
    return {
        "grace_s": grace,
        "stop_s": round(stopped),
        "jobs": JOBS,
        "finished": sum(result.stop_reason == "finished" for result in ended),
        "effects_unknown": unknown,
        "model_calls_made_again": sum(count for count, _ in again),
    }


async def measured(graces: list[int]) -> list[Figures]:
    """Each grace on a stage of its own."""
    figures = []
    for grace in graces:
        with tempfile.TemporaryDirectory(prefix="perdure-draining-") as folder:
            async with staged(Path(folder)) as stage:
                figures.append(await drained(stage, grace))
                sys.stdout.write(f"{json.dumps(figures[-1])}\n")
                sys.stdout.flush()
    return figures


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("graces", nargs="*", type=int, default=GRACES, help="seconds; 20, 60 and 300 by default")
    asyncio.run(measured([*parser.parse_args().graces]))


if __name__ == "__main__":
    main()
