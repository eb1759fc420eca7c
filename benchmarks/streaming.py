"""What an answer that is shown while it is written costs the worker, and what one costs that nobody watches.

Prints the processor milliseconds of a turn of one answer: streams off, unwatched, and streamed. The kinds take turns,
so that a machine that gets slower meanwhile does not count for one of them. Ends with 1 when an unwatched turn costs
more than one with streams off, beyond what is noise.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.bench import turn
from benchmarks.stage import staged

MODES = ("off", "watched", "always")
WORDS = 400
ROUNDS = 4
BOUND = 1.15
"""How much more an unwatched turn may seem to cost."""


async def measured(turns: int) -> dict[str, Any]:
    """Milliseconds of the worker's processor time for a turn of each kind, and their ratios."""
    spent = dict.fromkeys(MODES, 0.0)
    with tempfile.TemporaryDirectory() as folder:
        async with staged(Path(folder)) as stage:
            worker = await stage.worker()
            for mode in MODES:
                await turn(stage, f"warm-{mode}", f"words={WORDS}", mode)
            for number in range(ROUNDS):
                for mode in MODES if number % 2 else reversed(MODES):
                    before = worker.cpu_seconds()
                    for at in range(turns):
                        result, _ = await turn(stage, f"{mode}-{number}-{at}", f"words={WORDS}", mode)
                        assert result["stop_reason"] == "finished", result
                    spent[mode] += worker.cpu_seconds() - before
    costs = {mode: 1000 * seconds / (turns * ROUNDS) for mode, seconds in spent.items()}
    return {
        "words": WORDS,
        "milliseconds a turn": costs,
        "unwatched to off": costs["watched"] / costs["off"],
        "streamed to off": costs["always"] / costs["off"],
    }


def main() -> None:
    """Measure, print, and say by the exit code whether nobody pays who does not watch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=25, help="of each kind, in each of the rounds")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    given = parser.parse_args()
    figures = asyncio.run(measured(given.turns))
    for name, value in figures.items():
        sys.stdout.write(f"{name}: {value}\n")
    if given.json:
        given.json.write_text(json.dumps(figures, indent=2) + "\n")
    sys.exit(0 if figures["unwatched to off"] <= BOUND else 1)


if __name__ == "__main__":
    main()
