import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from perdure.local_ports import find_free_port
from tests.contract.repository import ROOT

pytestmark = pytest.mark.deep

STAND_IN = """
import http.server, json, os, pathlib, signal, sys, time
if "--describe" in sys.argv and "unloadable" in sys.argv:
    print("perdure: module 'unloadable' does not import; mend it", file=sys.stderr)
    sys.exit(2)
if "--describe" in sys.argv:
    while pathlib.Path("loads-slowly").exists():
        time.sleep(0.05)
    agent = {"name": "writer", "model": "openai/m", "tools": 1, "servers": 0}
    print(json.dumps([agent | {"models_without_key": ["openai/m"], "unset": ["WORDS_TOKEN"]}]))
    sys.exit(0)
class Ready(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        is_ready = self.path == "/readyz" and not pathlib.Path("starts-slowly").exists()
        self.send_response(200 if is_ready else 503)
        self.end_headers()
    def log_message(self, *args): pass
pathlib.Path("pid.written").write_text(str(os.getpid()))
os.replace("pid.written", "worker.pid")
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
temporal = {name: value for name, value in os.environ.items() if name.startswith("TEMPORAL_")}
print("the worker says", temporal, sys.argv[1:], flush=True)
if "broken" in sys.argv:
    sys.exit(4)
if "unfit" in sys.argv:
    print("perdure: litellm 9 has no completion, which perdure needs; install 'litellm<9'", file=sys.stderr)
    sys.exit(2)
if pathlib.Path("dies").exists():
    sys.exit(5)
host, port = os.environ["PERDURE_METRICS_ADDRESS"].split(":")
http.server.HTTPServer((host, int(port)), Ready).serve_forever()
"""

Dev = subprocess.Popen[str]


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "stand_in.py").write_text(STAND_IN)
    code = "from perdure.cli import main, worker\nworker.WORKER = 'stand_in'\nmain()"
    return [sys.executable, "-c", code, "dev", "--headless", "--port", str(find_free_port())]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PERDURE_", "TEMPORAL_"))}
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path / "root")]),
        "PYTHONUNBUFFERED": "1",
        "PERDURE_METRICS_ADDRESS": f"127.0.0.1:{find_free_port()}",
    }


@pytest.fixture
def greeting() -> list[str]:
    """What it said until it was ready."""
    return []


