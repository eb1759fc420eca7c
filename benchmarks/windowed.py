"""A turn that outgrows its model's window again and again: whether its steps stay as quick, and what is left to read.

Prints the milliseconds of a step, from answer to answer, around an early and a late one; how often the conversation was
compacted, and what that took; and whether every message can be read afterwards. Ends with 1 when the late steps are
slower than the bound, the provider refused an input, or a message is missing.
"""

import argparse
import asyncio
import json
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.bench import turn
from benchmarks.stage import Stage, staged
from perdure.contracts.events import CompactionEvent, Envelope, GenerationEnd
from perdure.contracts.messages import ToolMessage

AROUND = 100
"""Steps before and after the one they stand for: several compactions fall among them."""

EARLY = 300
FEWEST = 1_000
PAGE_BYTES = 2_000
WINDOW = 64_000
BOUND = 1.30
"""How much slower the late steps may be, on the average: those that wait for a summary included."""


async def events(stage: Stage, session: str) -> list[Envelope]:
    """The whole log."""
    store = await stage.client.store()
    found: list[Envelope] = []
    while page := await store.events(session, after=len(found), limit=2_000):
        found.extend(page)
    return found


def step_milliseconds(log: list[Envelope]) -> dict[int, float]:
    """The time of each step, from the answer before to its own."""
    ended = {line.step: line.at for line in log if isinstance(line.event, GenerationEnd)}
    return {step: 1000 * (at - ended[step - 1]).total_seconds() for step, at in ended.items() if step - 1 in ended}


def average(values: dict[int, float], step: int) -> float:
    """The mean around a step."""
    return statistics.mean(value for at, value in values.items() if abs(at - step) <= AROUND)


async def measured(steps: int) -> dict[str, Any]:
    """Run the turn and read it back."""
    with tempfile.TemporaryDirectory(prefix="perdure-windowed-") as folder:
        async with staged(Path(folder)) as stage:
            await stage.worker()
            await turn(stage, "warm", "steps=20")
            result, seconds = await turn(
                stage, "windowed", f"steps={steps} size={PAGE_BYTES} window={WINDOW}", "windowed"
            )
            assert (result["stop_reason"], result["steps"]) == ("finished", steps), result
            log = await events(stage, "windowed")
            began = time.monotonic()
            transcript = await stage.client.transcript("windowed")
            reading = time.monotonic() - began
    pages = [re.match(r"page (\d+):", m.content) for m in transcript if isinstance(m, ToolMessage)]
    done = [line.event for line in log if isinstance(line.event, CompactionEvent)]
    milliseconds = step_milliseconds(log)
    early, late = average(milliseconds, EARLY), average(milliseconds, steps - AROUND)
    return {
        "steps": steps,
        "minutes": seconds / 60,
        "milliseconds a step": {"early": early, "late": late, "ratio": late / early},
        "compactions": sum(event.compaction_status == "completed" for event in done),
        "refused inputs": sum(event.trigger == "overflow_recovery" for event in done),
        "messages": len(transcript),
        "every page is there": [int(page[1]) for page in pages if page] == list(range(steps - 1)),
        "seconds to read them": reading,
    }


def main() -> None:
    """Measure, print, and say by the exit code whether the turn kept its pace and its messages."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=5_000)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    given = parser.parse_args()
    if given.steps < FEWEST:
        parser.error(f"--steps: at least {FEWEST:,}, or early and late are the same steps")
    figures = asyncio.run(measured(given.steps))
    for name, value in figures.items():
        sys.stdout.write(f"{name}: {value}\n")
    if given.json:
        given.json.write_text(json.dumps(figures, indent=2) + "\n")
    good = figures["milliseconds a step"]["ratio"] <= BOUND and figures["every page is there"]
    sys.exit(0 if good and not figures["refused inputs"] else 1)


if __name__ == "__main__":
    main()
