"""What each fault at the wire becomes: the real litellm against a real HTTP server, on every way it has."""

import asyncio
from dataclasses import dataclass
from unittest.mock import ANY

import pytest

from perdure.contracts.errors import ReasonCode
from perdure.contracts.values import JsonValue
from perdure.llm.failures import classify, is_ambiguous
from perdure.testing import ChatRequest, Fault, Reply, Script, ScriptedProvider, call, faults, say
from tests.contract.failure_expectations import GEMINIS_MINUTE
from tests.unit.activities.calls import KEY, Way, answer, failed_at, failure, met, on_each_way

R = ReasonCode
UNKNOWN = faults.error(500, "something odd", kind="server_error")
GATEWAY: JsonValue = {"error": {"code": 429, "message": "Provider returned error"}}


@dataclass(frozen=True)
class Row:
    """A fault and what becomes of it; on Anthropic's wire too, unless that has a row of its own."""

    fault: Fault
    code: ReasonCode
    status: int | None = None
    anthropic: tuple[ReasonCode, int | None] | None = None

    def expected(self, way: Way) -> tuple[ReasonCode, int | None]:
        return self.anthropic if self.anthropic and way.speaks_anthropic else (self.code, self.status)


FAULTS: dict[str, Row] = {
    "400": Row(faults.status(400), R.LLM_REQUEST_ERROR, 400),
    "401": Row(faults.status(401), R.LLM_AUTH_ERROR, 401),
    "402": Row(faults.status(402), R.LLM_QUOTA_EXHAUSTED, 402),
    "403": Row(faults.status(403), R.LLM_AUTH_ERROR, 403),
    "404": Row(faults.status(404), R.LLM_REQUEST_ERROR, 404),
    "408": Row(faults.status(408), R.LLM_TIMEOUT, 408),
    "409": Row(faults.status(409), R.LLM_NETWORK_ERROR, 409),
    "413": Row(faults.status(413), R.LLM_REQUEST_ERROR, 413, (R.LLM_CONTEXT_OVERFLOW, 413)),
    "422": Row(faults.status(422), R.LLM_REQUEST_ERROR, 422),
    "425": Row(faults.status(425), R.LLM_NETWORK_ERROR, 425),
    "429": Row(faults.status(429), R.LLM_RATE_LIMITED, 429),
    "500": Row(faults.status(500), R.LLM_NETWORK_ERROR, 500),
    "502": Row(faults.status(502), R.LLM_NETWORK_ERROR, 502),
    "503": Row(faults.status(503), R.LLM_NETWORK_ERROR, 503),
    "504": Row(faults.status(504), R.LLM_TIMEOUT, 504),
    "524": Row(faults.status(524), R.LLM_NETWORK_ERROR, 524),
    "529": Row(faults.status(529), R.LLM_NETWORK_ERROR, 529),
    "rate limited": Row(faults.rate_limited(), R.LLM_RATE_LIMITED, 429),
    "too fast, and a word on billing": Row(
        faults.error(429, "Rate limit reached, 200000 a minute. More under /account/billing", kind="tokens"),
        R.LLM_RATE_LIMITED,
        429,
    ),
    "quota of this minute": Row(faults.error(429, GEMINIS_MINUTE, kind="tokens"), R.LLM_RATE_LIMITED, 429),
    "overloaded": Row(faults.overloaded(), R.LLM_NETWORK_ERROR, 503, (R.LLM_NETWORK_ERROR, 529)),
    "quota used up": Row(faults.quota_exhausted(), R.LLM_QUOTA_EXHAUSTED, 429, (R.LLM_QUOTA_EXHAUSTED, 400)),
    "context too long": Row(faults.context_overflow(), R.LLM_CONTEXT_OVERFLOW, 400),
    "content policy": Row(faults.policy_violation(), R.LLM_CONTENT_FILTERED, 400),
    "refused key": Row(faults.bad_key(), R.LLM_AUTH_ERROR, 401),
    "refused key, repeated whole": Row(
        faults.error(401, f"Incorrect API key provided: {KEY}.", name="invalid_api_key"), R.LLM_AUTH_ERROR, 401
    ),
    "unknown model": Row(faults.unknown_model(), R.LLM_REQUEST_ERROR, 404),
    "false friend": Row(faults.error(400, "max 500 tokens allowed"), R.LLM_REQUEST_ERROR, 400),
    "page": Row(faults.page(502), R.LLM_NETWORK_ERROR, 502),
    "page in a 200": Row(faults.page(200), R.LLM_NETWORK_ERROR, ANY),
    "no JSON": Row(faults.garbage(), R.LLM_NETWORK_ERROR, ANY),
    "rate limit in a 200": Row(faults.in_a_200(faults.rate_limited()), R.LLM_RATE_LIMITED, ANY),
    "rate limit in a gateway's 200": Row(faults.status(200, body=GATEWAY), R.LLM_RATE_LIMITED, 429),
    "overload in a 200": Row(faults.in_a_200(faults.overloaded()), R.LLM_NETWORK_ERROR, ANY),
    "quota in a 200": Row(faults.in_a_200(faults.quota_exhausted()), R.LLM_QUOTA_EXHAUSTED, ANY),
    "context in a 200": Row(faults.in_a_200(faults.context_overflow()), R.LLM_CONTEXT_OVERFLOW, ANY),
    "policy in a 200": Row(faults.in_a_200(faults.policy_violation()), R.LLM_CONTENT_FILTERED, ANY),
    "refused key in a 200": Row(faults.in_a_200(faults.bad_key()), R.LLM_AUTH_ERROR, ANY),
    "unknown model in a 200": Row(faults.in_a_200(faults.unknown_model()), R.LLM_REQUEST_ERROR, ANY),
    "unknown error in a 200": Row(faults.in_a_200(UNKNOWN), R.LLM_NETWORK_ERROR, ANY),
    "closed": Row(faults.close_before_reply(), R.LLM_NETWORK_ERROR),
    "reset": Row(faults.reset_before_reply(), R.LLM_NETWORK_ERROR),
    "reset in the body": Row(faults.reset_in_body(), R.LLM_NETWORK_ERROR),
    "cut": Row(faults.cut_body(), R.LLM_NETWORK_ERROR),
    "silent": Row(faults.hang(), R.LLM_TIMEOUT),
    "silent in the body": Row(faults.hang_in_body(), R.LLM_TIMEOUT),
    "nothing in the reply": Row(faults.empty_choices(), R.LLM_EMPTY),
    "neither text nor calls": Row(faults.empty_answer(), R.LLM_EMPTY),
    "blanks only": Row(faults.instead(say("  ")), R.LLM_EMPTY),
    "text cut off": Row(faults.truncated("half a sent"), R.LLM_TRUNCATED),
    "call cut off": Row(faults.truncated(None, ("pay", {"amount": 1})), R.LLM_TRUNCATED),
    "filtered": Row(faults.filtered(), R.LLM_CONTENT_FILTERED),
    "filtered after some text": Row(faults.filtered("so far"), R.LLM_CONTENT_FILTERED),
    # Anthropic has one stop reason for both, and litellm one finish reason.
    "refused by the model": Row(faults.refusal("I will not"), R.LLM_REFUSED, None, (R.LLM_CONTENT_FILTERED, None)),
}

