"""What providers say when they refuse or fail means the same as a whole reply, in a stream, and in a reply of 200.

S-02 S-09 S-13: each row of the table of codes and words, and each way of telling a wait.
"""

import itertools
import json
from typing import Any

import pytest

from perdure.activities.models.attempt import _show  # pyright: ignore[reportPrivateUsage]
from perdure.activities.models.wires import CHAT, CONVERSE, GEMINI, MESSAGES, OLLAMA
from perdure.contracts.errors import ReasonCode
from perdure.llm.failures import FailureFacts, classify
from perdure.llm.refusals import CODES, WORDS, Refusal
from tests.unit.activities.calls import NOW
from tests.wires.playing import BEGUN, Json, failure, frame_of

R = ReasonCode

IN_A_STREAM = [row for row in (*WORDS, *CODES) if 200 in row.statuses]


def id_of(row: Refusal) -> str:
    """The row's example, or its code."""
    return (row.example or row.match)[:50]


def error_of(row: Refusal, field: str) -> Json:
    """An error object that the row is about."""
    return {"message": row.example} if row.example else {"message": "no", field: row.match}


@pytest.mark.parametrize("row", [row for row in (*WORDS, *CODES) if row.statuses - {None, 200}], ids=id_of)
async def test_a_refusal_is_known_by_its_row_whatever_the_wire(row: Refusal) -> None:
    """In each form of the object, which are the same on each wire: the wires take turns."""
    wires = itertools.cycle((CHAT, MESSAGES, GEMINI, CONVERSE))
    for status, field in itertools.product(row.statuses - {None, 200}, ("code", "type")):
        body = error_of(row, field)
        for written in ({"error": body}, body, [{"error": body}]):
            wire = next(wires)
            assert status is not None
            facts = await failure(wire, json.dumps(written).encode(), status)
            assert (classify(facts), facts.status) == (row.code, status), (wire.name, written)


@pytest.mark.parametrize("row", IN_A_STREAM, ids=id_of)
async def test_a_refusal_is_known_by_its_row_in_a_200_and_in_a_stream(row: Refusal) -> None:
    """At its beginning and behind half an answer; the words and the status are those of the whole reply."""
    for wire, begun in BEGUN.values():
        error = error_of(row, "type")
        whole = await failure(wire, json.dumps({"error": error}).encode())
        assert classify(whole) == row.code, wire.name
        for before in ((), begun):
            streamed = await failure(wire, (*before, frame_of(wire, error)))
            assert classify(streamed) == row.code, (wire.name, len(before))
            if wire is not CONVERSE:  # its exceptions have a type in a header, and whole ones have none
                assert (streamed.text, streamed.status, streamed.names) == (whole.text, whole.status, whole.names)


@pytest.mark.parametrize("wire", BEGUN)
@pytest.mark.parametrize(
    ("error", "code", "status"),
    [
        ({"message": "Overloaded", "type": "overloaded_error"}, R.LLM_NETWORK_ERROR, 529),
        ({"message": "slow", "type": "rate_limit_error"}, R.LLM_RATE_LIMITED, 429),
        ({"message": "slow", "type": "throttlingException"}, R.LLM_RATE_LIMITED, 429),
        ({"message": "slow", "type": "RESOURCE_EXHAUSTED"}, R.LLM_RATE_LIMITED, 429),
        ({"message": "no", "type": "validationException"}, R.LLM_REQUEST_ERROR, 400),
        ({"message": "no", "type": "invalid_request_error"}, R.LLM_REQUEST_ERROR, 400),
        ({"message": "none", "type": "not_found_error"}, R.LLM_REQUEST_ERROR, 404),
        ({"message": "no", "type": "AccessDeniedException"}, R.LLM_AUTH_ERROR, 403),
        ({"message": "odd", "type": "api_error"}, R.LLM_NETWORK_ERROR, 200),
    ],
)
async def test_the_type_of_an_error_has_its_status(wire: str, error: Json, code: ReasonCode, status: int) -> None:
    reader, begun = BEGUN[wire]
    whole = await failure(reader, json.dumps({"error": error}).encode())
    streamed = await failure(reader, (*begun, frame_of(reader, error)))
    assert (classify(whole), whole.status) == (classify(streamed), streamed.status) == (code, status)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("Internal error", "Internal error"),
        ("upstream connect error or disconnect/reset before headers", "upstream connect error"),
        ("Unauthorized", "Unauthorized"),
        ("<html><h1>502</h1></html>", "<h1>502</h1>"),
    ],
)
@pytest.mark.parametrize("size", [1, 1000])
async def test_words_in_place_of_a_stream_are_told(said: str, words: str, size: int) -> None:
    packets = tuple(said.encode()[at : at + size] for at in range(0, len(said), size))
    streamed, whole = await failure(CHAT, packets), await failure(CHAT, said.encode())
    assert words in streamed.text
    assert (classify(streamed), streamed.text) == (classify(whole), whole.text)


