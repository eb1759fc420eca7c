"""A failure that ends a model call is recorded, then told to Temporal: an attempt lost in between pays for nothing."""

import json
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from perdure import Agent, Compaction, HookRule, Retry, RetryPolicy, tool
from perdure.activities import heartbeat
from perdure.contracts.errors import ErrorDetail
from perdure.contracts.events import CompactionEvent, GenerationError, GenerationRetry, NewEvent
from perdure.llm.compaction import INSTRUCTIONS
from perdure.store import Store
from perdure.testing import ChatRequest, InMemoryRun, Reply, Script, call, faults, run_in_memory, say

QUICK = RetryPolicy(max_retries=1, jitter=timedelta(0))
PRICES: dict[str, Any] = {"input_cost_per_token": 0.001, "output_cost_per_token": 0.01}
CHAT = [{"role": role, "content": f"{role} {number}" * 50} for number in range(20) for role in ("user", "assistant")]

TIMES = {"at", "seconds", "failed_at", "counted_seconds", "session"}


def agent(**settings: Any) -> Agent:
    return Agent(
        **{"name": "tester", "model": "openai/scripted", "retry": QUICK, "generate_params": PRICES, **settings}
    )


def always(reply: Reply) -> Script:
    """The script of a model that has one answer."""
    return Script(replies=(reply,))


def is_summary(request: ChatRequest) -> bool:
    return str(request.messages[0].get("content")).startswith(INSTRUCTIONS[:50])


def summaries_are(reply: Reply, *, overflow: bool = False) -> Callable[[ChatRequest], Reply]:
    """A model whose summaries are of no use; it may refuse what it reads, too."""
    refused = say("never").after(*[faults.context_overflow()] * 9)
    return lambda request: reply if is_summary(request) else refused if overflow else say("fine")


async def bad_key() -> InMemoryRun:
    return await run_in_memory(agent(), "go", always(say("never").after(faults.bad_key())))


async def paid_for_twice() -> InMemoryRun:
    return await run_in_memory(agent(), "go", always(say("never").after(*[faults.truncated("half")] * 2)))


async def taken_back_by_a_hook() -> InMemoryRun:
    rule = HookRule(name="again", on="generation_error", reaction=Retry("again"))
    return await run_in_memory(agent(hooks=[rule]), "go", always(say("fine").after(*[faults.truncated("half")] * 2)))


async def left_to_the_next_model() -> InMemoryRun:
    first, second = (always(say("never").after(faults.bad_key())) for _ in range(2))
    using = agent(model="openai/first", fallback_models=["openai/second"])
    return await run_in_memory(using, "go", models={"first": first, "second": second})


async def no_summary_ahead_of_need() -> InMemoryRun:
    @tool
    def look() -> str:
        """Look."""
        return "nothing"

    def model(request: ChatRequest) -> Reply:
        if is_summary(request):
            return say("")
        return say("fine") if request.messages[-1]["role"] == "tool" else call(("look", {}))

    using = agent(tools=[look], compaction=Compaction(window=1_000, threshold=0.5, keep=2))
    return await run_in_memory(using, "go", model, history=CHAT)


async def no_summary_in_need() -> InMemoryRun:
    return await run_in_memory(agent(), "go", summaries_are(say(""), overflow=True), history=CHAT)


async def no_summary_for_a_person() -> InMemoryRun:
    first = await run_in_memory(agent(), "go", summaries_are(say("")), history=CHAT)
    return await run_in_memory(agent(), "short", summaries_are(say("")), after=first, compact=True)


RUNS = [
    bad_key,
    paid_for_twice,
    taken_back_by_a_hook,
    left_to_the_next_model,
    no_summary_ahead_of_need,
    no_summary_in_need,
    no_summary_for_a_person,
]


def is_final(event: NewEvent) -> bool:
    of_summary = isinstance(event.event, CompactionEvent) and event.event.compaction_status == "failed"
    return of_summary or isinstance(event.event, GenerationError)


