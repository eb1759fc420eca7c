"""A turn from start to result, as another service sees it."""

from perdure import Agent, tool
from perdure.testing import Script, ScriptedProvider, call, say
from tests.house import House


@tool
def word_count(text: str) -> int:
    """Count the words of a text."""
    return len(text.split())


AGENT = Agent(name="tester", model="openai/scripted", instructions="Count.", tools=[word_count])

TWO_STEPS = Script(replies=(call(("word_count", {"text": "a b c"})), say("three words")))


async def test_a_turn_with_a_tool_call_finishes_with_a_result_that_names_every_field(house: House) -> None:
    """S-32: finished, in the workflow's result, in the store and as the last event."""
    async with ScriptedProvider(TWO_STEPS) as provider, house.worker(AGENT):
        house.use(provider)
        result = await house.run()
    assert result == {
        "session": house.session,
        "turn": 1,
        "agent": "tester",
        "stop_reason": "finished",
        "reason_code": None,
        "exception": None,
        "error": None,
        "output": "three words",
        "steps": 2,
        "usage": result["usage"],
        "cost_usd": "0",
        "unpriced_calls": 2,
        "value": None,
        "requests": [],
        "stopped_by": None,
        "exhausted_by": None,
        "todos": [],
        "spent": result["spent"],
        "delegated_steps": 0,
        "report": None,
    }
    assert (result["spent"]["llm_calls"], result["spent"]["tool_calls"]) == (2, 1)
    assert [line["stop_reason"] for line in await house.events("agent_end")] == ["finished"]
    stored = (await house.store.turn(house.session, 1)).result
    assert stored is not None
    assert stored.model_dump(mode="json") == result


async def test_a_step_with_one_tool_call_costs_at_most_13_history_events(house: House) -> None:
    steps = 10
    script = Script(replies=(*(call(("word_count", {"text": "a"})) for _ in range(steps)), say("done")))
    async with ScriptedProvider(script) as provider, house.worker(AGENT):
        house.use(provider)
        handle = await house.start()
        await handle.result()
    events = len((await handle.fetch_history()).events)
    of_the_turn = (
        3 + 6 + 6 + 6 + 3
    )  # started with its task, open, the last generation, commit, the two upserts and the end
    assert (events - of_the_turn) / steps <= 13
