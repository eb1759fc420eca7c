"""PostgreSQL databases for sessions, which can be taken away for a while."""

import asyncio
import contextlib
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, NullPool, create_engine, make_url, text
from sqlalchemy.exc import OperationalError

from tests.postgresql import start_postgresql

_FULL = """
CREATE FUNCTION is_full() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100'; END $$
"""


class Databases:
    """One PostgreSQL server, started when the first database is asked for."""

    def __init__(self) -> None:
        self._server: Any = None
        self._engine: Engine | None = None

    def __enter__(self) -> "Databases":
        return self

    def __exit__(self, *_: object) -> None:
        if self._engine is not None:
            self._engine.dispose()
            self._server.cleanup()

    def create(self) -> str:
        """The address of a fresh database."""
        name = f"chaos_{uuid.uuid4().hex}"
        self._administer(f"CREATE DATABASE {name}")
        address = make_url(self._server.get_uri()).set(drivername="postgresql", database=name)
        return address.render_as_string(hide_password=False)

    @contextlib.contextmanager
    def away(self, url: str) -> Iterator[None]:
        """Cut every connection to the database, and let none in until the block ends."""
        with self._altered(url, "WITH ALLOW_CONNECTIONS false", "WITH ALLOW_CONNECTIONS true"):
            yield

    @contextlib.contextmanager
    def read_only(self, url: str) -> Iterator[None]:
        """Have the database take no writes until the block ends, as a standby does."""
        with self._altered(url, "SET default_transaction_read_only = on", "RESET default_transaction_read_only"):
            yield

    @contextlib.contextmanager
    def crowded(self, url: str) -> Iterator[None]:
        """Take every connection of the server until the block ends, but the one of the administration."""
        address = make_url(url).set(drivername="postgresql+psycopg")
        engine = create_engine(address, poolclass=NullPool)
        self._administer("SELECT 1")
        with contextlib.ExitStack() as held:
            held.callback(engine.dispose)
            for _ in range(3):  # what is cut off comes back, perhaps sooner than the next of ours
                self.cut(url, but="crowd")
                with contextlib.suppress(OperationalError):
                    while True:
                        connection = held.enter_context(engine.connect())
                        connection.execute(text("SET application_name = 'crowd'"))
                        connection.commit()
            yield

    @contextlib.contextmanager
    def full(self, url: str) -> Iterator[None]:
        """Have the database refuse every new row until the block ends, with the error of a full disk."""
        engine = create_engine(make_url(url).set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT")
        with contextlib.closing(engine.connect()) as connection:
            connection.execute(text(_FULL))
            tables = connection.scalars(text("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")).all()
            for table in tables:
                connection.execute(text(f"CREATE TRIGGER is_full BEFORE INSERT ON {table} EXECUTE FUNCTION is_full()"))
            try:
                yield
            finally:
                connection.execute(text("DROP FUNCTION is_full CASCADE"))
        engine.dispose()

    @contextlib.contextmanager
    def _altered(self, url: str, change: str, back: str) -> Iterator[None]:
        """The database with a change, which every connection meets, until the block ends."""
        name = make_url(url).database
        self._administer(f"ALTER DATABASE {name} {change}")
        self.cut(url)
        try:
            yield
        finally:
            self._administer(f"ALTER DATABASE {name} {back}")
            self.cut(url)

    def with_role(self, url: str, *, limit: int) -> str:
        """The address with a role of its own, which may hold so many connections and reads and writes everything."""
        name = f"role_{uuid.uuid4().hex}"
        self._administer(
            f"CREATE ROLE {name} LOGIN PASSWORD 'secret' CONNECTION LIMIT {limit} IN ROLE pg_read_all_data"
        )
        address = make_url(url).set(username=name, password="secret")
        return address.render_as_string(hide_password=False)

    @contextlib.contextmanager
    def folder(self) -> Iterator[Path]:
        """A folder that the server may write."""
        self._administer("SELECT 1")
        made = Path(tempfile.mkdtemp(prefix="perdure-disk-"))
        made.chmod(0o777)
        try:
            yield made
        finally:
            shutil.rmtree(made, ignore_errors=True)

    @contextlib.contextmanager
    def on_disk(self, folder: Path) -> Iterator[str]:
        """The address of a fresh database whose files are in that folder, until the block ends."""
        name, place = f"disk_{uuid.uuid4().hex}", folder / "tables"
        place.mkdir(mode=0o700)
        shutil.chown(place, Path(str(self._server.pgdata)).owner())
        self._administer(f"CREATE TABLESPACE {name} LOCATION '{place}'")
        self._administer(f"CREATE DATABASE {name} TABLESPACE {name}")
        address = make_url(self._server.get_uri()).set(drivername="postgresql", database=name)
        try:
            yield address.render_as_string(hide_password=False)
        finally:
            self._administer(f"DROP DATABASE {name} WITH (FORCE)")
            self._administer(f"DROP TABLESPACE {name}")

    async def dump(self, url: str, file: Path) -> None:
        """Write a copy of the database, as of now, by ``pg_dump``."""
        await self._run("pg_dump", "--format=custom", f"--file={file}", url)

    async def restore(self, url: str, file: Path) -> None:
        """Put a copy in the place of the database, whose connections are cut, by ``pg_restore``."""
        name = make_url(url).database
        self._administer(f"DROP DATABASE {name} WITH (FORCE)")
        self._administer(f"CREATE DATABASE {name}")
        await self._run("pg_restore", "--exit-on-error", f"--dbname={url}", str(file))

    async def _run(self, program: str, *arguments: str) -> None:
        process = await asyncio.create_subprocess_exec(self._server.bin_path / program, *arguments)
        assert await process.wait() == 0, program

    def cut(self, url: str, but: str = "") -> None:
        """End every connection to the database, but those of this application."""
        name = make_url(url).database
        self._administer(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            f"WHERE datname = '{name}' AND application_name <> '{but or '-'}'"
        )

    def _administer(self, statement: str) -> None:
        with self._administration().connect() as connection:
            connection.execute(text(statement))

    def _administration(self) -> Engine:
        if self._engine is None:
            self._server = start_postgresql()
            address = make_url(self._server.get_uri()).set(drivername="postgresql+psycopg")
            self._engine = create_engine(address, isolation_level="AUTOCOMMIT")
        return self._engine
