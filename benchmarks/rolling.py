"""A rolling restart under load: 40 jobs, two workers, each told to stop and replaced while the jobs run.

Prints how many jobs finished, the longest time without any finished step, and what was handed over. Every third job
has model calls that take longer than the grace, so that a stopping worker has something to hand over.
"""

import argparse
import asyncio
import json
import signal
import sys
import tempfile
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.stage import Process, Stage, staged
from perdure.client import Turn
from perdure.contracts.events import GenerationStep
from perdure.contracts.turns import TurnResult

JOBS, STEPS = 40, 15
QUICK, SLOW = "delay=0.3", "delay=2"
GRACE = "1"
PATIENCE_SECONDS = 300.0
Figures = dict[str, Any]


async def new_worker(stage: Stage) -> Process:
    """A worker that polls, with a grace that the slow model calls do not fit into."""
    process = stage.start("perdure.worker", "--agents", "benchmarks.agents", PERDURE_SHUTDOWN_GRACE=GRACE)
    await process.says('"polling"')
    return process


async def stopped(worker: Process) -> None:
    """SIGTERM, and wait for its end."""
    worker.process.send_signal(signal.SIGTERM)
    code = await asyncio.to_thread(worker.process.wait, PATIENCE_SECONDS)
    assert code == 0, worker.log.read_text()


class Steps:
    """When each step of all jobs was stored."""

    def __init__(self, stage: Stage, sessions: list[str]) -> None:
        self.times: list[datetime] = []
        self._stage = stage
        self._read = dict.fromkeys(sessions, 0)

    async def read(self) -> None:
        """Read on in the event logs."""
        store = await self._stage.client.store()
        for session in self._read:
            while page := await store.events(session, after=self._read[session]):
                self._read[session] = page[-1].seq
                self.times += [line.at for line in page if isinstance(line.event, GenerationStep)]
        self.times.sort()

    async def reach(self, count: int) -> None:
        """Wait until the jobs have done so many steps together."""
        while len(self.times) < count:
            await asyncio.sleep(0.5)
            await self.read()


async def attempts(stage: Stage, session: str) -> tuple[int, int]:
    """How many activities of a job needed another attempt, and how many attempts were lost instead of handed over."""
    history = await stage.temporal.get_workflow_handle(session).fetch_history()
    started = [event.activity_task_started_event_attributes for event in history.events]
    again = [activity for activity in started if activity.attempt > 1]
    return len(again), sum("imeout" in activity.last_failure.message for activity in again)


async def restarted(stage: Stage, jobs: int, steps: int) -> Figures:
    """The figures of a rolling restart of both workers."""
    workers = [await new_worker(stage), await new_worker(stage)]
    sessions = [f"rolling-{number}" for number in range(jobs)]

    async def start(number: int) -> Turn:
        prompt = f"job={number} steps={steps} {QUICK if number % 3 else SLOW}"
        return await stage.client.start("bench", prompt, session=sessions[number])

    turns = await asyncio.gather(*map(start, range(jobs)))
    results = asyncio.gather(*(turn.result() for turn in turns))
    done = Steps(stage, sessions)
    for number, worker in enumerate(workers, start=1):
        await done.reach(jobs * steps * number // 5)
        await stopped(worker)
        await new_worker(stage)
    async with asyncio.timeout(PATIENCE_SECONDS):
        ended: list[TurnResult] = await results
    await done.read()
    times = done.times
    tried = await asyncio.gather(*(attempts(stage, session) for session in sessions))
    return {
        "jobs": jobs,
        "finished": sum(result.stop_reason == "finished" for result in ended),
        "steps": len(times),
        "steps_expected": jobs * steps,
        "longest_gap_s": max((later - earlier).total_seconds() for earlier, later in pairwise(times)),
        "steps_per_second": len(times) / (times[-1] - times[0]).total_seconds(),
        "handed_over": sum(again for again, _ in tried),
        "lost": sum(lost for _, lost in tried),
    }


async def measured(jobs: int, steps: int) -> Figures:
    """All figures, on a stage of their own."""
    with tempfile.TemporaryDirectory(prefix="perdure-rolling-") as folder:
        async with staged(Path(folder)) as stage:
            return await restarted(stage, jobs, steps)


def main() -> None:
    """Restart, print, and write the JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=JOBS, help=f"jobs at once, {JOBS} by default")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"steps of each, {STEPS} by default")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    given = parser.parse_args()
    figures = asyncio.run(measured(given.jobs, given.steps))
    sys.stdout.write(" · ".join(f"{name} {value:,.2f}".removesuffix(".00") for name, value in figures.items()) + "\n")
    if given.json:
        given.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
