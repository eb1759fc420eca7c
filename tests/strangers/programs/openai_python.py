"""OpenAI's own client: it keeps the conversation as a list, runs its functions and approves calls. Prints JSON."""

from collections.abc import Callable
from typing import Any

from cases import FIVE, TWO_RIVERS, River, tell, user
from openai import OpenAI

TOOLS: Any = [
    {"type": "function", "name": name, "description": name, "parameters": {"type": "object", "properties": {}}}
    for name in ("look", "seek")
]

client = OpenAI()


def ask(model: str, items: list[Any], **more: Any) -> Any:
    return client.responses.create(model=model, input=items, **more)


def ask_for_a_stream(model: str, items: list[Any], **more: Any) -> Any:
    with client.responses.stream(model=model, input=items, **more) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        response = stream.get_final_response()
    assert text == response.output_text
    return response


def talk(model: str, texts: list[str], items: list[Any], asking: Callable[..., Any] = ask, **more: Any) -> str:
    """Say one text after the other, and run the functions that are called; the conversation grows in ``items``."""
    text = ""
    for said in texts:
        items.append(user(said))
        while True:
            response = asking(model, items, **more)
            items += response.output
            text = response.output_text
            calls = [item for item in response.output if item.type == "function_call"]
            if not calls:
                break
            for call in calls:
                output = f"{call.name} seen"
                items.append({"type": "function_call_output", "call_id": call.call_id, "output": output})
    return text


def chat(model: str) -> str:
    return talk(model, FIVE, [])


def function(model: str) -> str:
    return talk(model, ["look", "two", "three"], [], tools=TOOLS)


def two_functions(model: str) -> str:
    return talk(model, ["look seek", "bye"], [], tools=TOOLS)


def approval(model: str) -> str:
    items: list[Any] = []
    talk(model, ["pay"], items)
    (asked,) = [item for item in items if getattr(item, "type", "") == "mcp_approval_request"]
    items.append({"type": "mcp_approval_response", "approval_request_id": asked.id, "approve": True})
    items += ask(model, items).output
    return talk(model, ["bye"], items)


def stream(model: str) -> str:
    return talk(model, ["effect look", "two", "three"], [], ask_for_a_stream, tools=TOOLS)


def edited(model: str) -> str:
    items: list[Any] = []
    talk(model, FIVE[:3], items)
    return talk(model, ["edited"], items[: items.index(user("two"))])


def rewritten(model: str) -> str:
    items: list[Any] = []
    talk(model, FIVE[:3], items)
    return talk(model, ["end"], [user("rewritten"), *items[1:]])


def structured(model: str) -> str:
    items: list[Any] = []
    river = None
    for text in TWO_RIVERS:
        items.append(user(text))
        response = client.responses.parse(model=model, input=items, text_format=River)
        items += response.output
        river = response.output_parsed
    return str(river)


def cut(model: str) -> str:
    """The connection is cut while perdure's tool runs, and the client tries again by itself."""
    return talk(model, ["effect"], [])


def resumed(model: str) -> str:
    """The connection is cut in the middle of a stream, which goes on behind the last event that came."""
    seen: list[Any] = []
    try:
        seen += client.responses.create(model=model, input="effect", stream=True)
    except Exception:  # of whichever library is below the client
        place = seen[-1].sequence_number
        seen += client.responses.retrieve(seen[0].response.id, stream=True, starting_after=place)
    assert [event.sequence_number for event in seen] == sorted({event.sequence_number for event in seen})
    return "".join(event.delta for event in seen if event.type == "response.output_text.delta")


def restart(model: str) -> str:
    """The gateway stops while perdure's tool runs, and another one takes its place."""
    return talk(model, ["effect"], [])


def unknown_model(model: str) -> str:
    return talk(model, ["hello"], [])


tell(
    chat, function, two_functions, approval, stream, edited, rewritten, structured, cut, resumed, restart, unknown_model
)
