"""Requests for a model's answer, in the formats of the providers.

Each module writes the body of one wire's request, of a conversation in OpenAI's chat format and of settings under
OpenAI's names. A setting that a wire has no name for is sent as it is, so that the provider itself says what it takes.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from perdure.activities.models.provider_replies import Object
from perdure.contracts.values import JsonValue, json_object
from perdure.llm.openai_format import WireMessage


@dataclass(frozen=True)
class Asked:
    """A question to a model.

    Attributes:
        model: The model as its provider calls it.
        messages: The conversation, with reasoning in the fields of ``perdure.activities.models.reasoning``.
        tools: Declarations of tools.
        output: Form of the answer, as OpenAI's ``response_format``; None for a text.
        settings: The author's settings, by OpenAI's names.
        most_tokens: Longest answer of the model, for wires that want one with each request.
        thinks_as_needed: Whether a model of Anthropic's decides itself how much it thinks.
        streams: Whether the answer is to come as a stream.
        asks_for_usage: Whether a stream of chat completions is asked for its usage.
        encrypts: Whether a reasoning model of Responses is asked for its encrypted reasoning.
    """

    model: str
    messages: Sequence[WireMessage]
    tools: Sequence[Object] = ()
    output: Object | None = None
    settings: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    most_tokens: int = 0
    thinks_as_needed: bool = False
    streams: bool = False
    asks_for_usage: bool = True
    encrypts: bool = True


_DATA = re.compile(r"data:(?P<type>[^;,]+);base64,(?P<data>.*)", re.DOTALL)


def read_data(url: str) -> tuple[str, str] | None:
    """The media type and the base64 of a URL that holds its data; None for another."""
    found = _DATA.fullmatch(url)
    return None if found is None else (found["type"], found["data"])


def read_arguments(text: str) -> JsonValue:
    """The arguments of a call as the object that most wires want, whatever the model has written."""
    try:
        return json_object(text)
    except ValueError:
        return {"invalid_arguments": text}


def schema_in(output: Object | None) -> Object | None:
    """The schema of OpenAI's ``response_format``, with its name; None of any other form."""
    form = None if output is None else output.get("json_schema")
    return form if isinstance(form, dict) else None


def effort_in(setting: JsonValue) -> str:
    """The effort of a ``reasoning_effort``, which may be OpenAI's object; empty without one."""
    effort = setting.get("effort") if isinstance(setting, dict) else setting
    return effort if isinstance(effort, str) else ""
