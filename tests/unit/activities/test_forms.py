"""Forms of a request that only a refusal tells: tried once, at once, and remembered for the model at its address.

Seen in public trackers: a deployment of a name of its own that refuses ``max_tokens``; ids of calls that are not nine
letters and digits at Mistral's API and at vLLM with Mistral's tokenizer.
"""

import json
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from perdure import tool
from perdure.activities.models.limits import FORMS
from perdure.activities.models.model_call import complete
from perdure.activities.models.provider_http import StandIn, stand_in
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.messages import AssistantMessage, ToolCall, ToolMessage
from perdure.llm.openai_format import WireMessage, wire

Judge = Callable[[Mapping[str, Any]], str]
"""The words with which a provider refuses a body; empty if it takes it."""

CEILING = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
DEPLOYMENT = {"api_base": "https://mine.test", "api_key": "k", "api_version": "2024-12-01-preview"}
IDS = "Tool call id was {} but must be a-z, A-Z, 0-9, with a length of 9."
SHORT = re.compile(r"[a-zA-Z0-9]{9}")

CALL = ToolCall(id="call_0123456789abcdef_1", name="look", arguments="{}")
MESSAGES: list[WireMessage] = [
    {"role": "user", "content": "go"},
    *(
        wire(message)
        for message in (
            AssistantMessage(content="", tool_calls=(CALL,)),
            ToolMessage(call_id=CALL.id, name="look", content="seen"),
        )
    ),
]


@tool
def look() -> str:
    """Look."""
    return "seen"


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    yield
    FORMS.clear()


@contextmanager
def provider(judge: Judge) -> Iterator[list[Mapping[str, Any]]]:
    """A provider that refuses by its rule; the bodies that it was sent."""
    bodies: list[Mapping[str, Any]] = []

    async def nothing(*_: object) -> None:
        return None

    async def answer(request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        bodies.append(body)
        if words := judge(body):
            error = {"message": words, "type": "invalid_request_error"}
            return httpx.Response(400, json={"error": error}, request=request)
        message = {"role": "assistant", "content": "done"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        return httpx.Response(200, json={"choices": choices, "usage": usage}, request=request)

    send: Callable[[httpx.Request], Awaitable[httpx.Response]] = answer
    token = stand_in.set(StandIn(nothing, send))
    try:
        yield bodies
    finally:
        stand_in.reset(token)


def agent(model: str, **params: Any) -> AgentDefinition:
    return AgentDefinition(name="a", model=model, tools=(look.declaration,), tool_mode="api", generate_params=params)


def wants_the_new_name(body: Mapping[str, Any]) -> str:
    return CEILING if "max_tokens" in body else ""


def wants_short_ids(body: Mapping[str, Any]) -> str:
    return next((IDS.format(each) for each in ids_of(body) if not SHORT.fullmatch(each)), "")


def ids_of(body: Mapping[str, Any]) -> list[str]:
    return [
        each
        for message in body["messages"]
        for each in (*(call["id"] for call in message.get("tool_calls") or ()), message.get("tool_call_id"))
        if each is not None
    ]


@pytest.mark.parametrize(
    "definition", [agent("openai/mine"), agent("azure/mine", **DEPLOYMENT)], ids=["openai", "azure"]
)
async def test_a_bound_that_a_budget_added_gets_its_other_name_once(definition: AgentDefinition) -> None:
    with provider(wants_the_new_name) as bodies:
        for _ in range(2):
            assert (await complete(definition, MESSAGES, most_tokens=100)).text == "done"
    bounds = [{name: body[name] for name in body if name.startswith("max_")} for body in bodies]
    assert bounds == [{"max_tokens": 100}, {"max_completion_tokens": 100}, {"max_completion_tokens": 100}]


async def test_another_address_has_shown_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with provider(wants_the_new_name) as bodies:
        await complete(agent("openai/mine"), MESSAGES, most_tokens=100)
        await complete(agent("openai/mine", api_base="https://other.test/v1"), MESSAGES, most_tokens=100)
    assert ["max_tokens" in body for body in bodies] == [True, False, True, False]


async def test_a_name_that_the_author_has_chosen_stays_and_its_refusal_is_told() -> None:
    with provider(wants_the_new_name) as bodies, pytest.raises(Exception, match="max_completion_tokens"):
        await complete(agent("openai/mine", max_tokens=5), MESSAGES)
    assert len(bodies) == 1
    with provider(wants_the_new_name) as bodies:
        await complete(agent("openai/mine", max_completion_tokens=500), MESSAGES, most_tokens=100)
    assert [body["max_completion_tokens"] for body in bodies] == [100]


async def test_a_refusal_that_stays_is_told_and_not_sent_for_ever() -> None:
    with provider(lambda _: CEILING) as bodies, pytest.raises(Exception, match="max_completion_tokens"):
        await complete(agent("openai/mine"), MESSAGES, most_tokens=100)
    assert len(bodies) == 2


@pytest.mark.parametrize(
    ("model", "requests"),
    [
        ("mistral/mistral-large-latest", 1),
        ("openai/Mistral-Small-3.2", 1),
        ("openai/codestral-2508", 1),
        ("openai/mine", 2),
    ],
)
async def test_ids_have_the_form_that_mistral_takes(model: str, requests: int) -> None:
    """A model of theirs by its name gets it at once; another one, at vLLM say, once it has asked for it."""
    with provider(wants_short_ids) as bodies:
        assert (await complete(agent(model), MESSAGES)).text == "done"
        assert (await complete(agent(model), MESSAGES)).text == "done"
    assert len(bodies) == requests + 1
    called, answered = ids_of(bodies[-1])
    assert called == answered
    assert SHORT.fullmatch(called)


async def test_other_models_get_the_ids_of_the_log() -> None:
    with provider(lambda _: "") as bodies:
        await complete(agent("openai/gpt-4o"), MESSAGES)
    assert ids_of(bodies[0]) == [CALL.id, CALL.id]
