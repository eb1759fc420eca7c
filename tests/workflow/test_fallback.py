"""A model that has failed for good: the next one of the agent goes on with the turn, and stays at work."""

import asyncio
import threading
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from perdure import Agent, Fallback, RetryPolicy, tool
from perdure.cli.render import lines
from perdure.contracts.values import JsonValue
from perdure.testing import Fault, Reply, Script, ScriptedProvider, call, faults, say
from perdure.testing.script import Answers
from tests.house import House
from tests.memory import Run

ONCE = RetryPolicy(max_retries=0)
TWICE = RetryPolicy(max_retries=1, base=timedelta(milliseconds=10), jitter=timedelta(0))
QUOTA = faults.error(429, "no more", name="insufficient_quota")


@tool
def look(place: str) -> str:
    """Look at a place."""
    return f"{place}: nothing"


def agent(*others: str | Fallback, **settings: Any) -> Agent:
    defaults = {"name": "tester", "model": "openai/first", "retry": ONCE, "tools": [look]}
    return Agent(**{**defaults, "fallback_models": others, **settings})


async def played(run: Run, using: Agent, **models: Answers) -> tuple[Mapping[str, Any], list[str]]:
    """The result of a turn, and the models that were asked, in order."""
    result = await run(using, models=models)
    return result, [asked.request.model for asked in run.requests]


FAILING: dict[str, Any] = {
    "bad key": (faults.error(401, "Incorrect API key provided", name="invalid_api_key"), "llm.auth_error"),
    "unknown model": (faults.error(404, "no such model", name="model_not_found"), "llm.request_error"),
    "overloaded": (faults.status(503), "llm.network_error"),
    "quota used up": (QUOTA, "llm.quota_exhausted"),
    "rate": (faults.status(429), "llm.rate_limited"),
}


@pytest.mark.parametrize("name", FAILING)
async def test_a_failure_of_the_provider_has_the_next_model_answer_in_the_same_step(run: Run, name: str) -> None:
    fault, code = FAILING[name]
    first = Script(replies=(say("never").after(fault),))
    result, asked = await played(run, agent("openai/second"), first=first, second=Script(replies=(say("fine"),)))
    assert (result["stop_reason"], result["output"], result["steps"]) == ("finished", "fine", 1)
    assert asked == ["first", "second"]
    (event,) = await run.events("model_fallback")
    assert (event["failed"], event["code"], event["model"]) == ("openai/first", code, "openai/second")
    assert [line["model"] for line in await run.events("generation_end")] == ["openai/second"]


@pytest.mark.parametrize("name", ["bad request", "content policy"])
async def test_a_failure_of_what_was_asked_ends_the_turn(run: Run, name: str) -> None:
    fault = {
        "bad request": faults.status(400),
        "content policy": faults.error(400, "rejected", name="content_policy_violation"),
    }[name]
    first = Script(replies=(say("never").after(fault),))
    result, asked = await played(run, agent("openai/second"), first=first, second=Script(replies=(say("fine"),)))
    assert (result["stop_reason"], asked) == ("error", ["first"])
    assert await run.events("model_fallback") == []


async def test_an_author_may_name_further_failures(run: Run) -> None:
    first = Script(replies=(say("never").after(faults.error(400, "no", name="content_policy_violation")),))
    second = Fallback(model="openai/second", also_on=("llm.content_filtered",))
    result, asked = await played(run, agent(second), first=first, second=Script(replies=(say("fine"),)))
    assert (result["output"], asked) == ("fine", ["first", "second"])


async def test_the_next_model_stays_for_the_rest_of_the_turn_and_the_next_turn_begins_with_the_first(
    run: Run,
) -> None:
    first = Script(replies=(call(("look", {"place": "here"})), say("no").after(QUOTA), say("back again")))
    second = Script(replies=(say("?"), call(("look", {"place": "there"})), say("fine")))
    tester = agent("openai/second")
    result, asked = await played(run, tester, first=first, second=second)
    assert asked == ["first", "first", "second", "second"]
    assert (result["output"], result["steps"]) == ("fine", 3)
    again = await run(tester, models={"first": first, "second": second}, prompt="and now?")
    assert run.requests[4].request.model == "first"
    assert again["turn"] == 2


