"""What is paid or done once is not paid or done again, whatever fails behind it.

Seen in public trackers of job queues: a job whose result cannot be stored is carried out again at each retry, for ever.
"""

import asyncio
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from perdure import Agent, hook, tool
from perdure.store import Store
from perdure.testing import call as calling
from perdure.testing import calls, say
from tests.memory import Run
from tests.wild.test_author_exceptions import Outcome, UnprintableError

FAULTS: dict[str, Callable[[], BaseException]] = {
    "a bug": lambda: KeyError("surprise"),
    "unprintable": UnprintableError,
    "no exception": lambda: Outcome("skipped"),
    "cancelled by nobody": asyncio.CancelledError,
    "the end of a generator": GeneratorExit,
    "a group": lambda: BaseExceptionGroup("several", [Outcome("one"), KeyError("two")]),
}

MOST_ASKED = 2
"""Requests of a turn of two steps, as the retry policy bounds them."""

WRITES = (
    "begin_generation", "finish_generation", "append_events", "claim_call", "finish_call", "report_progress",
    "open_turn", "commit_turn", "events_by_key", "events", "step", "retries", "conversation", "definition",
    "session", "holds_call", "artifact", "finish_compaction",
)  # fmt: skip


FAST = ("finish_generation", "finish_call")
"""Where every kind is tried in each run: behind what was paid, and behind what has run. All others try one kind."""


def cases() -> Iterator[Any]:
    """Each kind of fault at each call of the store."""
    for method, kind in itertools.product(WRITES, FAULTS):
        is_deep = method not in FAST and kind != "no exception"
        yield pytest.param(method, kind, marks=[pytest.mark.deep] if is_deep else [], id=f"{kind}-{method}")


def made_of(kind: str) -> BaseException:
    return FAULTS[kind]()


@pytest.mark.parametrize(("method", "kind"), [*cases()])
async def test_no_fault_behind_an_answer_or_a_body_buys_it_twice(
    run: Run, monkeypatch: pytest.MonkeyPatch, method: str, kind: str
) -> None:
    """S-12 S-25: from each call of the store on, in turn, until the turn needs no more of them."""
    monkeypatch.setattr(calls, "MOST_ATTEMPTS", 20)
    genuine, made, fails_from = getattr(Store, method), 0, 0

    async def failing(*given: Any, **named: Any) -> Any:
        nonlocal made
        made += 1
        if made >= fails_from:
            raise made_of(kind)
        return await genuine(*given, **named)

    for fails_from in range(1, 40):
        made, ran = 0, []

        @tool(idempotent=True, catch=True)
        def work() -> str:
            ran.append("tool")  # noqa: B023 - run in this round
            return "worked"

        @hook("tool_end")
        def note(_: object) -> None:
            ran.append("hook")  # noqa: B023 - likewise

        def instruct(_: object) -> str:
            ran.append("instructions")  # noqa: B023 - likewise
            return "Be brief."

        agent = Agent(name="tester", model="openai/scripted", instructions=instruct, tools=[work], hooks=[note])
        run._last = None
        run.requests.clear()
        with monkeypatch.context() as patched:
            patched.setattr(Store, method, failing)
            async with asyncio.timeout(60):
                result = await run(agent, calling(("work", {})), *(say("done") for _ in range(20)))
        asked = len(run.requests)
        assert asked <= MOST_ASKED, fails_from
        assert result["usage"]["input_tokens"] == sum(each.request.tokens for each in run.requests), fails_from
        assert {name: ran.count(name) for name in ran if ran.count(name) > 1} == {}, fails_from
        if made < fails_from:
            return
    pytest.fail("the turn never ends without the fault")
