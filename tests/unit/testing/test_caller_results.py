"""What comes of a caller's result in memory: masks, budgets, delegates, time, and values that no store can keep."""

import json
from datetime import timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from perdure import Agent, Budgets, Delegate, ask_user, caller_tool, hook, tool
from perdure.contracts.events import DelegateStart, ToolEnd
from perdure.contracts.input_requests import InputRequest, Reply, ResultRequest
from perdure.contracts.values import JsonValue
from perdure.testing import Said, answer, call, deny, result, run_in_memory, say
from tests.memory import Run

lookup = caller_tool(
    "lookup", "Look a customer up.", {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
)
LOOK = call(("lookup", {"id": 7}))
DONE = say("done")
SECRET = "seven-keys-of-gold"


@tool(requires_approval=True)
def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


def agent(**settings: Any) -> Agent:
    fields: dict[str, Any] = {"name": "tester", "model": "openai/scripted", "tools": [lookup, pay, ask_user]}
    return Agent(**{**fields, **settings})


@pytest.mark.parametrize(
    ("said", "reads"),
    [
        (result(f"the key is {SECRET}, keep it"), "the key is ***, keep it"),
        (result({"key": SECRET, SECRET: [SECRET]}), '{"key": "***", "***": ["***"]}'),
        (result(error=f"refused: {SECRET}"), "refused: ***"),
        (deny(f"use {SECRET}", by="ada"), "use ***"),
        (answer(SECRET), "***"),
    ],
)
async def test_no_secret_of_the_worker_gets_from_a_reply_to_the_model_to_hooks_or_into_the_log(
    run: Run, said: Said, reads: str
) -> None:
    """S-52: whoever replies may have read it anywhere, as a tool of the worker may have."""
    run.environment.setenv("OPENAI_API_KEY", SECRET)
    seen: list[str] = []

    def watch(event: ToolEnd) -> None:
        seen.append(event.model_dump_json())

    asked = call(("ask_user", {"question": "?"})) if said.decision == "answered" else LOOK
    await run(agent(hooks=[hook("tool_end")(watch)]), asked, DONE, people=[said])
    log = str(await run.events()) + str(await run.transcript())
    assert reads in run.read()[-1][1]
    assert (SECRET in run.read()[-1][1], SECRET in log, SECRET in str(seen), len(seen)) == (False, False, False, 1)


async def test_a_result_that_ends_with_its_turn_is_masked_too(run: Run) -> None:
    """S-52: at the commit, which no generation comes before."""
    run.environment.setenv("OPENAI_API_KEY", SECRET)
    await run(agent(budgets=Budgets(llm_calls=1)), LOOK, people=[result(f"it is {SECRET}")])
    log = str(await run.events()) + str(await run.transcript())
    assert ("it is ***" in log, SECRET in log) == (True, False)


async def test_results_in_any_order_are_those_of_their_own_calls() -> None:
    """S-81."""

    def runs(request: InputRequest) -> Said:
        number = json.loads(request.arguments)["id"]
        return result(f"customer {number}", seconds=100.0 - number)

    asked: list[tuple[str, JsonValue]] = [("lookup", {"id": number}) for number in range(8)]
    calls = call(*asked)
    run = await run_in_memory(agent(), "go", [calls, DONE], people=runs)
    read = [message["content"] for message in run.requests[-1].request.messages if message["role"] == "tool"]
    assert read == [f"customer {number}" for number in range(8)]


async def test_the_wait_for_a_result_is_none_of_the_turns_seconds_and_the_call_is_one_of_its_calls() -> None:
    """S-70."""
    short = agent(budgets=Budgets(seconds=timedelta(seconds=5), tool_calls=1))
    run = await run_in_memory(short, "go", [LOOK, LOOK, DONE], people=[result("Ada", seconds=3_600.0)])
    assert run.result.exhausted_by == "tool_calls"
    run = await run_in_memory(short, "go", [LOOK, DONE], people=[result("Ada", seconds=3_600.0)])
    assert (run.result.stop_reason, run.seconds >= 3_600) == ("finished", True)


async def test_a_call_of_a_delegate_waits_at_the_delegates_session_and_only_if_it_may_ask() -> None:
    """S-61, S-81."""
    helper = Agent(name="helper", model="openai/helper", description="Helps.", tools=[lookup])
    models = {"helper": [LOOK, say("it is Ada")]}
    ask = call(("helper", {"query": "who is 7?"}))
    lead = Agent(name="lead", model="openai/scripted", delegates=[Delegate(helper, interactive=True)])
    run = await run_in_memory(lead, "go", [ask, DONE], models=models, people=[result("Ada")])
    (begun,) = [envelope.event for envelope in await run.events() if isinstance(envelope.event, DelegateStart)]
    told = [envelope.event.type for envelope in await run.events(begun.delegate)]
    assert ("user_input_required" in told, "user_input_received" in told) == (True, True)
    assert "user_input_required" not in [envelope.event.type for envelope in await run.events()]
    silent = Agent(name="lead", model="openai/scripted", delegates=[helper])
    run = await run_in_memory(silent, "go", [ask, DONE], models=models)
    assert "nobody can be asked to run this" in str([request.request.messages for request in run.requests])


async def test_a_result_that_does_not_come_is_a_time_out_and_none_of_the_calls_that_failed_here(run: Run) -> None:
    """S-68."""
    await run(agent(), LOOK, DONE, people=lambda _: None)
    (ended,) = await run.events("tool_end")
    assert (ended["error"]["code"], run.last.seconds) == ("tool.timeout", 86_400.0)


DEEP: JsonValue = 1
for _ in range(70):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (float("nan"), "number that is not finite"),
        ([float("inf")], "number that is not finite"),
        ({"n": 10**5_000}, "too many digits"),
        ("a\ud800", "half a character"),
        ({"\udfff": 1}, "half a character"),
        (DEEP, "nested more than 64 deep"),
        ("x" * 10_000_000, "the limit is 32,768"),
        ("é" * 20_000, "the limit is 32,768"),
    ],
)
def test_a_value_that_no_store_can_keep_is_refused_with_its_reason(value: Any, told: str) -> None:
    """S-81: the same at every door, which all make of it one of these."""
    for make in (
        lambda: ResultRequest(request="call", value=value),
        lambda: Reply(request="call", decision="returned", value=value),
    ):
        with pytest.raises(ValidationError) as refused:
            make()
        assert told in str(refused.value)


@pytest.mark.parametrize("value", ["a\u2028b\u2029", "\x00", "\ufeff", "", 0, -0.0, 2**70, [], {"": None}, "null"])
async def test_any_other_value_comes_to_the_model_as_it_is(value: JsonValue) -> None:
    run = await run_in_memory(agent(), "go", [LOOK, DONE], people=[result(value)])
    (message,) = [message for message in await run.transcript() if message.role == "tool"]
    assert message.content == value if isinstance(value, str) else json.loads(message.content) == value
