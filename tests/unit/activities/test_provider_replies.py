"""Replies of status 200 that are odd: what is repaired, what is refused, and what it has cost, on every way."""

import json
from decimal import Decimal
from typing import Any
from unittest.mock import Mock

import pytest

from perdure.activities.models import model_call
from perdure.activities.models.failures import facts_of
from perdure.activities.models.model_call import Answer
from perdure.activities.models.provider_replies import DEEPEST, LONGEST_NUMBER, UnusableAnswerError
from perdure.activities.models.wires.reply import UNREADABLE
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.budgets import Usage
from perdure.contracts.errors import ReasonCode
from perdure.contracts.values import JsonValue, json_object
from perdure.llm.failures import FailureFacts, classify
from perdure.llm.openai_format import WireMessage
from perdure.testing import Reply, Script, ScriptedProvider, faults, say
from tests.unit.activities.calls import NOW, Way, agent_of, answer, failure, take

Object = dict[str, Any]

R = ReasonCode


def completion(message: Object | None = None, **changes: Any) -> Object:
    """OpenAI's answer; a change to None leaves the part out."""
    choice: Object = {"index": 0, "message": {"role": "assistant", "content": "hello", **(message or {})}}
    choice |= {"finish_reason": "stop", **changes.pop("choice", {})}
    usage = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
    whole = {"id": "x", "model": "scripted", "object": "chat.completion", "choices": [choice], "usage": usage}
    return {name: part for name, part in (whole | changes).items() if part is not None}


def message(*blocks: Object, **changes: Any) -> Object:
    """Anthropic's answer; a change to None leaves the part out."""
    whole: Object = {"id": "x", "type": "message", "role": "assistant", "model": "scripted", "stop_reason": "end_turn"}
    whole |= {"content": list(blocks or ({"type": "text", "text": "hello"},))}
    whole |= {"usage": {"input_tokens": 7, "output_tokens": 5}}
    return {name: part for name, part in (whole | changes).items() if part is not None}


def of(way: Way, openai: Object, anthropic: Object) -> Object:
    return anthropic if way.speaks_anthropic else openai


async def asked(way: Way, body: JsonValue) -> Answer:
    """What a provider's reply becomes, sent as it is."""
    async with ScriptedProvider(always=faults.status(200, body=body)) as provider:
        got = await answer(way, provider)
        assert provider.request_count == 1
    return got


async def refused(way: Way, body: JsonValue) -> tuple[FailureFacts, UnusableAnswerError]:
    """The failure that a provider's reply becomes."""
    with pytest.raises(UnusableAnswerError) as raised:
        await asked(way, body)
    return facts_of(raised.value, NOW), raised.value


MISSING: dict[str, tuple[Way, Object]] = {
    "choices": (Way.OPENAI, completion(choices=None)),
    "message": (Way.OPENAI, completion(choices=[{"index": 0, "finish_reason": "stop"}])),
    "function": (Way.OPENAI, completion({"tool_calls": [{"id": "x", "type": "function"}]})),
    "tool_calls": (Way.OPENAI, completion({"tool_calls": "none"})),
    "content": (Way.ANTHROPIC, message(content=None)),
    "stop_reason": (Way.ANTHROPIC, message(stop_reason=None)),
    "type": (Way.ANTHROPIC, message({"text": "hello"})),
    "name": (Way.ANTHROPIC, message({"type": "tool_use", "id": "x", "input": {}})),
}


