"""What the page makes of a state: sentences, meters, arguments to approve; and how it reads the stream."""

from datetime import UTC, datetime
from typing import Any

import pytest

from perdure import Agent, Budgets
from perdure.testing import approve, call, faults, say
from tests.memory import Run
from tests.ui.node import called, folded, run_script
from tests.ui.test_fold import FEATURES, agent, lines_of, look, pay

pytestmark = pytest.mark.deep

START = {"at": "2026-11-23T10:00:00+00:00", "turn": 1, "session": "job"}
NOW = int(datetime(2026, 11, 23, 10, 1, tzinfo=UTC).timestamp() * 1000)
"""A minute later, in milliseconds."""
BEGUN = {
    **START,
    "seq": 1,
    "step": 0,
    "type": "agent_start",
    "agent": "a",
    "model": "openai/m",
    "prompt": "go",
    "definition": "d",
    "context_window": 1000,
}
ASKED = {**START, "seq": 2, "step": 1, "type": "generation_start", "model": "openai/m", "messages": 1}
RETRIED = {
    **START,
    "seq": 3,
    "step": 1,
    "type": "generation_retry",
    "attempt": 3,
    "max_attempts": 8,
    "wait_seconds": 72.0,
    "code": "llm.rate_limited",
    "error_type": "RateLimitError",
    "error_message": "slow",
}
WANTED = {
    **START,
    "seq": 3,
    "step": 1,
    "type": "user_input_required",
    "request_id": "r",
    "needs": "answer",
    "tool": "ask_user",
    "arguments": "{}",
    "question": "Which?",
    "options": [],
    "digest": "",
    "expires_at": None,
}
WAIT = {
    "session": "job",
    "cause": "worker",
    "text": "no worker polls queue perdure",
    "advice": "start a worker",
    "since": "2026-11-23T10:00:20Z",
    "attempt": None,
    "next_at": None,
}


def say_of(detail: Any, *lines: Any) -> dict[str, Any]:
    verdict: dict[str, Any] = called("views", "verdict", folded("job", list(lines)), detail, NOW)
    return verdict


@pytest.mark.parametrize(
    ("lines", "detail", "tone", "head", "text"),
    [
        ((), None, "running", "Starting", "no worker has begun the turn yet"),
        ((), {"state": "running", "waits_for": WAIT}, "bad", "Stands still since 40 s", WAIT["text"]),
        ((BEGUN, ASKED), None, "running", "The model answers", "openai/m, step 1, for 60 s"),
        ((BEGUN, ASKED), {"state": "running", "waits_for": WAIT}, "bad", "Stands still since 40 s", WAIT["text"]),
        ((BEGUN, ASKED, RETRIED), None, "waiting", "Retry 3 of 8 in 12 s", "the model call failed in step 1"),
        ((BEGUN, ASKED, WANTED), None, "person", "Waits for a person since 60 s", "an answer to “Which?”"),
        (
            (BEGUN, ASKED, WANTED),
            {"state": "running", "waits_for": {**WAIT, "cause": "paused", "text": "the session is paused by ann"}},
            "waiting",
            "Paused since 40 s",
            "the session is paused by ann",
        ),
        (
            (BEGUN, ASKED),
            {"state": "ended", "turn": 1, "stop_reason": "error", "error": "terminated", "waits_for": None},
            "bad",
            "Failed",
            "terminated",
        ),
    ],
)
def test_the_verdict_says_what_the_job_does_or_waits_for(
    lines: tuple[Any, ...], detail: Any, tone: str, head: str, text: str
) -> None:
    verdict = say_of(detail, *lines)
    assert (verdict["tone"], verdict["head"], verdict["text"]) == (tone, head, text)
    assert verdict["next"]


async def test_every_moment_of_a_turn_has_a_verdict_with_what_comes_next(run: Run) -> None:
    await run(agent(look, pay), call(("look", {}), ("pay", {"amount": 1})), say("ok"), people=[approve()])
    lines = await lines_of(run)
    states = run_script("parts.mjs", [["fold", "start", [run.session]]])
    for end in range(1, len(lines) + 1):
        state = folded(run.session, lines[:end])
        verdict = called("views", "verdict", state, None, NOW)
        assert verdict["head"], end
        assert verdict["next"], (end, verdict)
    assert states[0]["last"] == 0


RESUMES = {
    "a model error": "asks the model for step 2 again, with the same conversation",
    "a tool that aborts": "lets the model read the error of charge, and goes on",
    "the step limit": "goes on where it stands, with the agent's limits anew",
    "a budget": "goes on where it stands, with the agent's limits anew",
    "tools in parallel": None,
    "a stall": None,
    "a stop for people": None,
}


