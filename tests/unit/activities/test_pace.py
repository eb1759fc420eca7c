"""The gate of a limited key: in order, at a pace, with an end for whoever does not want to wait any more."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from perdure import Agent
from perdure.activities.models import pace
from perdure.activities.models.pace import Gate, Gates, Waiting, wait_for
from perdure.activities.telling.metrics import Metrics
from perdure.llm.pace import Sent

Told = Callable[[Waiting], Awaitable[None]]


async def hear() -> None:
    """Hear of nobody."""


async def silent(_: Waiting) -> None:
    """Tell nobody."""


def opened(most: int = 100) -> Gate:
    return Gate("openai", lambda: most, lambda: None)


def waiter(gate: Gate, owner: str, tell: Told = silent) -> tuple[ActivityEnvironment, "asyncio.Task[Sent]"]:
    """A call at the gate, as the activity that makes it waits there."""
    environment = ActivityEnvironment()

    async def call() -> Sent:
        return await wait_for(gate, owner, tell, hear)

    async def run() -> Sent:
        sent: Sent = await environment.run(call)
        return sent

    return environment, asyncio.create_task(run())


async def limited(gate: Gate, calls: int = 40, retry_after: float | None = None) -> None:
    """Have the provider refuse a call after so many in a moment."""
    sents = [await waiter(gate, f"before-{number}")[1] for number in range(calls)]
    gate.refuse(sents[-1], 429, retry_after)


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.fixture
async def closed() -> AsyncIterator[Gate]:
    """A gate that stays closed for a minute."""
    gate = opened()
    await limited(gate, retry_after=60)
    yield gate
    assert gate.waiting == 0


async def test_without_a_refusal_no_call_waits_or_says_that_it_does() -> None:
    gate = opened()
    told: list[Waiting] = []

    async def tell(waiting: Waiting) -> None:
        told.append(waiting)

    for number in range(100):
        gate.serve(await waiter(gate, f"job-{number}", tell)[1])
    assert (gate.rate, gate.waiting, told) == (None, 0, [])


async def test_calls_pass_in_the_order_in_which_they_came() -> None:
    gate = opened()
    await limited(gate)
    passed: list[str] = []
    tasks: list[asyncio.Task[Sent]] = []
    for number in range(10):
        _, task = waiter(gate, f"job-{number}")
        task.set_name(f"job-{number}")
        task.add_done_callback(lambda ended: passed.append(ended.get_name()))
        tasks.append(task)
        joined = number + 1
        await until(lambda: gate.waiting + len(passed) == joined)  # noqa: B023 - called before the next round
    await asyncio.gather(*tasks)
    assert passed == [f"job-{number}" for number in range(10)]


async def test_a_job_alone_at_its_gate_is_not_held() -> None:
    """Its own policy has made it wait, as its author wants it: S-09 clamps what the provider asks for."""
    gate = opened()
    for _ in range(5):
        gate.refuse(await waiter(gate, "alone")[1], 429, 60.0)
    assert gate.waiting == 0


async def test_a_cancelled_call_leaves_the_line(closed: Gate) -> None:
    _, first = waiter(closed, "first")
    _, second = waiter(closed, "second")
    await until(lambda: closed.waiting == 2)
    for task in (first, second):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_worker_that_shuts_down_hands_its_waiting_calls_over_at_once(closed: Gate) -> None:
    """S-17: with a code that uses up no try."""
    environment, call = waiter(closed, "job")
    await until(lambda: closed.waiting == 1)
    environment.worker_shutdown()
    with pytest.raises(ApplicationError) as raised:
        await call
    assert (raised.value.type, raised.value.non_retryable) == ("runtime.worker_shutdown", False)


async def test_calls_for_which_there_is_no_room_wait_in_temporal_and_keep_their_place() -> None:
    gate = opened(most=2)
    await limited(gate, retry_after=60)
    waiting = [waiter(gate, f"job-{number}")[1] for number in range(2)]
    await until(lambda: gate.waiting == 2)
    for number in (2, 3):
        with pytest.raises(ApplicationError) as raised:
            await waiter(gate, f"job-{number}")[1]
        assert raised.value.next_retry_delay is not None
        assert raised.value.next_retry_delay.total_seconds() >= pace.SHORTEST_AWAY
        assert raised.value.type == "llm.rate_limited"
        assert f"{number} calls are before this one" in raised.value.message
    waiting[0].cancel()
    await until(lambda: gate.waiting == 1)
    with pytest.raises(ApplicationError):  # a newcomer does not overtake the two that wait in Temporal
        await waiter(gate, "late")[1]
    _, back = waiter(gate, "job-2")
    await until(lambda: gate.waiting == 2)
    for task in (waiting[1], back):
        task.cancel()
    await asyncio.gather(waiting[0], waiting[1], back, return_exceptions=True)


async def test_a_call_that_does_not_come_back_loses_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its job has ended, or another worker has it."""
    monkeypatch.setattr(pace, "RETURN_SECONDS", -1_000.0)
    gate = opened(most=1)
    await limited(gate, retry_after=60)
    _, first = waiter(gate, "first")
    await until(lambda: gate.waiting == 1)
    with pytest.raises(ApplicationError):
        await waiter(gate, "second")[1]
    first.cancel()
    await until(lambda: gate.waiting == 0)
    _, third = waiter(gate, "third")
    await until(lambda: gate.waiting == 1)
    third.cancel()
    await asyncio.gather(first, third, return_exceptions=True)


