"""A store of an older schema with sessions in it: upgraded in place, and its sessions go on. On both databases.

The newer release is this one with a migration more.
"""

import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import inspect, text

from perdure.contracts.events import UserInputRequired
from perdure.contracts.turns import RunState, StopReason
from perdure.store import Store, StoreError, StoreVersionError, migrate
from perdure.store.migrate import MIGRATIONS
from perdure.store.schema import KNOWN_REVISIONS, MIGRATIONS_TABLE, OLDEST_REVISION, REVISION, REVISION_TABLE
from tests.unit.store.given import SESSION, answer, commit, database, generate, new_event, open_turn

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


@pytest.fixture
def url(empty_url: str) -> str:
    return empty_url


async def make_session(url: str) -> None:
    """A session with an ended turn and an open one."""
    async with await Store.open(url, upgrade=True) as store:
        opened = await open_turn(store)
        step = await answer(store, generate(opened.tip), "hello to you")
        await store.commit_turn(commit(step.id))
        await open_turn(store, "are you there?", request_id="r2")


def become_the_next_release(
    monkeypatch: pytest.MonkeyPatch, folder: Path, migration: str = MIGRATION, oldest: str = OLDEST_REVISION
) -> None:
    """From here on the schema has a migration more, and is for releases that know the schema ``oldest``."""
    migrations = folder / "migrations"
    shutil.copytree(MIGRATIONS, migrations)
    (migrations / "versions" / f"{NEXT}_tomorrow.py").write_text(migration)
    monkeypatch.setattr(migrate, "MIGRATIONS", migrations)
    monkeypatch.setattr(migrate, "KNOWN_REVISIONS", (*KNOWN_REVISIONS, NEXT))
    monkeypatch.setattr(migrate, "OLDEST_REVISION", oldest)


def revisions_of(url: str) -> tuple[str, str]:
    """The newest migration, and the oldest schema that a release must know."""
    with database(url) as connection:
        rows = [
            connection.scalar(text(f"SELECT version_num FROM {name}")) for name in (MIGRATIONS_TABLE, REVISION_TABLE)
        ]
    return str(rows[0]), str(rows[1])


def columns_of_steps(url: str) -> set[str]:
    with database(url) as connection:
        return {column["name"] for column in inspect(connection).get_columns("steps")}


async def test_an_older_store_is_upgraded_with_its_sessions_which_go_on(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The conversation, the open turn and the log are as they were."""
    await make_session(url)
    become_the_next_release(monkeypatch, tmp_path)
    with pytest.raises(
        StoreVersionError, match=f"has the schema {REVISION}, .* needs {NEXT}; run `perdure store migrate`"
    ):
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
        assert (await store.open_turns()).waiting == 1
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
        assert (await store.open_turns()).waiting == 0
        assert (await store.session(SESSION)).updated_at < datetime.now(UTC)

    assert (revisions_of(url), "tomorrow" in columns_of_steps(url)) == ((NEXT, OLDEST_REVISION), True)


@pytest.mark.parametrize("upgrade", [False, True])
async def test_this_release_goes_on_with_a_store_to_which_a_newer_one_has_only_added(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, upgrade: bool
) -> None:
    await make_session(url)
    with monkeypatch.context() as tomorrow:
        become_the_next_release(tomorrow, tmp_path)
        assert migrate.migrate(url) == (NEXT,)

    async with await Store.open(url, upgrade=upgrade) as store:
        step = await answer(store, generate((await store.session(SESSION)).tip or "", turn=2), "still here")
        await store.commit_turn(commit(step.id, turn=2))
        assert (await store.session(SESSION)).open_turn is None
    assert revisions_of(url) == (NEXT, OLDEST_REVISION)
    found = migrate.read_schema(url)
    assert (found.is_newer, found.is_known, found.pending) == (True, True, ())


async def test_this_release_refuses_a_store_from_which_a_newer_one_has_taken_away(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_session(url)
    with monkeypatch.context() as tomorrow:
        become_the_next_release(tomorrow, tmp_path, oldest=NEXT)
        migrate.migrate(url)

    with pytest.raises(
        StoreVersionError, match=f"schema {NEXT}, .* know {NEXT}, .* to {REVISION}; upgrade perdure or use"
    ):
        await Store.open(url, upgrade=True)


async def test_a_store_of_a_release_with_one_row_only_is_upgraded(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its Alembic has written into the row that says today which schema must be known."""
    await make_session(url)
    with database(url) as connection:
        connection.execute(text(f"DROP TABLE {MIGRATIONS_TABLE}"))
        connection.execute(text(f"UPDATE {REVISION_TABLE} SET version_num = '{REVISION}'"))
    become_the_next_release(monkeypatch, tmp_path)

    assert migrate.read_schema(url).pending == (NEXT,)
    assert migrate.migrate(url) == (NEXT,)
    assert migrate.migrate(url) == ()
    async with await Store.open(url) as store:
        assert (await store.session(SESSION)).open_turn == 2


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

    assert (revisions_of(url), "tomorrow" in columns_of_steps(url)) == ((REVISION, OLDEST_REVISION), False)
    async with await Store.open(url) as store:
        assert (await store.session(SESSION)).open_turn == 2
