"""``perdure store migrate`` and ``status``: what an operator runs before the workers of a release start."""

import asyncio
import base64
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from perdure.cli.main import cli
from perdure.client.encryption import open_store
from perdure.local_ports import find_free_port
from perdure.settings import Settings
from perdure.store import migrate
from perdure.store.keys.sealing import Content
from perdure.store.schema import KNOWN_REVISIONS, OLDEST_REVISION


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the settings say that the store is; nothing is there yet."""
    path = tmp_path / "folder" / "store.db"
    monkeypatch.setenv("PERDURE_STORE_URL", f"sqlite:///{path}")
    return path


def perdure(*arguments: str) -> tuple[int, Any]:
    """The exit code, and the object that was printed or the line of the error."""
    result = CliRunner().invoke(cli, ["store", *arguments, "--json"], prog_name="perdure")
    return result.exit_code, json.loads(result.stdout) if result.stdout else result.stderr


def test_a_store_is_made_migrated_once_and_then_left_alone(file: Path) -> None:
    code, status = perdure("status")
    assert (code, status["schema"], status["pending"], file.exists()) == (1, None, list(KNOWN_REVISIONS), False)
    assert perdure("migrate")[1]["applied"] == list(KNOWN_REVISIONS)
    assert perdure("migrate")[1]["applied"] == []
    code, status = perdure("status")
    assert (code, status["schema"], status["oldest"]) == (0, KNOWN_REVISIONS[-1], OLDEST_REVISION)
    assert (status["pending"], status["usable"]) == ([], True)


def test_people_read_what_to_do(file: Path) -> None:
    said = CliRunner().invoke(cli, ["store", "status"], prog_name="perdure").stdout
    assert f"this release needs {', '.join(KNOWN_REVISIONS)}; run 'perdure store migrate'" in said
    said = CliRunner().invoke(cli, ["store", "migrate"], prog_name="perdure").stdout
    assert said.startswith(f"the store sqlite:///{file} is at schema {KNOWN_REVISIONS[-1]}; applied: ")
    said = CliRunner().invoke(cli, ["store", "status"], prog_name="perdure").stdout
    assert said.endswith("this release can use the store\n")


UNKNOWN = "has the schema 9999, for releases of perdure that know 9998,"


@pytest.mark.parametrize(
    ("oldest", "code", "usable"), [(OLDEST_REVISION, 0, True), ("9998", 8, False)], ids=["added to", "taken from"]
)
def test_a_store_of_a_newer_release(file: Path, oldest: str, code: int, usable: bool) -> None:
    perdure("migrate")
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE perdure_migrations SET version_num = '9999'")
        connection.execute("UPDATE perdure_revision SET version_num = ?", [oldest])
    connection.close()
    assert perdure("status")[0] == code
    assert (perdure("status")[1]["usable"], perdure("status")[1]["pending"]) == (usable, [])
    migrated, said = perdure("migrate")
    assert migrated == code
    assert usable or f"{UNKNOWN} and this one knows {KNOWN_REVISIONS[0]} to {KNOWN_REVISIONS[-1]}; upgrade" in said
    assert migrate.read_schema(f"sqlite:///{file}").applied == "9999"


def test_keys_move_to_the_key_store_and_back(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an operator of a store with keys in it does; doctor says what is left to do."""
    monkeypatch.setenv("PERDURE_ENCRYPTION_KEYS", f"k1:{base64.b64encode(bytes(32)).decode()}")
    perdure("migrate")
    asyncio.run(_say_something(f"sqlite:///{file}"))
    assert "there is no key store; set PERDURE_KEY_STORE_URL" in perdure("keys", "--to", "key-store")[1]
    monkeypatch.setenv("PERDURE_KEY_STORE_URL", f"sqlite:///{tmp_path / 'keys.db'}")
    assert "there is no key store at" in perdure("keys")[1]
    perdure("migrate")
    assert perdure("keys") == (0, {"moved": 0, "store": 1, "key_store": 0})
    assert "1 keys of sessions are still in the store" in diagnosis()
    assert perdure("keys", "--to", "key-store") == (0, {"moved": 1, "store": 0, "key_store": 1})
    assert "keys.db holds all keys of sessions, 1" in diagnosis()
    said = CliRunner().invoke(cli, ["store", "keys", "--to", "store"], prog_name="perdure").stdout
    assert said == "1 keys moved; keys in the store: 1, in the key store: 0\n"


def diagnosis() -> str:
    return CliRunner().invoke(cli, ["doctor"], prog_name="perdure").stdout


async def _say_something(url: str) -> None:
    async with await open_store(Settings(store_url=url)) as store:
        await store.seal_text(Content("s", "hello"), "somewhere")


@pytest.mark.parametrize("verb", ["migrate", "status"])
def test_a_store_that_does_not_answer_is_8(monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    monkeypatch.setenv("PERDURE_STORE_URL", f"postgresql://someone:hush@127.0.0.1:{find_free_port()}/perdure")
    code, said = perdure(verb)
    assert (code, len(said.splitlines()), "hush" in said) == (8, 1, False), said
