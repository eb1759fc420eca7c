"""``make bench``: what a step costs, beside a bare workflow of two no-op activities a step in the same run.

Prints a table, ratios first, and writes the figures as JSON. Absolute times are this machine's; ratios travel. The
floor is what the SDK does by default, in its sandbox; ``bare`` is the same without one, as our worker runs.
"""

import argparse
import asyncio
import contextlib
import json
import sqlite3
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from temporalio.worker import Replayer, UnsandboxedWorkflowRunner

from benchmarks.floor import BARE, TASK_QUEUE, Floor
from benchmarks.stage import Process, Stage, staged
from perdure.client.connect import DATA_CONVERTER
from perdure.contracts.events import GenerationEnd, ToolEnd
from perdure.contracts.names import AGENT_TURN
from perdure.workflows.agent_turn import AgentTurn

LENGTHS = {20: 10, 100: 3, 300: 1}
"""Steps of a turn, and rounds."""

JOBS, JOB_STEPS, ROUNDS = 40, 10, 4
Figures = dict[str, Any]


async def floor_run(stage: Stage, steps: int, name: str, queue: str = TASK_QUEUE) -> float:
    """Seconds of one floor workflow."""
    began = time.monotonic()
    await stage.temporal.execute_workflow(Floor.run, steps, id=f"{queue}-{name}", task_queue=queue)
    return time.monotonic() - began


async def turn(stage: Stage, session: str, prompt: str, agent: str = "bench") -> tuple[dict[str, Any], float]:
    """The result and the seconds of one turn, started as another service starts it."""
    began = time.monotonic()
    result: dict[str, Any] = await stage.temporal.execute_workflow(
        AGENT_TURN, {"agent": agent, "prompt": prompt}, id=session, task_queue=stage.settings.task_queue
    )
    return result, time.monotonic() - began


async def seconds_in_model_and_tools(stage: Stage, session: str) -> float:
    """Time inside ``litellm.acompletion`` and inside tool bodies, from the events."""
    store, after, total = await stage.client.store(), 0, 0.0
    while page := await store.events(session, after=after):
        after = page[-1].seq
        total += sum(line.event.seconds for line in page if isinstance(line.event, GenerationEnd | ToolEnd))
    return total


async def lengths(stage: Stage, worker: Process, floor: Process) -> Figures:
    """Milliseconds and CPU a step at several lengths, gross and net of model and tools.

    Each round is floor, ours, bare and floor again, so that a machine that gets slower meanwhile does not count for
    one of them; short lengths have several rounds, of which the sums count.
    """
    figures: Figures = {}
    await turn(stage, "warm", "steps=20")
    for queue in (TASK_QUEUE, BARE):
        await floor_run(stage, 20, "warm", queue)
    for steps, rounds in LENGTHS.items():
        below = gross = net = bare = ours_cpu = floor_cpu = 0.0
        for round_ in range(rounds):
            name = f"{steps}-{round_}"
            cpu = floor.cpu_seconds()
            below += await floor_run(stage, steps, f"{name}-before") / 2
            floor_cpu += floor.cpu_seconds() - cpu
            cpu = worker.cpu_seconds()
            result, seconds = await turn(stage, f"length-{name}", f"steps={steps}")
            assert result["steps"] == steps, result
            ours_cpu += worker.cpu_seconds() - cpu
            gross += seconds
            net += seconds - await seconds_in_model_and_tools(stage, f"length-{name}")
            bare += await floor_run(stage, steps, name, BARE)
            below += await floor_run(stage, steps, f"{name}-after") / 2
        a_step = 1000 / (steps * rounds)
        figures[str(steps)] = {
            "net_ratio": net / below,
            "gross_ratio": gross / below,
            "net_to_bare": net / bare,
            "floor_ms": below * a_step,
            "bare_ms": bare * a_step,
            "net_ms": net * a_step,
            "gross_ms": gross * a_step,
            "floor_cpu_ms": floor_cpu * a_step,
            "cpu_ms": ours_cpu * a_step,
        }
    return figures


async def throughput(stage: Stage) -> Figures:
    """40 jobs of 10 steps at once, against the same of the floor: rounds in turns, of which the sums count."""
    seconds = dict.fromkeys(("floor", "bare", "ours"), 0.0)
    for round_ in range(ROUNDS):
        for name in seconds:
            began = time.monotonic()
            await asyncio.gather(*(_job(stage, name, f"job-{round_}-{number}") for number in range(JOBS)))
            seconds[name] += time.monotonic() - began
    rates = {f"{name}_steps_per_second": ROUNDS * JOBS * JOB_STEPS / spent for name, spent in seconds.items()}
    return {"ratio": seconds["floor"] / seconds["ours"], "to_bare": seconds["bare"] / seconds["ours"], **rates}


