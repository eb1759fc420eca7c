"""Run a lane of tests, and each of its few failures once more, alone: ``python -m tests.lane fast``, or ``deep``.

A test that fails in the run and passes in a process of its own, when everything else has ended, lost a race. It is
printed as ``raced: ID``, kept in build/raced.txt, and refuses nothing. All else does: a test that fails again, a file
that cannot be collected, a test that did not run, was skipped in CI or ended its process, more than ten failures, a run
without an end, a process that outlives it, and a file that it leaves in the checkout.

``deep`` runs the deep lane, then the fast one in a random order of files, then the programs of ``BESIDE``. A test that
races in the random order is run once more in it: if it races again, it depends on its neighbours. build/deep.json says
which commit passed.
"""

import ctypes
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil  # type: ignore[import-untyped] # it has no types

from tests.plugins.cpu import by_folder
from tests.plugins.no_skips import is_ci
from tests.plugins.outcomes import Outcomes

BUILD = Path("build")
"""In the folder that this is run in, the root of the checkout."""

MOST_RACES = 10
"""More failures than this are no lost races: a fixture of the session is broken, or much is."""

RUN_SECONDS, ALONE_SECONDS, END_SECONDS = {"fast": 2_700.0, "deep": 10_800.0}, 300.0, 20.0
"""Bounds of a lane, of one test alone, and of what its processes may need to end after it."""

LANES = {"fast": "not deep", "deep": "deep"}

BESIDE = {
    "tests.newest": "an installation without the lock does not work with the newest releases",
    "tests.conformance.run": "scenarios of MCP's official conformance suite fail that are not known to",
}
"""Programs that the deep lane runs behind its tests, each with the fault that there is if it fails."""

PR_SET_CHILD_SUBREAPER = 36
"""Of Linux's prctl(2): whoever loses its parent becomes a child of this process, where it is seen."""


@dataclass(frozen=True)
class Result:
    """A lane that has run."""

    passed: int
    failed: Sequence[str]
    raced: Sequence[str]
    faults: Sequence[str]

    @property
    def is_green(self) -> bool:
        """Whether nothing refuses it."""
        return not self.failed and not self.faults


def faults_of(outcomes: Outcomes, *, ci: bool) -> Iterator[str]:
    """What no second try can excuse, a sentence each."""
    if outcomes.code == -1:
        yield "the run did not come to its end"
        return
    yield from (f"{file} could not be collected" for file in outcomes.broken)
    yield from (f"{test} ended its process" for test in outcomes.crashed)
    if ci:
        yield from (f"{test} was skipped, and in CI nothing is" for test in outcomes.skipped)
    ran = {*outcomes.passed, *outcomes.failed, *outcomes.skipped}
    if missing := [test for test in outcomes.collected if test not in ran]:
        yield f"{len(missing)} of {len(outcomes.collected)} tests did not run, the first is {missing[0]}"
    if not outcomes.collected:
        yield "no test was collected"
    if len(outcomes.failed) > MOST_RACES:
        yield f"{len(outcomes.failed)} tests failed; more than {MOST_RACES} are no lost races"
    if outcomes.code > 1 or (outcomes.code == 1 and not (outcomes.failed or outcomes.skipped)):
        yield f"pytest ended with the code {outcomes.code}"


def run_pytest(*arguments: str, seconds: float, kept: str) -> Outcomes:
    """Run pytest, with all that it starts in a group of its own, which ends with it; keep its outcomes in a file."""
    file = BUILD / f"{kept}.json"
    file.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "--outcomes", str(file), *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    with subprocess.Popen(command, env=environment, start_new_session=True) as process:
        try:
            process.wait(seconds)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            say(f"pytest did not end within {seconds:.0f} s")
            return Outcomes()
    return Outcomes.read(file)


