"""A process that is frozen in the middle of a transaction: PostgreSQL takes its locks from it before its work moves."""

import asyncio
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from perdure.store import Store
from perdure.store.postgresql import IDLE_TIMEOUT
from perdure.workflows.options import HEARTBEAT_TIMEOUT
from tests.faults.pooled import pgbouncer_or_skip
from tests.house import WAIT_SECONDS, eventually
from tests.postgresql import url_of
from tests.unit.store.given import HELPER, opening

pytestmark = pytest.mark.deep

FREEZES = """
import asyncio, os, signal, sys
from sqlalchemy import func, select
from perdure.store import Store
from perdure.store.session_lock import LockedSession

tries = []

def work(connection):
    tries.append(1)
    LockedSession.find(connection, sys.argv[2])
    if len(tries) == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    return connection.scalar(select(func.txid_current()))

async def main():
    async with await Store.open(sys.argv[1]) as store:
        store._database.write(work)
        print(len(tries))

asyncio.run(main())
"""


@pytest.fixture(params=["direct", "pooled"])
async def url(request: pytest.FixtureRequest, postgresql: Any) -> AsyncIterator[str]:
    """The store's address: of the server itself, and through PgBouncer in transaction mode."""
    postgresql.ensure_postgres_running()
    if request.param == "direct":
        yield url_of(postgresql)
        return
    async with pgbouncer_or_skip(postgresql) as through:
        yield through


async def test_a_lock_that_a_frozen_process_holds_is_free_before_another_worker_takes_over(url: str) -> None:
    """And the process, when it goes on, does its transaction again from the start."""
    session = f"frozen-{uuid.uuid4().hex}"
    assert IDLE_TIMEOUT < HEARTBEAT_TIMEOUT

    async with asyncio.timeout(WAIT_SECONDS), await Store.open(url, upgrade=True) as store:
        await store.open_turn(opening("go", session=session), HELPER)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", FREEZES, url, session, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        try:

            async def is_frozen() -> bool:
                return " T " in await asyncio.to_thread(_status, process.pid)

            await eventually(is_frozen)
            await store.open_turn(opening("and on", session=session, request_id="r2"), HELPER)
            assert await is_frozen()
            process.send_signal(signal.SIGCONT)
            out, error = await process.communicate()
            assert out.decode().split() == ["2"], error.decode()
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def _status(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text()
