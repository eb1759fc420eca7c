"""Requests of Bedrock's Converse: for each rule one that breaks it, and one like it that keeps all rules."""

from typing import Any

Json = Any
Case = tuple[Json, Json]

OBJECT: Json = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}


def user(*blocks: Json) -> Json:
    return {"role": "user", "content": [*blocks]}


def answer(*blocks: Json) -> Json:
    return {"role": "assistant", "content": [*blocks]}


def text(words: str) -> Json:
    return {"text": words}


HI, YES = user(text("Hi")), answer(text("Yes?"))


def use(use_id: str = "a", name: str = "look", given: Json = None) -> Json:
    return {"toolUse": {"toolUseId": use_id, "name": name, "input": {} if given is None else given}}


def result(use_id: str = "a") -> Json:
    return {"toolResult": {"toolUseId": use_id, "content": [text("1")]}}


def tools(*names: str, schema: Json = OBJECT, **more: Json) -> Json:
    return {"tools": [{"toolSpec": {"name": name, "inputSchema": {"json": schema}}} for name in names], **more}


def body(*messages: Json, model: str = "", **more: Json) -> Json:
    asked = {"messages": [*messages] or [HI], **more}
    return {**asked, "modelId": model} if model else asked


def loop(*blocks: Json, results: Json = (), **more: Json) -> Json:
    """A conversation with an answer of these blocks, and with results."""
    return body(HI, answer(*blocks), user(*(results or [result()])), **{"toolConfig": tools("look"), **more})


def image(kind: str = "png") -> Json:
    return {"image": {"format": kind, "source": {"bytes": "iVBORw0KGgo="}}}


def document(name: str = "a b", kind: str = "pdf") -> Json:
    return {"document": {"format": kind, "name": name, "source": {"bytes": "iVBORw0KGgo="}}}


CLAUDE = "anthropic.claude-sonnet-4-5-20250929-v1:0"
THINKS: Json = {"thinking": {"type": "enabled", "budget_tokens": 1_024}}

BEDROCK: dict[str, Case] = {
    "bc.unknown": (body(temperature=1), body(inferenceConfig={"temperature": 1})),
    "bc.first": (body(YES, HI), body(HI, YES, HI)),
    "bc.alternate": (body(HI, HI), body(HI, YES, HI)),
    "bc.union": (body(user({**text("x"), **image()})), body(user(text("x"), image()))),
    "bc.tool.name": (body(toolConfig=tools("a.b")), body(toolConfig=tools("a-b"))),
    "bc.tool.id": (loop(use("a" * 65), results=[result("a" * 65)]), loop(use("a.b:c"), results=[result("a.b:c")])),
    "bc.tools.min": (body(toolConfig=tools()), body(toolConfig=tools("look"))),
    "bc.toolconfig": (body(HI, answer(use()), user(result())), loop(use())),
    "bc.choice": (
        body(toolConfig=tools("look", toolChoice={"none": {}})),
        body(toolConfig=tools("look", toolChoice={"auto": {}})),
    ),
    "bc.pair.more": (loop(text("x")), loop(use(), use("b"), results=[result("b"), result()])),
    "bc.pair.missing": (loop(use(), use("b")), loop(use(), results=[result(), text("so")])),
    "bc.text.blank": (body(user(text(" "))), body(user(text("x ")))),
    "bc.image.format": (body(user(image("svg"))), body(user(image("webp")))),
    "bc.image.limits": (body(user(*[image()] * 21)), body(user(*[image()] * 20))),
    "bc.doc.count": (
        body(user(text("x"), *(document(f"d {number}") for number in range(6)))),
        body(user(text("x"), *(document(f"d {number}") for number in range(5)))),
    ),
    "bc.doc.name": (body(user(text("x"), document("a_b.pdf"))), body(user(text("x"), document("a (b) [c]-1")))),
    "bc.doc.unique": (body(user(text("x"), document(), document())), body(user(text("x"), document(), document("c")))),
    "bc.doc.format": (body(user(text("x"), document(kind="json"))), body(user(text("x"), document(kind="md")))),
    "bc.inference": (body(inferenceConfig={"maxTokens": 0}), body(inferenceConfig={"maxTokens": 1})),
    "bc.sampling": (body(inferenceConfig={"temperature": 1.1}), body(inferenceConfig={"temperature": 1})),
    "bc.input.object": (loop(use(given=[])), loop(use())),
    "bc.thinking.max": (
        body(inferenceConfig={"maxTokens": 1_024}, additionalModelRequestFields=THINKS, model=CLAUDE),
        body(inferenceConfig={"maxTokens": 1_025}, additionalModelRequestFields=THINKS, model=CLAUDE),
    ),
    "bc.thinking.choice": (
        body(toolConfig=tools("look", toolChoice={"any": {}}), additionalModelRequestFields=THINKS, model=CLAUDE),
        body(toolConfig=tools("look", toolChoice={"auto": {}}), additionalModelRequestFields=THINKS, model=CLAUDE),
    ),
    "bc.tool.keys": (
        body(toolConfig=tools("look", schema={"type": "object", "properties": {"a b": {}}}), model=CLAUDE),
        body(toolConfig=tools("look"), model=CLAUDE),
    ),
}
