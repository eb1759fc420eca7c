"""Versions of agents that workers have: both during a rollout, and what polls rather than what started last."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import pytest

from perdure.client.agent_versions import find_versions
from perdure.client.worker_stores import WorkerStore
from perdure.store.records import RegisteredAgent

NOW = datetime(2026, 11, 28, tzinfo=UTC)
OLD, NEW, OTHER = "a" * 32, "b" * 32, "c" * 32
WRITER = RegisteredAgent(name="writer", model="openai/x", description="", tools=(), definition=NEW, seen_at=NOW)
KEPT: Mapping[str, Sequence[str]] = {"writer": (NEW, OLD), "helper": (OTHER,)}


def worker(name: str, build: str, *definitions: str) -> WorkerStore:
    """A worker that tells these definitions."""
    return WorkerStore(name, "s" * 32, "db").with_agents(["writer"], build, definitions)


SILENT = WorkerStore("9@old", "s" * 32, "db")

Found = list[tuple[str, tuple[str, ...] | None, tuple[str, ...]]]


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ([worker("1@a", "v1", OLD), worker("2@b", "v2", NEW)], [(NEW, ("2@b",), ("v2",)), (OLD, ("1@a",), ("v1",))]),
        ([worker("1@a", "v2", NEW), worker("2@b", "v2", NEW)], [(NEW, ("1@a", "2@b"), ("v2",))]),
        ([worker("1@a", "v1", OLD)], [(OLD, ("1@a",), ("v1",))]),
        ([worker("1@a", "", OLD), SILENT], [(OLD, ("1@a",), ())]),
        ([worker("1@a", "v1", OTHER)], [(NEW, (), ())]),
        ([worker("1@a", "v1", OTHER), SILENT], [(NEW, None, ())]),
        ([SILENT], [(NEW, None, ())]),
        ([], [(NEW, None, ())]),
    ],
    ids=["a rollout", "one version", "rolled back", "half of them tell", "nobody", "perhaps", "no word", "no worker"],
)
def test_the_versions_that_poll_are_listed(told: Sequence[WorkerStore], expected: Found) -> None:
    found = find_versions([WRITER], KEPT, [told_over(each) for each in told])
    assert [(version.definition, version.workers, version.builds) for version in found] == expected


def told_over(worker: WorkerStore) -> WorkerStore:
    """The worker as another process reads it."""
    read = WorkerStore.parse(worker.identity)
    assert read is not None
    return read


def test_a_worker_with_too_many_agents_tells_their_names_alone_and_then_none() -> None:
    def many(count: int) -> WorkerStore:
        names = [f"agent-{number}" for number in range(count)]
        return WorkerStore("1@a", "s" * 32, "db").with_agents(names, "v1", [f"d{name}" for name in names])

    assert (many(50).has_version("dagent-1"), many(50).has("agent-1")) == (True, True)
    assert (many(150).has_version("dagent-1"), many(150).has("agent-1")) == (None, True)
    assert (many(300).has_version("dagent-1"), many(300).has("agent-1")) == (None, None)
    assert len(many(50).identity) <= 1_000
