"""One session through the models of seven providers, each refusing as it does: by request, by fallback, by delegate.

Each of them takes the conversation with whatever the ones before it left there: calls, thinking, pictures of tools and
of people, files, answers as JSON.
"""

import itertools
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from perdure import Agent, Fallback, File, Image, tool
from perdure.testing import ChatRequest, Reply, call, faults, run_in_memory, say
from tests.pictures import pdf_of, png_of

SEVEN = (
    "openai/gpt-5.4",
    "azure/mine",
    "anthropic/claude-opus-4-8",
    "gemini/gemini-3-pro",
    "bedrock/anthropic.claude-sonnet-4-5-20250929-v1:0",
    "mistral/mistral-large-latest",
    "hosted_vllm/qwen-vl",
)
MORE = (
    "anthropic/claude-sonnet-4-5",
    "openai/gpt-4o",
    "deepseek/deepseek-reasoner",
    "groq/llama-4-scout",
    "xai/grok-4",
)

THOUGHTS: dict[str, dict[str, Any]] = {
    "anthropic": {"thinking_blocks": [{"type": "thinking", "thinking": "hm", "signature": "c2ln"}]},
    "bedrock": {"thinking_blocks": [{"type": "thinking", "thinking": "hm", "signature": "c2ln"}]},
    "hosted_vllm": {"reasoning_content": "hm"},
    "deepseek": {"reasoning_content": "hm"},
}


class Found(BaseModel):
    """An answer with what a provider's subset of schemas may lack."""

    words: dict[str, int] = {}
    pair: tuple[int, str] | None = None
    name: str = Field(min_length=1, pattern=r"^\w+$")


JSON = say('{"name": "tide", "words": {"a": 1}}')


@tool
def shoot(of: Literal["a", "b"] = "a") -> list[Any]:
    """Take a picture."""
    return [f"of {of}", Image(png_of())]


@tool
def rest() -> str:
    """Do nothing."""
    return ""


def reply_of(model: str) -> Any:
    """A model that thinks, calls two tools, and answers; the pictures of tools come in a message of the user's."""
    thought = THOUGHTS.get(model.partition("/")[0], {})

    def reply(request: ChatRequest) -> Reply:
        if is_asked(request):
            return Reply(text="I look.", calls=(("shoot", {}), ("rest", {})), message=thought)
        return JSON

    return reply


def is_asked(request: ChatRequest) -> bool:
    """Whether no tool has run since the prompt; a model without tools reads the result in a message of the user's."""
    asked = max(at for at, message in enumerate(request.messages) if "Look." in str(message["content"]))
    return "of a" not in str(request.messages[asked:])


def agent(model: str, stream: str, **more: Any) -> Agent:
    settings: Any = {"stream": stream, "tools": [shoot, rest], "output_schema": Found, "max_steps": 9, **more}
    is_without = any(name in model for name in ("gpt-4o", "groq", "xai"))
    effort = {} if is_without else {"generate_params": {"reasoning_effort": "low"}}
    return Agent(name="a", model=model, **{**effort, **settings})


def refusals(run: Any) -> list[str]:
    return [request.refusal for request in run.requests if request.refusal]


PROMPT: list[Any] = ["Look.", Image(png_of()), File("a.pdf", pdf_of(1))]


@pytest.mark.parametrize("stream", ["off", "always"])
@pytest.mark.parametrize("models", [(*SEVEN, *SEVEN[:3]), (*reversed(SEVEN), *MORE)], ids=["there", "and back"])
async def test_one_session_goes_through_the_models_of_seven_providers(models: tuple[str, ...], stream: str) -> None:
    run = None
    for model in models:
        more: Any = {} if run is None else {"after": run}
        run = await run_in_memory(agent(model, stream), PROMPT, reply_of(model), **more)
        assert refusals(run) == [], model
        assert run.result.stop_reason == "finished", (model, run.result.error)
        assert run.result.value == {"name": "tide", "words": {"a": 1}}


@pytest.mark.parametrize(("first", "second"), list(itertools.pairwise((*SEVEN, *MORE, SEVEN[0]))))
async def test_a_fallback_takes_over_in_the_middle_of_a_loop_of_tools(first: str, second: str) -> None:
    """With what the first model had: its thinking, its calls, the pictures of its tools."""
    one = agent(first, "off", fallback_models=[Fallback(model=second, generate_params={})])
    thought = THOUGHTS.get(first.partition("/")[0], {})
    begun, down = Reply(calls=(("shoot", {}),), message=thought), JSON.after(*[faults.status(500)] * 99)
    name, other = (model.partition("/")[2] for model in (first, second))
    models: Any = {name: lambda request: begun if is_asked(request) else down, other: lambda _: JSON}
    run = await run_in_memory(one, PROMPT, models=models)
    assert refusals(run) == []
    assert run.result.stop_reason == "finished", run.result.error


@pytest.mark.parametrize(("caller", "callee"), list(itertools.pairwise((*SEVEN, *MORE, SEVEN[0]))))
async def test_a_delegate_of_another_provider_does_its_part(caller: str, callee: str) -> None:
    helper = Agent(name="helper", model=callee, description="Helps.", tools=[shoot])
    boss = Agent(name="boss", model=caller, delegates=[helper], output_schema=Found)
    asks = call(("helper", {"prompt": "Look."}))
    models = {
        caller.partition("/")[2]: [asks, JSON],
        callee.partition("/")[2]: [call(("shoot", {"of": "b"})), say("I saw b.")],
    }
    run = await run_in_memory(boss, PROMPT, models=models)
    assert refusals(run) == []
    assert run.result.stop_reason == "finished", run.result.error
