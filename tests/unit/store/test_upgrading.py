"""A store of an older schema with sessions in it: upgraded in place, and its sessions go on. On both databases."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import Connection, create_engine, inspect, select, text

from perdure.contracts.events import UserInputRequired
from perdure.contracts.turns import RunState, StopReason
from perdure.store import Store, StoreVersionError
from perdure.store.engine import Address
from perdure.store.migrate import MIGRATIONS
from perdure.store.schema import KNOWN_REVISIONS, REVISION_TABLE, metadata
from tests.unit.store.given import SESSION, answer, commit, generate, new_event, open_turn

OLD = KNOWN_REVISIONS[:-1]
BEFORE_PEOPLE = ("compaction", "interactive", "approvals", "recording", "output_schema", "output_corrections")
"""Fields that the first release of a definition did not have."""


@contextmanager
def database(url: str) -> Iterator[Connection]:
    engine = create_engine(Address(url).url)
    with engine.begin() as connection:
        yield connection
    engine.dispose()


async def rows_of_a_session(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """What a session with an ended turn and an open one leaves in each table."""
    url = f"sqlite:///{folder / 'source.db'}"
    async with await Store.open(url, upgrade=True) as store:
        opened = await open_turn(store)
        step = await answer(store, generate(opened.tip), "hello to you")
        await store.commit_turn(commit(step.id))
        await open_turn(store, "are you there?", request_id="r2")
    with database(url) as connection:
        return {
            table.name: [dict(row) for row in connection.execute(select(table)).mappings()]
            for table in metadata.sorted_tables
        }


def make_old(url: str, revision: str, rows: dict[str, list[dict[str, Any]]]) -> None:
    """A store as the release with that schema left it: without the columns and the fields that came later."""
    address = Address(url)
    if address.file is not None:
        address.file.parent.mkdir(parents=True, exist_ok=True)
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with database(url) as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
        tables = [table for table in metadata.sorted_tables if inspect(connection).has_table(table.name)]
        for table in tables:
            there = {column["name"] for column in inspect(connection).get_columns(table.name)}
            for row in rows[table.name]:
                kept = {name: value for name, value in row.items() if name in there}
                if table.name == "definitions":
                    body = {name: value for name, value in json.loads(row["body"]).items() if name not in BEFORE_PEOPLE}
                    kept["body"] = json.dumps(body)
                connection.execute(table.insert().values(**kept))
        assert connection.scalar(text(f"SELECT version_num FROM {REVISION_TABLE}")) == revision


@pytest.mark.parametrize("revision", OLD)
async def test_an_older_store_is_upgraded_with_its_sessions_which_go_on(
    url: str, tmp_path: Path, revision: str
) -> None:
    """The conversation, the open turn and the log are as they were; what is new works on them."""
    make_old(url, revision, await rows_of_a_session(tmp_path))
    with pytest.raises(StoreVersionError, match=f"has the older schema {revision}; a worker .* sets it up"):
        await Store.open(url)

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

    with database(url) as connection:
        context = MigrationContext.configure(connection, opts={"version_table": REVISION_TABLE})
        assert compare_metadata(context, metadata) == []
