"""Counts of tokens in odd forms never cost an answer, and never make it cheaper than it was: whole and streamed."""

import json
from decimal import Decimal
from typing import Any

import pytest

from perdure.activities.models.wires import CHAT, CONVERSE, GEMINI, RESPONSES, Wire
from perdure.activities.models.wires.reply import Answered, Counts
from tests.wires.corpus import binary, chunk, completion, events
from tests.wires.playing import Json, play


def details(**counts: int) -> Json:
    """Details of the answer's tokens."""
    return {"completion_tokens_details": counts}


TWENTY: Json = {"prompt_tokens": 100, "completion_tokens": 20}

CHAT_USAGE: dict[str, tuple[Json, tuple[int, int]]] = {
    # Reasoning that is counted beside the answer: xAI's Grok, and servers that leave out the details.
    "xAI": ({**TWENTY, "total_tokens": 200, **details(reasoning_tokens=80)}, (100, 100)),
    "xAI, without a total": ({**TWENTY, **details(reasoning_tokens=80)}, (100, 100)),
    "a total without details": ({**TWENTY, "total_tokens": 200}, (100, 100)),
    "a total above the details": ({**TWENTY, "total_tokens": 210, **details(reasoning_tokens=80)}, (100, 110)),
    "a total in a text": ({**TWENTY, "total_tokens": "200"}, (100, 100)),
    "Gemini behind OpenAI's format": ({**TWENTY, "total_tokens": 900}, (100, 800)),
    "Perplexity": ({**TWENTY, "total_tokens": 120, "reasoning_tokens": 80}, (100, 100)),
    # Reasoning that is a part of the answer: OpenAI.
    "OpenAI": ({**TWENTY, "total_tokens": 120, **details(reasoning_tokens=15)}, (100, 20)),
    "OpenAI, without a total": ({**TWENTY, **details(reasoning_tokens=20)}, (100, 20)),
    "a total below the sum": ({**TWENTY, "total_tokens": 50}, (100, 20)),
    "a total that is no number": ({**TWENTY, "total_tokens": "many"}, (100, 20)),
    "a negative total": ({**TWENTY, "total_tokens": -1}, (100, 20)),
    "no count of the answer": ({"prompt_tokens": 100, "total_tokens": 150}, (100, 50)),
    "no count of the prompt": ({"completion_tokens": 20, "total_tokens": 150}, (130, 20)),
    # Tokens of a cache beside the prompt, and more of them than the prompt has.
    "a cache beside the prompt": (
        {"prompt_tokens": 10, "completion_tokens": 20, "total_tokens": 530, "cache_read_input_tokens": 500},
        (510, 20),
    ),
    "a cache above the prompt": (
        {"prompt_tokens": 10, "completion_tokens": 20, "prompt_tokens_details": {"cached_tokens": 500}},
        (10, 20),
    ),
}


async def counts(wire: Wire, whole: Json, frames: tuple[bytes, ...]) -> list[Counts]:
    """The counts of an answer, whole and streamed."""
    told = [await play(wire, json.dumps(whole).encode()), await play(wire, frames)]
    assert all(isinstance(answered, Answered) and answered.text == "hi" for answered in told), told
    return [answered.counts for answered in told if isinstance(answered, Answered)]


async def chat(usage: Json) -> list[Counts]:
    """The counts of a chat completion."""
    frames = events(chunk({"content": "hi"}), chunk({}, "stop"), {"choices": [], "usage": usage})
    return await counts(CHAT, completion({"content": "hi"}, usage=usage), frames)


@pytest.mark.parametrize("name", CHAT_USAGE)
async def test_the_larger_count_counts(name: str) -> None:
    usage, expected = CHAT_USAGE[name]
    for found in await chat(usage):
        assert (found.input_tokens, found.output_tokens) == expected
        assert found.cached_tokens <= found.input_tokens


