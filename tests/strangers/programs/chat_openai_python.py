"""OpenAI's own client at Chat Completions: it keeps the messages, and runs its functions. Prints JSON."""

from typing import Any

from cases import FIVE, FUNCTIONS, TWO_RIVERS, River, named, talk, tell, user
from openai import OpenAI

client = OpenAI()


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


def chat(model: str) -> str:
    return talk(ask, model, FIVE[:3])


def conversation(model: str) -> str:
    return talk(ask, model, FIVE[:3], **named(model))


def function(model: str) -> str:
    return talk(ask, model, ["look", "two"], tools=FUNCTIONS)


def stream(model: str) -> str:
    return talk(ask_for_a_stream, model, ["effect look", "two"], tools=FUNCTIONS)


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
    return talk(ask, model, ["effect"])


def restart(model: str) -> str:
    """The gateway stops while perdure's tool runs, and another one takes its place."""
    return talk(ask, model, ["effect"])


def unknown_model(model: str) -> str:
    return talk(ask, model, ["hello"])


def refused(model: str) -> str:
    return talk(ask, model, ["hello"], n=2)


tell(chat, conversation, function, stream, structured, cut, restart, unknown_model, refused)