LOST = ("closed", "reset", "reset in the body", "cut", "silent", "silent in the body", "no JSON", "500", "504")
"""Faults after which the provider may have carried the call out."""

NOT_DONE = ("400", "409", "429", "refused key")
"""Faults after which it has not, for certain."""


@pytest.mark.parametrize(("way", "name"), on_each_way(FAULTS), indirect=["way"])
async def test_each_fault_has_its_reason_code_after_one_request(way: Way, name: str) -> None:
    """S-02 S-10 S-12 S-13 S-40: by what the provider did, on every way; nothing is sent a second time."""
    facts, requests = await met(way, FAULTS[name].fault)
    code, status = FAULTS[name].expected(way)
    assert (classify(facts), facts.status, requests) == (code, status, 1)
    if name in (*LOST, *NOT_DONE):
        assert is_ambiguous(facts, code) is (name in LOST)
    assert KEY not in facts.model_dump_json()
    assert KEY[:8] not in facts.text


async def test_a_refused_connection_is_a_network_error_that_wears_no_status_and_was_never_sent(way: Way) -> None:
    async with ScriptedProvider(Script(replies=(say("fine"),))) as provider:
        await provider.refuse()
        facts = await failure(way, provider)
        assert (classify(facts), facts.status, is_ambiguous(facts, classify(facts))) == (
            R.LLM_NETWORK_ERROR,
            None,
            False,
        )
        assert provider.connection_count == 0
        await provider.accept()
        assert (await answer(way, provider)).text == "fine"


