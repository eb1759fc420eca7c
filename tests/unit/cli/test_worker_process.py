"""Why a worker of ``perdure dev`` died, what it said last, and when the next one starts."""

import asyncio
import json
import os
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from perdure.cli.worker import MemoryKills, WorkerProcess, cause_of_death, to_plain_line, wait_before_start

NONE = MemoryKills(0, 0)


@pytest.mark.parametrize(
    ("code", "after", "words"),
    [
        (4, NONE, "ended with exit code 4"),
        (0, NONE, "ended with exit code 0"),
        (-11, NONE, "was ended by SIGSEGV"),
        (-15, MemoryKills(1, 1), "was ended by SIGTERM"),
        (-9, MemoryKills(1, 1), "was killed by the kernel (SIGKILL): out of memory"),
        (-9, MemoryKills(0, 3), "probably for want of memory"),
        (-9, MemoryKills(None, 1), "probably for want of memory"),
        (-9, NONE, "by another process"),
        (-9, MemoryKills(), "by somebody or for want of memory"),
        (-63, NONE, "was ended by signal 63"),
    ],
)
def test_the_cause_of_a_death(code: int, after: MemoryKills, words: str) -> None:
    assert words in cause_of_death(code, NONE, after)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_kernels_counts_are_those_of_our_control_group(tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    assert MemoryKills.read(proc, groups) == MemoryKills(None, None)
    write(proc / "vmstat", "pgfault 7\noom_kill 5\n")
    write(proc / "self/cgroup", "0::/a/b\n")
    write(groups / "a/b/memory.events", "low 0\noom 3\noom_kill 2\n")
    assert MemoryKills.read(proc, groups) == MemoryKills(2, 5)


def test_the_kernels_counts_in_a_container_with_control_groups_of_version_1(tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    write(proc / "self/cgroup", "9:cpu,cpuacct:/x\n4:memory:/docker/of-the-host\n0::/\n")
    write(groups / "memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n")
    assert MemoryKills.read(proc, groups) == MemoryKills(4, None)


def test_workers_that_die_in_a_row_start_ever_later_but_never_later_than_half_a_minute() -> None:
    waits = [wait_before_start(deaths).total_seconds() for deaths in range(8)]
    assert waits == [0, 1, 2, 4, 8, 16, 30, 30]
    assert wait_before_start(10_000) == timedelta(seconds=30)


def test_a_line_of_the_log_is_shown_as_a_person_reads_it() -> None:
    record = {"at": "now", "level": "error", "logger": "perdure.worker", "message": "it broke"}
    assert to_plain_line(json.dumps(record)) == "perdure.worker: it broke"
    failed = {**record, "exception": "Traceback …\n  File …\nValueError: too long"}
    assert to_plain_line(json.dumps(failed)) == "perdure.worker: it broke: ValueError: too long"
    assert to_plain_line("Killed") == "Killed"
    assert to_plain_line('"only a text"') == '"only a text"'


@pytest.mark.deep
async def test_the_last_lines_are_those_of_this_process_alone(tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    log.write_text("of an earlier worker\n")
    command = [sys.executable, "-c", "print(*(f'line {i}' for i in range(9)), sep='\\n'); raise SystemExit(3)"]
    worker = WorkerProcess(command, dict(os.environ), log)
    async with asyncio.timeout(60):
        assert not await worker.is_ready("127.0.0.1:1", print)
    assert worker.death() == "ended with exit code 3"
    assert worker.last_lines() == ("line 4", "line 5", "line 6", "line 7", "line 8")
    silent = WorkerProcess([sys.executable, "-c", ""], dict(os.environ), log)
    async with asyncio.timeout(60):
        assert not await silent.is_ready("127.0.0.1:1", print)
    assert silent.last_lines() == ()
