"""The event log under many writers at once and under what is too long or secret, and what a failed call has cost."""

import json
from collections import defaultdict
from datetime import timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest

from perdure import (
    Agent,
    Compaction,
    Continue,
    Retry,
    RetryPolicy,
    Secret,
    StepEnd,
    ToolContext,
    ask_user,
    hook,
    todo,
    tool,
)
from perdure.contracts.events import RESULT_CHARACTERS, GenerationEnd, ToolEnd
from perdure.testing import ChatRequest, Reply, Script, ScriptedProvider, call, faults, say
from tests.house import House
from tests.workflow.asking import waiting
from tests.workflow.delegating import agent, in_order, played

QUICK = RetryPolicy(max_retries=1, base=timedelta(milliseconds=10), jitter=timedelta(0))
CALLS = 8
ORDER = ("tool_start", "tool_progress", "delegate_start", "delegate_end", "tool_end", "tool_step")


@tool
def dig(place: str, context: ToolContext) -> str:
    """Dig, and say so often."""
    for part in range(100):
        context.report_progress(part, 100, "deeper")
    return place


@tool
async def look(place: str, context: ToolContext) -> str:
    """Look, and say so."""
    context.report_progress(1)
    return place


async def test_tools_delegates_hooks_and_progress_at_once_leave_no_gap_and_keep_their_order(house: House) -> None:
    """S-46 S-24 S-62: what is of one call stands in its order, between the step it is of and the one after."""

    @hook("tool_end", "step_end", name="watch")
    def watch(_: ToolEnd | StepEnd) -> None:
        """Look, and want nothing."""

    lead = agent("tester", tools=[dig, look], delegates=["helper"], hooks=[watch])
    places: list[Any] = [(name, {"place": str(n)}) for n in range(CALLS) for name in ("dig", "look")]
    queries: list[Any] = [("helper", {"query": str(n)}) for n in range(4)]
    answers = played(tester=in_order(call(*places, *queries), say("done")), helper=lambda _: say("helped"))
    async with ScriptedProvider(answers) as provider, house.worker(lead, agent("helper")):
        house.use(provider)
        result = await house.run()
    events = await house.events()
    assert result["stop_reason"] == "finished"
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert all(event["at"] <= later["at"] for event, later in pairwise(events))
    calls: defaultdict[str, list[Any]] = defaultdict(list)
    for event in events:
        if event["type"] in ORDER:
            calls[event["call_id"]].append(event)
    assert len(calls) == len(places) + len(queries)
    kinds = [event["type"] for event in events]
    first, last = kinds.index("generation_step"), len(kinds) - 1 - kinds[::-1].index("generation_start")
    for made in calls.values():
        ranks = [ORDER.index(event["type"]) for event in made]
        assert ranks == sorted(ranks)
        assert first < made[0]["seq"] - 1 < made[-1]["seq"] - 1 < last
        assert {event["step"] for event in made} == {1}
    told = [event["event_seq"] for event in events if event["type"] == "hook_end" and event["event"] == "tool_end"]
    assert sorted(told) == [event["seq"] for event in events if event["type"] == "tool_end"]


LONG = "x" * 1_000_000
MOST = {"generation_content": 32_000, "todos_changed": 33_000, "tool_end": 9_000}
"""Bytes of the events that hold more than a beginning: an answer to 30,000 characters, every todo there is, and of a
call that failed a result and a traceback, of 4,000 characters each."""


async def test_nothing_that_is_huge_stands_in_the_log_whole(house: House) -> None:
    """S-26: results, answers, failures, reports, and what a person said; a result has at most 4,000 characters."""

    @tool
    def tell(context: ToolContext) -> str:
        """Tell it all."""
        context.report_progress(1, message=LONG)
        return LONG

    @tool(catch=True)
    def fail() -> str:
        """Fail with it all."""
        raise ValueError(LONG)

    titles = [f"{number} " + "t" * 490 for number in range(60)]
    lead = agent("tester", tools=[tell, fail, todo, ask_user], delegates=["helper"])
    calls: list[Any] = [("tell", {}), ("fail", {}), ("nobody", {"text": LONG}), ("todo", {"new_titles": titles})]
    calls += [("helper", {"query": "go"}), ("ask_user", {"question": "What?"})]
    everything = call(*calls, text=LONG[:200_000])
    answers = played(tester=in_order(everything, say("done")), helper=lambda _: say(LONG))
    async with ScriptedProvider(answers) as provider, house.worker(lead, agent("helper")):
        house.use(provider)
        handle = await house.start()
        (request,) = await waiting(house)
        await house.client.answer(house.session, request["request_id"], "w" * 30_000, by="me")
        await handle.result()
    events = await house.events()
    sizes = [(event["type"], len(json.dumps(event))) for event in events]
    assert [(kind, size) for kind, size in sizes if size > MOST.get(kind, 5_000)] == []
    results = {event["tool"]: len(event["result"]) for event in events if event["type"] == "tool_end"}
    assert results.pop("fail") < RESULT_CHARACTERS
    assert results == dict.fromkeys(("tell", "todo", "helper", "ask_user"), RESULT_CHARACTERS)


async def test_an_answer_in_the_next_turn_is_an_event_of_that_turns_step(house: House) -> None:
    """S-60: the call was asked for in step 1 of the turn before, and this one has not come to its step 1."""
    asks = call(("ask_user", {"question": "What?"}))
    tester = Agent(name="tester", model="openai/scripted", tools=[ask_user], interactive="stop")
    async with ScriptedProvider(Script(replies=(asks, say("done")))) as provider, house.worker(tester):
        house.use(provider)
        result = await house.run()
        await house.client.answer(house.session, result["requests"][0]["request_id"], "this", by="me")
        await (await house.client.attach(house.session)).result()
    answered = [event for event in await house.events() if event["turn"] == 2]
    told = ["agent_start", "user_input_received", "tool_end", "generation_start"]
    assert [(event["type"], event["step"]) for event in answered[:4]] == list(zip(told, (0, 0, 0, 1), strict=True))