@pytest.mark.parametrize("name", MISSING)
async def test_a_reply_without_a_part_is_refused_with_its_name_and_counted(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    way, body = MISSING[name]
    take(way, monkeypatch)
    facts, error = await refused(way, body)
    assert (classify(facts), facts.text) == (
        R.LLM_INVALID_RESPONSE,
        f"the reply has no {name!r}, or one of another kind",
    )
    assert error.paid.usage == Usage(input_tokens=7, output_tokens=5)


async def test_a_block_without_its_part_is_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """No class, traceback or path of its: a block of text without a text."""
    take(Way.ANTHROPIC, monkeypatch)
    facts, error = await refused(
        Way.ANTHROPIC, message({"type": "tool_use", "id": "x", "name": "a", "input": {}}, {"type": "text"})
    )
    assert (classify(facts), facts.text) == (R.LLM_INVALID_RESPONSE, "the reply has no 'text', or one of another kind")
    assert error.paid.usage.output_tokens == 5


def deep(levels: int) -> str:
    return '{"a":' * levels + "1" + "}" * levels


ODD_ARGUMENTS = {
    "a number": "5",
    "a list": "[1, 2]",
    "true": "true",
    "a long number": f'{{"n": {"9" * 5_000}}}',
    "nested": deep(100_000),
    "nested a little too deep": deep(DEEPEST + 5),
}


@pytest.mark.parametrize("name", ODD_ARGUMENTS)
@pytest.mark.parametrize("as_text", [False, True])
async def test_arguments_that_are_no_object_come_to_the_model_as_its_mistake(
    way: Way, name: str, as_text: bool
) -> None:
    """Whatever the model wrote, the answer is read and the call has arguments that no tool takes."""
    given = ODD_ARGUMENTS[name]
    openai = completion({"tool_calls": [{"id": "x", "type": "function", "function": {"name": "a", "arguments": "@"}}]})
    whole = of(way, openai, message({"type": "tool_use", "id": "x", "name": "a", "input": "@"}))
    body = json.dumps(whole).replace('"@"', json.dumps(given) if as_text else given)
    (called,) = (await asked(way, body)).calls
    assert called.name == "a"
    if as_text and name == "nested a little too deep" and not way.speaks_anthropic:
        assert called.arguments == given  # which JSON readers of our own take
        return
    with pytest.raises(ValueError, match=r"\w") as raised:
        json_object(called.arguments)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("text", ["[" * 3_000, '{"a":' * 3_000, deep(3_000), '{"place": ' + "[" * 600, "[" * 100_000])
@pytest.mark.parametrize("streams", [False, True])
async def test_arguments_too_deep_for_any_parser_can_be_sent_back(text: str, streams: bool) -> None:
    """Unclosed too, whole or streamed: the session would be refused from then on, as litellm parses them for Claude."""
    reply = Reply(calls=(("a", text),))

    async def told(way: Way, messages: list[WireMessage], replies: Script) -> Answer:
        with pytest.MonkeyPatch.context() as environment:
            take(way, environment)
            async with ScriptedProvider(replies) as provider:
                definition = agent_of(way, provider.anthropic_url)
                return await model_call.complete(definition, messages, shown=Mock() if streams else None)

    (called,) = (await told(Way.OPENAI, [{"role": "user", "content": "go"}], Script(replies=(reply,)))).calls
    assert json.loads(called.arguments) == UNREADABLE
    function: JsonValue = {"name": called.name, "arguments": called.arguments}
    history: list[WireMessage] = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "c", "content": "no object"},
    ]
    assert (await told(Way.ANTHROPIC, history, Script(replies=(say("no"), say("fine"))))).text == "fine"


@pytest.mark.parametrize("levels", [300, 3_000])
async def test_a_reply_that_ends_within_a_depth_is_no_answer(way: Way, levels: int) -> None:
    """S-68: it is no fault of code, and is bought twice at most; an error keeps its words."""
    whole = json.dumps(of(way, completion({"content": "@"}), message({"type": "text", "text": "@"})))
    facts, _ = await refused(way, whole.replace('"@"', "[" * levels))
    assert (classify(facts), facts.text) == (R.LLM_INVALID_RESPONSE, "the reply is nested too deep, and does not end")
    error = '{"error": {"message": "prompt is too long", "code": 400, "given": ' + "[" * levels
    async with ScriptedProvider(always=faults.status(200, body=error)) as provider:
        assert classify(await failure(way, provider)) == R.LLM_CONTEXT_OVERFLOW


@pytest.mark.parametrize("behind", ["garbage", "}}}", "\0\0", '{"choices": []}'])
async def test_what_stands_behind_a_reply_changes_nothing(way: Way, behind: str) -> None:
    body = json.dumps(of(way, completion(), message()))
    assert (await asked(way, f"{body}{behind}")).text == "hello"


