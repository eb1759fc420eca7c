"""Simulate every agent of the tests with many schedules, in two processes: ``make simulate``."""

import argparse
import asyncio
import logging
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context

import click

from perdure.testing import SimulationError, simulate
from tests.simulation.agents import CASES, ENVIRONMENT

PROCESSES = 2

Counted = tuple[str, int, Counter[str], Counter[str], str]
"""Of one agent: its name, the schedules, the faults, the ends, and the failure or nothing."""


def main() -> int:
    """Simulate, and tell what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=sorted(CASES), help="one agent")
    given = parser.parse_args()
    names = [given.only] if given.only else list(CASES)
    each = max(1, given.schedules // len(names))
    began = time.monotonic()
    schedules, faults, ends, failed = 0, Counter[str](), Counter[str](), 0
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("fork")) as pool:
        for done in as_completed(pool.submit(_simulate_case, name, each, given.seed) for name in names):
            name, count, met, ended, failure = done.result()
            schedules, faults, ends, failed = schedules + count, faults + met, ends + ended, failed + bool(failure)
            click.echo(f"{name}: {failure or f'{count} schedules'}")
    seconds = time.monotonic() - began
    click.echo(f"{schedules} schedules in {seconds:.0f} s, {schedules / seconds:.0f} a second")
    click.echo("faults: " + ", ".join(f"{name} {count}" for name, count in sorted(faults.items())))
    click.echo("ends: " + ", ".join(f"{name} {count}" for name, count in sorted(ends.items())))
    return 1 if failed else 0


def _simulate_case(name: str, schedules: int, seed: int) -> Counted:
    os.environ.update(ENVIRONMENT)
    logging.disable(logging.CRITICAL)
    case = CASES[name]
    try:
        report = asyncio.run(simulate(case.agent, "go", case.script, schedules=schedules, seed=seed, **case.options))
    except SimulationError as error:
        return name, 0, Counter(), Counter(), f"FAILED\n{error}"
    return name, report.schedules, report.applied, report.ends, ""


if __name__ == "__main__":
    sys.exit(main())