async def test_what_each_failed_try_was_paid_stands_in_the_log_also_of_the_last_one(house: House) -> None:
    """S-07 S-54: the events add up to what the result says, and the trajectory too."""
    tester = Agent(name="tester", model="openai/gpt-4o", retry=QUICK)
    cut = Reply(text="half an answer", finish_reason="length")
    async with ScriptedProvider(Script(replies=(cut,), repeat=True)) as provider, house.worker(tester):
        house.use(provider)
        result = await house.run()
    failed = await house.events("generation_retry", "generation_error")
    assert [event["type"] for event in failed] == ["generation_retry", "generation_error"]
    assert all(event["usage"]["output_tokens"] > 0 for event in failed)
    assert sum(event["usage"]["output_tokens"] for event in failed) == result["usage"]["output_tokens"]
    assert sum(Decimal(event["cost_usd"]) for event in failed) == Decimal(result["cost_usd"]) > 0
    whole = await house.client.trajectory(house.session)
    assert (whole.usage.model_dump(), whole.cost_usd) == (result["usage"], Decimal(result["cost_usd"]))


TELLING = QUICK.model_copy(update={"on_retry": "tell_model", "max_retries": 3})


@pytest.mark.parametrize("retry", [QUICK, TELLING], ids=["retried", "told"])
async def test_a_trajectory_counts_every_call_once_whatever_became_of_it(house: House, retry: RetryPolicy) -> None:
    """S-54: an answer that was cut off, one that a hook took back, a summary, and those that are kept."""
    took_back: list[str] = []

    @hook("generation_end")
    def take_back(_: GenerationEnd) -> Retry | None:
        took_back.append("once")
        return Retry() if len(took_back) == 1 else None

    def answer(request: ChatRequest) -> Reply:
        if "You summarise the conversation" in request.system:
            return say("<summary>nothing</summary>")
        if len(request.messages) > 8:
            return say("?").after(faults.error(400, "too long", name="context_length_exceeded"))
        return call(("look", {"place": "a"})) if len(answered) < 8 else say("done")

    answered: list[ChatRequest] = []

    def cut_off_first(request: ChatRequest) -> Reply:
        answered.append(request)
        return Reply(text="half an answer", finish_reason="length") if len(answered) == 1 else answer(request)

    tester = Agent(
        name="tester",
        model="openai/gpt-4o",
        tools=[look],
        hooks=[take_back],
        retry=retry,
        compaction=Compaction(threshold=None, keep=2),
    )
    async with ScriptedProvider(cut_off_first) as provider, house.worker(tester):
        house.use(provider)
        result = await house.run()
    assert (result["stop_reason"], result["error"]) == ("finished", None)
    whole = await house.client.trajectory(house.session)
    assert (whole.usage.model_dump(), whole.cost_usd) == (result["usage"], Decimal(result["cost_usd"]))
    assert "completed" in [event["compaction_status"] for event in await house.events("compaction_event")]


KEY = "violet-37-harbour-5512"
"""A secret without the shape of one; the worker knows it, and nobody is to read it."""


async def test_a_secret_of_the_worker_stands_in_no_event_whoever_says_it(house: House) -> None:
    """S-52: tools, hooks, delegates, providers and models do."""
    house.environment.setenv("VAULT_KEY", KEY)

    @tool(needs={"key": Secret("VAULT_KEY")})
    def tell(place: str, key: str, context: ToolContext) -> str:
        """Tell it."""
        context.report_progress(1, message=f"with {key}")
        return f"it is {key} at {place}"

    @tool(catch=True)
    def fail() -> str:
        """Fail with it."""
        raise ValueError(KEY)

    @tool
    def end(context: ToolContext) -> str:
        """End the turn with it."""
        context.stop_turn(f"because of {KEY}")
        return ""

    @hook("tool_end", name="careless")
    def careless(event: ToolEnd) -> Continue:
        if event.tool == "fail":
            raise ValueError(KEY)
        return Continue((f"think of {KEY}",))

    lead = agent(
        "tester",
        retry=QUICK,
        tools=[tell, fail, end, todo, ask_user],
        delegates=["helper"],
        hooks=[careless],
        on_hook_error="ignore",
    )
    calls: list[Any] = [("tell", {"place": KEY}), ("fail", {}), ("todo", {"new_titles": [f"use {KEY}"]})]
    calls += [("helper", {"query": KEY}), ("ask_user", {"question": f"{KEY}?", "options": [KEY, "no"]})]
    calls += [("nobody", {KEY: KEY}), (KEY, {})]
    overloaded = faults.error(503, f"overloaded, {KEY}", name="server_error")
    everything = call(*calls, text=f"it is {KEY}").after(overloaded)
    answers = played(
        tester=in_order(everything, call(("end", {})), say(KEY)), helper=lambda _: say(f"helped with {KEY}")
    )
    async with ScriptedProvider(answers) as provider, house.worker(lead, agent("helper")):
        house.use(provider)
        handle = await house.start()
        (request,) = await waiting(house)
        await house.client.answer(house.session, request["request_id"], "no", by="me")
        await handle.result()
    children = [session.session for session, _ in await house.store.sessions(limit=10)]
    lines = [envelope.line() for session in children for envelope in await house.store.events(session, limit=500)]
    assert {"tool_progress", "hook_end", "react_step", "generation_retry"} <= {str(line["type"]) for line in lines}
    assert len(children) == 2
    assert [line for line in lines if KEY in json.dumps(line)] == []
