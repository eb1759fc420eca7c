"""Whether another worker has an agent: known only if the server answers and every worker of turns tells."""

import pytest

from perdure.client.worker_stores import WorkerStore
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


async def test_many_turns_that_ask_at_once_are_one_question(monkeypatch: pytest.MonkeyPatch) -> None:
    now, asked = [100.0], [0]

    async def ask(*_: object) -> list[WorkerStore]:
        asked[0] += 1
        return [LACKS]

    monkeypatch.setattr(polling, "ask_workers", ask)
    polled = Polling(None, "q", monotonic=lambda: now[0])  # type: ignore[arg-type]
    assert [await polled.has("writer"), await polled.has("helper")] == [False, True]
    now[0] += KEPT_SECONDS
    assert await polled.has("writer") is False
    assert asked == [2]
