"""litellm at Chat Completions. Prints JSON."""

from typing import Any

import litellm
from cases import FIVE, FUNCTIONS, TWO_RIVERS, River, named, talk, tell


def ask(model: str, messages: list[Any], **more: Any) -> Any:
    made: Any = litellm.completion(model=f"openai/{model}", messages=messages, **more)
    return made.choices[0].message


def ask_for_a_stream(model: str, messages: list[Any], **more: Any) -> Any:
    options: Any = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = [*litellm.completion(model=f"openai/{model}", messages=messages, **options, **more)]
    made: Any = litellm.stream_chunk_builder(chunks, messages=messages)
    assert made.usage.total_tokens > 0
    return made.choices[0].message


def chat(model: str) -> str:
    return talk(ask, model, FIVE[:3])


def conversation(model: str) -> str:
    return talk(ask, model, FIVE[:3], **named(model))


def function(model: str) -> str:
    return talk(ask, model, ["look", "two"], tools=FUNCTIONS)


def stream(model: str) -> str:
    return talk(ask_for_a_stream, model, ["effect look", "two"], tools=FUNCTIONS)


def structured(model: str) -> str:
    return str(River.model_validate_json(talk(ask, model, TWO_RIVERS, response_format=River, **named(model))))


def cut(model: str) -> str:
    """The connection is cut while perdure's tool runs, and the client tries again by itself."""
    return talk(ask, model, ["effect"])


def restart(model: str) -> str:
    """The gateway stops while perdure's tool runs, and another one takes its place."""
    return talk(ask, model, ["effect"])


def unknown_model(model: str) -> str:
    return talk(ask, model, ["hello"])


def refused(model: str) -> str:
    return talk(ask, model, ["hello"], n=2)


tell(chat, conversation, function, stream, structured, cut, restart, unknown_model, refused)
