"""A real PgBouncer in transaction mode, before a test's PostgreSQL."""

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url

from perdure.cli.server import spawn, stop_process
from perdure.local_ports import find_free_port
from tests.house import eventually

CONFIGURATION = """
[databases]
* = host={server} port=5432 user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 2
logfile = {folder}/pgbouncer.log
"""


@asynccontextmanager
async def pgbouncer_or_skip(postgresql: Any) -> AsyncIterator[str]:
    """The store's address through it, with two connections to the server; skips the test where it is missing."""
    binary = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if binary is None:
        pytest.skip("pgbouncer is not installed")
    postgresql.ensure_postgres_running()
    address, port = make_url(postgresql.get_uri()), find_free_port()
    server = Path(str(address.query["host"]))
    # Not in pytest's own folder: started by root, PgBouncer runs as the server's user, who may not enter that one.
    folder = Path(tempfile.mkdtemp(prefix="perdure-test-"))
    folder.chmod(0o777)
    configuration = folder / "pgbouncer.ini"
    configuration.write_text(CONFIGURATION.format(server=server, port=port, folder=folder))
    as_other = ["-u", server.owner()] if os.getuid() == 0 else []
    process = spawn([binary, *as_other, str(configuration)], output=subprocess.DEVNULL)

    async def accepts() -> bool:
        if process.poll() is not None:
            log = folder / "pgbouncer.log"
            pytest.fail(f"pgbouncer ended with {process.returncode}: {log.read_text() if log.exists() else ''}")
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        await eventually(accepts)
        yield address.set(host="127.0.0.1", port=port, query={}).render_as_string(hide_password=False)
    finally:
        await stop_process(process)
        shutil.rmtree(folder)
