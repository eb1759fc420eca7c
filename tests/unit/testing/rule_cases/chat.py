"""Requests of the chat wire: for each rule one that breaks it, and one like it that keeps all rules.

Long, because eight providers speak this wire, each with rules of its own.
"""

from typing import Any

Json = Any
Case = tuple[Json, Json]

HI: Json = {"role": "user", "content": "Hi"}
OBJECT: Json = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
CLOSED: Json = {**OBJECT, "additionalProperties": False}


def body(*messages: Json, model: str = "m", **more: Json) -> Json:
    return {"model": model, "messages": [*messages] or [HI], **more}


def tool(name: str = "look", description: str = "Look.", parameters: Json = OBJECT) -> Json:
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def calls(*ids: str, name: str = "look", **more: Json) -> Json:
    made = [{"id": call_id, "type": "function", "function": {"name": name, "arguments": "{}"}} for call_id in ids]
    return {"role": "assistant", "tool_calls": made, **more}


def result(call_id: str, content: Json = "1") -> Json:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def text(words: str) -> Json:
    return {"type": "text", "text": words}


PICTURE: Json = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}


def form(schema: Json, *, strict: bool = True, name: str = "answer", **more: Json) -> Json:
    return body(
        response_format={"type": "json_schema", "json_schema": {"name": name, "strict": strict, "schema": schema}},
        **more,
    )


def having(part: Json) -> Json:
    """A closed schema with one property."""
    return {**CLOSED, "properties": {"a": part}}


def limits(name: str, over: Json, within: Json, model: str = "m") -> Case:
    return body(model=model, **{name: over}), body(model=model, **{name: within})


def schema_of_form(breaks: Json, keeps: Json) -> Case:
    return form(breaks), form(keeps)


def schema_of_tool(breaks: Json, keeps: Json) -> Case:
    return body(tools=[tool(parameters=breaks)]), body(tools=[tool(parameters=keeps)])


PAIR = (calls("a"), result("a"))

CHAT: dict[str, Case] = {
    "oc.messages.min": ({"model": "m", "messages": []}, body()),
    "oc.roles": (body({"role": "robot", "content": "Hi"}), body({"role": "developer", "content": "Hi"})),
    "oc.tool.name": (body(tools=[tool("no name")]), body(tools=[tool("a-name_1")])),
    "oc.call.name": (body(HI, calls("a", name=""), result("a")), body(HI, *PAIR)),
    "oc.call.id.unique": (body(HI, *PAIR, *PAIR), body(HI, *PAIR, calls("b"), result("b"))),
    "oc.pairing.orphan": (body(HI, result("a")), body(HI, *PAIR)),
    "oc.pairing.unanswered": (
        body(HI, calls("a", "b"), result("a"), HI),
        body(HI, calls("a", "b"), result("b"), result("a"), HI),
    ),
    "oc.content.null": (body(HI, {"role": "assistant", "content": None}, HI), body(HI, *PAIR, HI)),
}

