"""A gateway that is not ready: the doctor tells whether it is to be started, to be waited for, or somebody else."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from perdure.cli import gateway
from perdure.cli.errors import ExitCode
from perdure.cli.gateway import find_readiness
from perdure.local_ports import find_free_port


@contextmanager
def answering(status: int, body: str) -> Iterator[str]:
    """The address of somebody who says this whenever asked."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the base class
            """Log nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def connected(say: Callable[[socket.socket], None]) -> Iterator[str]:
    """The address of somebody who takes a connection and does this with it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def take() -> None:
            taken, _ = listener.accept()
            with taken:
                say(taken)

        thread = threading.Thread(target=take, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


def test_a_gateway_that_is_ready() -> None:
    with answering(200, "ready\n") as url:
        assert (find_readiness(url).ok, find_readiness(url).text) == (True, f"{url} is ready")


@pytest.mark.parametrize(
    ("status", "body", "text", "fix"),
    [
        (503, "store: its disk is full\n", "runs and is not ready: store: its disk is full", "mend what it names"),
        (503, "server: no answer within 5 s\nstore: x\n", "server: no answer within 5 s · store: x", "by itself"),
        (503, "stopping\n", "is stopping", "start another one"),
        (503, "<h1>No backend</h1>", "is no gateway (HTTP status 503)", "set PERDURE_GATEWAY_ADDRESS"),
        (404, "not found", "is no gateway (HTTP status 404)", "set PERDURE_GATEWAY_ADDRESS"),
        (200, "<html>", "is no gateway (HTTP status 200)", "set PERDURE_GATEWAY_ADDRESS"),
    ],
)
def test_one_that_answers_is_not_to_be_started(status: int, body: str, text: str, fix: str) -> None:
    with answering(status, body) as url:
        found = find_readiness(url)
    assert (found.ok, found.code) == (False, ExitCode.UNREACHABLE)
    assert text in found.text
    assert fix in found.fix
    assert "'perdure gateway'" not in found.fix


def test_one_that_is_not_there_is_to_be_started() -> None:
    found = find_readiness(f"http://127.0.0.1:{find_free_port()}")
    assert "does not answer" in found.text
    assert found.fix.startswith("start it with 'perdure gateway'")


def test_one_that_hangs_is_to_be_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(taken: socket.socket) -> None:
        while taken.recv(10_000):
            pass

    monkeypatch.setattr(gateway, "PROBE_SECONDS", 0.05)
    with connected(hang) as url:
        found = find_readiness(url)
    assert "does not answer within" in found.text
    assert found.fix.startswith("look at its log")


def test_what_speaks_no_http_is_no_gateway() -> None:
    def say(taken: socket.socket) -> None:
        taken.recv(10_000)
        taken.sendall(b"+PONG\r\n")

    with connected(say) as url:
        found = find_readiness(url)
    assert "does not speak HTTP" in found.text
    assert found.fix.startswith("set PERDURE_GATEWAY_ADDRESS")
