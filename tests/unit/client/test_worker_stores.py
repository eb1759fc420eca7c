"""What workers tell of their stores, and when a process has to hear that it looks at another one."""

import pytest

from perdure.client import StoreMismatchError
from perdure.client.worker_stores import WorkerStore, check_stores

MINE = WorkerStore("1@here", "a" * 32, "sqlite:////my project/.perdure/store.db")
THEIRS = WorkerStore("2@there", "b" * 32, "postgresql+psycopg://db/perdure")


@pytest.mark.parametrize("told", [MINE, THEIRS])
def test_an_identity_says_what_was_told(told: WorkerStore) -> None:
    assert WorkerStore.parse(told.identity) == told


@pytest.mark.parametrize("identity", ["", "12@host", "temporal-cli:me@host"])
def test_other_pollers_tell_nothing(identity: str) -> None:
    assert WorkerStore.parse(identity) is None


@pytest.mark.parametrize("told", [[], [MINE], [THEIRS, MINE]])
def test_nothing_is_wrong_while_some_worker_uses_this_store_or_none_tells(told: list[WorkerStore]) -> None:
    check_stores(MINE, told, "q")


def test_the_message_names_both_stores_the_worker_and_the_fix() -> None:
    with pytest.raises(StoreMismatchError) as raised:
        check_stores(MINE, [THEIRS, THEIRS], "q")
    cause, _, fix = str(raised.value).partition("; ")
    assert f"this process uses the store {MINE.address} (id aaaaaaaa)" in cause
    assert cause.endswith(f"workers of task queue 'q' use {THEIRS.address} (id bbbbbbbb) on worker 2@there")
    assert fix == "set PERDURE_STORE_URL to the workers' store, or PERDURE_TASK_QUEUE to your workers' queue"
