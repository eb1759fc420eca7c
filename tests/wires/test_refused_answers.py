"""What a provider says of an answer that it refused, blocked or broke off is told, whole and streamed alike."""

import json

import pytest

from perdure.activities.models import model_call
from perdure.activities.models.failures import facts_of
from perdure.activities.models.wires import GEMINI, MESSAGES, Wire
from perdure.activities.models.wires.reply import Answered
from perdure.contracts.agents import AgentDefinition
from perdure.llm.failures import FailureFacts, classify
from tests.unit.activities.calls import NOW
from tests.wires.corpus import events
from tests.wires.playing import Json, play

DECLINED = "This request was declined because it could enable cyber harm."


async def facts(wire: Wire, sent: bytes | tuple[bytes, ...]) -> FailureFacts:
    """The facts of an answer that is none."""
    answered = await play(wire, sent)
    if isinstance(answered, FailureFacts):
        return answered
    with pytest.raises(Exception) as raised:  # noqa: PT011 - whatever is raised is what is tested
        model_call._answer(answered, AgentDefinition(name="a", model="openai/x"), may_be_cut=False)  # pyright: ignore[reportPrivateUsage]
    return facts_of(raised.value, NOW)


def claude(details: Json, *, beside: bool = False) -> list[bytes | tuple[bytes, ...]]:
    """Claude's refusal with half an answer, whole and streamed; details may stand beside the delta."""
    end = {"stop_reason": "refusal", "stop_details": details}
    usage = {"input_tokens": 7, "output_tokens": 5}
    whole = {"type": "message", "content": [{"type": "text", "text": "half a"}], **end, "usage": usage}
    last = {"type": "message_delta", "delta": end, "usage": {"output_tokens": 5}}
    if beside:
        last = {**last, "delta": {"stop_reason": "refusal"}, "stop_details": details}
    frames = events(
        {"type": "message_start", "message": {"usage": usage, "stop_reason": None, "stop_details": None}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "half a"}},
        last,
    )
    return [json.dumps(whole).encode(), frames]


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize(
    ("details", "told"),
    [
        ({"type": "refusal", "category": "cyber", "explanation": DECLINED}, f"{DECLINED} [cyber]"),
        ({"type": "refusal", "category": None, "explanation": DECLINED}, DECLINED),
        ({"type": "refusal", "category": "bio", "explanation": None}, "[bio]"),
        ({"type": "refusal", "category": 5, "explanation": []}, "half a"),
        (None, "half a"),
        ("odd", "half a"),
    ],
)
async def test_claudes_refusal_says_why(details: Json, told: str, beside: bool) -> None:
    for sent in claude(details, beside=beside):
        found = await facts(MESSAGES, sent)
        assert classify(found) == "llm.content_filtered"
        assert found.text.endswith(f": {told}")


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("SAFETY", "llm.content_filtered"),
        ("MODEL_ARMOR", "llm.content_filtered"),
        ("MALFORMED_FUNCTION_CALL", "llm.invalid_response"),
        ("OTHER", "llm.invalid_response"),
    ],
)
async def test_geminis_message_of_an_end_is_told(reason: str, code: str) -> None:
    content = {"parts": [{"text": "half a"}]}
    end = {"finishReason": reason, "finishMessage": "Malformed function call: print(1)"}
    whole = {"candidates": [{"content": content, **end}]}
    for sent in (json.dumps(whole).encode(), events({"candidates": [{"content": content}]}, {"candidates": [end]})):
        found = await facts(GEMINI, sent)
        assert classify(found) == code
        assert "Malformed function call: print(1)" in found.text


async def test_why_gemini_blocked_a_prompt_is_told() -> None:
    blocked = {"promptFeedback": {"blockReason": "SAFETY", "blockReasonMessage": "The prompt was blocked for harm."}}
    for sent in (json.dumps(blocked).encode(), events(blocked)):
        found = await facts(GEMINI, sent)
        assert classify(found) == "llm.content_filtered"
        assert "the prompt was blocked (SAFETY: The prompt was blocked for harm.)" in found.text


async def test_an_answer_that_was_not_refused_says_nothing_of_it() -> None:
    whole = {"content": [{"type": "text", "text": "hi"}], "stop_reason": "end_turn", "stop_details": None}
    answered = await play(MESSAGES, json.dumps(whole).encode())
    assert isinstance(answered, Answered)
    assert (answered.text, answered.why) == ("hi", "")
