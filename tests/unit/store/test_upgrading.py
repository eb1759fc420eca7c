"""A store of an older schema with sessions in it: upgraded in place, and its sessions go on. On both databases.

There is one schema so far, so the newer release is this one with a migration more.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import Connection, create_engine, inspect, text

from perdure.contracts.events import UserInputRequired
from perdure.contracts.turns import RunState, StopReason
from perdure.store import Store, StoreError, StoreVersionError, migrate
from perdure.store.database import Address
from perdure.store.migrate import MIGRATIONS
from perdure.store.schema import KNOWN_REVISIONS, REVISION, REVISION_TABLE
from tests.unit.store.given import SESSION, answer, commit, generate, new_event, open_turn

NEXT = "9001"
MIGRATION = f'''"""Tomorrow's column."""

import sqlalchemy as sa
from alembic import op

revision = "{NEXT}"
down_revision = "{REVISION}"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add it."""
    op.add_column("steps", sa.Column("tomorrow", sa.Integer(), nullable=True))
'''


@contextmanager
def database(url: str) -> Iterator[Connection]:
    engine = create_engine(Address(url).url)
    with engine.begin() as connection:
        yield connection
    engine.dispose()


async def make_session(url: str) -> None:
    """A session with an ended turn and an open one."""
    async with await Store.open(url, upgrade=True) as store:
        opened = await open_turn(store)
        step = await answer(store, generate(opened.tip), "hello to you")
        await store.commit_turn(commit(step.id))
        await open_turn(store, "are you there?", request_id="r2")


def become_the_next_release(monkeypatch: pytest.MonkeyPatch, folder: Path, migration: str = MIGRATION) -> None:
    """From here on the schema has a migration more."""
    migrations = folder / "migrations"
    shutil.copytree(MIGRATIONS, migrations)
    (migrations / "versions" / f"{NEXT}_tomorrow.py").write_text(migration)
    monkeypatch.setattr(migrate, "MIGRATIONS", migrations)
    monkeypatch.setattr(migrate, "REVISION", NEXT)
    monkeypatch.setattr(migrate, "KNOWN_REVISIONS", (*KNOWN_REVISIONS, NEXT))


def revision_of(url: str) -> str:
    with database(url) as connection:
        return str(connection.scalar(text(f"SELECT version_num FROM {REVISION_TABLE}")))


def columns_of_steps(url: str) -> set[str]:
    with database(url) as connection:
        return {column["name"] for column in inspect(connection).get_columns("steps")}


async def test_an_older_store_is_upgraded_with_its_sessions_which_go_on(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The conversation, the open turn and the log are as they were."""
    await make_session(url)
    become_the_next_release(monkeypatch, tmp_path)
    with pytest.raises(StoreVersionError, match=f"has the older schema {REVISION}; a worker .* sets it up"):
        await Store.open(url)
    assert "tomorrow" not in columns_of_steps(url)

    async with await Store.open(url, upgrade=True) as store:
        session = await store.session(SESSION)
        assert (session.turn, session.open_turn) == (2, 2)
        assert [turn.result.output if turn.result else None for turn in await store.turns(SESSION)] == [
            "hello to you",
            None,
        ]
        definition = await store.definition((await store.turn(SESSION, 2)).definition)
        assert (definition.name, definition.interactive) == ("helper", "wait")

        asked = UserInputRequired(request_id="q", needs="answer", tool="ask_user", question="Which?")
        await store.append_events(SESSION, [new_event("2/q/user_input_required", asked, turn=2)])
        assert (await store.people_waited_for()).turns == 1
        ((listed, _),) = await store.sessions(state=RunState.WAITING_FOR_INPUT)
        assert listed.waiting
        step = await answer(store, generate(session.tip or "", turn=2), "still here")
        ended = commit(step.id, turn=2)
        assert (await store.commit_turn(ended)).result.stop_reason is StopReason.FINISHED
        assert [message.content for message in await store.conversation(step.id)] == [
            "hello",
            "hello to you",
            "are you there?",
            "still here",
        ]
        numbers = [envelope.seq for envelope in await store.events(SESSION)]
        assert numbers == list(range(1, len(numbers) + 1))
        assert (await store.people_waited_for()).turns == 0
        assert (await store.session(SESSION)).updated_at < datetime.now(UTC)

    assert (revision_of(url), "tomorrow" in columns_of_steps(url)) == (NEXT, True)
    monkeypatch.undo()
    with pytest.raises(StoreVersionError, match=f"schema {NEXT}, .*upgrade perdure or use another store"):
        await Store.open(url, upgrade=True)


async def test_a_migration_that_fails_leaves_the_store_as_it_was(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it is one transaction, on both databases."""
    await make_session(url)
    broken = MIGRATION + '    op.execute("UPDATE no_such_table SET x = 1")\n'
    with monkeypatch.context() as tomorrow:
        become_the_next_release(tomorrow, tmp_path, broken)
        with pytest.raises(StoreError, match="no_such_table"):
            await Store.open(url, upgrade=True)

    assert (revision_of(url), "tomorrow" in columns_of_steps(url)) == (REVISION, False)
    async with await Store.open(url) as store:
        assert (await store.session(SESSION)).open_turn == 2
