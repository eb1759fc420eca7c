"""``python -m benchmarks.week``: one worker through what a week brings, and what is left of it at rest.

3,000 turns one after another, a session of 300 turns, 2,000 turns that wait for a person and are cancelled. Before and
after, with nothing running: the worker's memory, open files and threads, and the rows of each table of the store.
"""

import argparse
import asyncio
import json
import sqlite3
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from benchmarks.bench import turn
from benchmarks.stage import Process, Stage, staged
from perdure.contracts.names import AGENT_TURN

AT_ONCE = 40
WARM = 200
"""Turns before the first look: caches are filled, and threads started."""

Figures = dict[str, Any]


async def each(count: int, work: Callable[[int], Awaitable[object]]) -> None:
    """Do the work for each number, some at a time."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        async with gate:
            await work(number)

    await asyncio.gather(*(one(number) for number in range(count)))


async def look(stage: Stage, worker: Process) -> Figures:
    """What the worker holds, and the rows of each table, once nothing is open any more."""
    while (
        await stage.temporal.count_workflows(f"ExecutionStatus = 'Running' AND WorkflowType = '{AGENT_TURN}'")
    ).count:
        await asyncio.sleep(0.2)
    await asyncio.sleep(15)  # for what ends behind a turn: heartbeats, leases, connections at rest
    process = Path(f"/proc/{worker.process.pid}")
    with sqlite3.connect(stage.folder / "store.db") as store:
        names = [name for (name,) in store.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
        rows = {name: store.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0] for name in names}
    return {
        "mb": round(worker.megabytes()),
        "files": len(list((process / "fd").iterdir())),
        "threads": len(list((process / "task").iterdir())),
        "rows": {name: count for name, count in rows.items() if count},
    }


async def waiting(stage: Stage, count: int) -> float:
    """Turns that wait for a person; memory of the worker meanwhile is looked at by the caller."""
    began = time.monotonic()

    async def start(number: int) -> None:
        await stage.temporal.start_workflow(
            AGENT_TURN,
            {"agent": "bench", "prompt": f"tool=sign:1 steps=2 job={number}"},
            id=f"waits-{number}",
            task_queue=stage.settings.task_queue,
        )

    await each(count, start)
    while len(await stage.client.inbox(agent="bench")) < count:
        await asyncio.sleep(0.5)
    return time.monotonic() - began


async def measured(turns: int, length: int, waiters: int) -> Figures:
    """The week."""
    with tempfile.TemporaryDirectory(prefix="perdure-week-") as folder:
        async with staged(Path(folder)) as stage:
            worker = await stage.worker()
            await each(WARM, lambda number: turn(stage, f"warm-{number}", "steps=3"))
            figures: Figures = {"before": await look(stage, worker)}

            began = time.monotonic()
            await each(turns, lambda number: turn(stage, f"turn-{number}", "steps=3"))
            figures["after_turns"] = await look(stage, worker) | {"seconds": round(time.monotonic() - began)}

            began = time.monotonic()
            for number in range(length):
                result, _ = await turn(stage, "long", f"steps=2 turn={number}")
                if result["stop_reason"] != "finished":
                    raise RuntimeError(f"turn {number} of the long session ended with {result['stop_reason']}")
            figures["after_session"] = await look(stage, worker) | {"seconds": round(time.monotonic() - began)}

            seconds = await waiting(stage, waiters)
            figures["while_waiting"] = {"mb": round(worker.megabytes()), "seconds": round(seconds)}
            await stage.client.cancel_all("the week is over", dry_run=False, agent="bench")
            figures["after"] = await look(stage, worker)
            return figures


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=3_000)
    parser.add_argument("--length", type=int, default=300, help="turns of one session")
    parser.add_argument("--waiting", type=int, default=2_000)
    given = parser.parse_args()
    figures = asyncio.run(measured(given.turns, given.length, given.waiting))
    sys.stdout.write(f"{json.dumps(figures, indent=2)}\n")


if __name__ == "__main__":
    main()
