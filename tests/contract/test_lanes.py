"""A test of the fast lane that starts or kills a process fails, and is told which; the deep lane may."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.contract.repository import ROOT, run
from tests.plugins.lanes import EXCUSED, excused

SUITE = """
import asyncio, multiprocessing, os, signal, subprocess, sys
import pytest
from tests.plugins.lanes import excused

@pytest.fixture(scope="session")
def server():
    with excused():
        process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    with excused():
        process.kill()
        process.wait()

@pytest.fixture(scope="module")
def of_the_file():
    subprocess.run(["true"])

def test_popen():
    subprocess.run(["true"])

def test_asyncio():
    async def start():
        await (await asyncio.create_subprocess_exec("true")).wait()
    asyncio.run(start())

def test_fork():
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)

def test_system():
    os.system("true")

def test_kill():
    os.kill(os.getppid(), signal.SIGCONT)

def test_of_a_fixture(of_the_file):
    pass

@pytest.mark.deep
def test_deep():
    subprocess.run(["true"])

def test_asks_only(server):
    os.kill(server.pid, 0)

def test_itself():
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    os.kill(os.getpid(), signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)
"""


def test_a_fast_test_that_starts_or_kills_a_process_fails_and_is_named(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\n", encoding="utf-8")
    (tmp_path / "test_it.py").write_text(SUITE, encoding="utf-8")
    done = run(
        *("-m", "pytest", "-rEfp", "-p", "tests.plugins.lanes", "-p", "no:cacheprovider"),
        cwd=tmp_path,
        PYTHONPATH=str(ROOT),
        PYTEST_ADDOPTS="",
        COLUMNS="400",
    )
    lines = {line for line in done.stdout.splitlines() if line.startswith(("ERROR ", "PASSED ", "FAILED "))}
    told = {line.split()[1].partition("::")[2]: line for line in lines if line.startswith("ERROR ")}
    assert {name: line.rpartition(", and ")[2].partition(":")[0] for name, line in told.items()} == {
        "test_popen": "starts true",
        "test_asyncio": "starts true",
        "test_fork": "starts os.fork",
        "test_system": "starts true",
        "test_kill": "sends SIGCONT",
        "test_of_a_fixture": "starts true",
    }, done.stdout
    passed = {line.split("::")[1] for line in lines if line.startswith("PASSED ")} - told.keys()
    assert passed == {"test_deep", "test_asks_only", "test_itself"}


@pytest.mark.parametrize("file", EXCUSED)
def test_an_excused_file_is_there(file: str) -> None:
    assert (ROOT / file).exists()


def test_an_excuse_ends_with_its_block() -> None:
    with excused():
        subprocess.run(["true"], check=True)
    os.kill(os.getpid(), 0)
