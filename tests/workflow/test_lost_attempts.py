"""A model call that ends its worker, or whose answer cannot be kept, is not made for ever; what was paid counts."""

import asyncio
import time
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from temporalio.worker import UnsandboxedWorkflowRunner

from perdure import Agent, hook
from perdure.activities import heartbeat
from perdure.contracts.events import Event
from perdure.contracts.retries import RetryPolicy
from perdure.store import Store
from perdure.testing import Script, ScriptedProvider, faults, say
from perdure.testing.script import ChatRequest, Reply
from perdure.workflows import options
from tests.house import House, eventually
from tests.workflow.test_compaction import Reader, reader, summaries

pytestmark = pytest.mark.deep

QUICK = RetryPolicy(base=timedelta(milliseconds=10), jitter=timedelta(0))
PRICES = {"input_cost_per_token": 0.001, "output_cost_per_token": 0.01}


def agent(**settings: Any) -> Agent:
    return Agent(**{"name": "tester", "model": "openai/scripted", "retry": QUICK, **settings})


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """No beat of this process comes in time: the server takes each long call for lost.

    The time-out is the workflow's, so its worker runs without the sandbox, which would read it anew.
    """
    monkeypatch.setattr(heartbeat, "interval", lambda _: 600.0)
    monkeypatch.setattr(options, "HEARTBEAT_TIMEOUT", timedelta(seconds=2))


@pytest.mark.usefixtures("silent")
async def test_a_model_call_that_is_lost_again_and_again_ends_the_turn(house: House) -> None:
    """Five calls, no more; the one that had failed before them in good order is none of them, and is paid for."""
    unpaid = faults.truncated("half")
    script = Script(replies=(say("never").after(unpaid, *[faults.hang()] * 20),))
    async with (
        ScriptedProvider(script) as provider,
        house.worker(agent(generate_params=PRICES), runner=UnsandboxedWorkflowRunner()),
    ):
        house.use(provider)
        result = await house.run()
        assert 1 < provider.request_count <= 1 + 5  # on a busy machine a call may be lost before it is sent
    assert (result["stop_reason"], result["reason_code"]) == ("error", "runtime.worker_lost")
    assert "lost 5 times in a row" in result["error"]
    assert Decimal(str(result["cost_usd"])) > 0
    (failed,) = await house.events("generation_error")
    assert failed["error"]["code"] == "runtime.worker_lost"


@pytest.mark.usefixtures("silent")
async def test_a_call_that_is_lost_less_often_goes_on(house: House) -> None:
    """Failures in good order do not count, however many there are before, between and behind."""
    busy = faults.status(503)
    script = Script(replies=(say("fine").after(busy, faults.hang(), *[busy] * 5, faults.hang(), busy),))
    async with ScriptedProvider(script) as provider, house.worker(agent(), runner=UnsandboxedWorkflowRunner()):
        house.use(provider)
        result = await house.run()
        assert provider.request_count == 10
    assert (result["stop_reason"], result["output"]) == ("finished", "fine")


