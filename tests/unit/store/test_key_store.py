"""The keys of sessions in a database of their own: a backup of the store then holds nothing that opens it."""

import asyncio
import shutil
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
from sqlalchemy import create_engine, inspect, make_url, text

from perdure.contracts.checkpoints import ResumeFrom
from perdure.contracts.turns import Continuation, OpenTurn
from perdure.security.keyring import Keyring
from perdure.store import NotFoundError, SessionErasedError, Store
from perdure.store.database import Address
from perdure.store.errors import StoreError, StoreKeyError, StoreUnavailableError
from perdure.store.keys import moves
from tests.older_store import empty_rows
from tests.unit.store.given import HELPER, SESSION, STARTED, answer, commit, database, generate, open_turn
from tests.unit.store.test_sealing import BOTH, MARKER, NEW, OLD, everything_in, read_everything, say_everything

OTHER = "other"


@pytest.fixture
def key_url(url: str, tmp_path: Path) -> Iterator[str]:
    """The address of an empty database of the same kind."""
    if url.startswith("sqlite"):
        yield f"sqlite:///{tmp_path / 'keys' / 'keys.db'}"
        return
    address = make_url(url)
    yield str(_database(address.render_as_string(hide_password=False), f"{address.database}_keys"))
    _drop(url, f"{address.database}_keys")


