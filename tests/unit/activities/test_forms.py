"""Forms of a request that only a refusal tells: tried once, at once, and remembered for the model at its address.

Seen in public trackers: a deployment of a name of its own that refuses ``max_tokens``; ids of calls that are not nine
letters and digits at Mistral's API and at vLLM with Mistral's tokenizer; servers without schemas, choices of tools,
system prompts, counts of streams, cache marks; a new model of Claude's that thinks in the other way, or answers
shorter than the newest one.
"""

import itertools
import json
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from perdure import tool
from perdure.activities.models.forms import FORMS, WORDS, Form, Learnt, longest_in
from perdure.activities.models.model_call import complete
from perdure.activities.models.provider_http import StandIn, stand_in
from perdure.activities.models.provider_messages import with_system_in_user
from perdure.activities.models.provider_requests import prepare
from perdure.activities.models.wires.reply import Silent
from perdure.contracts.agents import AgentDefinition
from perdure.contracts.messages import AssistantMessage, ToolCall, ToolMessage
from perdure.llm.failures import FailureFacts
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
        if request.url.path.endswith("/messages"):
            said = {"type": "message", "role": "assistant", "content": [{"type": "text", "text": "done"}]}
            counts = {"stop_reason": "end_turn", "usage": {"input_tokens": 1, "output_tokens": 1}}
            return httpx.Response(200, json={**said, **counts}, request=request)
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


def agent(model: str, *, schema: Any = None, **params: Any) -> AgentDefinition:
    return AgentDefinition(
        name="a",
        model=model,
        tools=(look.declaration,),
        tool_mode="auto",
        output_schema=schema,
        generate_params=params,
    )


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


ANSWER = {
    "type": "object",
    "properties": {"text": {"type": "string"}},
    "required": ["text"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("definition", "words", "is_there"),
    [
        (
            agent("openai/gpt-4o", schema=ANSWER),
            "Invalid parameter: 'response_format' of type 'json_schema' is not supported with this model.",
            lambda body: "response_format" in body,
        ),
        (
            agent("hosted_vllm/m", tool_choice="none"),
            "tool_choice 'none' is not supported",
            lambda body: "tool_choice" in body,
        ),
        (
            agent("anthropic/claude-haiku-9", reasoning_effort="low"),
            "adaptive thinking is not supported on this model",
            lambda body: body.get("thinking", {}).get("type") == "adaptive",
        ),
        (
            agent("anthropic/claude-sonnet-4-5", reasoning_effort="low"),
            '"thinking.type.enabled" is not supported for this model. Use "thinking.type.adaptive" and '
            '"output_config.effort" to control thinking behavior.',
            lambda body: body.get("thinking", {}).get("type") == "enabled",
        ),
        (
            agent("anthropic/claude-sonnet-4-5"),
            "messages.0.content.0.text.cache_control: Extra inputs are not permitted",
            lambda body: "cache_control" in json.dumps(body),
        ),
        (
            agent("anthropic/claude-haiku-9"),
            "max_tokens: 128000 > 64000, which is the maximum allowed number of output tokens for claude-haiku-9",
            lambda body: body["max_tokens"] > 64_000,
        ),
        (
            agent("hosted_vllm/gemma-2b-it"),
            "System role not supported",
            lambda body: any(message["role"] == "system" for message in body["messages"]),
        ),
        (
            agent("openai/kimi", api_base="https://mine.test/v1"),
            "thinking is enabled but reasoning_content is missing in assistant tool call message at index 1",
            lambda body: any(
                message["role"] == "assistant" and "reasoning_content" not in message for message in body["messages"]
            ),
        ),
        (
            agent("hosted_vllm/any"),
            "After the optional system message, conversation roles must alternate user/assistant/user/assistant/...",
            lambda body: (
                "user"
                in [
                    after["role"]
                    for at, after in itertools.pairwise(body["messages"])
                    if at["role"] in {"user", "tool"}
                ]
            ),
        ),
        (
            agent("openai/gemma3:4b", api_base="https://mine.test/v1"),
            "registry.ollama.ai/library/gemma3:4b does not support tools",
            lambda body: bool(body.get("tools")),
        ),
        (
            agent("hosted_vllm/m"),
            '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set',
            lambda body: bool(body.get("tools")),
        ),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
async def test_what_perdure_adds_is_tried_once_in_another_form(
    definition: AgentDefinition, words: str, is_there: Callable[[Mapping[str, Any]], bool]
) -> None:
    enables = definition.model == "anthropic/claude-sonnet-4-5"  # not behind another model's calls
    told: list[WireMessage] = [{"role": "system", "content": "Be brief."}, *(MESSAGES[:1] if enables else MESSAGES)]
    told += [{"role": "user", "content": "Now."}, {"role": "user", "content": "And here."}]
    with provider(lambda body: words if is_there(body) else "") as bodies:
        for _ in range(2):
            assert (await complete(definition, told)).text == "done"
    assert [is_there(body) for body in bodies] == [True, False, False]
    assert "Be brief." in json.dumps(bodies[1]) or definition.output_schema or not bodies[1].get("tools")


async def test_a_schema_that_is_refused_stands_in_the_prompt() -> None:
    def judge(body: Mapping[str, Any]) -> str:
        return "This response_format type is unavailable now" if "response_format" in body else ""

    definition = agent("openai/gpt-4o", schema=ANSWER)
    with provider(judge) as bodies:
        await complete(definition, [{"role": "system", "content": "Be brief."}, *MESSAGES])
    assert "It must fit this JSON schema" in json.dumps(bodies[1])
    assert "It must fit this JSON schema" not in json.dumps(bodies[0])


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"max_tokens": 99_999}, "max_tokens: 99999 > 64000, which is the maximum allowed number of output tokens"),
        ({"tool_choice": "required"}, "tool_choice 'required' is not supported"),
        ({"thinking": {"type": "adaptive"}}, "adaptive thinking is not supported on this model"),
        ({"seed": 1}, "seed: Extra inputs are not permitted"),
    ],
)
async def test_what_the_author_has_set_is_refused_once_and_told(setting: dict[str, Any], words: str) -> None:
    with provider(lambda _: words) as bodies, pytest.raises(Exception, match=words[:20]):
        await complete(agent("anthropic/claude-sonnet-4-5", **setting), MESSAGES)
    assert len(bodies) == 1


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        ({"tool_choice": "required"}, "Thinking may not be enabled when tool_choice forces tool use."),
        ({"tool_choice": "required"}, "This model doesn't support the toolConfig.toolChoice.any field."),
        ({"parallel_tool_calls": False}, "Unsupported parameter: 'parallel_tool_calls' is not supported"),
        ({"parallel_tool_calls": False}, "tool_choice.disable_parallel_tool_use: Extra inputs are not permitted"),
        ({"temperature": 0.1}, "Unsupported value: 'temperature' does not support 0.1 with this model."),
        ({"top_p": 0.5, "temperature": 0.1}, "`temperature` and `top_p` cannot both be specified for this model."),
        ({"reasoning_effort": "low"}, "This model does not support effort levels"),
    ],
)
@pytest.mark.parametrize("model", ["anthropic/claude-sonnet-4-5", "openai/mine", "hosted_vllm/m"])
async def test_what_a_request_wishes_is_left_out_where_it_is_refused(
    model: str, wishes: dict[str, Any], words: str
) -> None:
    """S-87: the author's own parameters stay, and the next call begins without the wish."""
    first = next(iter(wishes))

    def has(body: Mapping[str, Any]) -> bool:
        return bool(body.keys() & {first, "tool_choice", "thinking", "output_config"})

    definition = agent(model, user="u").with_wishes(wishes)
    with provider(lambda body: words if has(body) else "") as bodies:
        for _ in range(2):
            assert (await complete(definition, MESSAGES[:1])).text == "done"
    assert [has(body) for body in bodies] == [True, False, False]
    assert all("u" in json.dumps(body.get("user", body.get("metadata"))) for body in bodies)


