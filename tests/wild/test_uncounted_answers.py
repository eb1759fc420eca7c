"""Answers whose tokens their provider does not count: proxies drop usage, and some local servers send zeros.

S-18: an answer is paid for, whoever counts it; a budget of dollars must see it.
"""

import asyncio
from decimal import Decimal
from typing import Any

import pytest

from perdure import Agent, Budgets, tool
from perdure.activities.models import model_call
from perdure.activities.models.estimates import IMAGE_TOKENS, PAGE_TOKENS, count_written, fill_counts
from perdure.activities.models.model_call import Answer
from perdure.activities.models.provider_replies import UnusableAnswerError
from perdure.activities.models.wires.reply import Answered, Counts
from perdure.contracts.agents import Compaction
from perdure.contracts.budgets import Spent, Usage
from perdure.contracts.tools import RawCall
from perdure.contracts.values import JsonValue
from perdure.llm.compaction import INSTRUCTIONS
from perdure.llm.openai_format import WireMessage
from perdure.testing import Fault, Reply, Script, ScriptedProvider, faults, say
from perdure.testing.script import ChatRequest
from tests.memory import Run
from tests.unit.activities.calls import Sink, Way, agent_of

Object = dict[str, Any]

PROMPT = "Please answer at length. " * 20
TEXT = "The answer is long enough. " * 20
ROUGHLY = range(100, 201)
"""Tokens of the prompt and of the text; OpenAI's tokenizer counts 101 and 121."""

NOTHING: dict[str, Object] = {
    "none": {},
    "null": {"usage": None},
    "an empty object": {"usage": {}},
    "zeros": {"usage": dict.fromkeys(("prompt_tokens", "completion_tokens", "input_tokens", "output_tokens"), 0)},
    "less than nothing": {"usage": dict.fromkeys(("prompt_tokens", "completion_tokens", "input_tokens"), -5)},
    "a text": {"usage": "unknown"},
}


def whole(way: Way, text: str = TEXT, end: str = "", **usage: Any) -> Fault:
    """A whole answer with this usage, or without one."""
    if way.speaks_anthropic:
        message = {"id": "x", "type": "message", "role": "assistant", "model": "m", "stop_reason": end or "end_turn"}
        return faults.status(200, body={**message, "content": [{"type": "text", "text": text}], **usage})
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": end or "stop"}
    body = {"id": "x", "object": "chat.completion", "model": "m", "choices": [choice], **usage}
    return faults.status(200, body=body)


async def ask(
    way: Way, provider: ScriptedProvider, shown: Sink | None = None, **params: JsonValue
) -> Answer | UnusableAnswerError:
    """The answer, or its failure, of a model that costs a thousandth of a dollar for each token."""
    agent = agent_of(way, provider.anthropic_url)
    prices: dict[str, JsonValue] = {"input_cost_per_token": 1e-3, "output_cost_per_token": 1e-3}
    agent = agent.model_copy(update={"generate_params": {**agent.generate_params, **(params or prices)}})
    try:
        async with asyncio.timeout(60):
            return await model_call.complete(agent, [{"role": "user", "content": PROMPT}], shown=shown)
    except UnusableAnswerError as error:
        return error


@pytest.mark.parametrize("shown", [None, Sink()], ids=["whole", "in place of a stream"])
@pytest.mark.parametrize("name", NOTHING)
async def test_an_answer_without_counts_is_estimated_and_priced(way: Way, name: str, shown: Sink | None) -> None:
    async with ScriptedProvider(always=whole(way, **NOTHING[name])) as provider:
        answer = await ask(way, provider, shown)
    assert isinstance(answer, Answer)
    usage = answer.usage
    assert usage.estimated
    assert usage.input_tokens in ROUGHLY
    assert usage.output_tokens in ROUGHLY
    assert answer.cost_usd == Decimal(usage.total_tokens) / 1000


async def test_counts_of_the_provider_are_believed(way: Way) -> None:
    counts = {"prompt_tokens": 7, "completion_tokens": 5, "input_tokens": 7, "output_tokens": 5}
    async with ScriptedProvider(always=whole(way, usage=counts)) as provider:
        answer = await ask(way, provider)
    assert isinstance(answer, Answer)
    assert (answer.usage, answer.cost_usd) == (Usage(input_tokens=7, output_tokens=5), Decimal("0.012"))