@pytest.mark.parametrize("choices", [False, True])
async def test_a_choice_that_ends_in_an_error_has_its_code_and_words(choices: bool) -> None:
    """OpenRouter puts the error of an upstream provider into the choice, or beside empty choices."""
    error = {"message": "Provider returned error", "code": 429, "metadata": {"raw": "slow down, retry after 7 s"}}
    part: Json = {"index": 0, "finish_reason": "error", "error": error}
    told: Json = (
        {"choices": [part | {"message": {"content": "half a"}}]} if choices else {"choices": [], "error": error}
    )
    chunk: Json = {"choices": [part | {"delta": {"content": ""}}]} if choices else {"choices": [], "error": error}
    whole = await failure(CHAT, json.dumps(told).encode())
    streamed = await failure(CHAT, (*BEGUN["chat"][1], f"data: {json.dumps(chunk)}\n\n".encode()))
    for facts in (whole, streamed):
        assert (classify(facts), facts.status, facts.retry_after_seconds) == (R.LLM_RATE_LIMITED, 429, 7.0)
        assert "slow down" in facts.text


@pytest.mark.parametrize(
    ("body", "code", "status"),
    [
        ({"error": "Input validation error: too odd", "error_type": "validation"}, R.LLM_REQUEST_ERROR, 400),  # TGI's
        ({"error": "Model is overloaded", "error_type": "overloaded"}, R.LLM_NETWORK_ERROR, 200),
        ({"error": {"message": "x", "metadata": {"error_type": "rate_limit_exceeded"}}}, R.LLM_RATE_LIMITED, 429),
        ({"error": {"message": "x", "code": 402, "metadata": {"error_type": "odd"}}}, R.LLM_QUOTA_EXHAUSTED, 402),
        ({"error": {"message": "x", "metadata": {"error_type": 5}}}, R.LLM_NETWORK_ERROR, 200),
    ],
)
async def test_a_type_may_stand_in_another_field(body: Json, code: ReasonCode, status: int) -> None:
    sent = json.dumps(body).encode()
    for facts in (await failure(CHAT, sent), await failure(CHAT, (*BEGUN["chat"][1], b"data: " + sent + b"\n\n"))):
        assert (classify(facts), facts.status) == (code, status)


def google(*details: Json, message: str = "Resource exhausted") -> Json:
    """Google's error for a quota."""
    return {"error": {"code": 429, "message": message, "status": "RESOURCE_EXHAUSTED", "details": list(details)}}


def retry_info(delay: str) -> Json:
    """Google's detail with a wait."""
    return {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay}


