"""The file of an SQLite store: its owner's alone, never written on when it is gone, and without what was wiped."""

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from perdure.contracts.messages import AssistantMessage, ToolCall
from perdure.contracts.tools import PlannedCall
from perdure.store import StepRecord, Store, StoreUnavailableError
from tests.house import eventually
from tests.unit.store.given import SESSION, answer, claim, commit, finish, generate, open_turn, wish

SECRET = b"hunter2"
PARTS = ("", "-wal", "-shm")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "new" / "folder" / "store.db"


@contextmanager
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    try:
        yield
    finally:
        os.umask(before)


def url_of(file: Path) -> str:
    return f"sqlite:///{file}"


def part(file: Path, ending: str) -> Path:
    return file.with_name(file.name + ending)


def mode(path: Path) -> str:
    return oct(path.stat().st_mode & 0o777)


async def test_a_new_store_and_its_folder_are_their_owners_alone(file: Path) -> None:
    with usual_umask():
        async with await Store.open(url_of(file), upgrade=True) as store:
            await open_turn(store)
            assert {ending: mode(part(file, ending)) for ending in PARTS} == dict.fromkeys(PARTS, "0o600")
            assert [mode(folder) for folder in file.parents[:2]] == ["0o700", "0o700"]


async def test_a_folder_and_a_file_that_are_there_keep_their_modes(tmp_path: Path) -> None:
    """Whoever shares a store on purpose has set them."""
    tmp_path.chmod(0o750)
    file = tmp_path / "store.db"
    file.touch(0o640)
    file.chmod(0o640)
    async with await Store.open(url_of(file), upgrade=True) as store:
        await open_turn(store)
        assert (mode(tmp_path), mode(file), mode(part(file, "-wal"))) == ("0o750", "0o640", "0o640")


@pytest.mark.parametrize("ending", PARTS)
async def test_nothing_is_written_to_a_file_that_was_moved_away_until_it_is_back(file: Path, ending: str) -> None:
    """A connection would go on with the file, and nobody else would ever see what it writes."""
    async with await Store.open(url_of(file), upgrade=True) as store:
        await open_turn(store)
        moved = part(file, ending).rename(file.with_name("elsewhere"))
        with pytest.raises(StoreUnavailableError) as refused:
            await open_turn(store, request_id="r2")
        assert f"the file {part(file, ending)} was deleted or replaced" in str(refused.value)
        assert "put back what was there, or stop all that use" in str(refused.value)
        moved.rename(part(file, ending))
        assert (await open_turn(store, request_id="r2")).turn == 2
    async with await Store.open(url_of(file)) as reader:
        assert (await reader.session(SESSION)).turn == 2


@pytest.mark.parametrize("ending", PARTS)
async def test_nothing_is_written_to_a_file_that_was_replaced(file: Path, ending: str) -> None:
    async with await Store.open(url_of(file), upgrade=True) as store:
        await open_turn(store)
        copy = Path(shutil.copyfile(part(file, ending), file.with_name("copy")))
        copy.rename(part(file, ending))
        with pytest.raises(StoreUnavailableError, match="was deleted or replaced while this process had it open"):
            await open_turn(store, request_id="r2")


async def test_a_store_that_is_copied_over_in_place_is_the_same_file(file: Path) -> None:
    async with await Store.open(url_of(file), upgrade=True) as store:
        await open_turn(store)
        os.utime(file)
        file.chmod(0o640)
        assert (await open_turn(store, request_id="r2")).turn == 2


async def turn_with_a_masked_call(store: Store) -> str:
    """A turn whose call has its result; its last step."""
    opened = await open_turn(store)
    shown = ToolCall(id="c1", name="search", arguments='{"password": "***"}')
    request = generate(opened.tip)
    step = StepRecord(
        id=request.step_id(),
        session=SESSION,
        turn=1,
        step=1,
        parent=opened.tip,
        messages=(AssistantMessage(content="", tool_calls=(shown,)),),
        calls=(PlannedCall(call_id="c1", tool="search"),),
    )
    await store.finish_generation(step, [wish(masked=True)], [])
    await claim(store, "attempt")
    await finish(store, "attempt")
    return step.id


def holds_secret(file: Path) -> list[str]:
    return [ending for ending in PARTS if SECRET in part(file, ending).read_bytes()]


async def test_the_log_holds_no_masked_argument_once_its_turn_has_ended(file: Path) -> None:
    """S-52: the file itself is overwritten, and the log is emptied."""
    async with await Store.open(url_of(file), upgrade=True) as store:
        step = await turn_with_a_masked_call(store)
        assert "-wal" in holds_secret(file)
        await store.commit_turn(commit(step, call_ids=["c1"]))
        assert holds_secret(file) == []
        assert part(file, "-wal").stat().st_size == 0


async def test_a_turn_that_is_closed_for_its_workflow_forgets_too(file: Path) -> None:
    async with await Store.open(url_of(file), upgrade=True) as store:
        await turn_with_a_masked_call(store)
        assert (await open_turn(store, request_id="r2")).turn == 2
        assert holds_secret(file) == []


async def test_a_log_that_a_reader_needs_is_emptied_once_it_has_read(file: Path) -> None:
    """S-52: the turn's end does not wait for a backup, say, and after it nobody may write for days."""
    async with await Store.open(url_of(file), upgrade=True) as store:
        step = await turn_with_a_masked_call(store)
        reader = sqlite3.connect(file)
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM sessions").fetchall()
        await store.commit_turn(commit(step, call_ids=["c1"]))
        assert "-wal" in holds_secret(file)
        reader.close()

        async def wiped() -> bool:
            return holds_secret(file) == []

        await eventually(wiped)


async def test_what_a_killed_process_left_in_the_log_is_gone_when_a_worker_has_started(
    file: Path, tmp_path: Path
) -> None:
    left = tmp_path / "left" / file.name
    left.parent.mkdir()
    async with await Store.open(url_of(file), upgrade=True) as store:
        step = await turn_with_a_masked_call(store)
        for ending in PARTS:
            shutil.copyfile(part(file, ending), part(left, ending))
        await store.commit_turn(commit(step, call_ids=["c1"]))
    async with await Store.open(url_of(left), upgrade=True) as again:
        assert "-wal" not in holds_secret(left)
        assert (await again.session(SESSION)).open_turn == 1


async def test_turns_without_masked_arguments_leave_the_log_to_sqlite(file: Path) -> None:
    """Emptying it takes two waits for the disk."""
    async with await Store.open(url_of(file), upgrade=True) as store:
        opened = await open_turn(store)
        step = await answer(store, generate(opened.tip), "hello")
        await store.commit_turn(commit(step.id))
        assert part(file, "-wal").stat().st_size > 0
