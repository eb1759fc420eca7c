"""Requests of OpenAI's Responses API: for each rule one that breaks it, and one like it that keeps all rules."""

from typing import Any

Json = Any
Case = tuple[Json, Json]

OBJECT: Json = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
CLOSED: Json = {**OBJECT, "additionalProperties": False}
HI: Json = {"role": "user", "content": "Hi"}
YES: Json = {"role": "assistant", "content": "Yes?"}


def body(*items: Json, **more: Json) -> Json:
    return {"model": "gpt-5.4", "input": [*items] or [HI], "store": False, **more}


def tool(name: str = "look", parameters: Json = OBJECT, *, strict: bool = False) -> Json:
    return {"type": "function", "name": name, "description": "x", "strict": strict, "parameters": parameters}


def called(call_id: str = "a", **more: Json) -> Json:
    return {"type": "function_call", "call_id": call_id, "name": "look", "arguments": "{}", **more}


def output(call_id: str = "a") -> Json:
    return {"type": "function_call_output", "call_id": call_id, "output": "1"}


def thought(item_id: str = "rs_1") -> Json:
    return {"type": "reasoning", "id": item_id, "summary": [], "encrypted_content": "x"}


def form(schema: Json) -> Json:
    return body(text={"format": {"type": "json_schema", "name": "answer", "strict": True, "schema": schema}})


def schema_of_tool(breaks: Json, keeps: Json, *, strict: bool = False) -> Case:
    return body(tools=[tool(parameters=breaks, strict=strict)]), body(tools=[tool(parameters=keeps, strict=strict)])


def picture(characters: int) -> Json:
    return {"role": "user", "content": [{"type": "input_image", "image_url": "x" * characters, "detail": "auto"}]}


RESPONSES: dict[str, Case] = {
    "or.call_id.length": (body(HI, called("a" * 65), output("a" * 65)), body(HI, called("a" * 64), output("a" * 64))),
    "or.item.id": (body(HI, called(id="call_1"), output()), body(HI, called(id="fc_1"), output())),
    "or.reasoning.id": (body(HI, thought("x"), YES, HI), body(HI, thought(), YES, HI)),
    "or.item.duplicate": (
        body(HI, thought(), YES, HI, thought(), YES, HI),
        body(HI, thought(), YES, HI, thought("rs_2"), YES, HI),
    ),
    "or.tool.name": (body(tools=[tool("a.b")]), body(tools=[tool("a-b")])),
    "or.output.missing": (body(HI, called(), HI), body(HI, called(), output(), HI)),
    "or.output.orphan": (body(HI, output()), body(output(), previous_response_id="resp_1")),
    "or.reasoning.following": (body(HI, thought(), HI), body(HI, thought(), called(), output())),
    "or.max_output_tokens": (body(max_output_tokens=15), body(max_output_tokens=16)),
    "or.previous.conversation": (
        body(previous_response_id="resp_1", conversation="conv_1"),
        body(conversation="conv_1"),
    ),
    "or.image.length": (body(picture(20_971_521)), body(picture(20_971_520))),
    "or.strict.default": schema_of_tool(OBJECT, CLOSED, strict=True),
    "or.format.closed": (form(OBJECT), form(CLOSED)),
    "or.format.keywords": (form({**CLOSED, "minProperties": 1}), form(CLOSED)),
    "or.format.required": (form({**CLOSED, "required": []}), form(CLOSED)),
    "or.params.root": schema_of_tool({**OBJECT, "anyOf": [OBJECT]}, OBJECT),
    "or.params.items": schema_of_tool(
        {"type": "object", "properties": {"a": {"type": "array"}}},
        {"type": "object", "properties": {"a": {"type": "array", "items": {}}}},
    ),
}
