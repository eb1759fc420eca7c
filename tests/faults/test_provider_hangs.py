"""A provider that takes the request and never answers: a named time-out, a retry, and in the end a named error."""

from datetime import timedelta

import pytest

from perdure import Agent
from perdure.contracts.retries import RetryPolicy
from perdure.testing import Fault, Script, ScriptedProvider, faults, say
from tests.house import House

pytestmark = pytest.mark.deep

AGENT = Agent(
    name="tester",
    model="openai/scripted",
    generation_timeout=timedelta(seconds=2),
    retry=RetryPolicy(max_retries=2, base=timedelta(milliseconds=10), jitter=timedelta(0)),
)
NEVER = {"silence": faults.hang(), "a byte now and then": faults.drip(0.1)}
never = pytest.mark.parametrize("fault", NEVER.values(), ids=NEVER.keys())


@never
async def test_the_call_is_given_up_and_sent_again(house: House, fault: Fault) -> None:
    async with ScriptedProvider(Script(replies=(say("done").after(fault, fault),))) as provider, house.worker(AGENT):
        house.use(provider)
        result = await house.run()
        await provider.wait_for_disconnect(2)
        assert provider.request_count == 3
    assert (result["stop_reason"], result["steps"], result["output"]) == ("finished", 1, "done")
    assert [(line["attempt"], line["code"]) for line in await house.events("generation_retry")] == [
        (1, "llm.timeout"),
        (2, "llm.timeout"),
    ]


@never
async def test_a_provider_that_never_answers_ends_the_turn_with_a_named_error(house: House, fault: Fault) -> None:
    async with ScriptedProvider(always=fault) as provider, house.worker(AGENT):
        house.use(provider)
        result = await house.run()
        assert provider.request_count == 3
    assert (result["stop_reason"], result["reason_code"]) == ("error", "llm.timeout")
    assert "did not answer within generation_timeout (2 s)" in result["error"]
