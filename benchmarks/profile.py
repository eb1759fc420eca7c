"""``make profile``: where the milliseconds of a step go, by py-spy in a worker under load.

Shares of the time in which the worker's threads hold the interpreter, in layers and then by function.
"""

import argparse
import asyncio
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from benchmarks.bench import turn
from benchmarks.stage import Process, Stage, staged
from perdure.cli.server import spawn

SAMPLES_PER_SECOND = 250
JOBS, STEPS = 20, 20

EVERYWHERE = 0.6
"""Functions with a larger share are the frame around everything, and not listed."""

LAYERS = (
    ("litellm and HTTP", "acompletion (litellm"),
    ("store", "Store._transaction"),
    ("tool body", "Bodies."),
    ("workflow code", "_WorkflowInstanceImpl.activate"),
    ("activity code, rest", "_ActivityInboundImpl.execute_activity"),
    ("SDK: payloads of workflows", "PayloadVisitor.visit"),
    ("SDK: workflow tasks", "_WorkflowWorker."),
    ("SDK: activity tasks", "_ActivityWorker."),
)
"""Layers and the function that leads into each; the first that is in a stack counts."""


def stacks(raw: Path) -> Iterator[tuple[list[str], int]]:
    """The stacks of a raw record, functions without their line, and how often each was seen."""
    for line in raw.read_text().splitlines():
        stack, _, count = line.rpartition(" ")
        yield [frame.rpartition(":")[0] + ")" if ":" in frame else frame for frame in stack.split(";")], int(count)


def layer(frames: list[str]) -> str:
    """The layer that a stack belongs to."""
    return next((name for name, entry in LAYERS if any(frame.startswith(entry) for frame in frames)), "event loop")


def table(raw: Path, milliseconds: float, rows: int) -> str:
    """Shares, in percent and in milliseconds of CPU a step."""
    layers: Counter[str] = Counter()
    functions: Counter[str] = Counter()
    for frames, count in stacks(raw):
        layers[layer(frames)] += count
        functions.update(dict.fromkeys(frames, count))
    total = layers.total()
    lines = [f"{milliseconds:.1f} ms of CPU a step", "", "    %     ms  layer"]
    for name, count in layers.most_common():
        lines.append(f"{100 * count / total:5.1f} {milliseconds * count / total:6.2f}  {name}")
    lines += ["", "    %     ms  function, with all it calls"]
    inner = Counter({name: count for name, count in functions.items() if count < EVERYWHERE * total})
    for name, count in inner.most_common(rows):
        lines.append(f"{100 * count / total:5.1f} {milliseconds * count / total:6.2f}  {name}")
    return "\n".join(lines)


async def load(stage: Stage, worker: Process) -> float:
    """Jobs side by side; milliseconds of the worker's CPU a step."""
    before = worker.cpu_seconds()
    await asyncio.gather(*(turn(stage, f"job-{number}", f"steps={STEPS}") for number in range(JOBS)))
    return 1000 * (worker.cpu_seconds() - before) / (JOBS * STEPS)


async def recorded(raw: Path) -> float:
    """Record a worker under load."""
    with tempfile.TemporaryDirectory(prefix="perdure-profile-") as folder:
        async with staged(Path(folder)) as stage:
            worker = await stage.worker()
            await turn(stage, "warm", "steps=20")
            command = [str(Path(sys.executable).with_name("py-spy")), "record", "--gil", "--format", "raw"]
            options = ["--rate", str(SAMPLES_PER_SECOND), "--duration", "3600", "--output", str(raw)]
            log = Path(folder) / "py-spy.log"
            with log.open("wb") as output:
                spy = spawn([*command, *options, "--pid", str(worker.process.pid)], output=output)
            while "Sampling process" not in log.read_text():
                if spy.poll() is not None:
                    sys.exit(f"py-spy could not record the worker: {log.read_text()}")
                await asyncio.sleep(0.05)
            milliseconds = await load(stage, worker)
            spy.send_signal(signal.SIGINT)
            await asyncio.to_thread(spy.wait)
            return milliseconds


def main() -> None:
    """Record and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--raw", type=Path, help="keep the stacks in this file, as flame graph tools read them")
    parser.add_argument("--rows", type=int, default=40, help="functions to list")
    given = parser.parse_args()
    raw = given.raw or Path(tempfile.gettempdir()) / f"perdure-{time.time_ns()}.stacks"
    try:
        milliseconds = asyncio.run(recorded(raw))
        sys.stdout.write(table(raw, milliseconds, given.rows) + "\n")
    finally:
        if not given.raw:
            raw.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
