"""OpenAI's own client at Chat Completions: it keeps the messages, and runs its functions. Prints JSON."""

from collections.abc import Callable
from typing import Any

from cases import FIVE, TWO_RIVERS, River, tell, user
from openai import OpenAI

client = OpenAI()
PARAMETERS = {"type": "object", "properties": {}}
TOOLS: Any = [{"type": "function", "function": {"name": "look", "description": "Look.", "parameters": PARAMETERS}}]


def ask(model: str, messages: list[Any], **more: Any) -> Any:
    return client.chat.completions.create(model=model, messages=messages, **more).choices[0].message


def ask_for_a_stream(model: str, messages: list[Any], **more: Any) -> Any:
    with client.chat.completions.stream(
        model=model, messages=messages, stream_options={"include_usage": True}, **more
    ) as stream:
        for _ in stream:
            pass
        made = stream.get_final_completion()
    assert made.usage is not None
    assert made.usage.total_tokens > 0
    return made.choices[0].message


def talk(model: str, texts: list[str], messages: list[Any], asking: Callable[..., Any] = ask, **more: Any) -> str:
    """Say one text after the other, and run the functions that are called; the conversation grows in ``messages``."""
    message: Any = None
    for said in texts:
        messages.append(user(said))
        while True:
            message = asking(model, messages, **more)
            messages.append(message)
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
    messages: list[Any] = []
    river = None
    for text in TWO_RIVERS:
        messages.append(user(text))
        made = client.chat.completions.parse(model=model, messages=messages, response_format=River, **named(model))
        messages.append(made.choices[0].message)
        river = made.choices[0].message.parsed
    return str(river)


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