@pytest.mark.usefixtures("silent")
async def test_a_call_that_is_lost_while_it_waits_for_its_turn_is_not_what_ends_workers(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-80: it has not begun; two losses of one that has would end the turn; a busy machine makes one."""
    monkeypatch.setattr(heartbeat, "MOST_LOST", 2)

    def model(request: ChatRequest) -> Reply:
        closed = faults.status(429, headers={"retry-after": "12"})
        return say("fine").after(closed) if "first" in str(request.messages) else say("fine")

    async with ScriptedProvider(model) as provider, house.worker(agent(), runner=UnsandboxedWorkflowRunner()):
        house.use(provider)
        first = await house.client.start("tester", "first")
        await eventually(lambda: house.client.waits_for(first.session))
        result = await house.run()
        assert (await first.result()).stop_reason == "finished"
    assert (result["stop_reason"], result["output"]) == ("finished", "fine")
    lost = await house.temporal.get_workflow_handle(house.session).fetch_history()
    attempts = [event.activity_task_started_event_attributes.attempt for event in lost.events]
    assert max(attempts) > 3


@pytest.mark.usefixtures("silent")
async def test_a_summary_that_is_lost_again_and_again_ends_its_turn(house: House) -> None:
    """The conversation stays as it is, and the next message goes on."""

    def model(request: ChatRequest) -> Reply:
        return Reader(9, *[faults.hang()] * 20)(request)

    async with ScriptedProvider(model) as provider, house.worker(reader(), runner=UnsandboxedWorkflowRunner()):
        house.use(provider)
        await house.run()
        before = await house.store.transcript(house.session)
        ended = await (await house.client.compact(house.session)).result()
        assert 0 < len(summaries(provider)) <= 1 + 5  # the first is lost before its first beat
    assert (ended.stop_reason, ended.reason_code) == ("error", "runtime.worker_lost")
    assert "lost 5 times in a row while it carried out compact" in (ended.error or "")
    assert await house.store.transcript(house.session) == before


@pytest.mark.usefixtures("silent")
async def test_a_hook_whose_worker_is_lost_again_and_again_ends_the_turn(house: House) -> None:
    begun: list[str] = []

    @hook("generation_end")
    async def stuck(event: Event) -> None:
        begun.append(event.type)
        await asyncio.Event().wait()

    script = Script(replies=(say("fine"),))
    async with (
        ScriptedProvider(script) as provider,
        house.worker(agent(hooks=[stuck]), runner=UnsandboxedWorkflowRunner()),
    ):
        house.use(provider)
        result = await house.run()
    assert (result["stop_reason"], result["reason_code"]) == ("error", "runtime.worker_lost")
    assert "lost 5 times in a row while it carried out run_hooks" in result["error"]
    assert 0 < len(begun) <= 1 + 5  # the first is lost before its first beat


class OddError(Exception):
    """What nobody foresaw."""


def failing(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Let so many answers meet an error that is none of the store's."""
    finish, left = Store.finish_generation, [OddError("odd")] * times

    async def odd(*arguments: Any, **options: Any) -> Any:
        if left:
            raise left.pop()
        return await finish(*arguments, **options)

    monkeypatch.setattr(Store, "finish_generation", odd)


async def test_an_answer_that_cannot_be_kept_is_bought_five_times_and_told(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The turn ends with the exception's code; the answer stands in the event log, and all five are paid."""
    failing(monkeypatch, 1_000)
    async with (
        ScriptedProvider(Script(replies=(say("an answer"),))) as provider,
        house.worker(agent(generate_params=PRICES), runner=UnsandboxedWorkflowRunner()),
    ):
        house.use(provider)
        result = await house.run()
        assert provider.request_count == 5
    assert (result["stop_reason"], result["reason_code"]) == ("error", "exception.OddError")
    assert "the model's answer could not be kept: odd" in result["error"]
    (content,) = await house.events("generation_content")
    assert content["content"] == "an answer"
    price = result["usage"]["input_tokens"] // 5 * Decimal("0.001") + result["usage"]["output_tokens"] // 5 * Decimal(
        "0.01"
    )
    assert Decimal(str(result["cost_usd"])) == 5 * price > 0


async def test_an_answer_that_can_be_kept_the_third_time_is(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, 2)
    async with (
        ScriptedProvider(Script(replies=(say("an answer"),))) as provider,
        house.worker(agent(generate_params=PRICES), runner=UnsandboxedWorkflowRunner()),
    ):
        house.use(provider)
        result = await house.run()
        assert provider.request_count == 3
    assert (result["stop_reason"], result["output"]) == ("finished", "an answer")
    assert [retry["code"] for retry in await house.events("generation_retry")] == ["exception.OddError"] * 2


def block(loop_for: timedelta) -> None:
    """Hold up the event loop, which is the worker's and everything else's here: the fault, and no wait of the test."""
    time.sleep(loop_for.total_seconds())


async def test_a_blocked_event_loop_costs_no_call(house: House) -> None:
    """Something holds the loop for longer than the server waits for a beat: the call is not made again."""
    script = Script(replies=(say("fine").after(faults.delay(1.0)),))
    async with ScriptedProvider(script) as provider, house.worker(agent(), runner=UnsandboxedWorkflowRunner()):
        house.use(provider)
        handle = await house.start()
        await provider.wait_for_requests(1)
        block(options.HEARTBEAT_TIMEOUT * 1.5)
        result = await handle.result()
        assert provider.request_count == 1
    assert (result["stop_reason"], result["output"]) == ("finished", "fine")


async def test_an_event_loop_that_never_moves_again_is_left(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beats for ever would hide a dead worker: after a while its calls are another's."""
    monkeypatch.setattr(heartbeat, "STUCK_SECONDS", 2.0)
    script = Script(replies=(say("fine").after(faults.hang()),))
    async with ScriptedProvider(script) as provider, house.worker(agent(), runner=UnsandboxedWorkflowRunner()):
        house.use(provider)
        handle = await house.start()
        await provider.wait_for_requests(1)
        block(options.HEARTBEAT_TIMEOUT * 1.5)
        async with asyncio.timeout(60):
            result = await handle.result()
        assert provider.request_count == 2
    assert (result["stop_reason"], result["output"]) == ("finished", "fine")


@pytest.mark.parametrize(
    ("details", "lost"),
    [
        ([], 0),
        (["a note"], 0),
        ([{"lost_attempts": 0, "running_attempt": 0}], 0),
        ([{"lost_attempts": 0, "running_attempt": 7}], 1),
        (["a note", {"lost_attempts": 2, "running_attempt": 5}], 3),
        ([{"lost_attempts": 2, "running_attempt": 0}], 2),
    ],
)
def test_lost_are_the_attempts_that_began_and_left_no_word_of_their_end(details: list[Any], lost: int) -> None:
    """However many a frozen worker has taken since: it began none of them."""
    assert heartbeat._count_lost(details) == lost