@pytest.mark.parametrize("feature", RESUMES)
async def test_the_verdict_offers_to_resume_what_can_go_on_without_a_message(run: Run, feature: str) -> None:
    worker, replies, options = FEATURES[feature]
    await run(worker, script=replies, **options)
    verdict = called("views", "verdict", folded(run.session, await lines_of(run)), None, NOW)
    assert verdict.get("resume") == RESUMES[feature]


async def test_a_job_that_failed_in_its_first_step_can_be_resumed(run: Run) -> None:
    await run(agent(), say("").after(faults.error(401, "bad key")))
    verdict = called("views", "verdict", folded(run.session, await lines_of(run)), None, NOW)
    assert verdict["resume"] == "asks the model for step 1 again, with the same conversation"
    assert verdict["next"] == "remove the cause, then resume it or send a message"
    closed = {"state": "ended", "turn": 1, "stop_reason": "error", "error": "terminated", "waits_for": None}
    assert say_of(closed, BEGUN, ASKED)["resume"] == RESUMES["a model error"].replace("2", "1")  # type: ignore[union-attr]
    refused = {"state": "ended", "turn": None, "stop_reason": "error", "error": "no such agent", "waits_for": None}
    assert "resume" not in say_of(refused)


async def test_meters_show_limits_and_when_they_come(run: Run) -> None:
    worker = Agent(name="tester", model="openai/scripted", tools=[look], max_steps=4, budgets=Budgets(llm_calls=40))
    await run(worker, *(call(("look", {})) for _ in range(3)), say("ok"))
    lines = await lines_of(run)
    half = [line for line in lines if line["step"] <= 2]
    budget = {"max_steps": 4, "steps": 2, "limits": {"llm_calls": 40, "seconds": "PT1H"}, "spent": {"llm_calls": 2}}
    state = folded(run.session, half)
    found = {meter["name"]: meter for meter in called("views", "meters", state, budget, NOW)}
    assert not found["Tokens"]["text"].startswith("about ")
    state["turns"][-1]["used"]["usage"]["estimated"] = True
    assert called("views", "meters", state, budget, NOW)[1]["text"].startswith("about ")
    assert (found["Steps"]["text"], found["Steps"]["share"]) == ("2 of 4", 0.5)
    assert found["Steps"]["forecast"].startswith("limit in about 2 steps")
    assert found["Model calls"]["text"] == "2 of 40"
    assert found["Time"]["share"] is not None
    assert found["Cost"]["text"].startswith("unknown for 2 calls")


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("PT1H30M", 5400), ("P1DT1S", 86_401), ("PT0.5S", 0.5), (90, 90), ("90.5", 90.5), (None, None)],
)
def test_durations_are_read(value: Any, seconds: float | None) -> None:
    assert called("views", "span", value) == seconds


def test_what_people_approve_stands_there_as_it_was_written() -> None:
    written = '{"amount": 1250.0, "to": ["\\u00e9", "\\u202e"], "n": 12345678901234567890, "n": 1, "e": {}}'
    assert called("format", "pretty", written) == (
        '{\n  "amount": 1250.0,\n  "to": [\n    "é",\n    "\\u202e"\n  ],\n'
        '  "n": 12345678901234567890,\n  "n": 1,\n  "e": {}\n}'
    )
    assert called("format", "pretty", "{broken") == "{broken"


def test_an_approval_that_stands_says_only_what_its_form_says() -> None:
    """S-84: a date of the form is in the browser's time zone, and is sent with an offset."""
    request = {"request_id": "c", "tool": "pay", "digest": "d"}
    empty = {"always": "tool", "until": "", "reason": ""}
    assert called("people", "standing", request, empty) == {"action": "approve", "always": "tool", "digest": "d"}
    full = {"always": "arguments", "until": "2026-11-28T10:00", "reason": "small"}
    body = called("people", "standing", {**request, "digest": ""}, full)
    assert datetime.fromisoformat(body.pop("until")) == datetime(2026, 11, 28, 10).astimezone()
    assert body == {"action": "approve", "always": "arguments", "reason": "small"}


STREAM = (
    'retry: 1000\n\n: ping\n\nid: 1\nevent: agent_start\ndata: {"a": 1}\n\n'
    "id: 2.ab-1\r\nevent: delta\r\ndata: one\r\ndata: two\r\n\r\ndata: last\n\ndata: cut"
)
FRAMES = [
    {"event": "agent_start", "data": '{"a": 1}', "id": "1"},
    {"event": "delta", "data": "one\ntwo", "id": "2.ab-1"},
    {"event": "message", "data": "last"},
]


def test_a_stream_is_read_the_same_however_it_is_cut() -> None:
    cuts = [["", "parse", [[STREAM[:at], STREAM[at:]]]] for at in range(len(STREAM))]
    letters = ["", "parse", [list(STREAM)]]
    assert all(frames == FRAMES for frames in run_script("parts.mjs", [*cuts, letters]))
