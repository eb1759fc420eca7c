"""One session goes through the models of many providers, each refusing as it does: what came before is taken."""

from typing import Literal

import pytest
from pydantic import BaseModel, Field, JsonValue

from perdure import Agent, Fallback, tool
from perdure.testing import ChatRequest, InMemoryRun, Reply, call, faults, run_in_memory, say

MODELS = (
    "openai/gpt-4o",
    "anthropic/claude-sonnet-4-5",
    "gemini/gemini-3-pro",
    "mistral/mistral-large-latest",
    "bedrock/anthropic.claude-sonnet-4-5-20250929-v1:0",
    "openai/gpt-5.4",
    "hosted_vllm/qwen",
    "groq/llama-4-scout",
    "xai/grok-4",
    "anthropic/claude-opus-4-8",
    "gemini/gemini-2.5-flash",
    "deepseek/deepseek-chat",
)


class Words(BaseModel):
    first: str = Field(min_length=1)
    others: dict[str, int] = {}
    pair: tuple[int, str] | None = None


@tool
def look(words: Words, kind: Literal["a", "b"] = "a") -> str:
    """Look words up."""
    return f"{kind}: {words.first}"


@tool
def rest() -> str:
    """Do nothing."""
    return ""


FOUND: tuple[str, JsonValue] = ("look", {"words": {"first": "tide"}})

ANSWERS: dict[str, Reply] = {
    "a call": call(FOUND),
    "two calls and a text": call(FOUND, ("rest", {}), text="I look."),
    "a blank text": call(FOUND, text=" \n"),
    "broken arguments": Reply(calls=(("look", '{"wor'),)),
    "arguments that are no object": Reply(calls=(("look", "[1]"),)),
    "a strange name": Reply(calls=(("lo ok!", {}),)),
    "no name": Reply(calls=(("", {}),)),
    "one id twice": Reply(calls=(FOUND, FOUND), call_ids=("a", "a")),
    "no id": Reply(calls=(FOUND,), call_ids=("",)),
    "a long id": Reply(calls=(FOUND,), call_ids=("call.a:b/" + "x" * 60,)),
}


async def go_on(model: str, answer: Reply, before: InMemoryRun | None) -> InMemoryRun:
    agent = Agent(name="a", model=model, tools=[look, rest])

    def reply(request: ChatRequest) -> Reply:
        return answer if request.messages[-1]["role"] == "user" else say("done")

    if before is None:
        run = await run_in_memory(agent, "Go.", reply)
    else:
        run = await run_in_memory(agent, "Go.", reply, after=before)
    assert [request.refusal for request in run.requests if request.refusal] == []
    assert (run.result.stop_reason, len(run.requests)) == ("finished", 2), run.result.error
    return run


@pytest.mark.parametrize("name", ANSWERS)
async def test_a_session_goes_through_the_models_of_all_providers(name: str) -> None:
    run = None
    for model in MODELS:
        run = await go_on(model, ANSWERS[name], run)


@pytest.mark.parametrize("model", ["anthropic/claude-sonnet-4-5", "anthropic/claude-opus-4-8"])
async def test_a_model_that_thinks_answers_behind_the_calls_of_another_one(model: str) -> None:
    """The first model fails within its loop of tools, and the fallback has thinking enabled."""
    agent = Agent(
        name="a",
        model="openai/gpt-4o",
        fallback_models=[Fallback(model=model, generate_params={"reasoning_effort": "low"})],
        tools=[look, rest],
    )
    models = {
        "gpt-4o": [call(FOUND), Reply(text="").after(*[faults.status(500)] * 99)],
        model.partition("/")[2]: [say("unasked"), say("done")],
    }
    run = await run_in_memory(agent, "Go.", models=models)
    assert [request.refusal for request in run.requests if request.refusal] == []
    assert (run.result.stop_reason, run.result.output) == ("finished", "done"), run.result.error


@pytest.mark.parametrize("model", MODELS)
async def test_a_conversation_of_another_program_is_taken_by_every_provider(model: str) -> None:
    """With ids as litellm writes Gemini's, and longer ones."""
    history: list[dict[str, JsonValue]] = []
    for call_id in (f"call_{'0' * 36}", f"a.b:c/{'x' * 58}"):
        asked: JsonValue = {"id": call_id, "type": "function", "function": {"name": "rest", "arguments": "{}"}}
        history += [
            {"role": "user", "content": "Go."},
            {"role": "assistant", "content": None, "tool_calls": [asked]},
            {"role": "tool", "tool_call_id": call_id, "content": ""},
            {"role": "assistant", "content": "Done."},
        ]
    agent = Agent(name="a", model=model, tools=[rest])
    run = await run_in_memory(agent, "Go on.", lambda _: say("done"), history=history)
    assert [request.refusal for request in run.requests if request.refusal] == []
    assert run.result.stop_reason == "finished", run.result.error
