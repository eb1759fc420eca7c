"""Ten megabytes from a model or a tool are stored whole, and only references and previews reach Temporal."""

import json
from datetime import timedelta

import pytest

from perdure import Agent, tool
from perdure.activities.models.attempt import MAX_CALLS
from perdure.contracts.messages import AssistantMessage
from perdure.contracts.retries import RetryPolicy
from perdure.contracts.sends import MAX_PROMPT_BYTES
from perdure.contracts.turns import MAX_OUTPUT_CHARACTERS
from perdure.contracts.values import JsonValue
from perdure.store.commit_turn import CUT_NOTICE
from perdure.testing import Reply, Script, ScriptedProvider, call, say
from tests.house import House

pytestmark = pytest.mark.deep

LARGE = 10_000_000
TEMPORAL_LIMIT = 2 * 1024 * 1024
SHAPES = {"quotes": "\"'" * (LARGE // 2), "not ASCII": "ü" * (LARGE // 6), "like keys": "sk-" * (LARGE // 3)}
"""Texts that are slow to look through for secrets."""


@tool
def swallow(text: str) -> str:
    """Take a text."""
    return f"{len(text)} characters"


@tool
def produce() -> str:
    """Give ten megabytes, which become an artifact."""
    return "x" * LARGE


@tool(offload=False)
def produce_whole() -> str:
    """Give ten megabytes, all of them for the model."""
    return "x" * LARGE


@tool(catch=True)
def fail_at_length() -> str:
    """Fail with ten megabytes of explanation."""
    raise ValueError("x" * LARGE)


AGENT = Agent(
    name="tester",
    model="openai/scripted",
    tools=[swallow, produce, produce_whole, fail_at_length],
    retry=RetryPolicy(max_retries=1, base=timedelta(milliseconds=10), jitter=timedelta(0)),
)


async def played(house: House, *replies: Reply, prompt: str = "go") -> tuple[dict[str, object], ScriptedProvider]:
    async with ScriptedProvider(Script(replies=replies)) as provider, house.worker(AGENT):
        house.use(provider)
        result = await house.run(prompt=prompt)
    history = await house.temporal.get_workflow_handle(house.session).fetch_history()
    assert max(event.ByteSize() for event in history.events) < TEMPORAL_LIMIT / 2
    assert not [event for event in history.events if event.HasField("activity_task_timed_out_event_attributes")]
    assert all(event.activity_task_started_event_attributes.attempt <= 1 for event in history.events)
    return result, provider


async def test_an_answer_is_stored_whole_and_cut_only_in_the_result(house: House) -> None:
    text = "lorem ipsum " * (LARGE // 12)
    result, _ = await played(house, say(text))
    assert result["stop_reason"] == "finished"
    assert result["output"] == text[: MAX_OUTPUT_CHARACTERS - len(CUT_NOTICE)] + CUT_NOTICE
    assert (await house.store.transcript(house.session))[-1] == AssistantMessage(content=text)


def many(text: str, count: int) -> Reply:
    request: tuple[str, JsonValue] = ("swallow", {"text": text})
    return Reply(calls=(request,) * count)


@pytest.mark.parametrize("shape", SHAPES)
async def test_an_argument_reaches_the_tool_whole(house: House, shape: str) -> None:
    text = SHAPES[shape]
    result, provider = await played(house, call(("swallow", {"text": text})), say("done"))
    assert result["stop_reason"] == "finished"
    assert [m["content"] for m in provider.requests[-1].request.messages if m["role"] == "tool"] == [
        f"{len(text)} characters"
    ]


@pytest.mark.parametrize("shape", SHAPES)
async def test_an_argument_that_is_no_json_is_an_error_for_the_model(house: House, shape: str) -> None:
    broken = json.dumps({"text": SHAPES[shape]})[:-1]
    result, provider = await played(house, call(("swallow", broken)), say("done"))
    assert result["stop_reason"] == "finished"
    (told,) = [str(m["content"]) for m in provider.requests[-1].request.messages if m["role"] == "tool"]
    assert "tool.invalid_input" in told
    assert len(told) < 5_000


@pytest.mark.parametrize(("name", "least"), [("produce", 30_000), ("produce_whole", LARGE)])
async def test_a_result_becomes_an_artifact_unless_the_tool_says_otherwise(house: House, name: str, least: int) -> None:
    result, provider = await played(house, call((name, {})), say("done"))
    assert result["stop_reason"] == "finished"
    (told,) = [str(m["content"]) for m in provider.requests[-1].request.messages if m["role"] == "tool"]
    assert least <= len(told) <= least + 1_000


async def test_the_text_of_an_exception_is_cut_for_the_model(house: House) -> None:
    result, provider = await played(house, call(("fail_at_length", {})), say("done"))
    assert result["stop_reason"] == "finished"
    (told,) = [str(m["content"]) for m in provider.requests[-1].request.messages if m["role"] == "tool"]
    assert len(told) < 5_000


async def test_an_answer_of_hundreds_of_calls_runs_them_all(house: House) -> None:
    result, provider = await played(house, many("ü" * 500, MAX_CALLS), say("done"))
    assert result["stop_reason"] == "finished"
    assert sum(m["role"] == "tool" for m in provider.requests[-1].request.messages) == MAX_CALLS


async def test_an_answer_of_thousands_of_calls_ends_the_turn_and_says_why(house: House) -> None:
    result, provider = await played(house, many("x", 5_000), say("done"))
    assert (result["stop_reason"], result["reason_code"]) == ("error", "runtime.payload_too_large")
    assert "the answer asks for 5,000 tool calls at once, the limit is 500" in str(result["error"])
    assert provider.request_count == 1


async def test_a_prompt_at_the_limit_is_taken(house: House) -> None:
    prompt = "x" * MAX_PROMPT_BYTES
    result, provider = await played(house, say("done"), prompt=prompt)
    assert result["stop_reason"] == "finished"
    assert provider.requests[0].request.messages[-1]["content"] == prompt