async def test_a_refused_wish_is_nobody_elses() -> None:
    """One caller's value is refused; another's is sent, and an author's stands where a request's was left out."""

    def judge(body: Mapping[str, Any]) -> str:
        return "temperature: must be between 0 and 2" if body.get("temperature", 0) > 2 else ""

    mine = agent("openai/mine", temperature=0.7)
    with provider(judge) as bodies:
        for wished in (0.5, 2.5, 0.5, 2.5):
            await complete(mine.with_wishes({"temperature": wished}), MESSAGES)
        await complete(mine, MESSAGES)
    assert [body["temperature"] for body in bodies] == [0.5, 2.5, 0.7, 0.5, 0.7, 0.7]


async def test_a_refused_schema_of_a_request_is_nobody_elses() -> None:
    def judge(body: Mapping[str, Any]) -> str:
        return "Invalid schema for response_format 'answer'" if "odd" in json.dumps(body.get("response_format")) else ""

    odd: dict[str, Any] = {"type": "object", "properties": {"odd": {"type": "string"}}}
    with provider(judge) as bodies:
        schemas: list[Any] = [odd, ANSWER, odd]
        for schema in schemas:
            await complete(agent("openai/gpt-4o").with_output(schema), MESSAGES)
    assert ["response_format" in body for body in bodies] == [True, False, True, False]


async def test_every_form_is_refused_no_more_than_once() -> None:
    with provider(lambda _: " ".join(asks.example for asks in WORDS)) as bodies, pytest.raises(Exception, match="call"):
        await complete(agent("anthropic/claude-sonnet-4-5", reasoning_effort="low"), MESSAGES, most_tokens=10)
    assert len(bodies) <= len(Form) + 1