async def read(run: InMemoryRun) -> tuple[str, str, int]:
    """All that a run comes to, but for its times and for ids, which are made of the session's."""
    lines = [
        {name: value for name, value in envelope.line().items() if name not in TIMES} for envelope in await run.events()
    ]
    result, log = (
        re.sub(rf"{run.session}|[0-9a-f]{{16,32}}", "ID", text)
        for text in (run.result.model_dump_json(), json.dumps(lines))
    )
    return result, log, len(run.requests)


@pytest.mark.parametrize("play", RUNS)
async def test_the_attempt_after_a_lost_one_ends_as_that_one_did_and_calls_no_model(
    play: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-80: events, usage, cost and the number of calls are those of a run that nothing was lost of."""
    calm = await read(await play())
    append, lost = Store.append_events, list[tuple[str, str]]()

    async def append_and_die(store: Store, session: str, events: list[NewEvent]) -> None:
        await append(store, session, events)
        for key in [event.key for event in events if is_final(event)]:
            if (session, key) not in lost:
                lost.append((session, key))
                raise MemoryError

    monkeypatch.setattr(Store, "append_events", append_and_die)
    monkeypatch.setattr(heartbeat, "_end_of", lambda error, **_: error)  # no code runs in a process that is gone
    assert await read(await play()) == calm
    assert lost


@pytest.mark.parametrize("play", RUNS)
async def test_a_call_that_failed_is_counted_once_by_all_who_count(play: Callable[[], Any]) -> None:
    """The log says of each call once what it has cost: the trajectory of a session adds up to its results."""
    run = await play()
    trajectory = await run.trajectory()
    turns = [turn.result for turn in await run.store.turns(run.session) if turn.result is not None]
    assert trajectory.usage.total_tokens == sum(turn.usage.total_tokens for turn in turns)
    assert trajectory.cost_usd == sum(turn.cost_usd for turn in turns)


async def test_the_failure_of_another_activity_in_the_same_step_is_none_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As of a turn that was reset because somebody has changed the key since."""
    begin, begun = Store.begin_generation, list[str]()
    error = GenerationError(error=ErrorDetail(code="llm.auth_error", title="generation", message="another's"))

    async def begin_and_die(store: Store, request: Any, events: Any) -> Any:
        answer = await begin(store, request, events)
        begun.append(request.session)
        if len(begun) == 1:
            for key in ("1/1/error", "1/1/error/another-run/1", f"1/1/error/{request.session}/0"):
                await store.append_events(request.session, [NewEvent(key=key, turn=1, step=1, event=error)])
            raise MemoryError
        return answer

    monkeypatch.setattr(Store, "begin_generation", begin_and_die)
    run = await run_in_memory(agent(), "go", always(say("fine")))
    assert (run.result.output, len(run.requests), len(begun)) == ("fine", 1, 2)


async def test_a_wait_that_nobody_waited_uses_up_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """S-17: a worker is lost once its refusal is stored; the next attempt comes at once, and is refused as well."""
    append, lost = Store.append_events, list[str]()

    async def append_and_die(store: Store, session: str, events: list[NewEvent]) -> None:
        await append(store, session, events)
        if not lost and any(isinstance(event.event, GenerationRetry) for event in events):
            lost.append(session)
            raise MemoryError

    monkeypatch.setattr(Store, "append_events", append_and_die)
    patient = RetryPolicy(max_retries=5, max_time=timedelta(seconds=300), jitter=timedelta(0))
    refused = faults.status(429, headers={"retry-after": "200"})
    run = await run_in_memory(agent(retry=patient), "go", always(say("fine").after(refused, refused)))
    waits = [event.event for event in await run.events() if isinstance(event.event, GenerationRetry)]
    assert (run.result.output, len(run.requests)) == ("fine", 3)
    assert [wait.wait_seconds for wait in waits] == [200, 200]
    assert waits[1].counted_seconds < 100
    assert lost
