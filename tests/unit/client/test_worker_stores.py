"""What workers tell of their stores, and when a process has to hear that it looks at another one."""

import re
from dataclasses import replace

import pytest

from perdure.client import StoreMismatchError
from perdure.client.worker_stores import WorkerStore, check_stores

MINE = WorkerStore("1@here", "a" * 32, "sqlite:////my project/.perdure/store.db")
THEIRS = WorkerStore("2@there", "b" * 32, "postgresql+psycopg://db/perdure")


BUILT = MINE.with_agents(["writer", "helper"], "agents.v2 beta")


@pytest.mark.parametrize("told", [MINE, THEIRS, BUILT, THEIRS.with_agents([], ""), replace(BUILT, keys=("a.1",))])
def test_an_identity_says_what_was_told(told: WorkerStore) -> None:
    assert WorkerStore.parse(told.identity) == told


def test_a_worker_tells_its_build_and_which_agents_it_has() -> None:
    told = WorkerStore.parse(BUILT.identity)
    assert told is not None
    assert (told.build, told.has("writer"), told.has("nobody")) == ("agents.v2_beta", True, False)
    assert MINE.has("writer") is None, "the release before does not tell"


def test_a_worker_with_more_agents_than_find_room_tells_none_and_still_its_build() -> None:
    many = MINE.with_agents([f"agent-{number}" for number in range(300)], "v2")
    assert (many.build, many.has("agent-1"), many.has("nobody")) == ("v2", None, None)
    few = MINE.with_agents([f"agent-{number}" for number in range(200)], "v2")
    assert (few.has("agent-1"), len(few.identity) <= 1_000) == (True, True)


def test_the_release_before_reads_store_keys_and_roles_of_a_worker_that_tells_more() -> None:
    before = (
        r"(?P<worker>\S+)(?: keys=(?P<keys>\S+))? store=(?P<store>\w+) at (?P<address>.+?)"
        r"(?: roles=(?P<roles>[a-z,]+))?"
    )
    found = re.fullmatch(before, replace(BUILT, keys=("a.1",), roles=frozenset({"turns"})).identity)
    assert found is not None
    assert found.group("worker", "keys", "store", "roles") == (MINE.worker, "a.1", MINE.store, "turns")


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