@pytest.mark.parametrize("asks", WORDS, ids=lambda asks: f"{asks.form.name}-{asks.example[:20]}")
def test_each_refusal_asks_for_one_form(asks: Any) -> None:
    facts, definition = FailureFacts(status=400, class_name="BadRequestError", text=asks.example), agent("openai/mine")
    assert FORMS.learn(definition, facts, frozenset(Form), None)
    assert FORMS.of(definition) == Learnt(frozenset({asks.form}))
    assert not FORMS.learn(definition, facts, frozenset(Form), None), "it has been asked for"
    assert not FORMS.learn(agent("openai/other"), facts, frozenset(Form) - {asks.form}, None), "it is the author's"
    assert not FORMS.learn(agent("openai/other"), facts.model_copy(update={"status": 429}), frozenset(Form), None)


@pytest.mark.parametrize(
    ("words", "longest"),
    [
        (
            "max_tokens: 128000 > 64000, which is the maximum allowed number of output tokens for claude-3-7-sonnet",
            64_000,
        ),
        (
            "The maximum tokens you requested exceeds the model limit of 4096. Try again with a maximum tokens value "
            "that is lower than 4096.",
            4_095,
        ),
        (
            "max_tokens is too large: 128000. This model supports at most 16384 completion tokens, whereas you "
            "provided 128000.",
            16_384,
        ),
        (
            "Unable to submit request because it has a maxOutputTokens value of 128000 but the supported range is "
            "from 1 (inclusive) to 65537 (exclusive). Update the value and try again.",
            65_536,
        ),
        (
            "`max_tokens` must be less than or equal to `8192`, the maximum value for `max_tokens` is less than the "
            "`context_window` for this model",
            8_192,
        ),
        ("Invalid max_tokens value, the valid range of max_tokens is [1, 8192]", 8_192),
        ("Range of max_tokens should be [1, 32,768]", 32_768),
        ("max_tokens must be a number", None),
        ("max_tokens: 128000 is not taken by model-2025", None),
        ("messages.4: too many images: 600 > 500", None),
    ],
)
def test_the_longest_answer_that_a_refusal_names(words: str, longest: int | None) -> None:
    assert longest_in(FailureFacts(status=400, class_name="BadRequestError", text=words), 128_000) == longest


@pytest.mark.parametrize(
    "words",
    [
        "This model doesn't support tool use in streaming mode.",
        "Your organization must be verified to stream this model. Please go to the settings page.",
        "Streaming is not supported for this model",
    ],
)
async def test_a_model_that_refuses_streams_is_asked_for_whole_answers(words: str) -> None:
    definition = agent("openai/mine")
    with provider(lambda body: words if body.get("stream") else "") as bodies:
        for _ in range(2):
            assert (await complete(definition, MESSAGES, shown=Silent())).text == "done"
    assert [body.get("stream", False) for body in bodies] == [True, False, False]
    assert all(body["tools"] for body in bodies), "it is the stream, and not the tools"


@pytest.mark.parametrize(
    ("form", "arguments", "is_there"),
    [
        (
            Form.NO_ENCRYPTED,
            {"model": "openai/responses/gpt-5"},
            lambda body: "include" in body,
        ),
        (
            Form.NO_USAGE,
            {"model": "openai/gpt-4o"},
            lambda body: "stream_options" in body,
        ),
        (
            Form.OTHER_THINKING,
            {"model": "vertex_ai/claude-sonnet-4-5", "reasoning_effort": "high", "vertex_project": "p"},
            lambda body: body["thinking"]["type"] == "enabled",
        ),
    ],
    ids=lambda value: value.name if isinstance(value, Form) else "",
)
def test_the_body_of_a_request_has_the_form_that_was_asked_for(
    form: Form, arguments: dict[str, Any], is_there: Callable[[Mapping[str, Any]], bool]
) -> None:
    given = {"messages": MESSAGES[:1], "api_key": "k", "vertex_location": "global", **arguments}
    given = {name: value for name, value in given.items() if "vertex" in arguments["model"] or "vertex" not in name}
    for forms, has in ((frozenset[Form](), True), (frozenset({form}), False)):
        request = prepare(given, streams=True, learnt=Learnt(forms))
        assert request is not None
        assert is_there(request.body) is has


def test_the_system_prompt_in_the_users_first_message_keeps_its_parts() -> None:
    system: WireMessage = {"role": "system", "content": "Be brief."}
    picture: Any = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    text: Any = {"type": "text", "text": "go"}
    answered: WireMessage = {"role": "assistant", "content": "hm"}
    assert with_system_in_user([system, {"role": "user", "content": "go"}, answered]) == [
        {"role": "user", "content": "Be brief.\n\ngo"},
        answered,
    ]
    assert with_system_in_user([system, {"role": "user", "content": [picture, text]}])[0]["content"] == [
        {"type": "text", "text": "Be brief."},
        picture,
        text,
    ]
    assert with_system_in_user([system, answered]) == [{"role": "user", "content": "Be brief."}, answered]
    assert with_system_in_user([answered]) == [answered]