OPENAI: dict[str, Case] = {
    "oc.tools.empty": (body(tools=[]), body()),
    "oc.tools.count": (
        body(tools=[tool(f"t{number}") for number in range(129)]),
        body(tools=[tool(f"t{number}") for number in range(128)]),
    ),
    "oc.tool.description": (
        body(tools=[tool(description="x" * 1_025)], model="gpt-4o"),
        body(tools=[tool(description="x" * 1_025)], model="gpt-5"),
    ),
    "oc.call.id.length": (body(HI, calls("a" * 41), result("a" * 41)), body(HI, calls("a" * 40), result("a" * 40))),
    "oc.content.emptylist": (body({"role": "user", "content": []}), body({"role": "user", "content": [text("Hi")]})),
    "oc.tool.content.parts": (
        body(HI, calls("a"), result("a", [PICTURE])),
        body(HI, calls("a"), result("a", [text("1")]), {"role": "user", "content": [PICTURE]}),
    ),
    "oc.tool_choice.without": (body(tool_choice="auto"), body(tool_choice="auto", tools=[tool()])),
    "oc.parallel.without": (body(parallel_tool_calls=False), body(parallel_tool_calls=False, tools=[tool()])),
    "oc.parallel.oseries": (
        body(model="o3", parallel_tool_calls=False, tools=[tool()]),
        body(model="gpt-5", parallel_tool_calls=False, tools=[tool()]),
    ),
    "oc.max_tokens": (body(model="gpt-5-mini", max_tokens=9), body(model="gpt-5-mini", max_completion_tokens=9)),
    "oc.temperature.reasoning": (
        body(model="gpt-5.2", temperature=0),
        body(model="gpt-5.2", temperature=0, reasoning_effort="none"),
    ),
    "oc.sampling.reasoning": (body(model="o3", top_p=0.5), body(model="gpt-4o", top_p=0.5)),
    "oc.stop.reasoning": (body(model="o3", stop=["x"]), body(model="gpt-5-chat-latest", stop=["x"])),
    "oc.tools.effort54": (
        body(model="gpt-5.4", tools=[tool()], reasoning_effort="low"),
        body(model="gpt-5.4", tools=[tool()], reasoning_effort="none"),
    ),
    "oc.temperature.range": limits("temperature", 2.1, 2),
    "oc.top_p.range": limits("top_p", 1.1, 1),
    "oc.penalties.range": limits("presence_penalty", -3, -2),
    "oc.n.range": limits("n", 0, 1),
    "oc.top_logprobs": (body(top_logprobs=2), body(top_logprobs=2, logprobs=True)),
    "oc.stop.count": limits("stop", ["a", "b", "c", "d", "e"], ["a", "b", "c", "d"]),
    "oc.metadata": limits("metadata", {str(number): "x" for number in range(17)}, {"a": "x"}),
    "oc.safety_identifier": limits("safety_identifier", "x" * 65, "x" * 64),
    "oc.prompt_cache_key": limits("prompt_cache_key", "x" * 65, "x" * 64),
    "oc.stream_options": (
        body(stream_options={"include_usage": True}),
        body(stream_options={"include_usage": True}, stream=True),
    ),
    "oc.json_object.word": (
        body(response_format={"type": "json_object"}),
        body({"role": "user", "content": [text("Answer in JSON.")]}, response_format={"type": "json_object"}),
    ),
    "oc.schema.name": (form(CLOSED, name="no name"), form(CLOSED, name="a_name")),
    "oc.strict.root": schema_of_form({"anyOf": [CLOSED]}, having({"anyOf": [{"type": "string"}, {"type": "null"}]})),
    "oc.strict.keywords": schema_of_form(
        having({"oneOf": [{"type": "string"}]}), having({"type": "string", "pattern": "x", "enum": ["x"]})
    ),
    "oc.strict.ref": schema_of_form(
        having({"$ref": "#/$defs/b", "description": "b"}), {**having({"$ref": "#/$defs/b"}), "$defs": {"b": CLOSED}}
    ),
    "oc.strict.closed": schema_of_form(having(OBJECT), having(CLOSED)),
    "oc.strict.required": schema_of_form({**CLOSED, "required": []}, CLOSED),
    "oc.strict.array": schema_of_form(having({"type": "array"}), having({"type": "array", "items": {"type": "null"}})),
    "oc.strict.type": schema_of_form(having({"description": "x"}), having({"const": 1})),
    "oc.strict.format": schema_of_form(
        having({"type": "string", "format": "uri"}), having({"type": "string", "format": "uuid"})
    ),
    "oc.params.root": schema_of_tool(
        {**OBJECT, "oneOf": [OBJECT]}, {**OBJECT, "properties": {"a": {"oneOf": [OBJECT]}}}
    ),
    "oc.params.items": schema_of_tool(
        {**OBJECT, "properties": {"a": {"type": "array", "prefixItems": [OBJECT]}}},
        {**OBJECT, "properties": {"a": {"type": ["array", "null"], "items": OBJECT}}},
    ),
    "oc.images": (
        body({"role": "user", "content": [PICTURE] * 501}),
        body({"role": "user", "content": [PICTURE] * 500}),
    ),
}

AZURE: dict[str, Case] = {
    "az.strict.size": schema_of_form(having({"type": "string", "pattern": "x"}), having({"type": "string"})),
}

NINE = ("abcdefgh1", "abcdefgh2")


def nine(*more: Json, **given: Json) -> Json:
    """A conversation of Mistral's with a call."""
    return body(HI, calls(NINE[0], **given), result(NINE[0]), *more)


