"""Requests of Anthropic's messages: for each rule one that breaks it, and one like it that keeps all rules."""

from typing import Any

Json = Any
Case = tuple[Json, Json]

HI: Json = {"role": "user", "content": "Hi"}
YES: Json = {"role": "assistant", "content": "Yes?"}
OBJECT: Json = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
CLOSED: Json = {**OBJECT, "additionalProperties": False}
MARK: Json = {"type": "ephemeral"}
THOUGHT: Json = {"type": "thinking", "thinking": "hm", "signature": "sig"}
ENABLED: Json = {"type": "enabled", "budget_tokens": 1_024}


def body(*messages: Json, model: str = "claude-haiku-4-5", max_tokens: int = 9, **more: Json) -> Json:
    return {"model": model, "max_tokens": max_tokens, "messages": [*messages] or [HI], **more}


def tool(name: str = "look", schema: Json = OBJECT, **more: Json) -> Json:
    return {"name": name, "description": "Look.", "input_schema": schema, **more}


LOOK: Json = [tool()]


def text(words: str, **more: Json) -> Json:
    return {"type": "text", "text": words, **more}


def use(use_id: str = "a", name: str = "look", **more: Json) -> Json:
    return {"type": "tool_use", "id": use_id, "name": name, "input": {}, **more}


def result(use_id: str = "a", content: Json = "1", **more: Json) -> Json:
    return {"type": "tool_result", "tool_use_id": use_id, "content": content, **more}


def image(kind: str = "image/png", data: str = "iVBORw0KGgo=", **more: Json) -> Json:
    return {"type": "image", "source": {"type": "base64", "media_type": kind, "data": data}, **more}


def user(*blocks: Json) -> Json:
    return {"role": "user", "content": [*blocks]}


def answer(*blocks: Json) -> Json:
    return {"role": "assistant", "content": [*blocks]}


def loop(*blocks: Json, results: Json = (), **more: Json) -> Json:
    """A conversation with an answer of these blocks, and with results."""
    return body(HI, answer(*blocks), user(*(results or [result()])), **{"tools": LOOK, **more})


def limits(name: str, over: Json, within: Json, **more: Json) -> Case:
    return body(**{name: over}, **more), body(**{name: within}, **more)


def schema_of_tool(breaks: Json, keeps: Json, **more: Json) -> Case:
    return body(tools=[tool(schema=breaks, **more)]), body(tools=[tool(schema=keeps, **more)])


def form(schema: Json) -> Json:
    return body(output_config={"format": {"type": "json_schema", "schema": schema}})


def having(part: Json) -> Json:
    """A closed schema with one property."""
    return {**CLOSED, "properties": {"a": part}}


def without(name: str, request: Json) -> Json:
    return {key: value for key, value in request.items() if key != name}


MARKED: Json = [text("x", cache_control=MARK)] * 4