async def test_one_count_that_is_missing_is_estimated_alone(way: Way) -> None:
    async with ScriptedProvider(always=whole(way, usage={"completion_tokens": 5, "output_tokens": 5})) as provider:
        answer = await ask(way, provider)
    assert isinstance(answer, Answer)
    assert (answer.usage.output_tokens, answer.usage.estimated) == (5, True)
    assert answer.usage.input_tokens in ROUGHLY


async def test_what_the_provider_bills_is_the_cost_of_an_answer_without_counts() -> None:
    async with ScriptedProvider(always=whole(Way.OPENAI, usage={"cost": 0.25})) as provider:
        answer = await ask(Way.OPENAI, provider, temperature=0.0)
    assert isinstance(answer, Answer)
    assert (answer.cost_usd, answer.usage.estimated) == (Decimal("0.25"), True)


@pytest.mark.parametrize("price", [0.0, None])
async def test_a_free_model_stays_free_and_an_unknown_price_unknown(price: float | None) -> None:
    prices: dict[str, JsonValue] = {"input_cost_per_token": price, "output_cost_per_token": price}
    async with ScriptedProvider(always=whole(Way.OPENAI)) as provider:
        answer = await ask(Way.OPENAI, provider, **(prices if price is not None else {"temperature": 0.0}))
    assert isinstance(answer, Answer)
    assert answer.cost_usd == price


@pytest.mark.parametrize("fault", [faults.stream_cut(9), faults.stream_without_end()])
async def test_pieces_of_a_stream_that_is_cut_are_paid(way: Way, fault: Fault) -> None:
    """Anthropic counts one token of output when a stream begins; that is not the count of what came."""
    reply = say(TEXT, pieces=[TEXT[at : at + 40] for at in range(0, len(TEXT), 40)])
    async with ScriptedProvider(Script(replies=(reply,)), always=fault) as provider:
        failed = await ask(way, provider, sink := Sink())
    assert isinstance(failed, UnusableAnswerError)
    usage = failed.paid.usage
    if fault == faults.stream_without_end() and not usage.estimated:  # its usage has come
        assert usage.output_tokens > 0
        return
    size = len("".join(sink.texts))
    assert usage.estimated
    assert size / 5 < usage.output_tokens <= size / 3 + 10
    assert usage.input_tokens > 0
    assert failed.paid.cost_usd == Decimal(usage.total_tokens) / 1000


async def test_a_stream_of_which_nothing_came_costs_nothing() -> None:
    async with ScriptedProvider(Script(replies=(say(TEXT),)), always=faults.stream_cut(0)) as provider:
        failed = await ask(Way.OPENAI, provider, Sink())
    assert isinstance(failed, UnusableAnswerError)
    assert failed.paid.usage == Usage()


@pytest.mark.parametrize("end", ["tired", "content_filter", "refusal", "length", "max_tokens"])
async def test_an_answer_of_no_use_without_counts_is_paid(way: Way, end: str) -> None:
    async with ScriptedProvider(always=whole(way, end=end)) as provider:
        failed = await ask(way, provider)
    assert isinstance(failed, UnusableAnswerError)
    assert failed.paid.usage.estimated
    assert failed.paid.usage.input_tokens in ROUGHLY
    assert failed.paid.cost_usd > 0


@pytest.mark.parametrize("body", ["<html>busy</html>", {"detail": "busy"}, {"choices": []}])
async def test_a_reply_in_which_no_model_wrote_costs_nothing(body: JsonValue) -> None:
    async with ScriptedProvider(always=faults.status(200, body=body)) as provider:
        try:
            got = await ask(Way.OPENAI, provider)
        except Exception:  # noqa: BLE001 - an error of the provider's costs nothing either
            return
    assert isinstance(got, UnusableAnswerError)
    assert (got.paid.usage.output_tokens, got.paid.usage.estimated) == (0, body == {"choices": []})


def estimate(answered: Answered, *messages: WireMessage, **arguments: Any) -> Counts:
    return fill_counts(answered, {"messages": list(messages), **arguments}).counts


def test_calls_and_reasoning_are_written_too() -> None:
    thought: dict[str, JsonValue] = {"type": "reasoning_content", "text": "x" * 300}
    answered = Answered(calls=(RawCall(name="pay", arguments="y" * 297),), reasoning=(thought,))
    assert estimate(answered, {"role": "user", "content": "go"}).output_tokens == 200


