"""What the page says of the two wires is what happens, directly and through litellm, against a real HTTP server."""

import json
import socket

import pytest
from litellm.exceptions import RateLimitError

from perdure.activities.models.failures import facts_of
from perdure.contracts.errors import ReasonCode
from perdure.llm.failures import ROWS, Evidence, FailureFacts, Row, classify
from perdure.testing import Fault, faults
from tests.contract.failure_expectations import GEMINIS_MINUTE
from tests.contract.wire_faults import WIRE_FAULTS, WireFault
from tests.unit.activities.calls import NOW, NOWHERE, Way, failed_at, met

SERVED: dict[str, Fault] = {
    "the key is refused": faults.bad_key(),
    "there is no such model": faults.unknown_model(),
    "too many requests": faults.rate_limited(),
    "the account is used up": faults.quota_exhausted(),
    "no capacity": faults.overloaded(),
    "the prompt is too long": faults.context_overflow(),
    "there are too many tools": faults.too_many_tools(),
    "the request is against the content policy": faults.policy_violation(),
    "a gateway's page of status 502": faults.page(502),
    "no capacity, said with status 200": faults.in_a_200(faults.overloaded()),
    "an unknown error, said with status 200": faults.in_a_200(faults.error(500, "something odd", kind="odd_error")),
    "a page of status 200": faults.page(200),
    "a reply without an answer": faults.empty_choices(),
    "neither text nor a tool call": faults.empty_answer(),
    "the answer is cut off by max_tokens": faults.truncated("half a sent"),
    "the answer is cut off by the content policy": faults.filtered(),
    "the model refuses": faults.refusal("I will not"),
    "silence before the reply": faults.hang(),
    "silence in the reply": faults.hang_in_body(),
    "the connection is closed before the reply": faults.close_before_reply(),
    "the connection is reset before the reply": faults.reset_before_reply(),
    "the connection is closed in the reply": faults.cut_body(),
    "the connection is reset in the reply": faults.reset_in_body(),
}

ADDRESSES = {
    "the connection is refused": NOWHERE,
    "the host's name is unknown": "http://nowhere.invalid",
    "the address is no URL": "127.0.0.1:9",
}


def of_the_wire(way: Way, row: WireFault) -> str:
    return (way.speaks_anthropic and row.anthropic) or row.seen


def seen(facts: FailureFacts) -> str:
    return f"{facts.class_name} {facts.status or ''}".strip()


@pytest.mark.parametrize("row", [row for row in ROWS if row.seen is Evidence.STATUS], ids=lambda row: row.match)
async def test_each_status_has_its_code_and_its_class_on_each_wire(way: Way, row: Row) -> None:
    """S-02: every status from 400 to 599."""
    low, _, high = row.match.partition("-")
    for status in range(int(low), min(int(high or low), 599) + 1):
        facts, _ = await met(way, faults.status(status))
        # Anthropic's error object says of a 413 what is too large.
        is_too_large = way.speaks_anthropic and status == 413
        code = ReasonCode.LLM_CONTEXT_OVERFLOW if is_too_large else row.code
        assert (seen(facts), classify(facts)) == (f"{row.name} {status}", code)


@pytest.mark.parametrize("row", WIRE_FAULTS, ids=lambda row: row.fault)
async def test_each_fault_is_on_each_wire_what_the_page_says(
    way: Way, row: WireFault, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-02 S-13 S-40: the class that is raised, its status, and the code."""

    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    if row.fault in SERVED:
        facts, _ = await met(way, SERVED[row.fault])
    else:
        if "invalid" in ADDRESSES[row.fault]:
            monkeypatch.setattr(socket, "getaddrinfo", unknown)
        facts = await failed_at(way, ADDRESSES[row.fault])
    code: ReasonCode = (way.speaks_anthropic and row.anthropic_code) or row.code
    assert (seen(facts), classify(facts)) == (of_the_wire(way, row), code)


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("end", ["", " (more)"])
def test_the_quota_of_a_minute_in_geminis_own_form_is_a_rate_limit(indent: int | None, end: str) -> None:
    """S-13: its body is JSON, of several lines, and so is what it says; text behind it makes it none."""
    said = {"error": {"code": 429, "message": GEMINIS_MINUTE, "status": "RESOURCE_EXHAUSTED"}}
    text = f"geminiException - {json.dumps(said, indent=indent)}{end}"
    facts = facts_of(RateLimitError(message=text, llm_provider="gemini", model="gemini-2.5-pro"), NOW)
    assert "Please retry in" in facts.text
    assert (facts.status, classify(facts)) == (429, ReasonCode.LLM_RATE_LIMITED)
