"""Whether another worker has an agent: known only if the server answers and every worker of turns tells."""

import asyncio
from typing import Any

import pytest

from perdure.agents.data import NO_INLINE, InlineAgents, Registered
from perdure.client.worker_stores import WorkerStore
from perdure.contracts.waits import MissingVersion
from perdure.settings import Settings
from perdure.worker import polling
from perdure.worker.polling import KEPT_SECONDS, Polling, find_agent

SILENT = WorkerStore("1@host", "a" * 32, "sqlite:///store.db")
HAS = SILENT.with_agents(["writer"], "B")
LACKS = SILENT.with_agents(["helper"], "A")
MODELS_ONLY = WorkerStore("2@host", "a" * 32, "sqlite:///store.db", frozenset({"models"}))


@pytest.mark.parametrize(
    ("told", "known"),
    [
        (None, None),
        ([], False),
        ([LACKS], False),
        ([LACKS, HAS], True),
        ([LACKS, SILENT], None),
        ([SILENT, HAS], True),
        ([LACKS, MODELS_ONLY], False),
    ],
)
def test_an_agent_is_nowhere_only_if_all_workers_of_turns_say_so(
    told: list[WorkerStore] | None, known: bool | None
) -> None:
    assert find_agent(told, "writer") is known


OWN = InlineAgents(Registered([]), [])


@pytest.mark.parametrize(
    ("told", "differ"),
    [
        (None, None),
        ([], False),
        ([SILENT.with_agents(["a", OWN.mark], "A")], False),
        ([SILENT.with_agents([OWN.mark], "A"), SILENT.with_agents([NO_INLINE], "B")], True),
        ([SILENT.with_agents([OWN.mark], "A"), SILENT], None),
        ([HAS], True),
        ([MODELS_ONLY], False),
    ],
)
async def test_workers_differ_in_what_they_make_agents_of_unless_all_tell_the_same(
    monkeypatch: pytest.MonkeyPatch, told: list[WorkerStore] | None, differ: bool | None
) -> None:
    """One of a release that tells its agents, and nothing of this, may make others."""

    async def ask(*_: object) -> list[WorkerStore] | None:
        return told

    monkeypatch.setattr(polling, "ask_workers", ask)
    assert await Polling(None, Settings()).differ(OWN.mark) is differ  # type: ignore[arg-type]


async def test_many_turns_that_ask_at_once_are_one_question(monkeypatch: pytest.MonkeyPatch) -> None:
    now, asked = [100.0], [0]

    async def ask(*_: object) -> list[WorkerStore]:
        asked[0] += 1
        await asyncio.sleep(0)
        return [LACKS]

    monkeypatch.setattr(polling, "ask_workers", ask)
    polled = Polling(None, Settings(), monotonic=lambda: now[0])  # type: ignore[arg-type]
    assert tuple(await asyncio.gather(polled.has("writer"), polled.has("helper"))) == (False, True)
    now[0] += KEPT_SECONDS
    assert await polled.has("writer") is False
    assert asked == [2]


def lacking(what: Any, definition: str = "d" * 64) -> MissingVersion:
    return MissingVersion(agent="writer", what=what, name="helper", definition=definition)


@pytest.mark.parametrize(
    ("build", "versioned", "missing", "takes"),
    [
        ("B", False, lacking("tool"), True),
        ("B", False, lacking("tool", "e" * 64), False),
        ("B", False, lacking("delegate"), True),
        ("B", False, lacking("agent", ""), True),
        ("team.A", True, lacking("hook"), True),
        ("team.B", True, lacking("hook"), False),
        ("team.B", True, lacking("delegate"), False),
    ],
)
async def test_a_part_is_soon_to_be_had_if_a_worker_tells_of_it_to_which_the_calls_may_go(
    monkeypatch: pytest.MonkeyPatch, build: str, versioned: bool, missing: MissingVersion, takes: bool
) -> None:
    """With deployment versions a turn's calls go to workers of one version, whoever else polls."""
    other = SILENT.with_agents(["helper"], build, ["d" * 64])

    async def ask(*_: object) -> list[WorkerStore]:
        return [SILENT, other]

    monkeypatch.setattr(polling, "ask_workers", ask)
    settings = Settings(deployment="team", build_id="A") if versioned else Settings()
    assert await Polling(None, settings).takes(missing) is takes  # type: ignore[arg-type]
