"""An answer that must be JSON of a shape: told to the model, held to it here, given back as a value."""

from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel, field_validator

from perdure import Agent, RetryPolicy, tool
from perdure.activities.models import model_call
from perdure.contracts.messages import AssistantMessage
from perdure.store import StepRecord, Store
from perdure.testing import Reply, Script, ScriptedProvider, call, say
from tests.house import House
from tests.memory import Run

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


async def test_the_value_in_the_result_is_the_answers_json(run: Run) -> None:
    result = await run(reporter(), call(("look", {})), GOOD)
    assert (result["stop_reason"], result["value"]) == ("finished", {"total": 3, "places": ["a"]})
    assert Report.model_validate(result["value"]).places == ["a"]
    assert result["output"] == GOOD.text
    assert (await run.events("agent_end"))[0]["value"] == result["value"]
    # A model whose provider is not known to hold it to a schema is told of it.
    assert '"total"' in str(run.requests[0].request.messages[0]["content"])


@pytest.mark.parametrize(("answer", "code"), [(PROSE, "llm.parse_error"), (WRONG, "llm.schema_violation")])
async def test_no_json_and_json_of_another_shape_are_told_apart_and_not_retried(
    run: Run, answer: Reply, code: str
) -> None:
    """S-72"""
    result = await run(reporter(), answer)
    assert (result["stop_reason"], result["reason_code"], result["value"]) == ("error", code, None)
    assert (len(run.requests), result["steps"], result["output"]) == (1, 1, answer.text)
    assert await run.events("generation_retry") == []
    (failed,) = await run.events("generation_error")
    assert failed["error"]["code"] == code
    assert result["error"].startswith("step 1, openai/scripted: ")


async def test_an_answer_that_does_not_fit_is_sent_back_as_often_as_the_agent_says(run: Run) -> None:
    """S-72: each correction is a step, and the model reads what was wrong."""
    result = await run(reporter(output_corrections=2), PROSE, WRONG, GOOD)
    assert (result["stop_reason"], result["steps"], result["value"]["total"]) == ("finished", 3, 3)
    told = [str(made.request.messages[-1]["content"]) for made in run.requests[1:]]
    assert "not the JSON" in told[0]
    assert "$.total" in told[1]
    roles = [message.role for message in await run.store.transcript(run.session)]
    assert roles == ["user", "assistant", "user", "assistant", "user", "assistant"]


async def test_when_the_corrections_are_used_up_the_turn_ends_with_the_last_problem(run: Run) -> None:
    result = await run(reporter(output_corrections=2), PROSE, WRONG, WRONG, GOOD)
    assert (result["stop_reason"], result["reason_code"]) == ("error", "llm.schema_violation")
    assert len(run.requests) == 3


async def test_a_provider_that_knows_schemas_is_given_it_as_the_response_format(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the system prompt says nothing of it."""
    monkeypatch.setattr(model_call, "_enforced", lambda definition: (definition.output_schema, False))
    result = await run(reporter(), GOOD)
    (made,) = run.requests
    assert result["value"] == {"total": 3, "places": ["a"]}
    assert all("JSON schema" not in str(message["content"]) for message in made.request.messages)
    form: Any = made.request.response_format
    assert form["type"] == "json_schema"
    assert form["json_schema"]["schema"] == Report.model_json_schema()
    assert form["json_schema"]["strict"] is False


@pytest.mark.parametrize(
    ("name", "tools", "constrained"),
    [
        ("openai/gpt-4o-mini", True, True),
        ("anthropic/claude-sonnet-4-20250514", True, False),  # litellm would force the answer in the first step
        ("anthropic/claude-sonnet-4-5", True, True),
        ("gemini/gemini-2.5-flash", True, False),  # refuses a response format beside tools
        ("gemini/gemini-2.5-flash", False, True),
        ("openai/unknown", True, False),
        ("ollama/qwen3:8b", True, False),  # and nobody is asked
    ],
)
def test_a_schema_beside_tools_is_given_only_to_providers_that_take_both(
    name: str, tools: bool, constrained: bool
) -> None:
    agent = reporter(model=name, **({} if tools else {"tools": []})).definition
    assert ("response_format" in model_call._response_format(agent)) is constrained
    assert (model_call.output_instructions(agent) == "") is constrained


def test_a_schema_of_no_object_is_told_in_the_prompt() -> None:
    """OpenAI refuses any other root."""
    agent = reporter(model="openai/gpt-4o-mini", output_schema={"type": "array"}).definition
    assert model_call._response_format(agent) == {}
    assert '{"type": "array"}' in model_call.output_instructions(agent)


async def test_of_two_attempts_the_stored_answer_is_judged_and_not_ones_own(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frozen worker's answer may be stored first: it fits, and mine would not have."""
    finish = Store.finish_generation

    async def overtaken(store: Store, step: StepRecord, calls: Any, events: Any) -> StepRecord:
        first = AssistantMessage(content='{"total": 3}', value={"total": 3})
        await finish(store, step.model_copy(update={"messages": (first,)}), calls, events)
        return await finish(store, step, calls, events)

    monkeypatch.setattr(Store, "finish_generation", overtaken)
    result = await run(reporter(output_corrections=1), PROSE)
    assert (result["stop_reason"], result["value"], len(run.requests)) == ("finished", {"total": 3}, 1)


async def test_a_rejected_answer_is_still_the_output_of_a_turn_that_ends_after_it(run: Run) -> None:
    result = await run(reporter(output_corrections=2, max_steps=1), PROSE)
    assert (result["stop_reason"], result["output"], result["value"]) == ("max_steps_reached", PROSE.text, None)


async def test_an_answer_that_no_store_could_keep_is_refused_and_corrected(run: Run) -> None:
    result = await run(reporter(output_corrections=1), say('{"total": ' + "[" * 300 + "]" * 300 + "}"), GOOD)
    assert (result["stop_reason"], result["steps"]) == ("finished", 2)


class Meeting(BaseModel):
    minutes: int

    @field_validator("minutes")
    @classmethod
    def _is_short(cls, value: int) -> int:
        if value > 60:
            msg = "a meeting takes an hour at most"
            raise ValueError(msg)
        return value


async def test_the_classs_own_validators_feed_the_corrections_and_type_the_value(house: House) -> None:
    """S-72: the schema alone would take the first answer."""
    long, short = say('{"minutes": 90}'), say('{"minutes": 45}')
    agent = reporter(output_schema=Meeting, output_corrections=1, tools=[])
    async with ScriptedProvider(Script(replies=(long, short))) as provider, house.worker(agent):
        house.use(provider)
        turn = await house.client.start("tester", "go", session=house.session)
        result = await turn.result()
    assert result.value_as(Meeting) == Meeting(minutes=45)
    told = str(provider.requests[1].request.messages[-1]["content"])
    assert "at $.minutes: a meeting takes an hour at most. Answer again" in told
    assert result.steps == 2
