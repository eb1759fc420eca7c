"""Requests of this door: the body of OpenAI's ``chat.completions.create``, read as one of the Responses door.

A client sends the whole conversation each time. What the two protocols share is read by the other door, which carries
the request out: so a message is an item of its input, and a setting has the same meaning.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Annotated, ClassVar

from pydantic import Field

from perdure.client import RequestRefusedError
from perdure.contracts.values import JsonValue, Label
from perdure.gateway.bodies import Body, Json
from perdure.gateway.doors.responses.requests import LONGEST_ID, Asked, Entry, Object, read_item, read_tools, text_of
from perdure.gateway.doors.responses.settings import Settings, read_settings, refusal, refuse_given
from perdure.gateway.doors.responses.words import Words

MOST_MESSAGES = 10_000

WORDS = Words(
    field="messages",
    thing="completion",
    needs={"approval": "a decision of a person", "answer": "an answer of a person", "result": "a message of a tool"},
    is_lenient=True,
)


class ChatBody(Body):
    """The body of ``chat.completions.create``; fields of type ``Json`` alone are looked at by :func:`read_chat`."""

    longest: ClassVar[int | None] = None

    model: Annotated[Label, Field(min_length=1)]
    messages: list[Object] = Field(min_length=1, max_length=MOST_MESSAGES)
    metadata: dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]] | None = Field(
        default=None, max_length=16
    )
    tools: list[Object] | None = None
    stream: bool | None = None
    stream_options: Object | None = None
    audio: Json = None
    frequency_penalty: Json = None
    function_call: Json = None
    functions: Json = None
    logit_bias: Json = None
    logprobs: Json = None
    max_completion_tokens: Json = None
    max_tokens: Json = None
    modalities: Json = None
    moderation: Json = None
    n: Json = None
    parallel_tool_calls: Json = None
    prediction: Json = None
    presence_penalty: Json = None
    prompt_cache_key: Json = None
    prompt_cache_options: Json = None
    prompt_cache_retention: Json = None
    reasoning_effort: Json = None
    response_format: Json = None
    safety_identifier: Json = None
    seed: Json = None
    service_tier: Json = None
    stop: Json = None
    store: Json = None
    temperature: Json = None
    tool_choice: Json = None
    top_logprobs: Json = None
    top_p: Json = None
    user: Json = None
    verbosity: Json = None
    web_search_options: Json = None

    @property
    def tells_usage(self) -> bool:
        """Whether a stream ends with a chunk that has the usage."""
        return (self.stream_options or {}).get("include_usage") is True


def read_chat(body: ChatBody, *, tunes: bool = False) -> Asked:
    """Read what the body asks for.

    Args:
        body: The body.
        tunes: Whether the caller may set parameters of the model.

    Raises:
        RequestRefusedError: It cannot be done; the text begins with the field.
        ProblemError: A tool is none.
    """
    fields = body.model_dump(exclude={"messages", "tools"})
    refuse_given(fields, _REFUSED)
    reader = _Messages(body.messages)
    entries = reader.read()
    return Asked(
        model=body.model,
        entries=entries,
        system=[text for text in reader.system if text],
        tools=[
            {**tool, "gives_way": True}
            for tool in read_tools([_flatten("function", tool) for tool in body.tools or []])
        ],
        context=dict(body.metadata) if body.metadata else None,
        settings=_read_settings(fields, tunes=tunes),
    )


_REFUSED: Mapping[str, tuple[JsonValue, str]] = {
    "audio": (None, "leave it out"),
    "function_call": (None, "send tool_choice"),
    "functions": ([], "send tools"),
    "logit_bias": ({}, "leave it out"),
    "logprobs": (False, "leave it out"),
    "modalities": (["text"], "leave it out"),
    "moderation": (None, "leave it out"),
    "n": (1, "send as many requests"),
    "stop": ([], "leave it out"),
    "top_logprobs": (0, "leave it out"),
    "web_search_options": (None, "an agent searches by its own tools; leave it out"),
}
"""Fields that this door cannot do, with the one value beside null that asks for nothing."""

_IDLE: Mapping[str, JsonValue] = {"frequency_penalty": 0, "prediction": None, "presence_penalty": 0, "seed": None}
"""Fields that change nothing here, with the one value beside null that would change nothing at OpenAI's."""

_NAMES: Mapping[str, str] = {
    "input": "messages",
    "max_output_tokens": "max_completion_tokens",
    "reasoning.effort": "reasoning_effort",
    "text": "response_format",
    "text.format": "response_format",
    "text.format.schema": "response_format.json_schema.schema",
    "text.verbosity": "verbosity",
}
"""Names that this protocol has for fields of the other one."""


@contextmanager
def in_our_names() -> Iterator[None]:
    """Have a refusal of the other protocol begin with the name that a field has in this one."""
    try:
        yield
    except RequestRefusedError as error:
        name, _, why = str(error).partition(": ")
        if name not in _NAMES:
            raise
        raise refusal(_NAMES[name], why) from None


def _read_settings(fields: Mapping[str, Json], *, tunes: bool) -> Settings:
    most, choice = fields["max_completion_tokens"], fields["tool_choice"]
    given: dict[str, Json] = {
        **{name: fields[name] for name in ("parallel_tool_calls", "service_tier", "temperature", "top_p")},
        "store": fields["store"] or None,
        "max_output_tokens": fields["max_tokens"] if most is None else most,
        "reasoning": {"effort": fields["reasoning_effort"]},
        "text": {"format": _format_of(fields["response_format"]), "verbosity": fields["verbosity"]},
        "tool_choice": _flatten("function", choice) if isinstance(choice, dict) else choice,
    }
    with in_our_names():
        settings = read_settings(given, tunes=tunes)
    idle = [name for name, nothing in _IDLE.items() if fields[name] is not None and fields[name] != nothing]
    left_alone = sorted({*idle, *(_NAMES.get(name, name) for name in settings.left_alone)})
    return replace(settings, left_alone=tuple(left_alone), echoed={})


