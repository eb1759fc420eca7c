"""What sessions hold is sealed with a key of their own: nothing of it stands in the database. On both databases."""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from sqlalchemy import Connection, create_engine, inspect, text

from perdure.contracts.checkpoints import ResumeFrom
from perdure.contracts.deltas import Delta
from perdure.contracts.messages import AssistantMessage
from perdure.contracts.turns import Continuation, OpenTurn
from perdure.security.keyring import Keyring
from perdure.store import Artifact, Store, StoreError
from perdure.store.database import Address
from perdure.store.errors import StoreKeyError
from perdure.store.open_turn import open_turn as begin
from perdure.store.records import LedgerCall
from perdure.store.tenants import answer_request, claim_request
from tests.unit.store.given import (
    HELPER,
    SESSION,
    STARTED,
    answer,
    claim,
    commit,
    finish,
    generate,
    new_event,
    open_turn,
    opening,
)

MARKER = "MARK-7f3a"
"""Begins all that a session says in these tests."""


def key(number: int) -> str:
    return base64.b64encode(bytes([number]) * 32).decode()


OLD = Keyring.parse(f"k1:{key(1)}")
BOTH = Keyring.parse(f"k2:{key(2)},k1:{key(1)}")
NEW = Keyring.parse(f"k2:{key(2)}")


@asynccontextmanager
async def opened(url: str, keyring: Keyring | None = OLD) -> AsyncIterator[Store]:
    async with await Store.open(url, upgrade=True, keyring=keyring) as store:
        yield store


async def say_everything(store: Store) -> str:
    """A turn with a prompt, an answer, a call, its result, an artifact, a piece and a request; its last step."""
    await store.claim_session(SESSION, "")
    await store.write("claim", lambda connection: claim_request(connection, "", "key", "digest", SESSION))
    ticket = f'"{MARKER}-ticket"'
    await store.write("answer", lambda connection: answer_request(connection, "", "key", SESSION, ticket))
    await store.keep_artifacts([Artifact(id="a1", session=SESSION, media_type="text/plain", text=f"{MARKER}-file")])
    tip = (await open_turn(store, f"{MARKER}-prompt")).tip
    wish = LedgerCall(call_id="c1", tool="search", arguments=f'{{"query": "{MARKER}-argument"}}')
    step = await answer(store, generate(tip), f"{MARKER}-answer", [wish])
    await claim(store, "run/1/1")
    assert await finish(store, "run/1/1", f"{MARKER}-result")
    await store.append_events(SESSION, [new_event(f"1/{1}/note")])
    await store.live.publish([Delta(session=SESSION, turn=1, step=2, attempt=1, n=0, text=f"{MARKER}-piece")])
    step = await answer(store, generate(step.id, step=2, call_ids=["c1"]), f"{MARKER}-last")
    await store.commit_turn(commit(step.id))
    return step.id


def everything_in(url: str) -> str:
    """All that the database holds, as text: its rows, and of SQLite also its files as they are."""
    address = Address(url)
    engine = create_engine(address.url)
    with engine.connect() as connection:
        tables = inspect(connection).get_table_names()
        rows = [str(row) for table in tables for row in connection.execute(text(f"SELECT * FROM {table}"))]
    engine.dispose()
    if address.file is not None:
        rows += [path.read_bytes().decode(errors="ignore") for path in address.file.parent.iterdir()]
    return "\n".join(rows)


async def read_everything(store: Store, tip: str) -> list[str]:
    conversation = [message.content for message in await store.conversation(tip)]
    artifact = await store.artifact("a1", session=SESSION)
    call = await store.result_of_call(SESSION, 1, "c1")
    result = (await store.turn(SESSION, 1)).result
    pieces = [delta.text for delta in await store.live.since(SESSION)]
    assert call is not None
    assert result is not None
    return [*conversation, artifact.text, call.content, result.output, *pieces]


async def test_nothing_that_a_session_says_stands_in_the_database_in_plain_text(url: str) -> None:
    async with opened(url) as store:
        tip = await say_everything(store)
        said = await read_everything(store, tip)
        found = everything_in(url)
    assert "search" in found  # what lists and indexes need is plain
    assert MARKER not in found
    assert len([line for line in said if MARKER in line]) == len(said) == 8


async def test_without_keys_a_store_is_as_it_was_and_keys_can_be_switched_on(url: str) -> None:
    """Rows of both kinds are read; what was plain stays so."""
    async with opened(url, None) as store:
        tip = await say_everything(store)
        assert MARKER in everything_in(url)
        assert await store.count_keys() == {}
    async with opened(url) as store:
        second = await store.open_turn(
            OpenTurn(
                session=SESSION, request=Continuation(prompt="SEALED-now"), request_id="r2", run_started_at=STARTED
            ),
            HELPER,
        )
        assert "SEALED-now" not in everything_in(url)
        conversation = [message.content for message in await store.conversation(second.tip)]
        assert (conversation[0], conversation[-1]) == (f"{MARKER}-prompt", "SEALED-now")
        assert len(await read_everything(store, tip)) == 8
        assert await store.count_keys() == {"k1": 1}


@pytest.mark.parametrize(
    ("keyring", "said"),
    [
        (None, "sessions of the store are encrypted .key 'k1'.; set PERDURE_ENCRYPTION_KEYS"),
        (NEW, "encrypted with the key 'k1', which PERDURE_ENCRYPTION_KEYS lacks .it has k2.; add that key"),
        (Keyring.parse(f"k1:{key(9)}"), "the key 'k1' of PERDURE_ENCRYPTION_KEYS is not the one of that id"),
    ],
    ids=["none", "another", "other-bytes"],
)
async def test_a_store_whose_keys_are_missing_is_refused_when_it_is_opened(
    url: str, keyring: Keyring | None, said: str
) -> None:
    async with opened(url) as store:
        await open_turn(store)
    with pytest.raises(StoreKeyError, match=said):
        await Store.open(url, keyring=keyring)