def _administer(url: str, statement: str) -> None:
    engine = create_engine(Address(url).url.set(database="postgres"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(statement))
    engine.dispose()


def _database(url: str, name: str, template: str = "template1") -> str:
    _administer(url, f"CREATE DATABASE {name} TEMPLATE {template}")
    return make_url(url).set(database=name).render_as_string(hide_password=False)


def _drop(url: str, name: str) -> None:
    _administer(url, f"DROP DATABASE {name} WITH (FORCE)")


def back_up(url: str, folder: Path) -> str:
    """A copy of the database as a backup is: SQLite's own of a file, or a database made of a template."""
    address = make_url(url)
    if not url.startswith("sqlite"):
        return _database(url, f"{address.database}_copy", str(address.database))
    folder.mkdir()
    copy = folder / "backup.db"
    with closing(sqlite3.connect(str(address.database))) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    return f"sqlite:///{copy}"


@asynccontextmanager
async def opened(url: str, key_url: str = "", keyring: Keyring | None = OLD) -> AsyncIterator[Store]:
    async with await Store.open(url, upgrade=True, keyring=keyring, key_store=key_url) as store:
        yield store


async def say_one_thing(store: Store, session: str = OTHER) -> str:
    """A short turn; its last step."""
    tip = (await open_turn(store, f"{MARKER}-{session}", session=session, request_id="o1")).tip
    step = await answer(store, generate(tip).model_copy(update={"session": session}), "said")
    await store.commit_turn(commit(step.id).model_copy(update={"session": session}))
    return step.id


async def said_in(store: Store, step: str) -> list[str]:
    return [message.content for message in await store.conversation(step)]


def keys_of(url: str) -> int:
    engine = create_engine(Address(url).url)
    with engine.connect() as connection:
        found = connection.execute(text("SELECT count(*) FROM session_keys WHERE wrapped <> ''")).scalar_one()
    engine.dispose()
    return int(found)


@pytest.mark.parametrize("older", [False, True], ids=["of this release", "of an older one"])
async def test_an_erased_session_cannot_be_read_from_a_backup_that_was_made_before(
    url: str, key_url: str, tmp_path: Path, older: bool
) -> None:
    """The others can; the key store says what became of it, and 'perdure store gc' erases what came back."""
    async with opened(url, key_url) as store:
        tip, other = await say_everything(store), await say_one_thing(store)
    assert (keys_of(url), keys_of(key_url)) == (0, 2)
    backup = back_up(url, tmp_path / "backup")
    async with opened(url, key_url) as store:
        await store.erase_session(SESSION, by="alice")
        with pytest.raises(SessionErasedError, match="was erased on request by alice"):
            await store.session(SESSION)
        assert MARKER not in everything_in(url) + everything_in(key_url)
    if older:
        with database(backup) as connection:
            empty_rows(connection)
    async with opened(backup, key_url) as restored:
        assert await restored.fill() == (2 if older else 0)
        assert await restored.fill() == (1 if older else 0)  # one cannot be read
        assert MARKER not in everything_in(backup)
        with pytest.raises(SessionErasedError, match=f"session '{SESSION}' was erased on .*: its key is gone"):
            await restored.conversation(tip)
        with pytest.raises(SessionErasedError, match="its key is gone from the key store"):
            await open_turn(restored, "again", request_id="r2")
        assert await said_in(restored, other) == [f"{MARKER}-{OTHER}", "said"]
        assert [record.session for record, _ in await restored.sessions()] == [OTHER]
        assert (await restored.collect_garbage())["erasures"] == 1
        with pytest.raises(SessionErasedError, match="was erased on request by the key store"):
            await restored.session(SESSION)
        assert (await restored.collect_garbage())["erasures"] == 0
    if not url.startswith("sqlite"):
        _drop(url, str(make_url(backup).database))


async def test_all_that_a_session_says_is_read_and_its_fork_lives_on(url: str, key_url: str) -> None:
    async with opened(url, key_url) as store:
        tip = await say_everything(store)
        request = Continuation(prompt="aside", resume_from=ResumeFrom(session=SESSION))
        aside = await store.open_turn(
            OpenTurn(session="fork", request=request, request_id="f1", run_started_at=STARTED), HELPER
        )
    async with opened(url, key_url) as again:
        assert len(await read_everything(again, tip)) == 8
        assert len(await again.sessions(text="last")) == 1
        await again.erase_session(SESSION)
        assert f"{MARKER}-last" in await said_in(again, aside.tip)
        with pytest.raises(NotFoundError):
            await again.session(SESSION)


@pytest.mark.parametrize("out", [True, False], ids=["out", "in"])
async def test_keys_move_while_sessions_are_written(
    url: str, key_url: str, monkeypatch: pytest.MonkeyPatch, *, out: bool
) -> None:
    """Cut off after each slice, and asked again; no session is unreadable meanwhile, and none is left behind."""
    monkeypatch.setattr(moves, "SLICE", 3)
    async with opened(url, "" if out else key_url) as first:
        steps = [await say_one_thing(first, f"before-{number}") for number in range(7)]
    async with opened(url, key_url) as mover, opened(url, key_url) as writer:

        async def write() -> None:
            steps.extend([await say_one_thing(writer, f"load-{number}") for number in range(15)])

        await asyncio.gather(mover.move_keys(out=out), write(), mover.move_keys(out=out))
        assert await mover.move_keys(out=out) == 0
        assert (await mover.count_keys()) == {"k1": 22}
    assert (keys_of(url), keys_of(key_url)) == ((0, 22) if out else (22, 0))
    async with opened(url, key_url if out else "") as again:
        assert [len(await said_in(again, step)) for step in steps] == [2] * 22


@pytest.mark.parametrize("out", [True, False], ids=["out", "in"])
async def test_a_session_that_is_erased_while_keys_move_keeps_none(
    url: str, key_url: str, monkeypatch: pytest.MonkeyPatch, *, out: bool
) -> None:
    """Wherever its key stood when the move was cut off: in both places."""
    async with opened(url, "" if out else key_url) as first:
        await say_one_thing(first, SESSION)
        await say_one_thing(first)
    async with opened(url, key_url) as store:
        cut = StoreError("cut off")

        def fail(*_: object) -> None:
            raise cut

        name = "mark_wiped" if out else "drop_moved"
        with monkeypatch.context() as patched:
            patched.setattr(moves, name, fail)
            with pytest.raises(StoreError, match="cut off"):
                await store.move_keys(out=out)
        assert (keys_of(url), keys_of(key_url)) == (2, 2)
        await store.erase_session(SESSION)
        assert (keys_of(url), keys_of(key_url)) == (1, 1)
        await store.move_keys(out=out)
    assert (keys_of(url), keys_of(key_url)) == ((0, 1) if out else (1, 0))


async def test_an_erasure_that_the_key_store_cut_off_is_ended_later(
    url: str, key_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody reads the session meanwhile, and the tombstone says that it is not ended."""
    async with opened(url, key_url) as store:
        await say_one_thing(store, SESSION)
        with monkeypatch.context() as patched:
            patched.setattr("perdure.store.keys.key_store.KeyStore.write", _away)
            with pytest.raises(StoreUnavailableError):
                await store.erase_session(SESSION)
        assert (await store.tombstones())[0].finished_at is None
        with pytest.raises(SessionErasedError):
            await store.session(SESSION)
        assert keys_of(key_url) == 1
        assert (await store.collect_garbage())["erasures"] == 1
    assert keys_of(key_url) == 0


def _away(*_: object) -> None:
    raise StoreUnavailableError("the key store cannot be used: away")


async def test_a_key_store_that_is_away_is_waited_for_by_those_who_need_it(tmp_path: Path) -> None:
    """The message names it and not the store; who knows the session's key goes on; nothing is half written."""
    url, folder = f"sqlite:///{tmp_path / 'store.db'}", tmp_path / "keys"
    key_url = f"sqlite:///{folder / 'keys.db'}"
    async with opened(url, key_url) as store:
        tip = await say_one_thing(store)
        shutil.move(folder, tmp_path / "gone")
        with pytest.raises(StoreUnavailableError, match=r"the key store sqlite:.*keys\.db cannot be used|keys\.db was"):
            await open_turn(store, "hello", session="new", request_id="n1")
        assert await said_in(store, tip) == [f"{MARKER}-{OTHER}", "said"]
        with pytest.raises(NotFoundError):
            await store.session("new")
    with pytest.raises(StoreUnavailableError, match="there is no key store at"):
        await Store.open(url, keyring=OLD, key_store=key_url)
    shutil.move(tmp_path / "gone", folder)
    async with opened(url, key_url) as again:
        assert (await open_turn(again, "hello", session="new", request_id="n1")).tip


async def test_who_looks_in_the_wrong_place_is_refused_and_told_the_fix(url: str, key_url: str, tmp_path: Path) -> None:
    wrong, strange = f"sqlite:///{tmp_path / 'wrong.db'}", f"sqlite:///{tmp_path / 'strange.db'}"
    async with opened(url) as late:  # as a worker that has not got the setting yet
        async with opened(url, key_url) as store:
            tip = await say_one_thing(store)
        with pytest.raises(StoreKeyError, match="stand in a key store; set PERDURE_KEY_STORE_URL"):
            await open_turn(late, "hello", session="new", request_id="n1")
        with pytest.raises(StoreKeyError, match="stand in a key store; set PERDURE_KEY_STORE_URL"):
            await late.conversation(tip)
    with pytest.raises(StoreKeyError, match="stand in a key store; set PERDURE_KEY_STORE_URL"):
        await Store.open(url, keyring=OLD)
    with pytest.raises(StoreUnavailableError, match=r"no key store at .*; a worker with this PERDURE_KEY_STORE_URL"):
        await Store.open(url, keyring=OLD, key_store=wrong)
    with pytest.raises(StoreKeyError, match=r"stand in the key store .*wrong\.db, which is the key store .*; correct"):
        await Store.open(url, upgrade=True, keyring=OLD, key_store=wrong)
    with pytest.raises(StoreKeyError, match="leads to a transcript store"):
        await Store.open(url, upgrade=True, keyring=OLD, key_store=url)
    with pytest.raises(StoreKeyError, match=r"holds the keys of the store .* Give each store a key store of its own"):
        await Store.open(strange, upgrade=True, keyring=OLD, key_store=key_url)
    with pytest.raises(StoreError, match="PERDURE_KEY_STORE_URL is a database in memory"):
        Store("sqlite://", key_store="sqlite://")
    with pytest.raises(StoreKeyError, match="there is no key store; set PERDURE_KEY_STORE_URL"):
        async with opened(strange) as plain:
            await plain.move_keys(out=True)


async def test_keys_of_both_places_are_wrapped_anew(url: str, key_url: str) -> None:
    async with opened(url) as first:
        steps = [await say_one_thing(first, "here")]
    async with opened(url, key_url) as between:  # not moved: new keys go on standing with the others
        steps.append(await say_one_thing(between, "too"))
        assert keys_of(key_url) == 0
        await between.move_keys(out=True)
        await between.erase_session("too")
        steps[1] = await say_one_thing(between, "apart")
    async with opened(url, key_url, BOTH) as rotating:
        assert (await rotating.rewrap(), await rotating.count_keys()) == (2, {"k2": 2})
    async with opened(url, key_url, NEW) as again:
        assert [len(await said_in(again, step)) for step in steps] == [2, 2]


async def test_the_key_store_has_keys_and_nothing_else(url: str, key_url: str) -> None:
    async with opened(url, key_url) as store:
        await say_everything(store)
    engine = create_engine(Address(key_url).url)
    assert set(inspect(engine).get_table_names()) == {"key_store", "session_keys"}
    engine.dispose()


async def test_who_knows_a_session_asks_the_key_store_no_more(url: str, key_url: str) -> None:
    """A lookup for each session and process."""
    async with opened(url, key_url) as store:
        tip = await say_one_thing(store)
    async with opened(url, key_url) as again:
        asked = 0
        assert again.key_store is not None
        read = again.key_store.read

        def count(work: object) -> object:
            nonlocal asked
            asked += 1
            return read(work)  # type: ignore[arg-type]

        again.key_store.read = count  # type: ignore[method-assign, assignment]
        for _ in range(3):
            await said_in(again, tip)
            await open_turn(again, "more", session=OTHER, request_id="o2")
        assert asked == 1
