"""A store of another version, or a file that is no store: a worker says so in one line, exits 8 and changes nothing."""

import asyncio
import sqlite3
from pathlib import Path

import pytest
from click.testing import CliRunner
from google.protobuf.duration_pb2 import Duration
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest

from perdure.cli.main import cli
from perdure.store import Store
from perdure.store.schema import REVISION
from tests.house import House, eventually

pytestmark = pytest.mark.deep

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
    worker = house.spawn_worker(AGENTS, EFFECTS_FILE="/dev/null")
    code = worker.process.wait(120)
    return code, [line for line in worker.log.read_text().splitlines() if not line.startswith("{")]


ADDRESSES = {
    "mysql://me:hunter2hunter2@host/db": (
        "the store cannot be a mysql database; set PERDURE_STORE_URL to sqlite:///FILE or postgresql://…"
    ),
    "my store": ("the store's address is not a URL; set PERDURE_STORE_URL to sqlite:///FILE or postgresql://…"),
    "postgresql://host/db?ssl_mode=require": (
        "the store's address has the option 'ssl_mode', which PostgreSQL's client does not know; did you mean sslmode?"
    ),
}
"""Addresses that no waiting makes right, and what is said of each."""


@pytest.mark.parametrize("url", ADDRESSES)
async def test_a_worker_whose_stores_address_cannot_be_used_is_configured_wrongly(house: House, url: str) -> None:
    house.environment.setenv("PERDURE_STORE_URL", url)
    assert last_words(house) == (2, [f"perdure: {ADDRESSES[url]}"])


@pytest.mark.parametrize("url", ADDRESSES)
@pytest.mark.parametrize("verb", [["list"], ["show", "s"], ["store", "status"], ["store", "migrate"]])
async def test_every_verb_says_of_such_an_address_what_the_worker_says(house: House, url: str, verb: list[str]) -> None:
    house.environment.setenv("PERDURE_STORE_URL", url)
    result = await asyncio.to_thread(CliRunner().invoke, cli, verb, prog_name="perdure")
    assert (result.exit_code, result.stderr) == (2, f"perdure: {ADDRESSES[url]}\n")


@pytest.mark.parametrize("number", ["9999", "0000"])
async def test_a_store_of_a_version_nobody_knows_here(house: House, file: Path, number: str) -> None:
    revision(file, number)
    before = file.read_bytes()
    code, lines = last_words(house)
    (line,) = lines
    assert code == 8
    assert line.startswith("perdure: ")
    assert f"has the schema {REVISION}, for releases of perdure that know {number}, and this one knows 0001 to " in line
    assert KNOWN_AGAIN in line
    assert file.read_bytes() == before


@pytest.mark.parametrize("verb", [["list"], ["agents"], ["show", "s"], ["export", "s", "--format", "events"]])
async def test_the_command_line_says_the_same(file: Path, verb: list[str]) -> None:
    revision(file, "9999")
    result = await asyncio.to_thread(CliRunner().invoke, cli, verb, prog_name="perdure")
    (line,) = result.stderr.splitlines()
    assert result.exit_code == 8
    assert f"has the schema {REVISION}, for releases of perdure that know 9999, and this one knows 0001 to " in line
    assert KNOWN_AGAIN in line


async def test_a_store_without_tables_is_no_older_version_but_a_new_store(house: House, file: Path) -> None:
    file.unlink()
    file.touch()
    worker = house.spawn_worker(AGENTS, EFFECTS_FILE="/dev/null")
    await worker.polling()
    assert await worker.stop() == 0


async def test_a_file_that_is_no_database_is_left_as_it_is(house: House, file: Path) -> None:
    file.write_text("dear diary, " * 1_000)
    code, lines = last_words(house)
    (line,) = lines
    assert code == 8
    assert "file is not a database" in line
    assert file.read_text() == "dear diary, " * 1_000


async def test_a_worker_that_may_not_migrate_refuses_a_store_that_needs_it_and_names_the_fix(
    house: House, file: Path
) -> None:
    """For fleets, whose workers must not race to change the schema: a job does it before they start."""
    file.unlink()
    house.environment.setenv("PERDURE_MIGRATE", "off")
    code, (line,) = last_words(house)
    assert (code, file.exists()) == (8, False)
    assert line.startswith(f"perdure: there is no store at {file}")
    file.touch()
    code, (line,) = last_words(house)
    assert (code, file.read_bytes()) == (8, b"")
    assert f"has no tables yet, and this release of perdure needs {REVISION}; run `perdure store migrate`, or" in line
    result = await asyncio.to_thread(CliRunner().invoke, cli, ["store", "migrate"], prog_name="perdure")
    assert result.exit_code == 0
    worker = house.spawn_worker(AGENTS, EFFECTS_FILE="/dev/null")
    await worker.polling()
    assert await worker.stop() == 0


async def test_a_namespace_without_the_search_attributes_is_refused_until_setup_was_run(
    house: House, file: Path
) -> None:
    namespace = f"bare-{house.folder.name}"[:60]
    request = RegisterNamespaceRequest(
        namespace=namespace, workflow_execution_retention_period=Duration(seconds=24 * 3600)
    )
    await house.temporal.workflow_service.register_namespace(request, retry=True)
    house.environment.setenv("TEMPORAL_NAMESPACE", namespace)

    async def is_known() -> bool:
        return "search attributes" in last_words(house)[1][0]

    await eventually(is_known)
    code, (line,) = last_words(house)
    assert code == 8
    assert line.startswith("perdure: the cluster lacks the search attributes PerdureAgent, ")
    assert line.endswith("run 'perdure setup' once, or set PERDURE_SEARCH_ATTRIBUTES=off")
    result = await asyncio.to_thread(CliRunner().invoke, cli, ["setup"], prog_name="perdure")
    assert result.exit_code == 0, result.output

    async def is_set_up() -> bool:
        worker = house.spawn_worker(AGENTS, EFFECTS_FILE="/dev/null")
        while worker.process.poll() is None and '"polling"' not in worker.log.read_text():
            await asyncio.sleep(0.05)
        polls = worker.process.poll() is None
        worker.kill()
        return polls

    await eventually(is_set_up)
