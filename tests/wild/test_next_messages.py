"""Odd answers and refusals of a provider: each costs the calls that may help, and the next message is answered."""

from typing import Any

import pytest

from perdure import Agent
from perdure.contracts.events import GenerationRetry
from perdure.testing import InMemoryRun, Reply, faults, run_in_memory, say
from perdure.testing.script import Fault
from tests.wires.test_told_failures import CURRENT, DAY, MINUTE, google, retry_info, used_up

DECLINED = "This request was declined because it could enable cyber harm."


def completed(text: str, finish: str = "stop", **more: Any) -> Fault:
    """A chat completion with this text."""
    choice: Any = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish}
    usage: Any = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
    return faults.status(200, body={"choices": [choice], "usage": usage, **more})


def refused(**details: Any) -> Fault:
    """Claude's refusal."""
    usage = {"input_tokens": 7, "output_tokens": 5}
    end: Any = {"stop_reason": "refusal", "stop_details": details, "usage": usage}
    return faults.status(200, body={"type": "message", "role": "assistant", "content": [], **end})


async def sent_twice(model: str, reply: Reply) -> tuple[InMemoryRun, InMemoryRun]:
    """A message that meets the fault, and the next one of its session."""
    agent = Agent(name="tester", model=model)
    first = await run_in_memory(agent, "hello", lambda _: reply)
    return first, await run_in_memory(agent, "again", lambda _: say("good"), after=first)


FINAL: dict[str, tuple[Fault, str, str]] = {
    "Gemini's day": (
        faults.status(429, body=google(used_up(DAY), retry_info("36s"), message=CURRENT)),
        "llm.quota_exhausted",
        "PerDay",
    ),
    "OpenRouter's day": (
        faults.status(429, body={"error": {"message": "Rate limit exceeded: free-models-per-day", "code": 429}}),
        "llm.quota_exhausted",
        "free-models-per-day",
    ),
    "a day in a 200": (
        faults.status(200, body={"error": {"message": "Too many tokens per day, please wait"}}),
        "llm.quota_exhausted",
        "per day",
    ),
    "Kimi's size": (
        faults.status(400, body={"error": {"message": "total message size 2100954 exceeds limit 2097152"}}),
        "llm.context_overflow",
        "2097152",
    ),
    "MiniMax's key": (
        faults.status(200, body={"base_resp": {"status_code": 1004, "status_msg": "login fail"}}),
        "llm.auth_error",
        "login fail",
    ),
    "Claude's refusal": (
        refused(category="cyber", explanation=DECLINED),
        "llm.content_filtered",
        f"{DECLINED} [cyber]",
    ),
}


@pytest.mark.parametrize("name", FINAL)
async def test_a_refusal_costs_one_call_and_the_next_message_is_answered(name: str) -> None:
    fault, code, words = FINAL[name]
    first, then = await sent_twice(f"{'anthropic' if 'Claude' in name else 'openai'}/scripted", say("no").after(fault))
    assert (first.result.stop_reason, first.result.reason_code, len(first.requests)) == ("error", code, 1)
    assert words in str(first.result.error)
    assert (then.result.stop_reason, then.result.output) == ("finished", "good")


PASSING: dict[str, tuple[Fault, str, float]] = {
    "Gemini's minute": (
        faults.status(429, body=google(used_up(MINUTE), retry_info("7.5s"), message=CURRENT)),
        "llm.rate_limited",
        7.5,
    ),
    "a rolling day": (
        faults.status(429, body={"error": {"message": "Limit 9 tokens per day (TPD). Please try again in 12.5s. x"}}),
        "llm.rate_limited",
        12.5,
    ),
    "words in a 200": (
        faults.status(200, body={"error": {"message": "Overloaded, retry in 9s", "type": "overloaded_error"}}),
        "llm.network_error",
        9.0,
    ),
    "nothing but thoughts": (completed("<think>hm</think>"), "llm.empty_response", 0.0),
    "an end in calls": (completed("Let me see.", "tool_calls"), "llm.invalid_response", 0.0),
    "a malformed call": (completed("Let me see.", "MALFORMED_FUNCTION_CALL"), "llm.invalid_response", 0.0),
}


@pytest.mark.parametrize("name", PASSING)
async def test_what_may_pass_is_asked_again_after_the_wait_that_was_told(name: str) -> None:
    fault, code, seconds = PASSING[name]
    first, then = await sent_twice("openai/scripted", say("fine").after(fault))
    log = [envelope.event for envelope in await first.events()]
    retries = [event for event in log if isinstance(event, GenerationRetry)]
    assert (len(retries), retries[0].code) == (1, code)
    assert retries[0].wait_seconds >= seconds
    assert (first.result.output, then.result.output) == ("fine", "good")


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 92}, (7, 85)),
        ({"prompt_tokens": 7, "completion_tokens": 5, "completion_tokens_details": {"reasoning_tokens": 80}}, (7, 85)),
        ([], None),
        ("none", None),
    ],
)
async def test_usage_never_costs_an_answer_nor_makes_it_cheaper(usage: Any, tokens: tuple[int, int] | None) -> None:
    first, then = await sent_twice("openai/scripted", say("no").after(completed("hi", usage=usage)))
    counted = first.result.usage
    assert (first.result.output, then.result.output) == ("hi", "good")
    assert tokens is None or (counted.input_tokens, counted.output_tokens) == tokens
    assert counted.output_tokens > 0
