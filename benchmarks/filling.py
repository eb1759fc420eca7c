"""``python -m benchmarks.filling``: what the migration to schema 0015 costs a store of 100,000 sessions.

Prints the seconds of the migration itself, which is one transaction, and of the filling that follows it in slices, and
the bytes of the database before and after. A writer appends events meanwhile, and its slowest transaction is printed.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from itertools import count
from pathlib import Path

from sqlalchemy import create_engine, text

from benchmarks.large_store import AGENTS, FEW, MANY, append, multiply, write_session
from perdure.store import Store, migrate
from perdure.store.database import Address
from tests.older_store import migrate_back
from tests.postgresql import start_postgresql, url_of


async def measure(url: str, sessions: int) -> Mapping[str, float]:
    """Make the store, bring it back to the schema before, and measure."""
    async with await Store.open(url, upgrade=True) as store:
        for number, agent in enumerate(AGENTS):
            await write_session(store, f"s-{number}", agent, ends=number < FEW - 1)
    address = Address(url)
    engine = create_engine(address.url)
    with engine.begin() as connection:
        multiply(connection, sessions // (FEW - 1))
    with engine.begin() as connection:
        migrate_back(connection)
    _vacuum(url)
    before = _bytes(url)
    began = time.monotonic()
    migrate.migrate(url)
    migrated = time.monotonic()
    async with await Store.open(url) as store:
        writing = asyncio.create_task(_write(store))
        filled = await store.fill()
        seconds = time.monotonic() - migrated
        writing.cancel()
        slowest = await writing
    engine.dispose()
    return {
        "sessions": filled,
        "migration_s": round(migrated - began, 2),
        "filling_s": round(seconds, 1),
        "filling_ms_each": round(seconds / filled * 1000, 2),
        "slowest_write_ms": round(slowest * 1000, 1),
        "mb_before": round(before / 1e6, 1),
        "mb_after": round(_bytes(url) / 1e6, 1),
    }


async def _write(store: Store) -> float:
    """Append events to the session that runs until it is cancelled; seconds of the slowest."""
    slowest = 0.0
    for number in count():
        began = time.monotonic()
        try:
            await append(store, f"s-{FEW - 1}", f"while/{number}")
            slowest = max(slowest, time.monotonic() - began)
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            break
    return slowest


def _vacuum(url: str) -> None:
    engine = create_engine(Address(url).url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text("VACUUM FULL" if connection.dialect.name == "postgresql" else "VACUUM"))
    engine.dispose()


def _bytes(url: str) -> int:
    engine = create_engine(Address(url).url)
    with engine.connect() as connection:
        if connection.dialect.name == "postgresql":
            return int(connection.execute(text("SELECT pg_database_size(current_database())")).scalar_one())
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        return int(pages) * int(connection.exec_driver_sql("PRAGMA page_size").scalar_one())


def main() -> int:
    """Measure both databases."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.filling", description=__doc__)
    parser.add_argument("--sessions", type=int, default=MANY)
    wanted = parser.parse_args()
    for kind in ("sqlite", "postgresql"):
        with tempfile.TemporaryDirectory() as folder:
            server = start_postgresql() if kind == "postgresql" else None
            url = url_of(server) if server is not None else f"sqlite:///{Path(folder) / 'store.db'}"
            found = asyncio.run(measure(url, wanted.sessions))
            if server is not None:
                server.cleanup()
        sys.stdout.write(f"{json.dumps({'database': kind, **found})}\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