async def test_a_call_that_has_waited_long_gives_its_room_to_others(
    closed: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attempt has its own bound at the server, and would be lost with its place."""
    monkeypatch.setattr(pace, "TELL_SECONDS", 0.01)
    monkeypatch.setattr(pace, "LONGEST_STAY", 0.02)
    with pytest.raises(ApplicationError) as raised:
        await waiter(closed, "job")[1]
    assert raised.value.type == "llm.rate_limited"


async def test_a_waiting_call_says_how_it_stands(closed: Gate) -> None:
    told: list[Waiting] = []

    async def tell(waiting: Waiting) -> None:
        told.append(waiting)

    _, first = waiter(closed, "first")
    await until(lambda: closed.waiting == 1)
    _, second = waiter(closed, "second", tell)
    await until(lambda: told)
    limits = "waits for its turn: openai limits this key, it takes 20 calls a second"
    assert re.fullmatch(rf"{limits}, the next in (59|6\d) s, 1 call is before this one", str(told[0]))
    assert str(Waiting("openai", 0, 20.0, closed=0.2)) == f"{limits}, this call is next"
    for task in (first, second):
        task.cancel()
    await asyncio.gather(first, second, return_exceptions=True)


def agent(model: str = "openai/scripted", **params: Any) -> Agent:
    return Agent(name="tester", model=model, generate_params=params)


async def test_calls_share_a_gate_when_provider_address_and_key_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY_A", "sk-a-0123456789")
    monkeypatch.setenv("KEY_B", "sk-b-0123456789")
    monkeypatch.setenv("KEY_C", "sk-a-0123456789")
    gates = Gates(Metrics(CollectorRegistry()), room=10)
    plain = gates.gate_of(agent().definition)
    assert gates.gate_of(agent("openai/another").definition) is plain
    assert gates.gate_of(agent(temperature=0.5).definition) is plain
    assert gates.gate_of(agent(extra_headers={"x-title": "mine"}).definition) is plain
    others = [
        gates.gate_of(agent("anthropic/scripted").definition),
        gates.gate_of(agent(api_base="http://127.0.0.1:9/v1").definition),
        gates.gate_of(agent(api_key="${KEY_A}").definition),
        gates.gate_of(agent(api_key="${KEY_B}").definition),
    ]
    assert len({id(gate) for gate in (plain, *others)}) == 5
    assert gates.gate_of(agent(api_key="${KEY_C}").definition) is others[2]


async def test_metrics_show_the_pace_of_the_slowest_key_and_who_waits() -> None:
    registry = CollectorRegistry()
    gate = Gates(Metrics(registry), room=10).gate_of(agent().definition)
    await limited(gate, retry_after=60)
    _, call = waiter(gate, "job")
    await until(lambda: gate.waiting == 1)
    labels = {"provider": "openai"}
    assert registry.get_sample_value("perdure_model_calls_waiting", labels) == 1
    assert registry.get_sample_value("perdure_model_calls_per_second", labels) == gate.rate
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    assert registry.get_sample_value("perdure_model_calls_waiting", labels) == 0


async def test_limited_keys_share_the_room_that_a_worker_has_for_waiting_calls() -> None:
    """Tools and the calls of other keys need the rest."""
    gates = Gates(Metrics(CollectorRegistry()), room=4)
    first, other = (gates.gate_of(agent(model).definition) for model in ("openai/scripted", "anthropic/scripted"))
    for gate in (first, other):
        await limited(gate, retry_after=60)
    waiting = [waiter(gate, f"job-{number}")[1] for gate in (first, other) for number in range(2)]
    await until(lambda: first.waiting == other.waiting == 2)
    for gate in (first, other):
        with pytest.raises(ApplicationError):
            await waiter(gate, "one too many")[1]
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