def processes_for(lane: str) -> str:
    """The number of processes of a lane: half as many again as cores for the fast one, a third of which is waiting."""
    return str(max(os.cpu_count() or 1, 2) * 3 // 2) if lane == "fast" else "auto"


def run_lane(lane: str, arguments: Sequence[str]) -> Result:
    """Run the tests of a lane side by side, then each failure alone."""
    outcomes = run_pytest(
        *("-n", processes_for(lane), "--dist", "loadfile", "--no-loadscope-reorder", "-m", LANES[lane], *arguments),
        seconds=RUN_SECONDS[lane],
        kept=f"{lane}-outcomes",
    )
    faults = list(faults_of(outcomes, ci=is_ci()))
    raced, failed = list[str](), list(outcomes.failed)
    if not faults:
        for test in outcomes.failed:
            say(f"once more, alone: {test}")
            again = run_pytest("-n", "0", "-p", "no:cacheprovider", test, seconds=ALONE_SECONDS, kept="alone")
            if not list(faults_of(again, ci=True)) and list(again.passed) == [test]:
                raced.append(test)
                failed.remove(test)
    say("", *(f"{seconds / 60:6.1f} min  {folder}" for folder, seconds in sorted(by_folder(outcomes.seconds).items())))
    return Result(len(outcomes.passed) + len(raced), failed, raced, faults)


def run_beside(programs: Mapping[str, str]) -> Iterator[str]:
    """Run programs one after another; the fault of each that fails."""
    for module, fault in programs.items():
        if subprocess.run([sys.executable, "-m", module], check=False).returncode:
            yield f"{fault}; see above"


def run_deep(arguments: Sequence[str], *, beside: Mapping[str, str] = BESIDE) -> Result:
    """Run the deep lane, the fast one in a random order, and the programs beside them."""
    deep = run_lane("deep", arguments)
    seed = str(random.SystemRandom().randrange(10_000))
    say(f"the fast lane in a random order of files: --order {seed}")
    fast = run_lane("fast", [*arguments, "--order", seed])
    dependent = list[str]()
    if fast.raced:
        say("once more in that order, to tell a lost race from a test that depends on its neighbours")
        dependent = sorted({*fast.raced} & {*run_lane("fast", [*arguments, "--order", seed]).raced})
    faults = [f"{test} fails in the order {seed} and passes alone: it depends on its neighbours" for test in dependent]
    faults += run_beside(beside)
    return Result(
        deep.passed + fast.passed,
        [*deep.failed, *fast.failed],
        [*deep.raced, *fast.raced],
        [*deep.faults, *fast.faults, *faults],
    )


def git(*arguments: str) -> list[str]:
    """Lines that git prints of this checkout; none where there is no checkout."""
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else []


def left_files(before: Sequence[str]) -> Iterator[str]:
    """What the run has changed in the checkout."""
    yield from (f"left in the checkout: {line}" for line in changes() if line not in before)


def changes() -> list[str]:
    """The files of the checkout that are not as committed."""
    return git("status", "--porcelain", "--untracked-files=all")


def left_processes() -> Iterator[str]:
    """What the run has started and not ended; it is ended here."""
    _, alive = psutil.wait_procs(psutil.Process().children(recursive=True), END_SECONDS)
    for process in alive:
        try:
            yield f"left running: {process.pid} {' '.join(process.cmdline())[:200]}"
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(alive, END_SECONDS)


def adopt_orphans() -> None:
    """Become the parent of whatever loses its own; Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def hear_interrupts() -> None:
    """Let processes of tests end by SIGINT; what a shell starts in the background ignores it, and so would they."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def say(*lines: str) -> None:
    """Print lines, at once."""
    print(*lines, sep="\n", flush=True)  # noqa: T201 - a program


def main(lane: str, *arguments: str) -> int:
    """Run a lane, and say what became of it; the last line is the closing line of the whole run."""
    BUILD.mkdir(exist_ok=True)
    adopt_orphans()
    hear_interrupts()
    before, began = changes(), time.monotonic()
    result = run_deep(arguments) if lane == "deep" else run_lane(lane, arguments)
    faults = [*result.faults, *left_processes(), *left_files(before)]
    (BUILD / "raced.txt").write_text("".join(f"{test}\n" for test in result.raced), encoding="utf-8")
    is_green = result.is_green and not faults
    if lane == "deep":
        commit = " ".join(git("rev-parse", "HEAD")) if not changes() else ""
        (BUILD / "deep.json").write_text(json.dumps({"commit": commit, "passed": is_green}), encoding="utf-8")
    say(
        f"the {lane} lane took {(time.monotonic() - began) / 60:.1f} min",
        *(f"raced: {test}" for test in result.raced),
        *(f"FAILED {test}" for test in result.failed),
        *(f"FAULT {fault}" for fault in faults),
        f"{result.passed} passed, {max(len(result.failed), int(not is_green))} failed",
    )
    return int(not is_green)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
