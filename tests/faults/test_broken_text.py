"""Text that is no Unicode, or that databases refuse: it is stored in a form they take, and nothing is paid twice."""

import json

import pytest

from perdure import Agent, tool
from perdure.testing import Script, ScriptedProvider, call, say
from tests.faults.waiting import told
from tests.house import House

HALF = "half a character: \ud83d"
WHOLE = "half a character: \ufffd"


@tool
def repeat(text: str) -> str:
    """Give the text back."""
    return text


@tool
def half() -> str:
    """Give half a character."""
    return HALF


@tool(catch=True)
def fail_by_half() -> str:
    """Fail with half a character."""
    raise ValueError(HALF)


AGENT = Agent(name="tester", model="openai/scripted", tools=[repeat, half, fail_by_half])


async def test_half_a_character_in_an_answer_is_replaced(house: House) -> None:
    async with ScriptedProvider(Script(replies=(say(HALF),))) as provider, house.worker(AGENT):
        house.use(provider)
        result = await house.run()
        assert provider.request_count == 1
    assert (result["stop_reason"], result["output"]) == ("finished", WHOLE)


async def test_half_a_character_in_arguments_is_an_error_for_the_model(house: House) -> None:
    arguments = json.dumps({"text": HALF})
    script = Script(replies=(call(("repeat", arguments)), say("done")))
    async with ScriptedProvider(script) as provider, house.worker(AGENT):
        house.use(provider)
        result = await house.run()
        assert provider.request_count == 2
        assert "tool.invalid_input" in str(told(provider)[0])
    assert result["stop_reason"] == "finished"


@pytest.mark.parametrize("name", ["half", "fail_by_half"])
async def test_half_a_character_of_a_tool_is_replaced(house: House, name: str) -> None:
    async with ScriptedProvider(Script(replies=(call((name, {})), say("done")))) as provider, house.worker(AGENT):
        house.use(provider)
        result = await house.run()
        assert WHOLE in str(told(provider)[0])
    assert result["stop_reason"] == "finished"