@contextmanager
def running(command: list[str], environment: dict[str, str], folder: Path) -> Iterator[Dev]:
    """The command in this folder, killed at the latest when the block ends."""
    with subprocess.Popen(
        command, env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def dev(command: list[str], environment: dict[str, str], tmp_path: Path, greeting: list[str]) -> Iterator[Dev]:
    with running(command, environment, tmp_path) as process:
        assert process.stdout is not None
        for line in process.stdout:
            greeting.append(line.rstrip("\n"))
            if line.startswith("Ctrl+C"):
                break
        yield process


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_worker_and_the_server(dev: Dev, number: int, tmp_path: Path, command: list[str]) -> None:
    worker = int((tmp_path / "worker.pid").read_text())
    assert not is_gone(worker)
    dev.send_signal(number)
    out, err = dev.communicate(timeout=120)
    assert (dev.returncode, err) == (0, "")
    assert "stopping" in out
    assert is_gone(worker)
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", int(command[-1]))) != 0


def test_a_signal_stops_it_also_when_nobody_reads_what_it_prints(dev: Dev, tmp_path: Path) -> None:
    """Its terminal was closed, or it was piped into a program that has ended."""
    worker = int((tmp_path / "worker.pid").read_text())
    assert dev.stdout is not None
    dev.stdout.close()
    dev.send_signal(signal.SIGHUP)
    dev.wait(120)
    assert is_gone(worker)


def said(dev: Dev, *words: str) -> list[str]:
    """What it prints until a line has these words, that line included."""
    assert dev.stdout is not None
    lines: list[str] = []
    for line in dev.stdout:
        sys.stdout.write(line)  # so that a wait in vain shows what came instead
        lines.append(line.rstrip("\n"))
        if all(word in line for word in words):
            return lines
    pytest.fail(f"{words} was not said: {lines}")


def waited_for(dev: Dev, folder: Path) -> int:
    """The process id of the worker that is waited for; a reminder may come before it runs its first line."""
    while not (folder / "worker.pid").exists():
        said(dev, "the worker is not ready yet")
    return int((folder / "worker.pid").read_text())


def test_a_worker_that_dies_is_told_with_its_own_last_words_and_started_again(dev: Dev, tmp_path: Path) -> None:
    first = int((tmp_path / "worker.pid").read_text())
    os.kill(first, signal.SIGKILL)
    told = said(dev, "a worker is ready")
    assert told[0].startswith("✗ the worker was killed (SIGKILL)")
    assert told[1].startswith("  the worker says"), "of this process, and of no other"
    assert told[2:] == ["  another one starts in 1 s", "✓ a worker is ready"]
    second = int((tmp_path / "worker.pid").read_text())
    assert second != first
    os.kill(second, signal.SIGSEGV)
    assert said(dev, "another one starts in 2 s")[0].startswith("✗ the worker was ended by SIGSEGV")
    dev.send_signal(signal.SIGINT)
    assert (dev.wait(120), is_gone(second)) == (0, True), "a stop does not wait for the next start"


def test_a_worker_that_dies_at_every_start_is_told_once(dev: Dev, tmp_path: Path) -> None:
    (tmp_path / "dies").touch()
    os.kill(int((tmp_path / "worker.pid").read_text()), signal.SIGTERM)
    said(dev, "ended with exit code 5")
    again = said(dev, "another one starts in 8 s")
    assert again.count("✗ the worker died in the same way again") == 2
    assert sum("the worker says" in line for line in again) == 1


@pytest.fixture
def impatient(command: list[str]) -> list[str]:
    """The command, with reminders at once instead of each 15 s."""
    code = command[2].replace("import main, worker", "import main, server, worker")
    return [*command[:2], code.replace("main()", "server.REMIND_SECONDS = 0.2\nmain()"), *command[3:]]


def test_a_start_has_no_time_limit_and_a_reminder(
    impatient: list[str], environment: dict[str, str], tmp_path: Path
) -> None:
    """A machine may need minutes to load what a worker needs; only the end of the worker is a failure."""
    for name in ("loads-slowly", "starts-slowly"):
        (tmp_path / name).touch()
    with running(impatient, environment, tmp_path) as dev:
        said(dev, "s: the agents' modules are still being imported")
        said(dev, "s: the agents' modules are still being imported")
        (tmp_path / "loads-slowly").unlink()
        said(dev, "s: the worker is not ready yet; see .perdure/worker.log")
        said(dev, "s: the worker is not ready yet; see .perdure/worker.log")
        (tmp_path / "starts-slowly").unlink()
        assert "ready; run a job from this folder with:" in said(dev, "Ctrl+C stops everything")
        dev.send_signal(signal.SIGINT)
        assert dev.wait(120) == 0


def test_a_stop_ends_the_wait_for_a_worker(impatient: list[str], environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "starts-slowly").touch()
    with running(impatient, environment, tmp_path) as dev:
        worker = waited_for(dev, tmp_path)
        dev.send_signal(signal.SIGINT)
        assert (dev.wait(120), is_gone(worker)) == (0, True)


def test_a_saved_file_ends_the_wait_for_a_worker_that_never_gets_ready(
    impatient: list[str], environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "starts-slowly").touch()
    with running([*impatient, "--reload"], environment, tmp_path) as dev:
        first = waited_for(dev, tmp_path)
        (tmp_path / "starts-slowly").unlink()
        (tmp_path / "mended.py").touch()
        said(dev, "saved: mended.py")
        said(dev, "a worker is ready")
        assert is_gone(first)
        dev.send_signal(signal.SIGINT)
        assert dev.wait(120) == 0


def ran(command: list[str], agents: str, environment: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    """The command with these agents, which ends by itself."""
    return subprocess.run(
        [*command, "--agents", agents],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_a_worker_that_cannot_start_shows_its_last_words(
    command: list[str], environment: dict[str, str], tmp_path: Path
) -> None:
    done = ran(command, "broken", environment, tmp_path)
    assert done.returncode == 1
    assert "ended with exit code 4: the worker says" in done.stderr
    assert "--agents', 'broken'" in done.stderr
    assert not (tmp_path / ".perdure" / "dev.json").exists()


def test_a_worker_that_says_why_it_cannot_start_is_quoted(
    command: list[str], environment: dict[str, str], tmp_path: Path
) -> None:
    done = ran(command, "unfit", environment, tmp_path)
    assert done.returncode == 2
    assert done.stderr == "perdure: litellm 9 has no completion, which perdure needs; install 'litellm<9'\n"


def test_agents_that_do_not_load_end_it_before_anything_starts(
    command: list[str], environment: dict[str, str], tmp_path: Path
) -> None:
    done = ran(command, "unloadable", environment, tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "perdure: module 'unloadable' does not import; mend it\n"
    assert not (tmp_path / "worker.pid").exists()


def test_agents_missing_keys_and_the_address_file(dev: Dev, greeting: list[str], tmp_path: Path) -> None:
    assert greeting[0] == "agents   writer · openai/m · 1 tool"
    assert greeting[1].startswith("missing  OPENAI_API_KEY for openai/m (agent writer) is not set")
    assert greeting[2].startswith("missing  WORDS_TOKEN (agent writer) is not set")
    assert "  perdure run writer 'what it is to do'" in greeting
    file = json.loads((tmp_path / ".perdure" / "dev.json").read_text())
    assert f"server   {file['temporal_address']}" in greeting
    assert (file["pid"], file["store_url"]) == (dev.pid, f"sqlite:///{tmp_path}/.perdure/store.db")
    dev.send_signal(signal.SIGINT)
    assert dev.wait(120) == 0
    assert not (tmp_path / ".perdure" / "dev.json").exists()


def test_a_profile_for_a_cluster_does_not_reach_the_embedded_server_and_its_worker(
    command: list[str], environment: dict[str, str], tmp_path: Path
) -> None:
    profile = {
        "TEMPORAL_ADDRESS": "cluster.example:7233",
        "TEMPORAL_API_KEY": "key-of-the-cluster",
        "TEMPORAL_TLS": "1",
    }
    with running(command, {**environment, **profile}, tmp_path) as process:
        assert process.stdout is not None
        (hint,) = [line for line in iter(process.stdout.readline, "Ctrl+C stops everything\n") if "perdure run" in line]
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
    said = (tmp_path / ".perdure" / "worker.log").read_text()
    assert "key-of-the-cluster" not in said
    assert f"'TEMPORAL_CONFIG_FILE': '{os.devnull}'" in said
    assert hint.strip().startswith("TEMPORAL_ADDRESS=127.0.0.1:")
    assert f"TEMPORAL_CONFIG_FILE={os.devnull} " in hint