def test_tools_and_schemas_are_read_too() -> None:
    alone = estimate(Answered(text="x"), {"role": "user", "content": "go"})
    for name in ("tools", "response_format"):
        more = estimate(Answered(text="x"), {"role": "user", "content": "go"}, **{name: [{"x": "y" * 3000}]})
        assert more.input_tokens - alone.input_tokens > 1_000


def test_pictures_and_documents_are_not_counted_by_their_bytes() -> None:
    picture: JsonValue = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 10**6}}
    paper: JsonValue = {"type": "file", "file": {"file_data": "data:application/pdf;base64," + "A" * 100_000}}
    content: JsonValue = [picture, paper]
    counts = estimate(Answered(text="x"), {"role": "user", "content": content})
    assert counts.input_tokens == IMAGE_TOKENS + 2 * PAGE_TOKENS + 2


def test_letters_of_other_scripts_are_tokens() -> None:
    assert estimate(Answered(text="日本語の文章"), {"role": "user", "content": "go"}).output_tokens == 6


@pytest.mark.parametrize(
    "reply",
    [
        {"choices": [{"message": {"content": "abc", "tool_calls": [{"function": {"name": "de", "arguments": "f"}}]}}]},
        {"content": [{"type": "text", "text": "abc"}, {"type": "tool_use", "name": "de", "input": 1}]},
        {"candidates": [{"content": {"parts": [{"text": "abc"}, {"functionCall": {"name": "de", "args": 1}}]}}]},
        {"output": {"message": {"content": [{"text": "abc"}, {"toolUse": {"name": "de", "input": 1}}]}}},
        {"message": {"content": "abc", "tool_calls": [{"function": {"name": "de", "arguments": 1}}]}},
    ],
)
def test_what_a_model_wrote_is_measured_on_every_wire(reply: Object) -> None:
    beside: Object = {"id": "x" * 50, "model": "m" * 50, "usage": {"x": 0}}
    assert count_written({**beside, **reply}) == 6


def test_estimates_stay_marked_in_sums_and_differences() -> None:
    counted, guessed = Usage(input_tokens=1), Usage(input_tokens=2, estimated=True)
    assert counted.plus(guessed) == Usage(input_tokens=3, estimated=True)
    before, after = Spent(usage=counted), Spent(usage=counted.plus(guessed))
    assert after.without(before).usage == guessed
    assert before.without(before).usage == Usage()


@tool
def look() -> str:
    """Look around."""
    return "nothing new"


async def test_a_budget_of_dollars_ends_a_turn_whose_provider_counts_nothing(run: Run) -> None:
    """S-18: the model would go on for ever, and each answer would cost nothing."""
    called: JsonValue = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    choice: JsonValue = {
        "index": 0,
        "message": {"role": "assistant", "tool_calls": [called]},
        "finish_reason": "tool_calls",
    }
    body: JsonValue = {"id": "x", "object": "chat.completion", "model": "m", "choices": [choice]}
    agent = Agent(
        name="looker",
        model="openai/gpt-4o",
        tools=[look],
        budgets=Budgets(cost_usd=Decimal("0.05")),
        max_steps=200,
    )
    replies = tuple(Reply(faults=(faults.status(200, body=body),)) for _ in range(200))
    result = await run(agent, *replies, prompt="Look until something moves.")
    assert (result["stop_reason"], result["exhausted_by"]) == ("budget_exhausted", "cost")
    assert Decimal(result["cost_usd"]) > Decimal("0.01")
    assert result["usage"]["estimated"]


async def test_a_conversation_that_nobody_counts_is_compacted(run: Run) -> None:
    """S-44: without a count, a local server's window would fill until it refuses, or forgets in silence."""

    def answers(request: ChatRequest) -> Reply:
        is_summary = str(request.messages[0].get("content")) == INSTRUCTIONS
        text = "<summary>the gist</summary>" if is_summary else TEXT
        return Reply(faults=(whole(Way.OPENAI, text=text),))

    agent = Agent(name="chatty", model="openai/m", compaction=Compaction(window=1_000, keep=2))
    for _ in range(5):
        await run(agent, script=answers, prompt=PROMPT)
    statuses = [event["compaction_status"] for event in await run.events("compaction_event")]
    assert "completed" in statuses