async def _job(stage: Stage, name: str, job: str) -> None:
    if name == "ours":
        await turn(stage, job, f"steps={JOB_STEPS}")
    else:
        await floor_run(stage, JOB_STEPS, job, BARE if name == BARE else TASK_QUEUE)


async def history(stage: Stage) -> Figures:
    """Events and bytes of history a step, and the time to replay a turn of 100 steps."""
    handle = stage.temporal.get_workflow_handle("length-100-0")
    fetched = await handle.fetch_history()
    events = list(fetched.events)
    replayer = Replayer(
        workflows=[AgentTurn], data_converter=DATA_CONVERTER, workflow_runner=UnsandboxedWorkflowRunner()
    )
    seconds: list[float] = []
    for _ in range(3):
        began = time.monotonic()
        await replayer.replay_workflow(fetched)
        seconds.append(time.monotonic() - began)
    return {
        "events_per_step": len(events) / 100,
        "bytes_per_step": sum(event.ByteSize() for event in events) / 100,
        "replay_100_steps_s": statistics.median(seconds),
    }


async def store_bytes(stage: Stage, steps: int = 200) -> Figures:
    """Bytes the store's tables and indexes grow by a step; the log, which is used again, is written back before."""
    path = stage.settings.store_path
    assert path is not None

    def size() -> int:
        with contextlib.closing(sqlite3.connect(path)) as store:
            store.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return path.stat().st_size

    before = size()
    await turn(stage, "store", f"steps={steps}")
    return {"bytes_per_step": (size() - before) / steps}


async def latencies(stage: Stage, worker: Process) -> Figures:
    """Start to first event, cancel of a hanging model call, and recovery after kill -9 with another worker up."""
    store = await stage.client.store()
    began = time.monotonic()
    running = await stage.client.start("bench", "hang", session="hang")
    while not await store.events("hang"):
        await asyncio.sleep(0.001)
    first = time.monotonic() - began
    while len(await store.events("hang")) < 2:
        await asyncio.sleep(0.01)
    began = time.monotonic()
    await running.cancel("bench")
    await running.result()
    cancelled = time.monotonic() - began

    second = await stage.worker()
    held = await stage.client.start("bench", "delay=3 steps=3", session="killed")
    while len(await store.events("killed")) < 2:
        await asyncio.sleep(0.01)
    worker.kill()
    began = time.monotonic()
    result = await held.result()
    recovered = time.monotonic() - began - 3 * 3.0
    assert result.stop_reason == "finished", result
    assert second.process.poll() is None
    return {"first_event_s": first, "cancel_s": cancelled, "recovery_s": recovered}


async def measured() -> Figures:
    """All figures, in one run."""
    with tempfile.TemporaryDirectory(prefix="perdure-bench-") as folder:
        async with staged(Path(folder)) as stage:
            floor, bare = stage.start("benchmarks.floor"), stage.start("benchmarks.floor", BARE)
            await floor.says("polling")
            await bare.says("polling")
            worker = await stage.worker()
            memory = {"idle_mb": worker.megabytes()}
            figures: Figures = {"step": await lengths(stage, worker, floor)}
            memory["after_lengths_mb"] = worker.megabytes()
            figures["throughput"] = await throughput(stage)
            figures["history"] = await history(stage)
            figures["store"] = await store_bytes(stage)
            memory["after_all_mb"] = worker.megabytes()
            figures["memory"] = memory
            figures["latency"] = await latencies(stage, worker)
            return figures


def table(figures: Figures) -> str:
    """The figures as lines, ratios first."""
    rows = ["steps  net/floor gross/floor net/bare   floor ms bare ms  net ms gross ms   floor CPU ms  CPU ms"]
    rows += [
        f"{steps:>5} {row['net_ratio']:>10.2f} {row['gross_ratio']:>11.2f} {row['net_to_bare']:>8.2f} "
        f"{row['floor_ms']:>10.1f} {row['bare_ms']:>7.1f} {row['net_ms']:>7.1f} {row['gross_ms']:>8.1f} "
        f"{row['floor_cpu_ms']:>14.1f} {row['cpu_ms']:>7.1f}"
        for steps, row in figures["step"].items()
    ]
    for group in ("throughput", "history", "store", "memory", "latency"):
        rows.append(f"{group}: " + " · ".join(f"{name} {value:,.3f}" for name, value in figures[group].items()))
    return "\n".join(rows)


def main() -> None:
    """Measure, print, and write the JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    given = parser.parse_args()
    figures = asyncio.run(measured())
    sys.stdout.write(table(figures) + "\n")
    if given.json:
        given.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
