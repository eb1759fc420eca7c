import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.cli.server import free_port
from tests.contract.repository import ROOT

STAND_IN = """
import http.server, os, pathlib, signal, sys
class Ready(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/readyz" else 404)
        self.end_headers()
    def log_message(self, *args): pass
pathlib.Path("worker.pid").write_text(str(os.getpid()))
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
temporal = {name: value for name, value in os.environ.items() if name.startswith("TEMPORAL_")}
print("the worker says", temporal, sys.argv[1:], flush=True)
if "broken" in sys.argv:
    sys.exit(4)
host, port = os.environ["PERDURE_METRICS_ADDRESS"].split(":")
http.server.HTTPServer((host, int(port)), Ready).serve_forever()
"""

Dev = subprocess.Popen[str]


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "stand_in.py").write_text(STAND_IN)
    code = "from perdure.cli import child, main\nchild.WORKER = 'stand_in'\nmain()"
    return [sys.executable, "-c", code, "dev", "--headless", "--port", str(free_port())]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PERDURE_", "TEMPORAL_"))}
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path / "root")]),
        "PYTHONUNBUFFERED": "1",
        "PERDURE_METRICS_ADDRESS": f"127.0.0.1:{free_port()}",
    }


@pytest.fixture
def dev(command: list[str], environment: dict[str, str], tmp_path: Path) -> Iterator[Dev]:
    with subprocess.Popen(
        command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("Ctrl+C"):
                break
        yield process
        process.kill()


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
    out, err = dev.communicate(timeout=30)
    assert (dev.returncode, err) == (0, "")
    assert "stopping" in out
    assert is_gone(worker)
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", int(command[-1]))) != 0


def test_a_worker_that_dies_ends_it_with_an_error_that_names_the_log(dev: Dev, tmp_path: Path) -> None:
    os.kill(int((tmp_path / "worker.pid").read_text()), signal.SIGKILL)
    _, err = dev.communicate(timeout=30)
    assert dev.returncode == 1
    assert err.startswith("perdure: the worker ended with code -9")
    assert err.endswith("see .perdure/worker.log\n")


def test_a_worker_that_cannot_start_shows_its_last_words(
    command: list[str], environment: dict[str, str], tmp_path: Path
) -> None:
    done = subprocess.run(
        [*command, "--agents", "broken"],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    assert "ended with code 4: the worker says" in done.stderr
    assert "--agents', 'broken'" in done.stderr


def test_a_profile_for_a_cluster_does_not_reach_the_embedded_server_and_its_worker(
    command: list[str], environment: dict[str, str], tmp_path: Path
) -> None:
    profile = {
        "TEMPORAL_ADDRESS": "cluster.example:7233",
        "TEMPORAL_API_KEY": "key-of-the-cluster",
        "TEMPORAL_TLS": "1",
    }
    with subprocess.Popen(
        command, env={**environment, **profile}, cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        (hint,) = [line for line in iter(process.stdout.readline, "Ctrl+C stops everything\n") if "perdure run" in line]
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    said = (tmp_path / ".perdure" / "worker.log").read_text()
    assert "key-of-the-cluster" not in said
    assert f"'TEMPORAL_CONFIG_FILE': '{os.devnull}'" in said
    assert hint.strip().startswith("TEMPORAL_ADDRESS=127.0.0.1:")
    assert f"TEMPORAL_CONFIG_FILE={os.devnull} " in hint