OTHERS: dict[str, tuple[Wire, Json, tuple[int, int]]] = {
    "Gemini, thoughts beside": (
        GEMINI,
        {"promptTokenCount": 100, "candidatesTokenCount": 20, "thoughtsTokenCount": 80, "totalTokenCount": 200},
        (100, 100),
    ),
    "Gemini, a larger total": (
        GEMINI,
        {"promptTokenCount": 100, "candidatesTokenCount": 20, "totalTokenCount": 200},
        (100, 100),
    ),
    "Gemini, what tools read": (
        GEMINI,
        {"promptTokenCount": 100, "candidatesTokenCount": 20, "toolUsePromptTokenCount": 50, "totalTokenCount": 170},
        (150, 20),
    ),
    "Gemini, no candidates": (GEMINI, {"promptTokenCount": 100, "totalTokenCount": 200}, (100, 100)),
    "Bedrock": (CONVERSE, {"inputTokens": 100, "outputTokens": 20, "totalTokens": 200}, (100, 100)),
    "Bedrock, a cache": (
        CONVERSE,
        {"inputTokens": 100, "outputTokens": 20, "totalTokens": 180, "cacheReadInputTokens": 60},
        (160, 20),
    ),
    "Bedrock, a total without the cache": (
        CONVERSE,
        {"inputTokens": 100, "outputTokens": 20, "totalTokens": 120, "cacheReadInputTokens": 60},
        (160, 20),
    ),
    "Responses": (RESPONSES, {"input_tokens": 100, "output_tokens": 20, "total_tokens": 200}, (100, 100)),
}


@pytest.mark.parametrize("name", OTHERS)
async def test_the_larger_count_counts_on_every_wire(name: str) -> None:
    wire, usage, expected = OTHERS[name]
    if wire is GEMINI:
        part = {"candidates": [{"content": {"parts": [{"text": "hi"}]}, "finishReason": "STOP"}]}
        whole, frames = {**part, "usageMetadata": usage}, events({**part, "usageMetadata": usage})
    elif wire is CONVERSE:
        content = {"output": {"message": {"content": [{"text": "hi"}]}}}
        whole = {**content, "stopReason": "end_turn", "usage": usage}
        frames = (
            binary("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": "hi"}}),
            binary("messageStop", {"stopReason": "end_turn"}),
            binary("metadata", {"usage": usage}),
        )
    else:
        output = [{"type": "message", "content": [{"type": "output_text", "text": "hi"}]}]
        whole = {"status": "completed", "output": output, "usage": usage}
        frames = events({"type": "response.completed", "response": whole})
    for found in await counts(wire, whole, frames):
        assert (found.input_tokens, found.output_tokens) == expected


@pytest.mark.parametrize(
    ("usage", "cost"),
    [
        ({"cost": 0.5}, "0.5"),
        ({"cost": "0.5"}, "0.5"),
        ({"cost": {"total_cost": 0.006, "input_tokens_cost": 0.001}}, "0.006"),  # Perplexity's
        ({"cost_in_usd_ticks": 37756000}, "0.0037756"),  # xAI's
        ({"cost": 0, "is_byok": True, "cost_details": {"upstream_inference_cost": 0.5}}, "0.5"),
        ({"cost": 0.01, "is_byok": True, "cost_details": {"upstream_inference_cost": 0.5}}, "0.51"),
        ({"cost": 0.5, "cost_details": {"upstream_inference_cost": 0.4}}, "0.5"),
        (
            {
                "cost": 0,
                "cost_details": {
                    "upstream_inference_cost": None,
                    "upstream_inference_prompt_cost": 0.3,
                    "upstream_inference_completions_cost": 0.2,
                },
            },
            "0.5",
        ),
        ({"cost": 0}, None),
        ({"cost": []}, None),
        ({"cost": {"total_cost": "much"}, "cost_details": 5, "cost_in_usd_ticks": -1}, None),
    ],
)
async def test_the_cost_is_what_the_provider_says(usage: Json, cost: str | None) -> None:
    for found in await chat({**TWENTY, **usage}):
        assert found.cost_usd == (None if cost is None else Decimal(cost))


@pytest.mark.parametrize(
    "content",
    [
        [{"type": "text", "text": {"value": "hi"}}],
        [{"type": "text", "content": "hi"}],
        [{"type": "text", "content": [{"type": "text", "text": "h"}, "i"]}],
        {"parts": [{"text": "h"}, {"text": "i"}]},
        [{"type": "output_text", "text": "hi"}, {"type": "reference", "reference_ids": [1]}],
        ["h", {"type": "text", "text": "i"}],
    ],
)
async def test_parts_of_any_form_are_text(content: Any) -> None:
    frames = events(chunk({"content": content}), chunk({}, "stop"), {"choices": [], "usage": TWENTY})
    await counts(CHAT, completion({"content": content}), frames)
