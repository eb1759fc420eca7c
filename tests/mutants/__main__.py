"""Change functions of the product one by one, and print the changes that no test notices: ``make mutants``.

A process that has read the product is forked for each mutant. The child puts the changed code into the function, and
runs the tests that call it, the quickest first, up to the first failure.
"""

import argparse
import contextlib
import gc
import logging
import multiprocessing
import os
import random
import resource
import sys
import time
from collections import Counter, deque
from collections.abc import Sequence
from multiprocessing.connection import wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from types import FunctionType
from typing import NamedTuple

import click
import pytest

from tests.mutants.callers import ROOT, Callers, InMemoryOnly
from tests.mutants.mutations import Mutant, make_mutant, sites_of

PACKAGES = {
    "engine": ("tests/unit/engine", "tests/unit/workflows"),
    "llm": ("tests/unit/llm",),
    "security": ("tests/unit/security",),
    "store": ("tests/unit/store",),
}
"""Packages of the product whose functions are changed, and the tests that may notice."""

MOST_TESTS = 150
"""Tests that a mutant meets at most; more of those that call a function hardly ever notice what these have not."""

CPU_SECONDS = 60
"""CPU of the tests of one mutant; one that loops uses it up, and is noticed by that."""

WALL_SECONDS = 240
"""Likewise of one that waits."""

QUIET = ["-q", "-x", "--no-header", "-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib"]


class _Met(NamedTuple):
    """The process of a mutant, and when its time is over."""

    process: ForkProcess
    until: float


def main() -> int:
    """Try seeded mutants, and print those that survive."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutants", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=sorted(PACKAGES), help="one package")
    given = parser.parse_args()
    packages = [given.only] if given.only else list(PACKAGES)
    began = time.monotonic()
    callers = _watch([folder for package in packages for folder in PACKAGES[package]])
    if callers.failed:
        click.echo(f"the tests fail without a mutant: {', '.join(callers.failed[:5])}")
        return 1
    mutants = _draw(packages, given.mutants, given.seed)
    click.echo(f"{len(callers.seconds)} tests in {time.monotonic() - began:.0f} s; {len(mutants)} mutants")
    noticed = _meet_all(mutants, callers)
    counts, caught = Counter(map(_package_of, mutants)), Counter[str]()
    for mutant, was_noticed in zip(mutants, noticed, strict=True):
        caught[_package_of(mutant)] += was_noticed
        if not was_noticed:
            click.echo(f"survived: {mutant}")
    for package in packages:
        click.echo(f"{package}: {caught[package]} of {counts[package]} noticed")
    click.echo(f"{sum(noticed)} of {len(mutants)} noticed in {time.monotonic() - began:.0f} s")
    return 0


def _watch(folders: Sequence[str]) -> Callers:
    """Run the tests once, in this process: it has read the product then, and knows who calls what."""
    callers = Callers()
    logging.disable(logging.CRITICAL)
    with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):  # noqa: PTH123
        pytest.main([option for option in QUIET if option != "-x"] + list(folders), plugins=[callers, InMemoryOnly()])
    return callers


def _draw(packages: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """Mutants, as many of each package as it has a share of the sites."""
    files = [path for package in packages for path in sorted((ROOT / "perdure" / package).rglob("*.py"))]
    sites = [site for path in files for site in sites_of(path.relative_to(ROOT))]
    drawn = random.Random(seed).sample(sites, min(count, len(sites)))
    return [
        mutant for site in sorted(drawn, key=lambda site: (site.path, site.number)) if (mutant := make_mutant(site))
    ]


def _package_of(mutant: Mutant) -> str:
    return mutant.path.parts[1]


def _meet_all(mutants: Sequence[Mutant], callers: Callers) -> list[bool]:
    """Whether each mutant makes a test fail; as many at a time as there are cores."""
    noticed = [False] * len(mutants)
    fork, running = multiprocessing.get_context("fork"), dict[int, _Met]()
    waiting = deque(enumerate(mutants))
    while waiting or running:
        while waiting and len(running) < (os.cpu_count() or 2):
            number, mutant = waiting.popleft()
            tests = callers.tests_of((str(mutant.path.resolve()), mutant.first_line))[:MOST_TESTS]
            if tests:
                process = fork.Process(target=_meet, args=(mutant, tests), daemon=True)
                process.start()
                running[number] = _Met(process, time.monotonic() + WALL_SECONDS)
        wait([met.process.sentinel for met in running.values()], timeout=1.0)
        for number, met in list(running.items()):
            if met.process.exitcode is None and time.monotonic() > met.until:
                met.process.kill()
                met.process.join()
            if met.process.exitcode is not None:
                noticed[number] = running.pop(number).process.exitcode != pytest.ExitCode.OK
    return noticed


def _meet(mutant: Mutant, tests: Sequence[str]) -> None:
    """In a process of its own: put the mutant into its function, and run the tests."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    place(mutant)
    os._exit(pytest.main([*QUIET, *tests], plugins=[InMemoryOnly()]))


def place(mutant: Mutant) -> int:
    """Put the mutant's code into every function that has the code of its original; returns how many there were."""
    file, placed = str(mutant.path.resolve()), 0
    gc.unfreeze()  # a run of tests has frozen what it imported, and frozen objects are not listed
    for function in gc.get_objects():
        if type(function) is FunctionType:  # ``isinstance`` would ask objects of tests, some of which refuse
            code = function.__code__
            same = code.co_qualname == mutant.name and code.co_firstlineno == mutant.first_line
            if same and str(Path(code.co_filename).resolve()) == file:
                function.__code__ = mutant.code
                placed += 1
    return placed


if __name__ == "__main__":
    sys.exit(main())
