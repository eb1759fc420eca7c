"""What is paid or done once is not paid or done again, whatever fails behind it.

Seen in public trackers of job queues: a job whose result cannot be stored is carried out again at each retry, for ever.
"""

import asyncio
import itertools
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from perdure import Agent, Image, RetryPolicy, ToolContext, hook, stop, tool
from perdure.activities import generate
from perdure.contracts.errors import ErrorDetail
from perdure.llm.compaction import INSTRUCTIONS
from perdure.store import Store
from perdure.testing import ChatRequest, Reply, calls, faults, say
from perdure.testing import call as calling
from tests.memory import Run
from tests.pictures import png_of
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

MOST_SUMMARIES = 2
"""Summaries of one place in a conversation, as the retry policy bounds them."""

WRITES = (
    "begin_generation", "finish_generation", "append_events", "claim_call", "finish_call", "report_progress",
    "open_turn", "commit_turn", "events_by_key", "events", "step", "retries", "conversation", "session", "artifact",
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
        def work(ctx: ToolContext) -> list[str | Image]:
            ran.append("tool")  # noqa: B023 - run in this round
            ctx.report_progress(1, 2)
            return ["worked", Image(png_of())]

        @hook("tool_end")
        def note(_: object) -> None:
            ran.append("hook")  # noqa: B023 - likewise

        def instruct(_: object) -> str:
            ran.append("instructions")  # noqa: B023 - likewise
            return "Be brief."

        agent = Agent(
            name="tester",
            model="openai/scripted",
            instructions=instruct,
            tools=[work],
            hooks=[note],
            retry=RetryPolicy(base=timedelta(milliseconds=1), jitter=timedelta(0)),
        )
        run._last = None
        run.requests.clear()
        with monkeypatch.context() as patched:
            patched.setattr(Store, method, failing)
            async with asyncio.timeout(60):
                first = calling(("work", {})).after(faults.overloaded())
                result = await run(agent, first, *(say("done") for _ in range(20)))
        assert made, f"a turn never calls {method}"
        paid = [each.request for each in run.requests if each.fault is None]
        assert len(paid) <= MOST_ASKED, fails_from
        assert result["usage"]["input_tokens"] == sum(each.tokens for each in paid), fails_from
        assert {name: ran.count(name) for name in ran if ran.count(name) > 1} == {}, fails_from
        if made < fails_from:
            return
    pytest.fail("the turn never ends without the fault")


@pytest.mark.parametrize("kind", FAULTS)
async def test_no_fault_behind_a_summary_buys_it_twice(run: Run, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """S-12 S-41: a summary is an answer too; the turn goes on with it, or ends, and what was paid is counted."""
    monkeypatch.setattr(calls, "MOST_ATTEMPTS", 20)
    failed: list[int] = []

    async def failing(*_: Any, **__: Any) -> Any:
        failed.append(len(run.requests))
        raise made_of(kind)

    @tool
    def look(number: int) -> str:
        return f"page {number}: " + "x" * 2_000

    asked: list[ChatRequest] = []

    def model(request: ChatRequest) -> Reply:
        asked.append(request)
        if str(request.messages[0].get("content")).startswith(INSTRUCTIONS[:50]):
            return say("<summary>Some pages were looked at.</summary>")
        return calling(("look", {"number": len(asked)}))

    agent = Agent(name="tester", model="openai/scripted", tools=[look], max_steps=12)
    monkeypatch.setattr(Store, "finish_compaction", failing)
    async with asyncio.timeout(60):
        result = await run(agent, script=model, window=4_000)
    summaries = [each for each in asked if str(each.messages[0].get("content")).startswith(INSTRUCTIONS[:50])]
    paid = [each.request for each in run.requests if each.fault is None]
    assert failed
    assert len(summaries) <= MOST_SUMMARIES, result
    assert result["usage"]["input_tokens"] == sum(each.tokens for each in paid), result


async def test_a_stop_condition_that_cannot_be_tried_loses_no_cost(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """S-25: the answer is stored before the conditions are looked at, and the error behind it brings its cost along."""

    async def refuse(*_: object) -> tuple[tuple[int, ...], ErrorDetail]:
        return (), ErrorDetail(code="stop_condition.timeout", title="stop conditions", message="took too long")

    monkeypatch.setattr(generate, "matches", refuse)
    agent = Agent(name="tester", model="openai/scripted", stop_conditions=[stop.output("done")])
    result = await run(agent, say("done"))
    assert (result["stop_reason"], result["reason_code"]) == ("error", "stop_condition.timeout")
    assert result["usage"]["input_tokens"] == sum(each.request.tokens for each in run.requests) > 0
