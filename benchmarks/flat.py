"""``make flat``: one long turn, and whether its last steps cost what its first ones did.

Prints, around an early and a late step: our share of a step (its time less the model call and the tool's body), the
bytes it adds to the history and to the store, and the worker's memory. Ends with 1 when one of them grows beyond its
bound, or when the instructions are found in a history.
"""

import argparse
import asyncio
import json
import sqlite3
import statistics
import sys
import tempfile
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.bench import turn
from benchmarks.stage import Process, Stage, staged
from perdure.contracts.events import GenerationEnd, ToolEnd

WINDOW = 100
"""Steps that stand for the one in their middle."""

SETTLED = 500
"""From this step on the worker's memory counts."""

FEWEST = 1_000
PAGE_BYTES = 200

BOUNDS = {"our share": 1.15, "history and store bytes": 1.10, "worker memory": 1.20}
"""How much larger the late figure may be; for memory, the largest after it has settled."""

Figures = dict[str, Any]


@dataclass
class Watch:
    """What is read of worker and store while the turn runs, by step."""

    stage: Stage
    worker: Process
    session: str
    store_bytes: dict[int, int] = field(default_factory=dict)
    megabytes: dict[int, float] = field(default_factory=dict)

    async def run(self) -> None:
        """Look again and again until cancelled."""
        while True:
            await asyncio.to_thread(self.look)
            await asyncio.sleep(0.2)

    def look(self) -> None:
        """One reading; the pages of the database grow by what the steps store, whatever the log beside it holds."""
        database = sqlite3.connect(f"file:{self.stage.settings.store_path}?mode=ro", uri=True)
        try:
            row = database.execute("select max(step) from steps where session = ?", [self.session]).fetchone()
            pages = database.execute("pragma page_count").fetchone()[0]
            size = database.execute("pragma page_size").fetchone()[0]
        finally:
            database.close()
        step = row[0] or 0
        self.store_bytes[step] = pages * size
        self.megabytes[step] = self.worker.megabytes()


async def our_shares(stage: Stage, session: str) -> dict[int, float]:
    """Milliseconds of each step that are neither the model's nor the tool's."""
    store, after = await stage.client.store(), 0
    ended: dict[int, datetime] = {}
    outside: dict[int, float] = {}
    while page := await store.events(session, after=after, limit=2000):
        after = page[-1].seq
        for line in page:
            if isinstance(line.event, GenerationEnd):
                ended[line.step] = line.at
            if isinstance(line.event, GenerationEnd | ToolEnd):
                # A step's time runs from answer to answer: the tool of one and the model call of the next.
                step = line.step if isinstance(line.event, GenerationEnd) else line.step + 1
                outside[step] = outside.get(step, 0.0) + line.event.seconds
    return {
        step: 1000 * ((at - ended[step - 1]).total_seconds() - outside[step])
        for step, at in ended.items()
        if step - 1 in ended
    }


async def history_bytes(stage: Stage, session: str, forbidden: str) -> tuple[list[tuple[int, int]], bool]:
    """Steps and bytes of each run of the turn, the first run first, and whether a history holds the forbidden text."""
    query = f'WorkflowId = "{session}"'
    found = [execution async for execution in stage.temporal.list_workflows(query)]
    runs: list[tuple[int, int]] = []
    leaked = False
    for execution in sorted(found, key=lambda execution: execution.start_time):
        history = await stage.temporal.get_workflow_handle(session, run_id=execution.run_id).fetch_history()
        steps = sum(
            event.activity_task_scheduled_event_attributes.activity_type.name == "generate" for event in history.events
        )
        runs.append((steps, sum(event.ByteSize() for event in history.events)))
        leaked = leaked or any(forbidden.encode() in event.SerializeToString() for event in history.events)
    return runs, leaked


def around(values: dict[int, float], step: int) -> float:
    """The median of the window around a step."""
    return statistics.median(value for at, value in values.items() if abs(at - step) <= WINDOW / 2)


def slope(values: dict[int, int], first: int, last: int) -> float:
    """Bytes a step between two steps, from the readings next to them."""
    begin, end = (min(values, key=lambda at: abs(at - step)) for step in (first, last))
    return (values[end] - values[begin]) / (end - begin)


async def measured(steps: int, agent: str) -> Figures:
    """Run the turn and compare."""
    with tempfile.TemporaryDirectory(prefix="perdure-flat-") as folder:
        async with staged(Path(folder)) as stage:
            worker = await stage.worker()
            await turn(stage, "warm", "steps=20")
            watch = Watch(stage, worker, "flat")
            watching = asyncio.create_task(watch.run())
            result, seconds = await turn(stage, "flat", f"steps={steps} size={PAGE_BYTES}", agent)
            watching.cancel()
            assert (result["stop_reason"], result["steps"]) == ("finished", steps), result
            shares = await our_shares(stage, "flat")
            runs, leaked = await history_bytes(stage, "flat", 50 * "." if agent == "instructed" else "no such text")
    early, late = 100, steps - 100
    quarter = steps // 4
    settled = [megabytes for at, megabytes in watch.megabytes.items() if at >= min(SETTLED, steps // 2)]
    history = {"early": runs[0][1] / runs[0][0], "late": runs[-2][1] / runs[-2][0]} if len(runs) > 2 else {}
    whole = sum(size for _, size in runs) / steps
    store = {"early": slope(watch.store_bytes, early, quarter), "late": slope(watch.store_bytes, steps - quarter, late)}
    bytes_ = {when: history.get(when, whole) + store[when] for when in ("early", "late")}
    share = {"early": around(shares, early), "late": around(shares, late)}
    return {
        "steps": steps,
        "agent": agent,
        "runs": len(runs),
        "minutes": seconds / 60,
        "our share": {**share, "unit": "ms", "ratio": share["late"] / share["early"]},
        "history and store bytes": {**bytes_, "unit": "B", "ratio": bytes_["late"] / bytes_["early"]},
        "history alone": {**history, "unit": "B"},
        "worker memory": {
            "early": settled[0],
            "late": settled[-1],
            "unit": "MB",
            "ratio": max(settled) / settled[0],
        },
        "instructions in a history": leaked,
    }


def table(figures: Figures) -> tuple[str, bool]:
    """The figures as lines, and whether all are within their bounds."""
    lines = [
        f"{figures['steps']:,} steps of {figures['agent']!r} in {figures['runs']} runs, {figures['minutes']:.1f} min"
    ]
    good = not figures["instructions in a history"]
    lines.append(f"instructions in a history: {'no' if good else 'YES'}")
    for name, bound in BOUNDS.items():
        row = figures[name]
        within = row["ratio"] <= bound
        good = good and within
        lines.append(
            f"{name}: {row['early']:,.1f} -> {row['late']:,.1f} {row['unit']}, ratio {row['ratio']:.3f} "
            f"({'within' if within else 'ABOVE'} {bound})"
        )
    return "\n".join(lines), good


def main() -> None:
    """Measure, print, and say by the exit code whether the turn was flat."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=5_000)
    parser.add_argument("--agent", choices=["bench", "instructed"], default="bench", help="instructed: 200 KB of them")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    given = parser.parse_args()
    if given.steps < FEWEST:
        parser.error(f"--steps: at least {FEWEST:,}, or early and late are the same steps")
    figures = asyncio.run(measured(given.steps, given.agent))
    text, good = table(figures)
    sys.stdout.write(text + "\n")
    if given.json:
        given.json.write_text(json.dumps(figures, indent=2) + "\n")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
