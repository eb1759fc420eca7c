"""An answer that must be JSON of a shape: told to the model, held to it here, given back as a value."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from perdure import Agent, RetryPolicy, tool
from perdure.testing import Reply, Script, ScriptedProvider, call, say
from tests.house import House

QUICK = RetryPolicy(base=timedelta(milliseconds=10), jitter=timedelta(0))


class Report(BaseModel):
    """What the agent hands in."""

    total: float
    places: list[str] = []


@tool
def look() -> str:
    """Look."""
    return "seen"


GOOD = say('```json\n{"total": 3, "places": ["a"]}\n```')
PROSE = say("The total is three.")
WRONG = say('{"total": "three"}')


def reporter(**settings: Any) -> Agent:
    fields = {"name": "tester", "model": "openai/scripted", "tools": [look], "output_schema": Report, "retry": QUICK}
    return Agent(**{**fields, **settings})


async def played(house: House, *replies: Reply, **settings: Any) -> tuple[Mapping[str, Any], ScriptedProvider]:
    agent = reporter(**settings)
    async with ScriptedProvider(Script(replies=replies)) as provider, house.worker(agent):
        house.use(provider)
        return await house.run(), provider


async def test_the_value_in_the_result_is_the_answers_json(house: House) -> None:
    result, provider = await played(house, call(("look", {})), GOOD)
    assert (result["stop_reason"], result["value"]) == ("finished", {"total": 3, "places": ["a"]})
    assert Report.model_validate(result["value"]).places == ["a"]
    assert result["output"] == GOOD.text
    assert (await house.events("agent_end"))[0]["value"] == result["value"]
    # A model whose provider is not known to hold it to a schema is told of it.
    assert '"total"' in str(provider.requests[0].request.messages[0]["content"])


@pytest.mark.parametrize(("answer", "code"), [(PROSE, "llm.parse_error"), (WRONG, "llm.schema_violation")])
async def test_no_json_and_json_of_another_shape_are_told_apart_and_not_retried(
    house: House, answer: Reply, code: str
) -> None:
    """S-72"""
    result, provider = await played(house, answer)
    assert (result["stop_reason"], result["reason_code"], result["value"]) == ("error", code, None)
    assert (provider.request_count, result["steps"], result["output"]) == (1, 1, answer.text)
    assert await house.events("generation_retry") == []
    (failed,) = await house.events("generation_error")
    assert failed["error"]["code"] == code
    assert result["error"].startswith("step 1, openai/scripted: ")


async def test_an_answer_that_does_not_fit_is_sent_back_as_often_as_the_agent_says(house: House) -> None:
    """S-72: each correction is a step, and the model reads what was wrong."""
    result, provider = await played(house, PROSE, WRONG, GOOD, output_corrections=2)
    assert (result["stop_reason"], result["steps"], result["value"]["total"]) == ("finished", 3, 3)
    told = [str(made.request.messages[-1]["content"]) for made in provider.requests[1:]]
    assert "not the JSON" in told[0]
    assert "$.total" in told[1]
    roles = [message.role for message in await house.store.transcript(house.session)]
    assert roles == ["user", "assistant", "user", "assistant", "user", "assistant"]


async def test_when_the_corrections_are_used_up_the_turn_ends_with_the_last_problem(house: House) -> None:
    result, provider = await played(house, PROSE, WRONG, WRONG, GOOD, output_corrections=2)
    assert (result["stop_reason"], result["reason_code"]) == ("error", "llm.schema_violation")
    assert provider.request_count == 3


async def test_a_provider_that_knows_schemas_is_given_it_as_the_response_format(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the system prompt says nothing of it."""
    monkeypatch.setattr("litellm.supports_response_schema", lambda **_: True)
    result, provider = await played(house, GOOD)
    (made,) = provider.requests
    assert result["value"] == {"total": 3, "places": ["a"]}
    assert all("JSON schema" not in str(message["content"]) for message in made.request.messages)
    form: Any = made.request.response_format
    assert form["type"] == "json_schema"
    assert form["json_schema"]["schema"] == Report.model_json_schema()
    assert form["json_schema"]["strict"] is False
