"""litellm at Chat Completions. Prints JSON."""

from collections.abc import Callable
from typing import Any

import litellm
from cases import FIVE, TWO_RIVERS, River, tell, user

PARAMETERS = {"type": "object", "properties": {}}
TOOLS: Any = [{"type": "function", "function": {"name": "look", "description": "Look.", "parameters": PARAMETERS}}]


def ask(model: str, messages: list[Any], **more: Any) -> Any:
    made: Any = litellm.completion(model=f"openai/{model}", messages=messages, **more)
    return made.choices[0].message


def ask_for_a_stream(model: str, messages: list[Any], **more: Any) -> Any:
    options: Any = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = [*litellm.completion(model=f"openai/{model}", messages=messages, **options, **more)]
    made: Any = litellm.stream_chunk_builder(chunks, messages=messages)
    assert made.usage.total_tokens > 0
    return made.choices[0].message


def talk(model: str, texts: list[str], messages: list[Any], asking: Callable[..., Any] = ask, **more: Any) -> str:
    """Say one text after the other, and run the functions that are called; the conversation grows in ``messages``."""
    message: Any = None
    for said in texts:
        messages.append(user(said))
        while True:
            message = asking(model, messages, **more)
            messages.append(message.model_dump())
            if not message.tool_calls:
                break
            for call in message.tool_calls:
                output = f"{call.function.name} seen"
                messages.append({"role": "tool", "tool_call_id": call.id, "content": output})
    return str(message.content)


def named(model: str) -> Any:
    return {"extra_headers": {"X-Chat": model}}


def chat(model: str) -> str:
    return talk(model, FIVE[:3], [])


def conversation(model: str) -> str:
    return talk(model, FIVE[:3], [], **named(model))


def function(model: str) -> str:
    return talk(model, ["look", "two"], [], tools=TOOLS)


def stream(model: str) -> str:
    return talk(model, ["effect look", "two"], [], ask_for_a_stream, tools=TOOLS)


def structured(model: str) -> str:
    return str(River.model_validate_json(talk(model, TWO_RIVERS, [], response_format=River, **named(model))))


def cut(model: str) -> str:
    """The connection is cut while perdure's tool runs, and the client tries again by itself."""
    return talk(model, ["effect"], [])


def restart(model: str) -> str:
    """The gateway stops while perdure's tool runs, and another one takes its place."""
    return talk(model, ["effect"], [])


def unknown_model(model: str) -> str:
    return talk(model, ["hello"], [])


def refused(model: str) -> str:
    return talk(model, ["hello"], [], n=2)


tell(chat, conversation, function, stream, structured, cut, restart, unknown_model, refused)
