"""A PostgreSQL that answers and does no good: the doctor says what is wrong with it, and what helps, in one line."""

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from sqlalchemy import NullPool, create_engine, make_url, text

from perdure.cli import doctor
from perdure.cli.main import cli
from perdure.contracts.agents import AgentDefinition
from perdure.local_ports import find_free_port
from perdure.store import Store
from perdure.store.outages import find_outage
from tests.chaos.databases import Databases
from tests.house import WAIT_SECONDS
from tests.postgresql import postgresql_or_skip

pytestmark = pytest.mark.deep


@pytest.fixture(scope="module")
def databases() -> Iterator[Databases]:
    postgresql_or_skip()
    with Databases() as running:
        yield running


@pytest.fixture
async def store(databases: Databases, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a store with an agent."""
    url = databases.create()
    await fill(url)
    monkeypatch.setenv("PERDURE_STORE_URL", url)
    monkeypatch.setenv("TEMPORAL_ADDRESS", f"127.0.0.1:{find_free_port()}")
    monkeypatch.setattr(doctor, "PATIENCE", timedelta(seconds=WAIT_SECONDS))  # busy is not ill
    return url


async def fill(url: str) -> None:
    """Make the tables of a store, and one agent in it."""
    async with await Store.open(url, upgrade=True) as opened:
        await opened.register_agents([AgentDefinition(name="writer", model="openai/gpt-5-mini")])


def checks() -> dict[str, dict[str, Any]]:
    """What the doctor finds; the first finding counts where a check has several."""
    report = json.loads(CliRunner().invoke(cli, ["doctor", "--json"], prog_name="perdure").stdout)
    return {check["check"]: check for check in reversed(report["checks"])}


@contextlib.contextmanager
def limited_role(databases: Databases, url: str) -> Iterator[None]:
    """The role of the address may hold one connection, and somebody does."""
    address = databases.with_role(url, limit=1)
    engine = create_engine(make_url(address).set(drivername="postgresql+psycopg"))
    with pytest.MonkeyPatch.context() as environment, engine.connect():
        environment.setenv("PERDURE_STORE_URL", address)
        yield
    engine.dispose()


REFUSALS: dict[str, tuple[Callable[[Databases, str], AbstractContextManager[None]], str, str]] = {
    "a standby": (Databases.read_only, "cannot execute INSERT in a read-only transaction", "the primary"),
    "no connection left": (Databases.crowded, "too many clients already", "raise max_connections"),
    "no connection left for the role": (limited_role, "too many connections for role", "the limit of the role"),
    "a full disk": (Databases.full, "No space left on device", "free or add space there"),
}
"""How PostgreSQL comes to refuse, what it says, and what helps."""


@pytest.mark.parametrize("name", REFUSALS)
async def test_the_cause_and_the_fix_are_told(databases: Databases, store: str, name: str) -> None:
    refuse, said, fix = REFUSALS[name]
    assert checks()["store"]["ok"] is True
    with refuse(databases, store):
        found = checks()["store"]
    assert found["ok"] is False
    assert said in found["text"]
    assert fix in found["fix"]
    assert checks()["store"]["ok"] is True


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of 24 MB in memory, where its user may mount one."""
    mounted = shutil.which("mount") and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m,mode=0777", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if not mounted or mounted.returncode:
        pytest.skip("this user mounts no file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


async def test_a_disk_that_is_full_is_told_and_free_again_it_is_well(
    databases: Databases, monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    """A real one, as a tablespace: reads are answered, and tables cannot grow."""
    del store
    with databases.folder() as folder, small_disk(folder), databases.on_disk(folder) as url:
        await fill(url)
        monkeypatch.setenv("PERDURE_STORE_URL", url)
        filler = folder / "filler"
        with filler.open("wb") as file, contextlib.suppress(OSError):
            while True:
                os.write(file.fileno(), bytes(4096))
        found = checks()
        assert found["store"]["ok"] is False
        assert "No space left on device" in found["store"]["text"]
        assert "free or add space there" in found["store"]["fix"]
        assert found["agents"]["text"] == "writer"
        filler.unlink()
        assert checks()["store"]["ok"] is True


async def test_the_question_leaves_nothing_behind(store: str) -> None:
    """No row is left of what the doctor writes."""
    engine = create_engine(make_url(store).set(drivername="postgresql+psycopg"), poolclass=NullPool)

    def definitions() -> int:
        with engine.connect() as connection:
            return int(connection.execute(text("SELECT count(*) FROM definitions")).scalar_one())

    before = definitions()
    assert checks()["store"]["ok"] is True
    assert definitions() == before


SAID = {
    ("53100", ""): "disk is full",
    (None, "could not write to file: No space left on device"): "disk is full",
    (None, "database or disk is full"): "disk is full",
    ("25006", "Schreibtransaktion"): "takes no writes",
    (None, "attempt to write a readonly database"): "make the file and its folder writable",
    (None, "FATAL: sorry, too many clients already"): "out of connections",
    (
        None,
        "FATAL: remaining connection slots are reserved for roles with the SUPERUSER attribute",
    ): "out of connections",
    (None, 'FATAL: too many connections for database "perdure"'): "out of connections",
    (None, "FATAL: no more connections allowed (max_client_conn)"): "out of connections",
    (None, "FATAL: the database system is in recovery mode"): "log of PostgreSQL",
    (None, "FATAL: the database system is not yet accepting connections"): "log of PostgreSQL",
    (None, 'FATAL: password authentication failed for user "perdure"'): "",
    ("40001", "could not serialize access"): "",
}
"""What databases and PgBouncer say, and what perdure's advice has in it."""


@pytest.mark.parametrize(("state", "words"), SAID)
def test_advice_fits_what_the_database_says(state: str | None, words: str) -> None:
    advice = find_outage(state, words).fix
    wanted = SAID[state, words]
    assert wanted in advice
    assert bool(advice) == bool(wanted)
