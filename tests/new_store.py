"""Empty stores in milliseconds: copies of one that was migrated once, each with an id and a secret of its own."""

import functools
import secrets
import shutil
import sqlite3
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import create_engine, make_url, text

from perdure.store.migrate import migrate


@functools.cache
def _template() -> Path:
    """The file of an empty store, one for each process of the run."""
    file = Path(tempfile.mkdtemp(prefix="perdure-template-")) / "store.db"
    migrate(f"sqlite:///{file}")
    return file


def make_sqlite(file: Path) -> None:
    """Make the file of an empty store, and its folder."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch(mode=0o600)
    shutil.copyfile(_template(), file)
    connection = sqlite3.connect(file)
    with connection:
        connection.execute("UPDATE identity SET id = ?", (uuid.uuid4().hex,))
        connection.execute("UPDATE id_secrets SET secret = ?", (secrets.token_hex(32),))
    connection.close()


class PostgresqlServer:
    """A PostgreSQL server, with a database that each new store is a copy of."""

    def __init__(self, url: str) -> None:
        self._address = make_url(url).set(drivername="postgresql+psycopg")
        self._engine = create_engine(self._address, isolation_level="AUTOCOMMIT")
        self._template = ""

    @contextmanager
    def database(self, *, has_store: bool) -> Iterator[str]:
        """The address of a new database, empty or with an empty store."""
        if has_store and not self._template:
            self._template = self._create("")
            migrate(self._url_of(self._template))
        name = self._create(f"TEMPLATE {self._template}" if has_store else "")
        if has_store:
            engine = create_engine(self._address.set(database=name), isolation_level="AUTOCOMMIT")
            with engine.connect() as connection:
                connection.execute(text("UPDATE identity SET id = :id"), {"id": uuid.uuid4().hex})
                connection.execute(text("UPDATE id_secrets SET secret = :secret"), {"secret": secrets.token_hex(32)})
            engine.dispose()
        try:
            yield self._url_of(name)
        finally:
            self._do(f"DROP DATABASE {name} WITH (FORCE)")

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def _create(self, how: str) -> str:
        name = f"test_{uuid.uuid4().hex}"
        self._do(f"CREATE DATABASE {name} {how}")
        return name

    def _do(self, statement: str) -> None:
        with self._engine.connect() as connection:
            connection.execute(text(statement))

    def _url_of(self, name: str) -> str:
        address = self._address.set(drivername="postgresql", database=name)
        return address.render_as_string(hide_password=False)