async def test_a_long_number_or_depth_beside_the_arguments_changes_nothing(way: Way) -> None:
    odd = {"n": "@", "deep": "%"}
    body = json.dumps(of(way, completion(odd=odd), message(odd=odd)))
    body = body.replace('"@"', "9" * (LONGEST_NUMBER + 1)).replace('"%"', deep(100_000))
    got = await asked(way, body)
    assert (got.text, got.usage.output_tokens) == ("hello", 5)
    assert UNREADABLE not in got.text


REPAIRED: dict[str, Object] = {
    "no role": completion({"role": None}),
    "another role": completion({"role": "model"}),
    "a list of texts": completion({"content": [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]}),
    "no index": completion(choices=[{"message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}]),
    "no finish_reason": completion(choices=[{"index": 0, "message": {"role": "assistant", "content": "hello"}}]),
    "no usage": completion(usage=None),
}


@pytest.mark.parametrize("name", REPAIRED)
async def test_a_missing_part_that_nobody_needs_costs_no_answer(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    take(Way.OPENAI, monkeypatch)
    assert (await asked(Way.OPENAI, REPAIRED[name])).text == "hello"


@pytest.mark.parametrize("changes", [{"model": None}, {"id": None}, {"usage": None}])
async def test_a_missing_part_of_a_message_that_nobody_needs_costs_no_answer(
    monkeypatch: pytest.MonkeyPatch, changes: Object
) -> None:
    take(Way.ANTHROPIC, monkeypatch)
    assert (await asked(Way.ANTHROPIC, message(**changes))).text == "hello"
    (called,) = (await asked(Way.ANTHROPIC, message({"type": "tool_use", "name": "a", "input": {}}, **changes))).calls
    assert called.name == "a"


@pytest.mark.parametrize("behind", ["\n\ndata: [DONE]", "}", " {}"])
async def test_stray_bytes_behind_a_reply_are_not_read(way: Way, behind: str) -> None:
    assert (await asked(way, json.dumps(of(way, completion(), message())) + behind)).text == "hello"


@pytest.mark.parametrize(("count", "kept"), [(2**63, 10**12), (10**30, 10**12), (10**12, 10**12), (1e300, 10**12)])
async def test_counts_of_tokens_are_kept_within_what_a_counter_holds(way: Way, count: float, kept: int) -> None:
    openai = completion(usage={"prompt_tokens": count, "completion_tokens": count, "total_tokens": count})
    got = await asked(way, of(way, openai, message(usage={"input_tokens": count, "output_tokens": count})))
    assert (got.usage.input_tokens, got.usage.output_tokens) == (kept, kept)


@pytest.mark.parametrize("tokens", [-100_000, 10**30])
async def test_the_cost_of_a_reply_is_never_less_than_nothing(monkeypatch: pytest.MonkeyPatch, tokens: int) -> None:
    take(Way.OPENAI, monkeypatch)
    usage = {"prompt_tokens": tokens, "completion_tokens": tokens, "total_tokens": tokens}
    async with ScriptedProvider(always=faults.status(200, body=completion(usage=usage))) as provider:
        agent = AgentDefinition(
            name="a",
            model="openai/scripted",
            generate_params={"api_base": provider.url, "input_cost_per_token": 1e-6, "output_cost_per_token": 1e-6},
        )
        got = await model_call.complete(agent, [{"role": "user", "content": "hi"}])
    assert got.cost_usd is not None
    assert 0 <= got.cost_usd <= 2 * 10**12 * 1e-6


ENDS = {
    "error": R.LLM_NETWORK_ERROR,
    "network_error": R.LLM_NETWORK_ERROR,
    "model_context_window_exceeded": R.LLM_TRUNCATED,
    "pause_turn": R.LLM_INVALID_RESPONSE,
    "tired": R.LLM_INVALID_RESPONSE,
}


@pytest.mark.parametrize("reason", ENDS)
async def test_an_answer_that_did_not_end_is_no_success(way: Way, reason: str) -> None:
    """litellm takes every reason that it does not know for a success. What was paid counts."""
    half = completion({"content": "half a sent"}, choice={"finish_reason": reason})
    facts, error = await refused(way, of(way, half, message(stop_reason=reason)))
    assert classify(facts) == ENDS[reason]
    assert (error.paid.usage.input_tokens, error.paid.usage.output_tokens) == (7, 5)
    if reason == "tired":
        assert "'tired'" in facts.text


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        ({"code": 429, "message": "slow down"}, 429, R.LLM_RATE_LIMITED),
        ({"code": 502, "message": "upstream is gone"}, 502, R.LLM_NETWORK_ERROR),
        ({"code": 401, "message": "no such key"}, 401, R.LLM_AUTH_ERROR),
        ("upstream is gone", 200, R.LLM_NETWORK_ERROR),
    ],
)
async def test_a_failure_inside_an_answer_has_its_own_code_and_status(
    monkeypatch: pytest.MonkeyPatch, error: JsonValue, status: int | None, code: ReasonCode
) -> None:
    """OpenRouter's, when the provider behind it fails while the model writes."""
    take(Way.OPENAI, monkeypatch)
    half = completion({"content": "half a sent"}, choice={"finish_reason": "error", "error": error})
    facts, raised = await refused(Way.OPENAI, half)
    assert (classify(facts), facts.status) == (code, status)
    assert facts.text == (error["message"] if isinstance(error, dict) else error)
    assert raised.paid.usage.output_tokens == 5


async def test_what_an_unreadable_reply_has_cost_is_known_where_its_price_is(monkeypatch: pytest.MonkeyPatch) -> None:
    take(Way.OPENAI, monkeypatch)
    async with ScriptedProvider(always=faults.status(200, body=completion(choices=None))) as provider:
        prices: JsonValue = {"input_cost_per_token": 0.001, "output_cost_per_token": 0.01}
        assert isinstance(prices, dict)
        agent = AgentDefinition(name="a", model="openai/scripted", generate_params={"api_base": provider.url, **prices})
        with pytest.raises(UnusableAnswerError) as raised:
            await model_call.complete(agent, [{"role": "user", "content": "hi"}])
    assert raised.value.paid.cost_usd == Decimal("0.057")


async def test_an_agents_own_price_is_charged_to_no_other_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    """In whatever order they call the same model; nobody's call is free because another's has a price."""
    take(Way.OPENAI, monkeypatch)
    async with ScriptedProvider(always=faults.status(200, body=completion())) as provider:

        async def cost(**prices: JsonValue) -> Decimal | None:
            params = {"api_base": provider.url, **prices}
            agent = AgentDefinition(name="a", model="openai/priced-once", generate_params=params)
            return (await model_call.complete(agent, [{"role": "user", "content": "hi"}])).cost_usd

        dear, cheap = (
            {"input_cost_per_token": price, "output_cost_per_token": price * 10} for price in (0.001, 0.000_1)
        )
        costs = [await cost(**dear), await cost(), await cost(**cheap), await cost(**dear), await cost()]
        assert not any(name in json.dumps(request.body) for request in provider.requests for name in dear)
    assert costs == [Decimal("0.057"), None, Decimal("0.0057"), Decimal("0.057"), None]


async def test_of_thinking_is_kept_what_the_provider_wants_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole characters, and nothing that is nested however deep."""
    take(Way.ANTHROPIC, monkeypatch)
    blocks = (
        {"type": "thinking", "thinking": "half \ud83d a character", "signature": "sig\ud83d", "extra": {"a": ["b"]}},
        {"type": "redacted_thinking", "data": "abc\ud83d", "note": "@"},
        {"type": "text", "text": "hello"},
    )
    body = json.dumps(message(*blocks)).replace('"@"', deep(5_000))
    got = await asked(Way.ANTHROPIC, body)
    of = {"model": "anthropic/scripted"}
    assert got.thinking == (
        {"type": "thinking", "thinking": "half \ufffd a character", "signature": "sig\ufffd", **of},
        {"type": "redacted_thinking", "data": "abc\ufffd", **of},
    )