ANTHROPIC: dict[str, Case] = {
    "an.max_tokens.required": (without("max_tokens", body()), body()),
    "an.role.system": (body({"role": "system", "content": "x"}, HI), body(system="x")),
    "an.messages": ({**body(), "messages": []}, body()),
    "an.first.user": (body(YES, HI), body(HI, YES, HI)),
    "an.unknown": (body({**HI, "name": "x"}), body()),
    "an.unknown.text": (body(user(text("x", title="y"))), body(user(text("x", cache_control=MARK)))),
    "an.unknown.use": (loop(use(text="x")), loop(use(cache_control=MARK))),
    "an.unknown.result": (loop(use(), results=[result(name="look")]), loop(use(), results=[result(is_error=True)])),
    "an.unknown.top": (body(seed=1), body(service_tier="auto")),
    "an.tool.name": (body(tools=[tool("a.b")]), body(tools=[tool("x" * 128)])),
    "an.use.name": (loop(use(name="a b")), loop(use(name="gone"))),
    "an.tool.unique": (body(tools=[tool(), tool()]), body(tools=[tool(), tool("other")])),
    "an.tool.root": schema_of_tool({"anyOf": [OBJECT]}, OBJECT),
    "an.tool.keys": schema_of_tool(
        {"type": "object", "properties": {"a b": {}}}, {"type": "object", "properties": {"a.b": {}}}
    ),
    "an.tool.draft": schema_of_tool({**OBJECT, "required": "a"}, OBJECT),
    "an.id.form": (loop(use("a.b"), results=[result("a.b")]), loop(use("a-b"), results=[result("a-b")])),
    "an.id.unique": (
        body(HI, answer(use()), user(result()), answer(use()), user(result()), tools=LOOK),
        body(HI, answer(use()), user(result()), answer(use("b")), user(result("b")), tools=LOOK),
    ),
    "an.pair.orphan": (body(user(result()), tools=LOOK), loop(use())),
    "an.pair.twice": (
        loop(use(), results=[result(), result()]),
        loop(use(), use("b"), results=[result("b"), result()]),
    ),
    "an.pair.unanswered": (loop(use(), results=[text("so"), result()]), loop(use(), results=[result(), text("so")])),
    "an.tools.required": (without("tools", loop(use())), loop(use())),
    "an.tool_choice.without": (body(tool_choice={"type": "auto"}), body(tool_choice={"type": "auto"}, tools=LOOK)),
    "an.text.blank": (body(user(text(" \n"))), loop(use(), results=[result(content="")])),
    "an.content.empty": (body(HI, answer(), HI), body(HI, answer())),
    "an.prefill": (body(HI, YES, model="claude-opus-4-6"), body(HI, YES)),
    "an.prefill.space": (body(HI, {"role": "assistant", "content": "So "}), body(HI, answer(text("So")))),
    "an.thinking.min": (
        body(thinking={**ENABLED, "budget_tokens": 1_023}, max_tokens=2_000),
        body(thinking=ENABLED, max_tokens=2_000),
    ),
    "an.thinking.max": limits("max_tokens", 1_024, 1_025, thinking=ENABLED),
    "an.thinking.enabled.gone": (
        body(thinking=ENABLED, max_tokens=2_000, model="claude-opus-4-8"),
        body(thinking={"type": "adaptive"}, model="claude-opus-4-8"),
    ),
    "an.thinking.adaptive.budget": (
        body(thinking={"type": "adaptive", "budget_tokens": 1_024}),
        body(thinking={"type": "adaptive"}),
    ),
    "an.thinking.temperature": limits("temperature", 0.5, 1, thinking={"type": "adaptive"}),
    "an.thinking.choice": limits(
        "tool_choice", {"type": "any"}, {"type": "auto"}, tools=LOOK, thinking={"type": "adaptive"}
    ),
    "an.thinking.first": (
        loop(use(), thinking=ENABLED, max_tokens=2_000),
        loop(THOUGHT, use(), thinking=ENABLED, max_tokens=2_000),
    ),
    "an.thinking.last": (body(HI, answer(text("x"), THOUGHT), HI), body(HI, answer(THOUGHT, text("x")), HI)),
    "an.thinking.signature": (body(HI, answer(without("signature", THOUGHT), text("x")), HI), loop(THOUGHT, use())),
    "an.temperature.range": limits("temperature", 1.1, 1),
    "an.temperature.gone": (body(top_k=5, model="claude-sonnet-5"), body(temperature=1, model="claude-sonnet-5")),
    "an.temperature.and.top_p": (body(temperature=1, top_p=0.5), body(top_p=0.5)),
    "an.cache.count": (
        body(user(*MARKED), system=MARKED[:1]),
        body(user(*MARKED[1:]), system=MARKED[:1]),
    ),
    "an.cache.ttl": (
        body(user(text("x", cache_control={**MARK, "ttl": "1h"})), system=MARKED[:1]),
        body(user(*MARKED[:1]), system=[text("x", cache_control={**MARK, "ttl": "1h"})]),
    ),
    "an.cache.thinking": (
        body(HI, answer({**THOUGHT, "cache_control": MARK}, text("x")), HI),
        body(HI, answer(THOUGHT, text("x", cache_control=MARK)), HI),
    ),
    "an.image.bytes": (body(user(image(data="A" * 5_242_881))), body(user(image(data="A" * 5_242_880)))),
    "an.image.type": (body(user(image("image/svg+xml"))), body(user(image("image/gif")))),
    "an.image.count": (body(user(*[image()] * 101)), body(user(*[image()] * 100))),
    "an.result.error": (
        loop(use(), results=[result(content=[image()], is_error=True)]),
        loop(use(), results=[result(content=[image()], is_error=False)]),
    ),
    "an.stop.blank": limits("stop_sequences", ["\n"], ["x"]),
    "an.format.bounds": (form(having({"type": "integer", "minimum": 1})), form(having({"type": "integer"}))),
    "an.format.closed": schema_of_tool(OBJECT, CLOSED, strict=True),
    "an.format.ref": (
        form(having({"oneOf": [{"type": "string"}]})),
        form({**having({"$ref": "#/$defs/b"}), "$defs": {"b": CLOSED}}),
    ),
    "an.format.formats": (
        form(having({"type": "string", "format": "binary"})),
        form(having({"type": "string", "format": "uri"})),
    ),
}