async def test_keys_are_wrapped_anew_while_sessions_are_written(url: str) -> None:
    """Rotation in three steps; after it the old key opens nothing, and the new one everything."""
    async with opened(url) as writer:
        tip = await say_everything(writer)
        async with opened(url, BOTH) as rotating:
            await open_turn(rotating, "with the new key", session="other", request_id="o1")
            assert await rotating.count_keys() == {"k1": 1, "k2": 1}

            async def write() -> None:
                for number in range(20):
                    await open_turn(writer, "under load", session=f"load-{number}", request_id="l")

            done, _ = await asyncio.gather(rotating.rewrap(), write())
            done += await rotating.rewrap()
            assert done >= 1
            assert set(await rotating.count_keys()) == {"k2"}
    async with opened(url, NEW) as store:
        assert len(await read_everything(store, tip)) == 8
        assert (await store.session("load-19")).open_turn == 1
        assert await store.rewrap() == 0


async def test_without_keys_there_is_nothing_to_wrap_with(url: str) -> None:
    async with opened(url, None) as plain:
        with pytest.raises(StoreKeyError, match="set PERDURE_ENCRYPTION_KEYS"):
            await plain.rewrap()


async def test_an_erased_session_leaves_no_key_and_what_a_fork_needs_is_sealed_anew(url: str) -> None:
    async with opened(url) as store:
        tip = await say_everything(store)
        request = Continuation(prompt="aside", resume_from=ResumeFrom(session=SESSION))
        fork = OpenTurn(session="fork", request=request, request_id="f1", run_started_at=STARTED)
        aside = await store.open_turn(fork, HELPER)
        (before,) = await store.read(
            "keys",
            lambda c: c.execute(text(f"SELECT id FROM session_keys WHERE session = '{SESSION}'")).scalars().all(),
        )
        assert f"~{before}." in everything_in(url)
        stone = await store.erase_session(SESSION)
        found = everything_in(url)
        assert f"{before}." not in found
        assert MARKER not in found
        assert (stone.counts["kept_steps"], stone.counts["events"]) == (3, 5)
        said = [message.content for message in await store.conversation(aside.tip)]
        assert f"{MARKER}-last" in said
        assert (await store.artifact("a1", session="fork")).text == f"{MARKER}-file"
    async with opened(url) as again:
        assert [
            message.content for message in await again.conversation(tip) if isinstance(message, AssistantMessage)
        ] == [f"{MARKER}-answer", f"{MARKER}-last"]


async def test_a_backup_without_the_table_of_keys_holds_nothing_that_can_be_read(url: str) -> None:
    """That table is what backups leave out, or keep for a shorter time."""
    async with opened(url) as store:
        tip = await say_everything(store)
        await store.write("restore", lambda c: c.execute(text("DELETE FROM session_keys")))
    async with opened(url) as restored:
        assert MARKER not in everything_in(url)
        assert (await restored.session(SESSION)).turn == 1
        with pytest.raises(StoreKeyError, match="the session was erased, or the keys were not restored"):
            await restored.conversation(tip)


async def test_sealed_sessions_are_listed_and_searched(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what they say, page after page, from a process that knows no key yet."""
    monkeypatch.setattr("perdure.store.queries.SEARCHED_AT_ONCE", 2)
    async with opened(url) as store:
        for number in range(5):
            opening_of = opening(f"Ask {number}", session=f"s{number}", request_id="r")
            tip = (await store.open_turn(opening_of, HELPER)).tip
            request = generate(tip).model_copy(update={"session": f"s{number}"})
            step = await answer(store, request, f"Number {number % 2} is it")
            await store.commit_turn(commit(step.id).model_copy(update={"session": f"s{number}"}))
    async with opened(url) as again:
        assert len(await again.sessions()) == 5
        found = [record.session for record, _ in await again.sessions(text="NUMBER 1")]
        assert found == ["s3", "s1"]
        assert [record.session for record, _ in await again.sessions(text="number", limit=2)] == ["s4", "s3"]
        assert [record.session for record, _ in await again.sessions(text="S2")] == ["s2"]
        assert [record.session for record, _ in await again.sessions(text="ask 3")] == ["s3"]


async def test_a_text_that_was_moved_to_another_session_or_column_does_not_open(url: str) -> None:
    async with opened(url) as store:
        tip = await say_everything(store)
        await store.write(
            "move", lambda c: c.execute(text("UPDATE steps SET messages = calls WHERE id = :tip"), {"tip": tip})
        )
        with pytest.raises(StoreError, match=r"steps\.messages holds a text .* it was changed or moved"):
            await store.conversation(tip)


async def test_a_key_of_a_transaction_that_failed_seals_nothing(url: str) -> None:
    """Else what is written next could never be read again."""
    async with opened(url) as store:

        def fail(connection: Connection) -> None:
            begin(connection, opening(), HELPER)
            raise StoreError("a fault")

        with pytest.raises(StoreError, match="a fault"):
            await store.write("fail", fail)
        tip = (await open_turn(store)).tip
    async with opened(url) as again:
        assert [message.content for message in await again.conversation(tip)] == ["hello"]