def used_up(*quotas: tuple[str, str]) -> Json:
    """Google's detail with the quotas that are used up, and their values."""
    violations = [{"quotaId": name, "quotaValue": value} for name, value in quotas]
    return {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": violations}


MINUTE = ("GenerateRequestsPerMinutePerProjectPerModel-FreeTier", "10")
DAY = ("GenerateRequestsPerDayPerProjectPerModel-FreeTier", "50")
CURRENT = "You exceeded your current quota, please check your plan and billing details."
SECONDS = int(NOW.timestamp()) + 30


def openrouter(limit: str, reset: int | str) -> Json:
    """OpenRouter's error with the headers of its own limit."""
    headers = {"X-RateLimit-Limit": "20", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": str(reset)}
    return {"error": {"message": f"Rate limit exceeded: {limit}", "code": 429, "metadata": {"headers": headers}}}


def said(message: str, **fields: Any) -> Json:
    """An error with a message."""
    return {"error": {"message": message, "code": "429", **fields}}


BODIES: dict[str, tuple[Json, float | None, ReasonCode]] = {
    "Gemini": (google(retry_info("2.6s")), 2.6, R.LLM_RATE_LIMITED),
    "Gemini, nanoseconds": (google(retry_info("34.074824224s")), 34.0748, R.LLM_RATE_LIMITED),
    "Gemini, a list": ([google(retry_info("9s"))], 9.0, R.LLM_RATE_LIMITED),
    "Gemini, a minute": (google(used_up(MINUTE), retry_info("5s"), message=CURRENT), 5.0, R.LLM_RATE_LIMITED),
    "Gemini, a minute without a wait": (google(used_up(MINUTE), message=CURRENT), None, R.LLM_RATE_LIMITED),
    "Gemini, a wait for its words": (google(retry_info("5s"), message=CURRENT), 5.0, R.LLM_RATE_LIMITED),
    "Gemini, a day": (
        google(used_up(DAY), retry_info("36s"), message=f"{CURRENT}\nPlease retry in 36.4s."),
        36.0,
        R.LLM_QUOTA_EXHAUSTED,
    ),
    "Gemini, both": (google(used_up(MINUTE, DAY), retry_info("5s"), message=CURRENT), 5.0, R.LLM_QUOTA_EXHAUSTED),
    "Gemini, nothing": (google(used_up((MINUTE[0], "0")), retry_info("5s")), 5.0, R.LLM_QUOTA_EXHAUSTED),
    "Gemini, nothing in words": (
        google(message="Quota exceeded for metric: a, limit: 0, model: m\nPlease retry in 5.5s."),
        5.5,
        R.LLM_QUOTA_EXHAUSTED,
    ),
    "Code Assist": (
        google({"reason": "RATE_LIMIT_EXCEEDED", "metadata": {"quota_limit": "Gemini25ProRequestsPerDay"}}),
        None,
        R.LLM_QUOTA_EXHAUSTED,
    ),
    "Code Assist, its reset": (google(message="Your quota will reset after 2m3s."), 123.0, R.LLM_RATE_LIMITED),
    "OpenAI": (said("Limit 30000, Used 29000. Please try again in 2.6s. Visit https://x"), 2.6, R.LLM_RATE_LIMITED),
    "OpenAI, milliseconds": (said("Rate limit reached. Please try again in 579ms."), 0.579, R.LLM_RATE_LIMITED),
    "OpenAI, a rolling day": (
        said("Rate limit reached on tokens per day (TPD): Limit 1500000. Please try again in 12.441s. Visit x"),
        12.441,
        R.LLM_RATE_LIMITED,
    ),
    "Groq, a rolling day": (
        said("Rate limit reached on tokens per day (TPD): Limit 100000. Please try again in 9m38.016s. Need more?"),
        578.016,
        R.LLM_RATE_LIMITED,
    ),
    "Groq, hours": (said("Limit 500 requests per day. Please try again in 1h2m3.5s."), 3723.5, R.LLM_QUOTA_EXHAUSTED),
    "Azure": (said("Requests have exceeded the limit. Please retry after 26 seconds. Go"), 26.0, R.LLM_RATE_LIMITED),
    "Azure, one": (said("Please retry after 1 second."), 1.0, R.LLM_RATE_LIMITED),
    "GitHub, a minute": (said("Rate limit of 15 per 60s exceeded. Please wait 42 seconds"), 42.0, R.LLM_RATE_LIMITED),
    "GitHub, a day": (said("for UserByModelByDay. Please wait 33513 seconds"), 33513.0, R.LLM_QUOTA_EXHAUSTED),
    "Moonshot": (said("max request: 1, please try again after 1 seconds"), 1.0, R.LLM_RATE_LIMITED),
    "litellm's proxy": (said("No deployments available, Try again in 60 seconds. x"), 60.0, R.LLM_RATE_LIMITED),
    "minutes": (said("Please try again in 5 minutes."), 300.0, R.LLM_RATE_LIMITED),
    "days": (said("Please try again in 2 days"), 172_800.0, R.LLM_RATE_LIMITED),
    "OpenRouter, a minute": (openrouter("free-models-per-min.", SECONDS * 1000), 30.0, R.LLM_RATE_LIMITED),
    "OpenRouter, a day": (openrouter("free-models-per-day", SECONDS * 1000), 30.0, R.LLM_QUOTA_EXHAUSTED),
    "a reset in seconds": (openrouter("x", SECONDS), 30.0, R.LLM_RATE_LIMITED),
    "a reset in so many seconds": (openrouter("x", 12), 12.0, R.LLM_RATE_LIMITED),
    "a reset in words": (openrouter("x", "soon"), None, R.LLM_RATE_LIMITED),
    "a field": (said("slow", retry_after=3.5), 3.5, R.LLM_RATE_LIMITED),
    "a field in a text": (said("slow", retry_after="3.5s"), 3.5, R.LLM_RATE_LIMITED),
    "a field in milliseconds": (said("slow", retry_after_ms=3500), 3.5, R.LLM_RATE_LIMITED),
    "a field beside the error": ({**said("slow"), "retry_after": 3}, 3.0, R.LLM_RATE_LIMITED),
    "a field in the metadata": (said("slow", metadata={"retry_after_seconds": 7}), 7.0, R.LLM_RATE_LIMITED),
    "Bedrock, a day": (said("Too many tokens per day, please wait before trying again."), None, R.LLM_QUOTA_EXHAUSTED),
    "Cohere, a month": (said("a Trial key, which is limited to 1000 API calls / month"), None, R.LLM_QUOTA_EXHAUSTED),
    "Cohere, a minute": (said("a Trial key, which is limited to 20 API calls / minute"), None, R.LLM_RATE_LIMITED),
    "no wait": (said("it timed out after 60 seconds, at try 3"), None, R.LLM_RATE_LIMITED),
    "no unit": (said("retry after 3"), None, R.LLM_RATE_LIMITED),
    "another unit": (said("retry after 3 metres"), None, R.LLM_RATE_LIMITED),
    "odd fields": (said("x", retry_after=[], details=[5, {"retryDelay": 3}], metadata=[]), None, R.LLM_RATE_LIMITED),
}


@pytest.mark.parametrize("way", ["429", "200", "streamed"])
@pytest.mark.parametrize("name", BODIES)
async def test_a_wait_is_read_wherever_it_is_told(name: str, way: str) -> None:
    """In a body or in words, behind each status; a quota of a day is none of a minute."""
    body, seconds, code = BODIES[name]
    sent = json.dumps(body).encode()
    wire = GEMINI if name.startswith(("Gemini", "Code")) else CHAT
    if way == "streamed":
        facts = await failure(wire, (*BEGUN["gemini" if wire is GEMINI else "chat"][1], b"data: " + sent + b"\n\n"))
    else:
        facts = await failure(wire, sent, int(way))
    assert (classify(facts), facts.status) == (code, 429)
    assert facts.retry_after_seconds == (None if seconds is None else pytest.approx(seconds, abs=0.001))


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after-ms": "2600", "retry-after": "3"}, 2.6),
        ({"x-ms-retry-after-ms": "1500"}, 1.5),
        ({"retry-after": "4"}, 4.0),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "12"}, 12.0),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": str(SECONDS)}, 30.0),
        # Of another limit than the one that is used up, and when a limit is full again: no wait is asked for.
        ({"x-ratelimit-remaining": "3", "x-ratelimit-reset": "12"}, 9.0),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "6m0s"}, 9.0),
        ({"anthropic-ratelimit-tokens-reset": "2026-11-21T00:00:20Z"}, 9.0),
    ],
)
@pytest.mark.parametrize("wire", [CHAT, MESSAGES, OLLAMA], ids=lambda wire: wire.name)
async def test_a_header_counts_before_words(wire: Any, headers: dict[str, str], seconds: float) -> None:
    """In a stream that ends in an error, too."""
    error = {"message": "Please try again in 9s.", "type": "rate_limit_error"}
    begun = next(begun for reader, begun in BEGUN.values() if reader is wire)
    whole = await failure(wire, json.dumps({"error": error}).encode(), 429, headers)
    streamed = await failure(wire, (*begun, frame_of(wire, error)), 200, headers)
    assert (whole.retry_after_seconds, streamed.retry_after_seconds) == (seconds, seconds)