async def test_each_model_has_its_own_retries(run: Run) -> None:
    """The retries of the first use up none of the second's; the events tell them apart."""
    down = faults.status(503)
    first = Script(replies=(say("never").after(down, down),))
    second = Script(replies=(say("fine").after(down, down, down),))
    retry = RetryPolicy(max_retries=3, base=timedelta(milliseconds=10), jitter=timedelta(0))
    other = Fallback(model="openai/second", retry=retry)
    result, asked = await played(run, agent(other, retry=TWICE), first=first, second=second)
    assert result["output"] == "fine"
    assert asked == ["first"] * 2 + ["second"] * 4
    retries = await run.events("generation_retry")
    assert [(retry["fallback"], retry["attempt"], retry["max_attempts"]) for retry in retries] == [
        (0, 1, 1),
        (1, 1, 3),
        (1, 2, 3),
        (1, 3, 3),
    ]


async def test_when_the_last_model_fails_its_error_ends_the_turn(run: Run) -> None:
    """Every model is tried, in order, and each failure stands in the log."""
    script = Script(replies=(say("never").after(QUOTA),))
    using = agent("openai/second", Fallback(model="openai/third"))
    result, asked = await played(run, using, first=script, second=script, third=script)
    assert (result["stop_reason"], result["reason_code"]) == ("error", "llm.quota_exhausted")
    assert "openai/third" in result["error"]
    assert asked == ["first", "second", "third"]
    errors = [line["error"]["message"].split(":")[0] for line in await run.events("generation_error")]
    assert errors == ["step 1, openai/first", "step 1, openai/second", "step 1, openai/third"]
    assert len(await run.events("generation_start")) == 3


async def test_a_model_of_another_provider_goes_on_with_the_conversation(run: Run) -> None:
    """What only one provider understands, its signed blocks, is not sent to another one."""
    block: Any = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
    reply = Reply(calls=(("look", {"place": "here"}),), message={"thinking_blocks": [block]})
    first = Script(replies=(reply, say("no").after(faults.status(529))))
    second = Script(replies=(say("?"), say("fine")))
    using = agent("openai/second", model="anthropic/first", generate_params={"temperature": 0.5})
    result, _ = await played(run, using, first=first, second=second)
    sent = run.requests[-1]
    assert result["output"] == "fine"
    assert isinstance(sent.body, dict)
    assert sent.body["temperature"] == 0.5
    assert [message["role"] for message in sent.request.messages] == ["user", "assistant", "tool"]
    assert not any("thinking_blocks" in message for message in sent.request.messages)


async def test_what_was_steered_in_is_told_to_the_next_model_and_noted_once(house: House) -> None:
    @tool
    async def wait(place: str) -> str:
        """Wait at a place."""
        await asyncio.wait_for(asyncio.to_thread(steered.wait), 30)
        return place

    steered = threading.Event()
    first = Script(replies=(call(("wait", {"place": "here"})), say("no").after(QUOTA)))
    second = Script(replies=(say("?"), say("fine")))
    using = agent("openai/second", tools=[wait])
    async with ScriptedProvider(models={"first": first, "second": second}) as provider, house.worker(using):
        house.use(provider)
        handle = await house.start("tester")
        await house.wait_for_event("tool_start")
        await handle.execute_update("send", {"prompt": "look behind you", "steer": True, "request_id": "s"})
        steered.set()
        result = await handle.result()
        told = provider.requests[-1].request.messages[-1]
    assert (result["output"], told["content"]) == ("fine", "look behind you")
    assert len(await house.events("user_message")) == 1