@pytest.mark.parametrize("address", ["http://[::1", "http://127.0.0.1:99999", "ftp://127.0.0.1:9", "127.0.0.1:9"])
async def test_an_address_that_cannot_work_is_final(way: Way, address: str) -> None:
    """S-02: no retry helps, and nothing was sent."""
    facts = await failed_at(way, address)
    assert (classify(facts), facts.status) == (R.LLM_REQUEST_ERROR, None)


@pytest.mark.parametrize("fault", [faults.reset_before_reply(), faults.close_before_reply()])
async def test_a_request_on_a_kept_connection_that_is_lost_is_not_sent_again(way: Way, fault: Fault) -> None:
    """HTTP clients repeat what seems never to have arrived; litellm's handler does whatever it is told."""

    def script(request: ChatRequest) -> Reply:
        return say("fine").after(*[fault] * (request.messages[0]["content"] == "again"))

    async with ScriptedProvider(script) as provider:
        await answer(way, provider, "once")
        facts = await failure(way, provider, "again")
    assert (classify(facts), provider.request_count, provider.connection_count) == (R.LLM_NETWORK_ERROR, 2, 1)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "2"}, 2.0),
        ({"retry-after-ms": "1500"}, 1.5),
        ({"retry-after": "Sat, 21 Nov 2026 00:00:30 GMT"}, 30.0),
        # By the provider's own clock, which is an hour ahead of ours, or behind.
        ({"retry-after": "Sat, 21 Nov 2026 01:00:02 GMT", "date": "Sat, 21 Nov 2026 01:00:00 GMT"}, 2.0),
        ({"retry-after": "Fri, 20 Nov 2026 23:00:02 GMT", "date": "Fri, 20 Nov 2026 23:00:00 GMT"}, 2.0),
        ({"retry-after": "Sat, 21 Nov 2026 00:00:30 GMT", "date": "soon"}, 30.0),
        ({}, None),
    ],
)
@pytest.mark.parametrize("status", [429, 503])
async def test_what_the_provider_asks_to_wait_is_read(
    way: Way, status: int, headers: dict[str, str], seconds: float | None
) -> None:
    """S-09: the headers of an error reply reach the decision, and nothing is slept inside the call."""
    facts, requests = await met(way, faults.status(status, headers=headers))
    assert (facts.retry_after_seconds, requests) == (seconds, 1)


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "slow down", "type": "rate_limit_error", "code": "rate_limit_exceeded"}},
        {"error": {"message": "Provider returned error", "code": 429}},
    ],
    ids=["named", "numbered"],
)
async def test_what_an_error_in_a_200_asks_to_wait_is_read(way: Way, body: JsonValue) -> None:
    """S-09: gateways send the header beside it."""
    facts, _ = await met(way, faults.status(200, headers={"retry-after": "7"}, body=body))
    assert (classify(facts), facts.retry_after_seconds) == (R.LLM_RATE_LIMITED, 7.0)


async def test_a_number_in_an_error_in_a_200_is_its_status(way: Way) -> None:
    """S-02: a request that is refused so is not sent again."""
    facts, _ = await met(way, faults.status(200, body={"error": {"message": "no such field", "code": 400}}))
    assert (classify(facts), facts.status) == (R.LLM_REQUEST_ERROR, 400)


