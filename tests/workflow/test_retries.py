"""A model call that fails is sent again in silence, by one layer, and only when that can help."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from perdure import Agent, tool
from perdure.cli.render import lines
from perdure.contracts.retries import RetryPolicy
from perdure.testing import Fault, Reply, Script, ScriptedProvider, call, faults, say
from tests.house import House, eventually
from tests.memory import Run
from tests.workflow.traces import visible

QUICK = RetryPolicy(base=timedelta(milliseconds=10), jitter=timedelta(0))
FINE = say("fine")

RETRIED = {
    "RateLimitError": (faults.status(429), "llm.rate_limited"),
    "Timeout": (faults.status(408), "llm.timeout"),
    "APIConnectionError": (faults.close_before_reply(), "llm.network_error"),
    "APIConnectionTimeoutError": (faults.hang(), "llm.timeout"),
    "ServiceUnavailableError": (faults.status(503), "llm.network_error"),
    "InternalServerError": (faults.status(500), "llm.network_error"),
    "BadGatewayError": (faults.status(502), "llm.network_error"),
    "OverloadedError": (faults.status(529), "llm.network_error"),
}
"""A fault for each class that is retried. Those of the connection have one name, and their cause says which it was."""

WORN = {"APIConnectionError": "NoReplyError", "APIConnectionTimeoutError": "NoReplyError"}

REFUSED = {
    "bad request": (faults.status(400), "llm.request_error"),
    "bad key": (faults.error(401, "Incorrect API key provided", name="invalid_api_key"), "llm.auth_error"),
    "unknown model": (faults.error(404, "no such model", name="model_not_found"), "llm.request_error"),
    "quota used up": (faults.error(429, "no more", name="insufficient_quota"), "llm.quota_exhausted"),
    "content policy": (faults.error(400, "rejected", name="content_policy_violation"), "llm.content_filtered"),
    "context too long": (faults.error(400, "too long", name="context_length_exceeded"), "llm.context_overflow"),
}


def agent(retry: RetryPolicy = QUICK, **settings: Any) -> Agent:
    return Agent(**{"name": "tester", "model": "openai/scripted", "retry": retry, **settings})


async def played(run: Run, script: Script, *, using: Agent | None = None) -> tuple[Mapping[str, Any], int]:
    """The result of a turn, and the number of requests that the provider got."""
    result = await run(using or agent(), script=script)
    return result, len(run.requests)


@pytest.mark.parametrize("name", [name for name in RETRIED if name not in WORN])
async def test_a_transient_failure_is_retried_without_using_a_step(run: Run, name: str) -> None:
    """S-01: each of the classes, raised once: one step, one retry event, two requests."""
    fault, code = RETRIED[name]
    result, requests = await played(run, Script(replies=(FINE.after(fault),)))
    assert (result["stop_reason"], result["output"], result["steps"], requests) == ("finished", "fine", 1, 2)
    (retry,) = await run.events("generation_retry")
    assert (retry["error_type"], retry["code"]) == (name, code)


@pytest.mark.parametrize("name", WORN)
async def test_a_broken_connection_is_retried_without_using_a_step(house: House, name: str) -> None:
    """S-01: over a real connection, and on the server, as for the other classes."""
    fault, code = RETRIED[name]
    script, using = Script(replies=(FINE.after(fault),)), agent()
    if name == "APIConnectionTimeoutError":
        using = agent(idle_timeout=0.5)
    async with ScriptedProvider(script) as provider, house.worker(using):
        house.use(provider)
        result = await house.run()
    steps, requests = result["steps"], provider.request_count
    assert (result["stop_reason"], result["output"], steps, requests) == ("finished", "fine", 1, 2)
    (retry,) = await house.events("generation_retry")
    assert (retry["error_type"], retry["code"]) == (WORN[name], code)


async def test_a_retry_is_one_event_and_one_line_that_say_what_an_operator_needs(run: Run) -> None:
    """S-06: step, attempt, attempts, wait, class and message."""
    fault = faults.error(429, "slow down, please", kind="rate_limit_error")
    await played(run, Script(replies=(FINE.after(fault, fault),)))
    first, second = await run.events("generation_retry")
    expected = {
        "step": 1,
        "attempt": 2,
        "max_attempts": 8,
        "wait_seconds": 0.02,
        "code": "llm.rate_limited",
        "error_type": "RateLimitError",
    }
    assert {name: second[name] for name in expected} == expected
    assert (first["attempt"], first["wait_seconds"]) == (1, 0.01)
    assert first["error_message"].startswith("slow down, please")
    envelopes = await run.store.events(run.session, after=second["seq"] - 1, limit=1)
    (line,) = [line.text for line in lines(envelopes[0])]
    assert line.startswith("↻ RateLimitError · retry 2 of 8 in 0.0s · slow down, please")


async def test_the_model_never_sees_a_retry(run: Run) -> None:
    """S-01: silent: the same request is sent again, and the transcript holds the answer alone."""
    script = Script(replies=(FINE.after(faults.status(503)),))
    await run(agent(), script=script)
    first, second = run.requests
    assert first.request == second.request
    assert [message.role for message in await run.store.transcript(run.session)] == ["user", "assistant"]


@pytest.mark.parametrize("name", REFUSED)
async def test_a_refused_call_is_sent_once_and_ends_the_turn(run: Run, name: str) -> None:
    """S-02 S-13: one request, stop reason error, and the reason code that says why."""
    fault, code = REFUSED[name]
    result, requests = await played(run, Script(replies=(FINE.after(fault),)))
    assert (result["stop_reason"], result["reason_code"], requests) == ("error", code, 1)
    assert await run.events("generation_retry") == []


async def test_after_the_last_retry_the_turn_ends_with_the_providers_last_error(run: Run) -> None:
    """S-07: nine requests, then generation error, agent error, agent end."""
    result, requests = await played(run, Script(replies=(FINE.after(*[faults.error(429, "never again")] * 20),)))
    assert (result["stop_reason"], result["reason_code"], requests) == ("error", "llm.rate_limited", 9)
    assert "never again" in result["error"]
    *before, failed, why, end = await run.events()
    assert [line["type"] for line in (failed, why, end)] == ["generation_error", "agent_error", "agent_end"]
    assert failed["error"] == why["error"]
    assert (end["stop_reason"], end["error"]) == ("error", result["error"])
    retries = [line for line in before if line["type"] == "generation_retry"]
    assert [line["wait_seconds"] for line in retries] == [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28]


@pytest.mark.parametrize("headers", [{"retry-after-ms": "150"}, {"retry-after": "0.15"}])
async def test_what_the_provider_asks_to_wait_is_waited(run: Run, headers: dict[str, str]) -> None:
    """S-09: a longer retry-after wins over the formula."""
    result, requests = await played(run, Script(replies=(FINE.after(faults.status(429, headers=headers)),)))
    assert (result["stop_reason"], requests) == ("finished", 2)
    (retry,) = await run.events("generation_retry")
    assert retry["wait_seconds"] == 0.15


async def test_a_wait_that_does_not_fit_the_time_budget_ends_the_turn_at_once(run: Run) -> None:
    """S-05: a provider that asks for an hour is not waited for."""
    fault = faults.status(429, headers={"retry-after": "3600"})
    result, requests = await played(run, Script(replies=(FINE.after(fault),)))
    assert (result["stop_reason"], result["reason_code"], requests) == ("error", "llm.rate_limited", 1)


async def test_an_agent_without_retries_makes_one_call(run: Run) -> None:
    """S-05: max_retries 0."""
    using = agent(RetryPolicy(max_retries=0))
    result, requests = await played(run, Script(replies=(FINE.after(faults.status(503)),)), using=using)
    assert (result["stop_reason"], requests) == ("error", 1)


async def test_the_dawn_preset_makes_three_calls(run: Run) -> None:
    """S-08: max_attempts=3 counts calls; shortened here, for its waits are proved by the table."""
    quick = RetryPolicy.dawn().model_copy(update={"base": timedelta(milliseconds=10), "jitter": timedelta(0)})
    script = Script(replies=(FINE.after(*[faults.status(503)] * 5),))
    result, requests = await played(run, script, using=agent(quick))
    assert (result["stop_reason"], requests) == ("error", 3)


@pytest.mark.parametrize("name", ["APIConnectionTimeoutError", "InternalServerError", "ServiceUnavailableError"])
async def test_what_the_provider_may_have_done_is_sent_once_by_a_policy_that_says_so(run: Run, name: str) -> None:
    """S-12: ``ambiguous: fail`` sends one call on a time-out or 5xx, and says why; a rate limit is retried."""
    fault, code = RETRIED[name]
    once = agent(QUICK.model_copy(update={"ambiguous": "fail"}))
    result, requests = await played(run, Script(replies=(FINE.after(faults.status(429), fault),)), using=once)
    assert (result["stop_reason"], result["reason_code"], requests) == ("error", code, 2)
    assert result["error"].endswith("the agent's retry policy says ambiguous='fail'")


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (Reply(), "llm.empty_response"),
        (Reply(text="half", finish_reason="length"), "llm.truncated"),
        (Reply(calls=(("charge", {}),), finish_reason="length"), "llm.truncated"),
    ],
)
async def test_an_answer_that_cannot_be_used_is_asked_for_again_up_to_the_limit(
    run: Run, fault: Reply, code: str
) -> None:
    """S-40: empty and cut off; a cut-off call is never carried out."""
    ran: list[str] = []

    @tool
    def charge() -> str:
        """Charge."""
        ran.append("charged")
        return "charged"

    using = agent(QUICK.model_copy(update={"max_retries": 2}), tools=[charge])
    result, requests = await played(run, Script(replies=(fault,)), using=using)
    assert (result["stop_reason"], result["reason_code"], requests, ran) == ("error", code, 3, [])


TOLD = QUICK.model_copy(update={"on_retry": "tell_model", "max_retries": 2})


def user_messages(run: Run) -> list[list[Any]]:
    """What the user said, in each request."""
    return [
        [message["content"] for message in seen.request.messages if message["role"] == "user"] for seen in run.requests
    ]


async def test_a_failure_of_which_the_model_is_told_uses_a_step(run: Run) -> None:
    """S-14: the next request has a user message with name and text of the error."""
    result = await run(agent(TOLD), FINE.after(faults.error(429, "slow down", name="rate_limit_exceeded")))
    asked = user_messages(run)
    assert (result["stop_reason"], result["output"], result["steps"]) == ("finished", "fine", 2)
    assert asked == [asked[0], [*asked[0], "RateLimitError: slow down [rate_limit_exceeded]"]]
    (retry,) = await run.events("generation_retry")
    assert (retry["attempt"], retry["max_attempts"]) == (1, 2)


async def test_failures_in_a_row_end_the_turn_at_the_limit(run: Run) -> None:
    """S-14."""
    script = Script(replies=(FINE.after(*[faults.status(503)] * 9),))
    result, requests = await played(run, script, using=agent(TOLD))
    assert (result["stop_reason"], result["reason_code"], result["steps"], requests) == (
        "error",
        "llm.network_error",
        2,
        3,
    )
    assert result["error"].startswith("more than 2 failures in a row: step 3, ")


async def test_an_answer_resets_the_count_of_failures_in_a_row(run: Run) -> None:
    """S-14."""

    @tool
    def look() -> str:
        """Look."""
        return "seen"

    twice = [faults.status(503)] * 2
    script = Script(replies=(call(("look", {})).after(*twice), FINE.after(*twice)))
    result, requests = await played(run, script, using=agent(TOLD, tools=[look]))
    assert (result["stop_reason"], result["steps"], requests) == ("finished", 6, 6)


async def test_the_perstack_preset_waits_only_when_the_provider_asks(run: Run) -> None:
    """S-14: 5 failures in a row are told, the sixth ends the turn."""
    asks = faults.status(429, headers={"retry-after-ms": "20"})
    script = Script(replies=(FINE.after(asks, *[faults.status(429)] * 8),))
    result, requests = await played(run, script, using=agent(RetryPolicy.perstack()))
    assert (result["stop_reason"], result["reason_code"], requests) == ("error", "llm.rate_limited", 6)
    assert [retry["wait_seconds"] for retry in await run.events("generation_retry")] == [0.02, 0, 0, 0, 0]


async def test_a_cancel_ends_the_wait_before_the_model_is_told(house: House) -> None:
    """S-14 S-16."""
    tester = agent(RetryPolicy.perstack())
    script = Script(replies=(FINE.after(faults.status(429, headers={"retry-after": "3600"})),))
    async with ScriptedProvider(script) as provider, house.worker(tester):
        house.use(provider)
        running = await house.start(tester.name)
        await eventually(lambda: house.events("generation_retry"))
        await running.signal("cancel", {"reason": "enough"})
        result = await running.result()
    assert (result["stop_reason"], result["error"], result["steps"]) == ("cancelled", "Operation aborted: enough", 1)


async def test_two_agents_in_one_worker_keep_their_own_policies(house: House) -> None:
    """S-11."""
    once = agent(RetryPolicy(max_retries=0), name="once", model="openai/once")
    thrice = agent(QUICK.model_copy(update={"max_retries": 2}), name="thrice", model="openai/thrice")
    always = Script(replies=(FINE.after(*[faults.status(503)] * 9),))
    async with ScriptedProvider(always) as provider, house.worker(once, thrice):
        house.use(provider)
        for name in ("once", "thrice"):
            assert (await house.run(name))["stop_reason"] == "error"
        asked = [request.request.model for request in provider.requests]
    assert asked == ["once", "thrice", "thrice", "thrice"]


async def test_each_step_has_its_own_retries_and_time_budget(run: Run) -> None:
    """S-07: the retries of one step are not counted against the next."""
    ran: list[int] = []

    @tool
    def work() -> str:
        ran.append(1)
        return "worked"

    two: list[Fault] = [faults.status(503)] * 2
    script = Script(replies=(call(("work", {})).after(*two), FINE.after(*two)))
    using = agent(QUICK.model_copy(update={"max_retries": 2}), tools=[work])
    result, requests = await played(run, script, using=using)
    assert (result["stop_reason"], result["steps"], requests) == ("finished", 2, 6)
    retries = await run.events("generation_retry")
    assert [(line["step"], line["attempt"]) for line in retries] == [(1, 1), (1, 2), (2, 1), (2, 2)]


async def test_a_finished_tool_is_never_run_again_because_a_model_call_is_retried(run: Run) -> None:
    """S-18: and its result is what every retried call reads."""
    ran: list[int] = []

    @tool
    def charge() -> str:
        ran.append(1)
        return f"charged {len(ran)} times"

    script = Script(replies=(call(("charge", {})), FINE.after(*[faults.status(500)] * 4)))
    assert (await run(agent(tools=[charge]), script=script))["stop_reason"] == "finished"
    results = {str(request.request.messages[-1]["content"]) for request in run.requests[1:]}
    assert (len(ran), results, len(await run.events("tool_start"))) == (1, {"charged 1 times"}, 1)


async def test_a_call_over_its_deadline_is_a_timeout_although_bytes_still_come(run: Run) -> None:
    """S-01 S-02: generation_timeout bounds the whole call; litellm's own bounds a silence only."""
    script = Script(replies=(FINE.after(faults.drip(0.05)),))
    using = agent(generation_timeout=timedelta(seconds=2))
    result, requests = await played(run, script, using=using)
    assert (result["stop_reason"], requests) == ("finished", 2)
    (retry,) = await run.events("generation_retry")
    assert (retry["code"], retry["error_type"]) == ("llm.timeout", "DeadlineExceededError")


async def test_a_call_without_a_deadline_is_one_that_temporal_takes(house: House) -> None:
    """S-01: ``generation_timeout=None``; the server wants some bound of every activity, and a loop of every timer."""
    script = Script(replies=(FINE.after(faults.drip(0.001)),))
    async with ScriptedProvider(script) as provider, house.worker(agent(generation_timeout=None)):
        house.use(provider)
        result = await house.run()
    assert (result["stop_reason"], provider.request_count) == ("finished", 1)


async def test_a_key_that_the_provider_repeats_is_seen_nowhere(house: House, caplog: pytest.LogCaptureFixture) -> None:
    """S-52: planted in the text of an error, as providers do with a key they refuse."""
    key = "sk-scripted-0123456789"
    script = Script(replies=(FINE.after(faults.error(401, f"Incorrect API key provided: {key}. See your page.")),))
    async with ScriptedProvider(script) as provider, house.worker(agent()):
        house.use(provider)
        handle = await house.start()
        result = await handle.result()
        everything = await visible(house, handle, caplog)
    assert result["reason_code"] == "llm.auth_error"
    assert "Incorrect API key provided: ***. See your page." in result["error"]
    assert key not in everything
