"""S-89: requests of Chat Completions, read as those of the Responses door."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.client import RequestRefusedError
from perdure.contracts.messages import MAX_HISTORY_BYTES, check_history
from perdure.gateway.doors.chat.requests import WORDS, ChatBody, read_chat
from perdure.gateway.doors.responses.conversations import begin, live_replies, words_shown
from perdure.gateway.doors.responses.histories import LEFT_OUT, NO_RESULT
from perdure.gateway.doors.responses.places import wire_call
from perdure.gateway.doors.responses.requests import Asked
from perdure.gateway.problems import ProblemError

USER = {"role": "user", "content": "go"}
PIXEL = "data:image/png;base64,iVBORw0KGgo="
WIRE = wire_call("s", 1, "call_0123456789abcdef_0")


def read(*messages: dict[str, Any], tunes: bool = False, **body: Any) -> Asked:
    return read_chat(ChatBody.model_validate({"model": "m", "messages": [*messages] or [USER], **body}), tunes=tunes)


def called(*calls: str) -> dict[str, Any]:
    functions = [{"id": call, "type": "function", "function": {"name": "look", "arguments": "{}"}} for call in calls]
    return {"role": "assistant", "content": None, "tool_calls": functions}


def result(call: str, content: Any = "7") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call, "content": content}


def begun(*messages: dict[str, Any]) -> tuple[Any, list[Any]]:
    """The prompt and the history of the session that a request begins, which every provider takes."""
    asked = read(*messages)
    prompt, history = begin(asked.entries, asked.system, WORDS)
    check_history([dict(message) for message in history])
    return prompt, history


def test_a_conversation_is_a_prompt_and_a_history() -> None:
    """Pictures of earlier messages stand in it by their names: each request is a new session, and shows what it has."""
    picture = {"type": "image_url", "image_url": {"url": PIXEL}}
    prompt, history = begun(
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": "one"}, picture]},
        {"role": "assistant", "content": "two", "reasoning_content": "…", "annotations": []},
        called("c1"),
        result("c1", [{"type": "text", "text": "7"}]),
        {"role": "assistant", "content": "three"},
        {"role": "user", "content": [{"type": "text", "text": "four"}, picture], "name": "ann"},
    )
    assert prompt == [{"type": "text", "text": "Be kind."}, {"type": "text", "text": "four"}, picture]
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    assert history == [
        {"role": "user", "content": "one"},
        {"role": "user", "content": "[an image]"},
        {"role": "assistant", "content": "two", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "7"},
        {"role": "assistant", "content": "three"},
    ]


CALL_IDS = st.sampled_from(["", "c1", "c2", "c.3", "x" * 90, WIRE])
MESSAGES = st.lists(
    st.one_of(
        st.builds(lambda text: {"role": "user", "content": text}, st.sampled_from(["", " ", "go", "é" * 5])),
        st.builds(lambda text: {"role": "assistant", "content": text}, st.sampled_from(["", "a", None])),
        st.builds(lambda calls: called(*calls), st.lists(CALL_IDS, min_size=1, max_size=3)),
        st.builds(result, CALL_IDS, st.sampled_from(["", "7", None])),
    ),
    max_size=12,
)


@given(MESSAGES)
def test_whatever_was_said_is_a_history_that_every_provider_takes(messages: list[dict[str, Any]]) -> None:
    """S-89: ids that are there twice, calls without results, results without calls: nothing of it ends a chat."""
    _, history = begun(*messages, {"role": "user", "content": "and now?"})
    calls = sum(len(message.get("tool_calls") or ()) for message in messages)
    assert sum(message["role"] == "tool" for message in history) == calls


def test_results_go_to_the_calls_that_they_were_sent_for() -> None:
    """S-89: two calls of one id have a result each, also if something was said between."""
    chat = [USER, called("c", "c"), result("c", "1"), USER, result("c", "2"), called("d"), result("e"), USER]
    _, history = begun(*chat)
    told = [(message["tool_call_id"], message["content"]) for message in history if message["role"] == "tool"]
    assert told == [("c", "1"), ("call_2", "2"), ("d", NO_RESULT)]


def test_a_history_that_is_too_long_keeps_its_end() -> None:
    """S-89: a front end sends it again for ever; the model reads that something is left out."""
    long = [message for at in range(40) for message in (USER, {"role": "assistant", "content": f"{at} {'é' * 20_000}"})]
    _, history = begun(*long, USER)
    assert history[0] == LEFT_OUT
    assert history[1]["role"] == "user"
    assert str(history[-1]["content"]).startswith("39 ")
    size = len(json.dumps(history, ensure_ascii=False).encode())
    assert 0.9 * MAX_HISTORY_BYTES < size < MAX_HISTORY_BYTES


BROKEN = {"role": "assistant", "tool_calls": [{"id": "x" * 90, "function": {"name": "look", "arguments": '{"a": '}}]}


@pytest.mark.parametrize(
    ("messages", "roles"),
    [
        ([{"role": "assistant", "content": "Hi!"}, USER], ["user", "assistant"]),
        ([USER, called("c1"), result("c1"), called("c1"), result("c1"), USER], ["user", *["assistant", "tool"] * 2]),
        ([USER, BROKEN, result("x" * 90), USER], ["user", "assistant", "tool"]),
        ([{"role": "user", "content": " "}, USER, {"role": "assistant", "content": "a"}, USER], ["user", "assistant"]),
        ([USER, {"role": "assistant", "content": [{"type": "thinking", "thinking": "…"}]}, USER], []),
    ],
    ids=["a greeting", "an id twice", "a broken call", "an empty message", "thoughts alone"],
)
def test_a_history_that_openai_takes_is_made_to_fit(messages: list[dict[str, Any]], roles: list[str]) -> None:
    """S-89: front ends send it again with each message, so that a refusal would end the chat for good."""
    prompt, history = begun(*messages)
    found = [message["role"] for message in history]
    assert prompt in {"go", "go\n\ngo"}
    assert found[: len(roles)] == roles


@pytest.mark.parametrize(
    "part", [{"type": "image_url", "image_url": {"url": "https://x/y.png"}}, {"type": "input_audio"}]
)
def test_a_part_that_cannot_be_used_is_refused_where_it_is_new_alone(part: dict[str, Any]) -> None:
    """S-89: front ends keep what was refused."""
    message = {"role": "user", "content": [{"type": "text", "text": ""}, part]}
    with pytest.raises(RequestRefusedError):
        read(message)
    _, history = begun(message, {"role": "assistant", "content": "sorry"}, USER)
    assert history[0]["content"].startswith("[a part of the type")


@pytest.mark.parametrize(
    ("messages", "prompt"),
    [
        ([{"role": "system", "content": "Name a river."}], "Name a river."),
        ([USER, {"role": "assistant", "content": "a"}, {"role": "system", "content": "Go on."}], "Go on."),
        ([{"role": "system", "content": None}, USER], "go"),
        ([{"role": "user", "content": [{"type": "text", "text": ""}, {"type": "text", "text": "go"}]}], "go"),
    ],
)
def test_the_system_says_what_is_to_be_done_where_nobody_else_does(messages: list[Any], prompt: str) -> None:
    assert begun(*messages)[0] == prompt


def test_words_before_a_text_that_stands_before_a_call_are_those_of_its_turn() -> None:
    """An edited message would be passed over otherwise, and the old session would go on."""
    message = {**called(WIRE), "content": "Let me look."}
    (shown,) = words_shown(read(USER, message, result(WIRE)).entries)
    assert (shown.session, shown.turn, [part["text"] for part in shown.parts]) == ("s", 1, ["go"])


def test_results_of_calls_of_this_door_are_replies_to_the_turn_that_their_ids_name() -> None:
    asked = read(USER, called(WIRE), result(WIRE))
    (reply,) = live_replies(asked.entries)
    assert reply.origin is not None
    assert (reply.origin.session, reply.origin.turn, reply.said and reply.said.output) == ("s", 1, "7")


def test_settings_are_those_of_the_other_door() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    look = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
    choice = {"type": "function", "function": {"name": "look"}}
    more: dict[str, Any] = {"temperature": 0.5, "reasoning_effort": "low", "parallel_tool_calls": False}
    asked = read(response_format=form, tools=[look], tool_choice=choice, tunes=True, **more)
    assert asked.settings.output_schema == schema
    assert asked.settings.tool_choice is not None
    assert [tool["name"] for tool in asked.tools] == ["look"]
    assert asked.settings.params == {"temperature": 0.5, "reasoning_effort": "low", "parallel_tool_calls": False}
    assert asked.settings.left_alone == ()


def test_defaults_of_front_ends_change_nothing_and_what_is_left_alone_is_told() -> None:
    """Source: LibreChat's default parameters, and those of LangChain and the AI SDK."""
    defaults: dict[str, Any] = {
        "temperature": 1,
        "top_p": 1,
        "presence_penalty": 0,
        "frequency_penalty": 0,
        "user": "u",
    }
    idle: dict[str, Any] = {"n": 1, "stop": None, "logprobs": False, "stream_options": {"include_usage": True}}
    assert read(**defaults, **idle, store=False, seed=None).settings.left_alone == ("temperature", "top_p")
    left = read(max_tokens=5, presence_penalty=0.5, seed=7, verbosity="low", store=True).settings.left_alone
    assert left == ("max_completion_tokens", "presence_penalty", "seed", "verbosity")


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"n": 2}, "n: this door cannot do that; send as many requests"),
        ({"logprobs": True}, "logprobs: "),
        ({"stop": ["x"]}, "stop: "),
        ({"functions": [{"name": "f"}]}, "functions: this door cannot do that; send tools"),
        ({"audio": {"voice": "x"}}, "audio: "),
        ({"modalities": ["text", "audio"]}, "modalities: "),
        ({"web_search_options": {}}, "web_search_options: "),
        ({"response_format": {"type": "json_schema"}}, "response_format: has no json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": 7}}},
            "response_format.json_schema.schema: ",
        ),
        ({"response_format": {"type": "xml"}}, "response_format: is of type text"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice: is auto, none"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools: tool 0 is of type 'custom'"),
        ({"messages": [{"role": "robot"}]}, "messages[0]: its role is"),
        ({"messages": [USER, {"role": "assistant", "tool_calls": [{"id": "c"}]}]}, "messages[1]: a call has an id"),
        ({"messages": [USER, {"role": "tool", "content": "x"}]}, "messages[1]: has a tool_call_id"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "messages[0]: a part is of type text"),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://x/y.png"}}]}
                ]
            },
            "messages[0]: an image is data:",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_by_its_name(body: dict[str, Any], why: str) -> None:
    with pytest.raises(RequestRefusedError) as refused:
        read_chat(ChatBody.model_validate({"model": "m", "messages": [USER], **body}))
    assert str(refused.value).startswith(why)


def test_a_function_that_is_none_is_refused() -> None:
    with pytest.raises(ProblemError) as refused:
        read(tools=[{"type": "function", "function": {"name": "no name"}}])
    assert refused.value.status == 422


def test_a_conversation_that_says_nothing_new_is_refused() -> None:
    asked = read(USER, called("c1"), result("c1"))
    with pytest.raises(
        RequestRefusedError, match="messages: ends with the output of a call that no turn waits for; send"
    ):
        begin(asked.entries, asked.system, WORDS)