async def test_a_context_too_long_for_the_next_model_is_compacted_once_more(run: Run) -> None:
    """The window is that of the model at work: the compaction of a step begins anew with it."""
    long = "x" * 4_000
    calls = [call(("look", {"place": f"{at} {long}"})) for at in range(6)]
    first = Script(replies=(*calls, say("no").after(QUOTA)))
    too_long = faults.error(400, "too long", name="context_length_exceeded")

    def second(request: Any) -> Reply:
        if "You summarise the conversation" in request.system:
            return say("<summary>we looked</summary>")
        return say("fine") if len(request.messages) < 8 else say("never").after(too_long)

    using = agent("openai/second", compaction={"keep": 2, "threshold": None})
    result, asked = await played(run, using, first=first, second=second)
    assert result["output"] == "fine"
    assert asked == ["first"] * 7 + ["second"] * 3
    done = [event for event in await run.events("compaction_event") if event["compaction_status"] == "completed"]
    assert [event["model"] for event in done] == ["openai/second"]


async def test_a_recording_of_a_turn_that_fell_back_replays(house: House) -> None:
    first = Script(replies=(say("never").after(QUOTA),))
    using = agent("openai/second")
    outputs: list[str] = []
    for mode in ("record", "replay"):
        changes = {"recordings": house.folder / "recordings", "recording_mode": mode}
        house.settings = house.settings.model_copy(update=changes)
        models = {"first": first, "second": Script(replies=(say("fine"),))}
        async with ScriptedProvider(models=models) as provider, house.worker(using):
            house.use(provider)
            house.session += mode
            outputs.append((await house.run("tester"))["output"])
            assert provider.request_count == (2 if mode == "record" else 0)
    assert outputs == ["fine", "fine"]


async def test_people_read_that_another_model_goes_on(run: Run) -> None:
    first = Script(replies=(say("never").after(QUOTA),))
    await played(run, agent("openai/second"), first=first, second=Script(replies=(say("fine"),)))
    events = await run.store.events(run.session, after=0, limit=100)
    shown = [line.text for event in events for line in lines(event)]
    assert "↪ openai/first failed (llm.quota_exhausted); openai/second goes on" in shown


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
async def test_a_prompt_that_nothing_can_shorten_goes_to_a_model_with_a_larger_window(house: House, wire: str) -> None:
    """S-41: the first prompt is too long, so there is nothing to summarise; a fallback names that failure."""
    house.environment.setenv("ANTHROPIC_API_KEY", "sk-ant-scripted-0123456789")
    script = Script(replies=(say("never").after(faults.context_overflow()),))
    models = {"first": script, "second": Script(replies=(say("fine"),))}
    async with ScriptedProvider(models=models) as provider:
        params: dict[str, JsonValue] = {"api_base": provider.anthropic_url if wire == "anthropic" else provider.url}
        second = Fallback(model=f"{wire}/second", also_on=("llm.context_overflow",))
        tester = agent(second, model=f"{wire}/first", generate_params=params)
        async with house.worker(tester):
            result = await house.run(tester.name)
        assert [request.request.model for request in provider.requests] == ["first", "second"]
    assert (result["stop_reason"], result["output"], result["steps"]) == ("finished", "fine", 1)
    (event,) = await house.events("model_fallback")
    assert (event["failed"], event["code"]) == (f"{wire}/first", "llm.context_overflow")


@pytest.mark.parametrize(
    "fault",
    [
        faults.error(400, "Model Not Exist"),
        faults.error(400, "Incorrect API key provided: sk***YA. You can obtain an API key from https://console.x.ai."),
        faults.error(400, "You have reached your specified API usage limits."),
    ],
    ids=["model", "key", "account"],
)
async def test_a_key_a_model_or_an_account_refused_with_a_400_has_the_next_model_answer(run: Run, fault: Fault) -> None:
    first = Script(replies=(say("never").after(fault),))
    result, asked = await played(run, agent("openai/second"), first=first, second=Script(replies=(say("fine"),)))
    assert (result["stop_reason"], result["output"], asked) == ("finished", "fine", ["first", "second"])
