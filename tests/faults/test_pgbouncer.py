"""PostgreSQL behind PgBouncer in transaction mode: each transaction may go to another of the server's connections."""

import asyncio
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url

from perdure.cli.server import find_free_port, spawn, stop_process
from perdure.contracts.budgets import Spent
from perdure.contracts.turns import CommitTurn, StopReason
from perdure.store import Store
from tests.house import WAIT_SECONDS, eventually
from tests.postgresql import url_of
from tests.unit.store.given import HELPER, answer, generate, opening

CLIENTS = 4
TURNS = 8
"""More than a driver waits for before it prepares a statement: five executions."""

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


@pytest.fixture
async def pooled(postgresql: Any) -> AsyncIterator[str]:
    """The store's address through a real PgBouncer with two connections to the server."""
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


async def turns_of(store: Store, session: str) -> list[StopReason]:
    """The ends of some turns, one after another."""
    ends: list[StopReason] = []
    for number in range(1, TURNS + 1):
        begun = opening(f"message {number}", session=session, request_id=f"r{number}")
        opened = await store.open_turn(begun, HELPER)
        request = generate(opened.tip, turn=opened.turn).model_copy(update={"session": session})
        step = await answer(store, request, f"answer {number}")
        commit = CommitTurn(
            session=session, turn=opened.turn, tip=step.id, stop_reason=StopReason.FINISHED, steps=1, spent=Spent()
        )
        ends.append((await store.commit_turn(commit)).result.stop_reason)
        await store.conversation(step.id)
    return ends


async def test_clients_that_share_a_servers_connections_find_none_of_the_others_statements(pooled: str) -> None:
    """Prepared statements belong to a connection of the server, which the next transaction does not get again."""
    async with asyncio.timeout(WAIT_SECONDS), AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(await Store.open(pooled, upgrade=True)) for _ in range(CLIENTS)]
        ends = await asyncio.gather(*(turns_of(store, f"pooled-{at}") for at, store in enumerate(stores)))
        assert ends == [[StopReason.FINISHED] * TURNS] * CLIENTS
        for at, store in enumerate(stores):
            assert len(await store.transcript(f"pooled-{at}")) == 2 * TURNS


async def test_a_ring_is_heard_behind_the_pool_only_by_who_listens_beside_it(pooled: str, postgresql: Any) -> None:
    """S-47: which ``perdure doctor`` tells; behind the pool alone, the look of each second is what is left."""
    direct = url_of(postgresql)
    async with await Store.open(pooled, upgrade=True, listen_url=direct) as beside:
        assert await beside.doorbell.answers()
    async with await Store.open(pooled) as behind, await Store.open(direct) as writer:
        await writer.open_turn(opening("go", session="behind", request_id="behind"), HELPER)
        with behind.doorbell.follow("behind") as bell:
            assert await bell.wait(0, timedelta(seconds=WAIT_SECONDS))
