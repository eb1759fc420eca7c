"""What bytes and backups of a job tell: with keys, a key store, artifacts as files and a Temporal server of its own."""

import base64
import shutil
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import temporalio.client
from sqlalchemy import select

from perdure import Agent, File, tool
from perdure.cli.server import EmbeddedServer, ServerOptions
from perdure.client import SessionErasedError
from perdure.client.connect import make_converter
from perdure.client.encryption import open_store
from perdure.local_ports import find_free_port
from perdure.security.keyring import Keyring
from perdure.settings import Settings
from perdure.store import Store, schema
from perdure.store.artifact_files import LARGE
from perdure.store.errors import SessionErasedError as KeyErasedError
from perdure.testing import Script, ScriptedProvider, call, say
from tests.house import House, become_a_user

pytestmark = pytest.mark.deep

KEYS = f"k1:{base64.b64encode(bytes(range(32))).decode()}"

NAMES = ("prompt", "argument", "result", "output", "pdf")
MARKS = {name: f"MARK-{name.upper():8}-7Q" for name in NAMES}
"""What is said; 16 characters each."""

LONG = MARKS["output"] * (LARGE // 16 + 1)
PART = (MARKS["pdf"] + "\n\n").encode()
PDF = b"%PDF-1.4\n".ljust(18) + PART * (LARGE // 18) + b"%%EOF"
ENCODED = base64.b64encode(PART)
"""A part of 18 bytes stands in base64 as it would alone."""


@tool
def look(at: str) -> str:
    """Look at something."""
    return MARKS["result"]


@tool
def read() -> str:
    """Read a long text."""
    return LONG


READER = Agent(name="tester", model="openai/scripted", tools=[look, read])


@pytest.fixture
async def house(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[House]:
    async with EmbeddedServer(ServerOptions(port=find_free_port(), db=tmp_path / "temporal.db")) as server:
        become_a_user(monkeypatch, server.address)
        monkeypatch.setenv("PERDURE_ENCRYPTION_KEYS", KEYS)
        monkeypatch.setenv("PERDURE_KEY_STORE_URL", f"sqlite:///{tmp_path / 'keys' / 'keys.db'}")
        monkeypatch.setenv("PERDURE_ARTIFACTS", f"file://{tmp_path / 'artifacts'}")
        temporal = await temporalio.client.Client.connect(
            server.address, data_converter=make_converter(Keyring.parse(KEYS))
        )
        async with House.built(
            name="backup", server=server, temporal=temporal, environment=monkeypatch, folder=tmp_path
        ) as built:
            yield built


def seen_in(folder: Path) -> set[str]:
    """Which marks stand in some file below the folder: databases, what stands beside them, artifacts."""
    wanted = {"pdf": ENCODED, **{name: mark.encode() for name, mark in MARKS.items() if name != "pdf"}}
    texts = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    assert len(texts) > 4
    return {name for name, mark in wanted.items() if any(mark in text for text in texts)}


async def work(house: House, session: str) -> None:
    """A turn with everything in it."""
    prompt: Any = [MARKS["prompt"], File("a.pdf", PDF)]
    turn = await house.client.start("tester", prompt, session=session)
    assert (await turn.result()).output == MARKS["prompt"]


def answers() -> Script:
    once = (call(("look", {"at": MARKS["argument"]}), ("read", {})), say(MARKS["prompt"]))
    return Script(replies=(*once, *once))


def back_up(folder: Path) -> Settings:
    """Copies of the store and the files, and the settings that lead to them; the key store is the one in use."""
    copy = folder.parent / f"{folder.name}-backup"
    copy.mkdir()
    with closing(sqlite3.connect(folder / "store.db")) as source, closing(sqlite3.connect(copy / "store.db")) as target:
        source.backup(target)
    shutil.copytree(folder / "artifacts", copy / "artifacts")
    return Settings(store_url=f"sqlite:///{copy / 'store.db'}", artifacts=f"file://{copy / 'artifacts'}")


async def artifacts_of(store: Store, session: str) -> list[str]:
    """The ids of a session's artifacts."""
    ids = select(schema.artifacts.c.id).where(schema.artifacts.c.session == session)
    return list(await store.read("artifacts", lambda connection: connection.scalars(ids).all()))


async def test_an_erased_session_is_nowhere_and_a_backup_cannot_bring_it_back(house: House) -> None:
    """Database, log of writes, pieces, files and Temporal's own database; the other session is read from the backup."""
    other = f"{house.session}-other"
    async with ScriptedProvider(answers()) as provider, house.worker(READER):
        house.use(provider)
        await work(house, house.session)
        await work(house, other)
        assert len([path for path in (house.folder / "artifacts").rglob("*") if path.is_file()]) == 4
        assert seen_in(house.folder) == set()
        tip = (await house.store.session(house.session)).head or ""
        restored = back_up(house.folder)
        await house.client.delete(house.session)
        assert seen_in(house.folder) == set()
        assert len([path for path in (house.folder / "artifacts").rglob("*") if path.is_file()]) == 2
        with pytest.raises(SessionErasedError):
            await house.client.transcript(house.session)
    async with await open_store(restored) as store:
        artifacts = await artifacts_of(store, house.session)
        assert len(artifacts) == 2
        with pytest.raises(KeyErasedError, match="its key is gone from the key store"):
            await store.conversation(tip)
        for artifact in artifacts:
            with pytest.raises(KeyErasedError, match="its key is gone from the key store"):
                await store.artifact(artifact, session=house.session)
        messages = await store.conversation((await store.session(other)).head or "")
        assert MARKS["result"] in str(messages)
        texts = [(await store.artifact(name)).text for name in await artifacts_of(store, other)]
        assert {text[:16] for text in texts} == {MARKS["output"], base64.b64encode(PDF[:12]).decode()}
