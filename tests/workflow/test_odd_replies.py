"""A whole turn whose provider sends what no provider should: how many calls, which code, and what is kept of it."""

import json
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from perdure import Agent, tool
from perdure.contracts.retries import RetryPolicy
from perdure.testing import Fault, Script, ScriptedProvider, call, faults, say
from tests.house import House
from tests.memory import Run
from tests.unit.activities.test_provider_replies import completion, deep, message

QUICK = RetryPolicy(base=timedelta(milliseconds=10), jitter=timedelta(0))
SECRET = "not-of-a-known-shape-0123456789"
PRICES = {"input_cost_per_token": 0.001, "output_cost_per_token": 0.01}


@tool(catch=(ValueError,))
def add(n: int) -> int:
    """Add something."""
    return n + 1


def agent(model: str = "openai/scripted", **params: Any) -> Agent:
    return Agent(name="tester", model=model, tools=[add], retry=QUICK, generate_params=params)


def sent(body: Any) -> Fault:
    return faults.status(200, body=body)


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
async def test_a_reply_of_another_shape_is_asked_for_once_more_and_paid_for(run: Run, wire: str) -> None:
    """The policy would have it sent nine times; what both have cost stands in the result."""
    run.environment.setenv("ANTHROPIC_API_KEY", "sk-ant-scripted-0123456789")
    body = completion(choices=None) if wire == "openai" else message(stop_reason=None)
    result = await run(agent(f"{wire}/scripted", **PRICES), always=sent(body))
    assert len(run.requests) == 2
    assert (result["stop_reason"], result["reason_code"]) == ("error", "llm.invalid_response")
    assert f"the reply has no {'choices' if wire == 'openai' else 'stop_reason'!r}" in result["error"]
    assert Decimal(str(result["cost_usd"])) == 2 * Decimal("0.057")
    (retry,) = await run.events("generation_retry")
    assert (retry["code"], retry["cost_usd"]) == ("llm.invalid_response", "0.057")


async def test_a_good_reply_behind_one_of_another_shape_goes_on(run: Run) -> None:
    script = Script(replies=(say("fine").after(sent(completion(choices=None)), faults.status(500)),))
    result = await run(agent(), script=script)
    assert (result["stop_reason"], result["output"]) == ("finished", "fine")


ODD = {"a number": "5", "a list": "[1]", "a long number": f'{{"n": {"9" * 5_000}}}', "nested": deep(100_000)}


@pytest.mark.parametrize("name", ODD)
async def test_arguments_that_nobody_can_use_are_told_to_the_model(run: Run, name: str) -> None:
    """Two calls: the second reads why the first one's call did not run."""
    function = {"name": "add", "arguments": "@"}
    calling = completion(
        {"tool_calls": [{"id": "x", "type": "function", "function": function}]}, choice={"finish_reason": "tool_calls"}
    )
    body = json.dumps(calling).replace('"@"', json.dumps(ODD[name]))
    first = call(("add", {"n": 1})).after(sent(body))
    result = await run(agent(), first, say("done"))
    assert (result["stop_reason"], result["output"], len(run.requests)) == ("finished", "done", 2)
    told = run.requests[1].request.messages[-1]
    assert told["role"] == "tool"
    assert json.loads(str(told["content"]))["error"]["code"] == "tool.invalid_input"


@pytest.mark.parametrize("tokens", [2**63, 10**30, -100_000])
async def test_counts_that_nobody_can_hold_end_no_session(house: House, tokens: int) -> None:
    """2^63 is no search attribute: the result would never come, and a cancel neither."""
    usage = {"prompt_tokens": tokens, "completion_tokens": tokens, "total_tokens": tokens}
    async with ScriptedProvider(always=sent(completion(usage=usage))) as provider, house.worker(agent()):
        house.use(provider)
        result = await house.run()
        assert (result["stop_reason"], result["output"]) == ("finished", "hello")
        is_estimated, counted = result["usage"].get("estimated", False), result["usage"]["input_tokens"]
        assert (is_estimated, counted == 10**12, counted > 0) == (tokens < 0, tokens > 0, True)
        assert (await house.run(prompt="again"))["output"] == "hello"


async def test_a_secret_in_a_models_thinking_is_masked_wherever_it_is_kept(house: House) -> None:
    """And half a character, or a value nested too deep to be read again, is kept as what a store can hold."""
    house.environment.setenv("ANTHROPIC_API_KEY", SECRET)
    thinking = {"type": "thinking", "thinking": f"my key is {SECRET} \ud83d", "signature": "sig\ud83d", "more": "@"}
    body = json.dumps(message(thinking, {"type": "text", "text": "hello"})).replace('"@"', deep(150))
    async with ScriptedProvider(always=sent(body)) as provider, house.worker(agent("anthropic/scripted")):
        house.use(provider)
        first = await house.run()
        second = await house.run(prompt="again")
        assert provider.request_count == 2
        assert SECRET not in json.dumps(provider.requests[1].body)
    assert (first["output"], second["output"]) == ("hello", "hello")
    stored = b"".join(path.read_bytes() for path in house.folder.glob("store.db*"))
    assert b"my key is" in stored
    assert SECRET.encode() not in stored


async def test_a_redirect_ends_the_turn_after_one_request(house: House) -> None:
    async with ScriptedProvider(always=faults.status(500)) as other:
        away = faults.status(307, headers={"location": f"{other.anthropic_url}/v1/chat/completions"})
        async with ScriptedProvider(always=away) as provider, house.worker(agent()):
            house.use(provider)
            result = await house.run()
            assert (provider.request_count, other.connection_count) == (1, 0)
        assert (result["stop_reason"], result["reason_code"]) == ("error", "llm.request_error")
        assert f"redirects to {other.anthropic_url}" in result["error"]
