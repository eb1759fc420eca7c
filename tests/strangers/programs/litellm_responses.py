"""litellm: its Responses API, and its bridge from chat completions to that API. Prints JSON."""

from collections.abc import Callable
from typing import Any

import litellm
from cases import FIVE, TWO_RIVERS, River, tell, user

PARAMETERS = {"type": "object", "properties": {}}
FUNCTIONS: Any = [{"name": name, "description": name, "parameters": PARAMETERS} for name in ("look", "seek")]
TOOLS: Any = [{"type": "function", **function} for function in FUNCTIONS]


def ask(model: str, items: list[Any], **more: Any) -> Any:
    return litellm.responses(model=f"openai/{model}", input=items, **more)


def ask_for_a_stream(model: str, items: list[Any], **more: Any) -> Any:
    text, response = "", None
    for event in ask(model, items, stream=True, **more):
        if event.type == "response.output_text.delta":
            text += event.delta
        elif event.type == "response.completed":
            response = event.response
    assert response is not None
    assert response.output_text == text
    return response


def dumped(response: Any) -> list[Any]:
    return [item if isinstance(item, dict) else item.model_dump() for item in response.output]


def talk(model: str, texts: list[str], items: list[Any], asking: Callable[..., Any] = ask, **more: Any) -> str:
    """Say one text after the other, and run the functions that are called; the conversation grows in ``items``."""
    text = ""
    for said in texts:
        items.append(user(said))
        while True:
            response = asking(model, items, **more)
            added = dumped(response)
            items += added
            text = response.output_text
            calls = [item for item in added if item["type"] == "function_call"]
            if not calls:
                break
            for call in calls:
                output = f"{call['name']} seen"
                items.append({"type": "function_call_output", "call_id": call["call_id"], "output": output})
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
    (asked,) = [item for item in items if item.get("type") == "mcp_approval_request"]
    items.append({"type": "mcp_approval_response", "approval_request_id": asked["id"], "approve": True})
    items += dumped(ask(model, items))
    return talk(model, ["bye"], items)


def stream(model: str) -> str:
    return talk(model, ["effect look", "two", "three"], [], ask_for_a_stream, tools=TOOLS)


def bridge(model: str) -> str:
    """Chat completions that litellm puts into the form of the Responses API."""
    messages: list[Any] = []
    tools = [{"type": "function", "function": function} for function in FUNCTIONS]
    for text in ("effect look", "two", "three"):
        messages.append(user(text))
        while True:
            answer = litellm.completion(model=f"openai/responses/{model}", messages=messages, tools=tools)
            messages.append(answer.choices[0].message.model_dump())
            if not messages[-1].get("tool_calls"):
                break
            for call in messages[-1]["tool_calls"]:
                output = f"{call['function']['name']} seen"
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": output})
    return str(messages[-1]["content"])


def edited(model: str) -> str:
    items: list[Any] = []
    talk(model, FIVE[:3], items)
    return talk(model, ["edited"], items[: items.index(user("two"))])


def rewritten(model: str) -> str:
    items: list[Any] = []
    talk(model, FIVE[:3], items)
    return talk(model, ["end"], [user("rewritten"), *items[1:]])


def structured(model: str) -> str:
    return str(River.model_validate_json(talk(model, TWO_RIVERS, [], text_format=River)))


def cut(model: str) -> str:
    """The connection is cut while perdure's tool runs, and the client tries again by itself."""
    return talk(model, ["effect"], [])


def restart(model: str) -> str:
    """The gateway stops while perdure's tool runs, and another one takes its place."""
    return talk(model, ["effect"], [])


def unknown_model(model: str) -> str:
    return talk(model, ["hello"], [])


tell(
    chat, function, two_functions, approval, stream, bridge, edited, rewritten, structured, cut, restart, unknown_model
)