MISTRAL: dict[str, Case] = {
    "mi.unknown": (
        body(HI, {"role": "assistant", "content": "x", "reasoning_content": "y"}, HI),
        body(HI, {"role": "assistant", "content": "x"}, HI),
    ),
    "mi.unknown.top": (body(stream=True, stream_options={"include_usage": True}), body(stream=True, random_seed=1)),
    "mi.roles": (body({"role": "developer", "content": "x"}), body({"role": "system", "content": "x"}, HI)),
    "mi.user.content": (body({"role": "user", "content": None}), body()),
    "mi.temperature": limits("temperature", 1.6, 1.5),
    "mi.tool.name": (body(tools=[tool("a.b")]), body(tools=[tool("a-b")])),
    "mi.tool.schema": schema_of_tool({**OBJECT, "required": None}, OBJECT),
    "mi.call.id": (body(HI, calls("call_1"), result("call_1")), nine()),
    "mi.call.name": (nine(name="a b"), nine(name="a_b")),
    "mi.call.unique": (
        body(HI, calls(NINE[0], NINE[0]), result(NINE[0]), result(NINE[0])),
        body(HI, calls(*NINE), result(NINE[1]), result(NINE[0])),
    ),
    "mi.call.count": (body(HI, calls(*NINE), result(NINE[0])), nine({"role": "assistant", "content": "x"}, HI)),
    "mi.call.known": (body(HI, calls(NINE[0]), result(NINE[1])), nine()),
    "mi.order": (nine(HI), nine({"role": "assistant", "content": "x"}, HI)),
    "mi.last": (
        body(HI, {"role": "assistant", "content": "x"}),
        body(HI, {"role": "assistant", "content": "x", "prefix": True}),
    ),
    "mi.assistant.none": (body(HI, {"role": "assistant", "content": ""}, HI), nine()),
    "mi.tool.content": (
        body(HI, calls(NINE[0]), result(NINE[0], [PICTURE])),
        body(HI, calls(NINE[0]), result(NINE[0], [text("1")])),
    ),
    "mi.images": (
        body({"role": "user", "content": [PICTURE] * 9}),
        body({"role": "user", "content": [PICTURE] * 8}),
    ),
}

DEEPSEEK: dict[str, Case] = {
    "ds.reasoning.required": (
        body(HI, *PAIR, model="deepseek-reasoner"),
        body(HI, calls("a", reasoning_content=""), result("a"), model="deepseek-reasoner"),
    ),
    "ds.format": (form(CLOSED), body(response_format={"type": "json_object"})),
    "ds.max_tokens": limits("max_tokens", 8_193, 8_192, "deepseek-chat"),
    "ds.image": (body({"role": "user", "content": [PICTURE]}), body({"role": "user", "content": [text("x")]})),
    "ds.choice": (
        body(model="deepseek-reasoner", tools=[tool()], tool_choice="required"),
        body(model="deepseek-chat", tools=[tool()], tool_choice="required"),
    ),
}

GROQ: dict[str, Case] = {
    "gr.tools.count": OPENAI["oc.tools.count"],
    "gr.unknown": (
        body(HI, {"role": "assistant", "content": "x", "reasoning_content": "y"}, HI),
        body(HI, {"role": "assistant", "content": "x", "reasoning": "y"}, HI),
    ),
    "gr.json.tools": (form(CLOSED, tools=[tool()]), form(CLOSED)),
    "gr.images": (
        body({"role": "user", "content": [PICTURE] * 6}),
        body({"role": "user", "content": [PICTURE] * 5}),
    ),
}

XAI: dict[str, Case] = {
    "xa.penalties": (body(model="grok-4.5", presence_penalty=0), body(model="grok-3", presence_penalty=0)),
    "xa.stop": (body(model="grok-4", stop=["x"]), body(model="grok-3", stop=["x"])),
    "xa.effort": (body(model="grok-4-latest", reasoning_effort="low"), body(model="grok-4.5", reasoning_effort="low")),
    "xa.content.empty": (body({"role": "user", "content": []}), body({"role": "user", "content": [text("x")]})),
    "xa.tools.count": (
        body(tools=[tool(f"t{number}") for number in range(351)]),
        body(tools=[tool(f"t{number}") for number in range(350)]),
    ),
}

VLLM: dict[str, Case] = {
    "vl.tools.empty": (body(tools=[]), body()),
    "vl.choice.tools": (body(tool_choice="auto"), body(tool_choice="none")),
    "vl.choice.value": (body(tool_choice="any", tools=[tool()]), body(tool_choice="required", tools=[tool()])),
    "vl.stream_options": OPENAI["oc.stream_options"],
    "vl.logprobs": OPENAI["oc.top_logprobs"],
    "vl.format": (body(response_format={"type": "json_schema"}), form(OBJECT)),
    "vl.seed": limits("seed", 2**63, 2**63 - 1),
}
