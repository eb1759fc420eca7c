"""A store of another version, or a file that is no store: a worker says so in one line, exits 8 and changes nothing."""

import asyncio
import sqlite3
from pathlib import Path

import pytest
from click.testing import CliRunner

from perdure.cli.main import cli
from perdure.store import Store
from tests.house import House

AGENTS = "tests.workflow.agents_for_kill"
KNOWN_AGAIN = "upgrade perdure or use another store"


def revision(file: Path, number: str) -> None:
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE perdure_revision SET version_num = ?", [number])
    connection.close()


@pytest.fixture
async def file(house: House) -> Path:
    """A store's file that nobody has open."""
    path = house.folder / "other.db"
    house.environment.setenv("PERDURE_STORE_URL", f"sqlite:///{path}")
    await (await Store.open(f"sqlite:///{path}", upgrade=True)).close()
    return path


def last_words(house: House) -> tuple[int, list[str]]:
    """The exit code of a worker that does not start, and what it wrote that is no log record."""
    worker = house.spawn_worker(AGENTS, LINES="/dev/null")
    code = worker.process.wait(60)
    return code, [line for line in worker.log.read_text().splitlines() if not line.startswith("{")]


@pytest.mark.parametrize("number", ["9999", "0000"])
async def test_a_store_of_a_version_nobody_knows_here(house: House, file: Path, number: str) -> None:
    revision(file, number)
    before = file.read_bytes()
    code, lines = last_words(house)
    (line,) = lines
    assert code == 8
    assert line.startswith("perdure: ")
    assert f"has the schema {number}" in line
    assert KNOWN_AGAIN in line
    assert file.read_bytes() == before


@pytest.mark.parametrize("verb", [["list"], ["agents"], ["show", "s"], ["export", "s", "--format", "events"]])
async def test_the_command_line_says_the_same(file: Path, verb: list[str]) -> None:
    revision(file, "9999")
    result = await asyncio.to_thread(CliRunner().invoke, cli, verb, prog_name="perdure")
    (line,) = result.stderr.splitlines()
    assert result.exit_code == 8
    assert "has the schema 9999" in line
    assert KNOWN_AGAIN in line


async def test_a_store_without_tables_is_no_older_version_but_a_new_store(house: House, file: Path) -> None:
    file.unlink()
    file.touch()
    worker = house.spawn_worker(AGENTS, LINES="/dev/null")
    await worker.polling()
    assert await worker.stop() == 0


async def test_a_file_that_is_no_database_is_left_as_it_is(house: House, file: Path) -> None:
    file.write_text("dear diary, " * 1_000)
    code, lines = last_words(house)
    (line,) = lines
    assert code == 8
    assert "file is not a database" in line
    assert file.read_text() == "dear diary, " * 1_000