TEXTS: dict[str, tuple[Fault, str, str]] = {
    "quota": (
        faults.quota_exhausted(),
        "You exceeded your current quota, please check your plan and billing details. [insufficient_quota]",
        "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing to upgrade or "
        "purchase credits. [invalid_request_error]",
    ),
    "502": (faults.error(502, "no, later"), "no, later", "no, later [api_error]"),
    "503": (faults.error(503, "no, later"), "no, later", "no, later [api_error]"),
    "504": (faults.error(504, "no, later"), "no, later", "no, later [timeout_error]"),
    "in a 200": (
        faults.in_a_200(faults.error(403, "not yours", name="forbidden")),
        "not yours [forbidden]",
        "not yours [permission_error]",
    ),
    "page": (faults.page(502), "<html><body><h1>502</h1></body></html>", "<html><body><h1>502</h1></body></html>"),
}


@pytest.mark.parametrize("name", TEXTS)
async def test_the_text_is_the_providers_own_with_its_name_for_the_failure(way: Way, name: str) -> None:
    fault, openai, anthropic = TEXTS[name]
    text = (await met(way, fault))[0].text
    if way.speaks_anthropic:
        assert text == anthropic
    else:  # the SDK keeps the name of some failures to itself
        assert text.removesuffix(" [invalid_request_error]") == openai


async def test_tool_calls_come_back_the_same_on_every_way(way: Way) -> None:
    script = Script(replies=(call(("a", {"x": 1}), ("no such tool", {}), text="both"),))
    async with ScriptedProvider(script) as provider:
        got = await answer(way, provider)
        sent = provider.requests[0].headers
    assert (got.text, got.finish_reason) == ("both", "tool_calls")
    assert [(made.name, made.arguments) for made in got.calls] == [("a", '{"x": 1}'), ("no such tool", "{}")]
    assert (sent["x-api-key"] if way.speaks_anthropic else sent["authorization"]) in {KEY, f"Bearer {KEY}"}
    assert (got.usage.input_tokens, got.usage.output_tokens) == (2, 4)


async def test_broken_arguments_and_bad_ids_do_not_fail_a_call(way: Way) -> None:
    """They are the step's business: an id of ours for each, and an error result the model reads."""
    odd = Reply(calls=(("a", '{"broken'), ("a", "[1]"), ("a", {})), call_ids=("", "x", "x"))
    async with ScriptedProvider(Script(replies=(odd,))) as provider:
        arguments = [made.arguments for made in (await answer(way, provider)).calls]
    assert arguments == ['{"broken', "[1]", "{}"]


async def test_a_cancelled_call_closes_its_connection_at_once(way: Way) -> None:
    async with ScriptedProvider(always=faults.hang()) as provider:
        waiting = asyncio.create_task(failure(way, provider))
        await provider.wait_for_requests(1)
        waiting.cancel()
        await provider.wait_for_disconnect()
    assert provider.request_count == 1


async def test_slow_calls_do_not_keep_another_one_from_the_provider() -> None:
    """An HTTP client has a limit of connections, above which calls wait unseen; a worker has its own."""
    many = 510
    async with ScriptedProvider(always=faults.hang()) as provider:
        waiting = [asyncio.create_task(failure(Way.OPENAI, provider)) for _ in range(many)]
        await provider.wait_for_requests(many)
        for call_ in waiting:
            call_.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    assert (provider.request_count, provider.connection_count) == (many, many)


@pytest.mark.parametrize("fault", [faults.hang(), faults.hang_in_body()])
async def test_a_provider_that_is_silent_is_told_with_the_setting(way: Way, fault: Fault) -> None:
    """S-02: before its reply, and in the middle of one."""
    facts, requests = await met(way, fault)
    assert (classify(facts), requests) == (ReasonCode.LLM_TIMEOUT, 1)
    assert facts.text == "the provider was silent for 0.5 s, which is the agent's idle_timeout"
