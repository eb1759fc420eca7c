"""Opening a store: its schema, and what is said when it cannot be opened."""

import asyncio
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from perdure.store import Store, StoreError, StoreUnavailableError, StoreVersionError
from perdure.store.errors import StoreConfigError
from perdure.store.migrate import MIGRATIONS
from perdure.store.schema import (
    IS_RETRY,
    KNOWN_REVISIONS,
    MIGRATIONS_TABLE,
    OLDEST_REVISION,
    REVISION,
    REVISION_TABLE,
    metadata,
)
from tests.unit.store.given import SESSION, database, new_event, open_turn

ROOT = Path(__file__).parents[3]
PASSWORD = "hunter2"

OPEN = """
import asyncio, sys
from perdure.store import Store

async def main():
    store = await Store.open(sys.argv[1], upgrade=True)
    await store.agents()
    await store.close()

asyncio.run(main())
"""


@pytest.fixture
def url(empty_url: str) -> str:
    return empty_url


def _belongs_to(connection: Connection) -> Callable[..., bool]:
    """Whether a table is of the schema: pieces of answers have a file of their own beside a SQLite store."""
    others = {REVISION_TABLE, "live"} if connection.dialect.name == "sqlite" else {REVISION_TABLE}
    return lambda item, name, kind, *_: not (kind == "table" and name in others)


async def test_an_upgrade_of_nothing_makes_the_schema_of_this_release(url: str) -> None:
    async with await Store.open(url, upgrade=True):
        pass

    with database(url) as connection:
        opts = {"version_table": MIGRATIONS_TABLE, "include_object": _belongs_to(connection)}
        context = MigrationContext.configure(connection, opts=opts)
        assert context.get_current_revision() == REVISION
        assert compare_metadata(context, metadata) == []


def test_the_known_revisions_are_those_of_the_migrations() -> None:
    scripts = [script.revision for script in ScriptDirectory(str(MIGRATIONS)).walk_revisions()]

    assert tuple(reversed(scripts)) == KNOWN_REVISIONS
    assert KNOWN_REVISIONS[-1] == REVISION
    assert OLDEST_REVISION in KNOWN_REVISIONS


async def test_the_retries_of_a_step_are_found_without_reading_the_whole_log(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'perdure.db'}"
    async with await Store.open(url, upgrade=True):
        pass

    with database(url) as connection:
        query = f"SELECT * FROM events WHERE session = 's' AND turn = 1 AND step = 1 AND {IS_RETRY} ORDER BY seq"
        plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {query}").one()

    assert "ix_events_retries (session=? AND turn=? AND step=?)" in str(plan)


async def test_a_store_opens_again_with_what_was_written(url: str) -> None:
    async with await Store.open(url, upgrade=True) as store:
        await open_turn(store)

    for upgrade in (False, True):
        async with await Store.open(url, upgrade=upgrade) as store:
            assert (await store.session(SESSION)).turn == 1


@pytest.mark.deep
async def test_two_processes_may_upgrade_at_once(url: str) -> None:
    command = [sys.executable, "-c", OPEN, url]
    starting = (asyncio.create_subprocess_exec(*command, cwd=ROOT, stderr=asyncio.subprocess.PIPE) for _ in range(2))
    processes = await asyncio.gather(*starting)

    async with asyncio.timeout(60):
        ended = await asyncio.gather(*(process.communicate() for process in processes))

    assert [errors.decode() for _, errors in ended] == ["", ""]
    assert [process.returncode for process in processes] == [0, 0]


async def test_two_stores_of_one_process_may_upgrade_at_once(url: str) -> None:
    stores = await asyncio.gather(*(Store.open(url, upgrade=True) for _ in range(2)))

    for store in stores:
        await store.close()


@pytest.mark.parametrize("upgrade", [False, True])
async def test_a_schema_of_a_newer_release_is_refused_with_the_way_out(url: str, upgrade: bool) -> None:
    async with await Store.open(url, upgrade=True):
        pass
    with database(url) as connection:
        connection.execute(text(f"UPDATE {REVISION_TABLE} SET version_num = '9999'"))

    with pytest.raises(StoreVersionError, match=r"that know 9999, .*upgrade perdure or use another store"):
        await Store.open(url, upgrade=upgrade)


async def test_a_database_without_tables_says_who_makes_them(postgresql_url: str) -> None:
    with pytest.raises(StoreVersionError, match=r"no tables yet, .* run `perdure store migrate`, or start a worker"):
        await Store.open(postgresql_url)


async def test_a_missing_file_is_named_and_not_created(tmp_path: Path) -> None:
    file = tmp_path / "none" / "perdure.db"

    with pytest.raises(StoreUnavailableError, match=f"there is no store at {file}; a worker or `perdure dev`"):
        await Store.open(f"sqlite:///{file}")

    assert not file.parent.exists()


async def test_a_file_that_is_no_database_is_said_to_be_unusable(tmp_path: Path) -> None:
    file = tmp_path / "perdure.db"
    file.write_text("this is a letter, not a database " * 100)

    with pytest.raises(StoreUnavailableError, match="file is not a database"):
        await Store.open(f"sqlite:///{file}", upgrade=True)


async def test_a_folder_that_cannot_be_made_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(StoreUnavailableError, match="file"):
        await Store.open(f"sqlite:///{tmp_path / 'file' / 'perdure.db'}", upgrade=True)


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://perdure:{PASSWORD}@127.0.0.1:1/perdure",
        f"postgresql://127.0.0.1:1/perdure?user=perdure&password={PASSWORD}",
    ],
)
async def test_an_absent_server_is_named_without_the_password(url: str) -> None:
    with pytest.raises(StoreUnavailableError, match=r"127\.0\.0\.1") as raised:
        await Store.open(url)

    assert PASSWORD not in str(raised.value)
    assert raised.value.__suppress_context__
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("url", [f"perdure:{PASSWORD}", f"mysql://perdure:{PASSWORD}@host/perdure"])
async def test_an_address_of_another_kind_is_refused_without_the_password(url: str) -> None:
    with pytest.raises(StoreError, match="to sqlite:///FILE or postgresql://") as raised:
        await Store.open(url)

    assert PASSWORD not in str(raised.value)


async def test_a_sqlite_without_what_the_store_needs_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 34, 1))
    with pytest.raises(StoreConfigError, match=r"needs SQLite 3\.35\.0 or newer, and this Python has"):
        await Store.open(f"sqlite:///{tmp_path / 'store.db'}", upgrade=True)
    assert not list(tmp_path.iterdir())


async def test_a_store_in_memory_lives_as_long_as_it_is_open() -> None:
    async with await Store.open("sqlite://", upgrade=True) as store:
        await open_turn(store)
        assert (await store.session(SESSION)).turn == 1


async def test_a_connection_that_died_between_two_uses_is_replaced(postgresql_url: str) -> None:
    async with await Store.open(postgresql_url, upgrade=True) as store:
        await open_turn(store)
        _end_all_others(postgresql_url)
        await store.append_events(SESSION, [new_event("a")])
        _end_all_others(postgresql_url)

        assert [envelope.seq for envelope in await store.events(SESSION)] == [1, 2]


def _end_all_others(url: str) -> None:
    with database(url) as connection:
        connection.execute(
            text(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        )


async def test_a_locked_database_is_unavailable_and_says_so(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'perdure.db'}"
    async with await Store.open(f"{url}?timeout=0.05", upgrade=True) as store:
        with database(url) as other:
            other.exec_driver_sql("BEGIN IMMEDIATE")
            with pytest.raises(StoreUnavailableError, match="database is locked"):
                await open_turn(store)