async def test_a_wait_beside_the_message_is_told_to_people() -> None:
    facts = await failure(GEMINI, json.dumps(google(retry_info("2.6s"), used_up(MINUTE))).encode(), 429)
    assert facts.text == f"Resource exhausted (retry in 2.6s) [{MINUTE[0]}]"


class Gate:
    """Notes what a gate of a key learns."""

    def __init__(self) -> None:
        self.learnt: list[Any] = []

    def serve(self, sent: object) -> None:
        self.learnt.append("served")

    def refuse(self, sent: object, status: int, retry_after: float | None) -> bool:
        self.learnt.append((status, retry_after))
        return True


@pytest.mark.parametrize(
    ("facts", "learnt"),
    [
        (FailureFacts(status=429, retry_after_seconds=7.0), (429, 7.0)),
        (FailureFacts(status=529), (529, None)),
        (FailureFacts(status=200, text="odd"), "served"),
        (FailureFacts(status=429, names=("insufficient_quota",)), "served"),
        (FailureFacts(status=400), "served"),
    ],
)
def test_a_refusal_in_the_middle_of_a_stream_slows_the_calls_of_its_key(facts: FailureFacts, learnt: Any) -> None:
    """S-09: an answer was begun, and its provider still asks for fewer calls."""
    gate: Any = Gate()
    _show(gate, gate, facts, served=True)
    assert gate.learnt == [learnt]
