"""A request that cannot be put together ends the turn at once, with what to correct; nothing is sent."""

import pytest

from perdure import Agent, tool
from perdure.activities import generate
from perdure.contracts.values import JsonValue
from perdure.testing import say
from tests.memory import Run


@tool
def look(place: str) -> str:
    """Look at a place."""
    return place


@pytest.mark.parametrize("name", ["model", "messages", "timeout", "max_retries", "tools"])
async def test_what_perdure_sets_itself_cannot_be_set_twice(run: Run, name: str) -> None:
    """S-68."""
    params: dict[str, JsonValue] = {name: "x"}
    agent = Agent(name="tester", model="openai/scripted", tools=[look], generate_params=params)
    result = await run(agent, script=lambda _: say("never"))
    assert len(run.requests) == 0
    assert (result["stop_reason"], result["reason_code"]) == ("error", "llm.prompt_assembly_error")
    assert result["error"] == (
        f"step 1, openai/scripted: generate_params sets {name}, which perdure sets itself; leave that out"
    )
    assert await run.events("generation_retry") == []
    (failed,) = await run.events("generation_error")
    assert failed["error"]["code"] == "llm.prompt_assembly_error"


async def test_a_fault_while_the_prompt_is_built_is_named_and_a_follow_up_goes_on(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-68: whatever goes wrong there, and the prompt is kept."""

    def broken(*_: object) -> None:
        msg = "no such place"
        raise LookupError(msg)

    agent = Agent(name="tester", model="openai/scripted")
    with monkeypatch.context() as patch:
        patch.setattr(generate, "system_prompt", broken)
        result = await run(agent, script=lambda _: say("fine"))
    again = await run(agent, script=lambda _: say("fine"), prompt="and now?")
    asked = [message["content"] for message in run.requests[0].request.messages]
    assert (result["stop_reason"], result["reason_code"]) == ("error", "llm.prompt_assembly_error")
    assert str(result["error"]).startswith(
        "step 1, openai/scripted: the request for the model could not be put together: LookupError: no such place; "
    )
    assert (again["output"], asked) == ("fine", ["go", "and now?"])