def _format_of(given: Json) -> Json:
    if not isinstance(given, dict) or given.get("type") != "json_schema":
        return given
    if not isinstance(given.get("json_schema"), dict):
        send = 'send {"type": "json_schema", "json_schema": {"name": "answer", "schema": {…}}}'
        raise refusal("response_format", f"has no json_schema; {send}")
    return _flatten("json_schema", given)


def _flatten(kind: str, given: Object) -> Object:
    """An object with its fields beside its type: this protocol has them one level below, by the name of the type."""
    inner = given.get(kind)
    return {"type": kind, **inner} if isinstance(inner, dict) else given


# Messages as items of the other protocol


class _Messages:
    """The messages of a request, as they are read.

    Front ends send all that was said, for ever: what cannot be used is refused in what is new alone. What was said by
    others, with other ids, is made such that every provider takes it.
    """

    def __init__(self, messages: Sequence[Object]) -> None:
        self._messages = messages
        self._last = _last_of(messages, {"assistant", "tool"})
        self.system: list[str] = []

    def read(self) -> list[Entry]:
        """The messages as entries; those of the system are put aside, unless nothing else says what is to be done."""
        says = any(message.get("role") == "user" for message in self._messages[self._last + 1 :])
        entries: list[Entry] = []
        for number, message in enumerate(self._messages):
            at, content = f"messages[{number}]", message.get("content")
            match message.get("role"):
                case "system" | "developer" if not says and number > self._last:
                    entries += self._read_user(at, content, is_new=True)
                case "system" | "developer":
                    self.system.append(text_of(at, content or ""))
                case "user":
                    entries += self._read_user(at, content, is_new=number > self._last)
                case "assistant":
                    entries += self._read_assistant(at, message)
                case "tool":
                    entries.append(self._read_result(at, message))
                case _:
                    raise refusal(at, "its role is user, assistant, tool, system or developer")
        return entries

    def _read_user(self, at: str, content: Json, *, is_new: bool) -> Iterator[Entry]:
        parts: Json = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
        if not isinstance(parts, list):
            raise refusal(at, "its content is a text, or a list of parts")
        told = [_part_of(at, part, is_new=is_new) for part in parts]
        said = [part for part in told if part.get("type") != "text" or str(part.get("text")).strip()]
        if said:
            yield read_item(at, {"role": "user", "content": [*said]})

    def _read_assistant(self, at: str, message: Object) -> Iterator[Entry]:
        calls = message.get("tool_calls") or []
        if not isinstance(calls, list) or message.get("function_call") is not None:
            raise refusal(at, "its calls stand in tool_calls, a list")
        made = [read_item(at, self._call_of(at, call)) for call in calls]
        if text := _said_in(message.get("content")):
            told = read_item(at, {"role": "assistant", "content": text})
            yield replace(told, origin=made[0].origin if made else None)
        yield from made

    def _call_of(self, at: str, call: Json) -> Object:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(call, dict) or not isinstance(function, dict):
            raise refusal(at, "a call has an id and a function with name and arguments")
        name = str(function.get("name") or "")[:LONGEST_ID] or "tool"
        about: Object = {"name": name, "arguments": _arguments_of(function.get("arguments"))}
        return {"type": "function_call", "call_id": _call_id(call.get("id")), **about}

    def _read_result(self, at: str, message: Object) -> Entry:
        name = message.get("tool_call_id")
        if not isinstance(name, str):
            raise refusal(at, "has a tool_call_id")
        output = message.get("content") or ""
        return read_item(at, {"type": "function_call_output", "call_id": _call_id(name), "output": output})


def _call_id(given: Json) -> str:
    """The id of a call; another's may be empty, and too long."""
    return str(given or "")[:LONGEST_ID] or "call"


def _last_of(messages: Sequence[Object], roles: Collection[str]) -> int:
    """The place of the last message of one of these roles; -1 without one."""
    return next((at for at in reversed(range(len(messages))) if str(messages[at].get("role")) in roles), -1)


def _said_in(content: Json) -> str:
    """Words of the agent in a content: parts of other kinds, such as its thoughts, are none."""
    if not isinstance(content, list):
        return content if isinstance(content, str) else ""
    parts = [part for part in content if isinstance(part, dict)]
    texts = [part.get("text") or part.get("refusal") for part in parts if part.get("type") in ("text", "refusal")]
    return "\n\n".join(str(text) for text in texts if text)


def _arguments_of(given: Json) -> str:
    """Arguments of a call that was made; broken ones, which no provider takes, are left out."""
    try:
        return given if isinstance(given, str) and isinstance(json.loads(given), dict) else "{}"
    except ValueError:
        return "{}"


def _part_of(at: str, part: Json, *, is_new: bool) -> Object:
    told = part if isinstance(part, dict) else {}
    image = told.get("image_url")
    url = image.get("url") if isinstance(image, dict) else image
    match told.get("type"):
        case "text":
            return {"type": "text", "text": str(told.get("text") or "")}
        case "image_url" if is_new or str(url).startswith("data:"):
            return {"type": "input_image", "image_url": url}
        case "file" if is_new or "file_data" in _flatten("file", told):
            return {**_flatten("file", told), "type": "input_file"}
        case kind if is_new:
            raise refusal(at, f"a part is of type text, image_url or file, and not {str(kind)[:50]!r}")
        case kind:
            return {"type": "text", "text": f"[a part of the type {str(kind)[:50]!r}]"}
