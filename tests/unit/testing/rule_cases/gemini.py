"""Requests of Gemini's generateContent: for each rule one that breaks it, and one like it that keeps all rules."""

from typing import Any

Json = Any
Case = tuple[Json, Json]

OBJECT: Json = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}


def user(*parts: Json) -> Json:
    return {"role": "user", "parts": [*parts]}


def answer(*parts: Json) -> Json:
    return {"role": "model", "parts": [*parts]}


def text(words: str) -> Json:
    return {"text": words}


HI = user(text("Hi"))


def called(name: str = "look", args: Json = None, **more: Json) -> Json:
    return {"functionCall": {"name": name, "args": {} if args is None else args}, **more}


def responded(name: str = "look", response: Json = None) -> Json:
    return {"functionResponse": {"name": name, "response": {"output": "1"} if response is None else response}}


def body(*contents: Json, model: str = "", **more: Json) -> Json:
    asked = {"contents": [*contents] or [HI], **more}
    return {**asked, "model": model} if model else asked


def declared(*names: str, **more: Json) -> Json:
    return [{"functionDeclarations": [{"name": name, "description": "Look.", **more} for name in names]}]


def schema(breaks: Json, keeps: Json) -> Case:
    return body(tools=declared("look", parameters=breaks)), body(tools=declared("look", parameters=keeps))


def having(part: Json) -> Json:
    """A schema with one property."""
    return {"type": "object", "properties": {"a": part}}


def config(breaks: Json, keeps: Json, **more: Json) -> Case:
    return body(generationConfig=breaks, **more), body(generationConfig=keeps, **more)


def thinks(breaks: Json, keeps: Json, model: str = "") -> Case:
    return config({"thinkingConfig": breaks}, {"thinkingConfig": keeps}, model=model)


def picture(kind: str = "image/png", data: str = "iVBORw0KGgo=") -> Json:
    return {"inlineData": {"mimeType": kind, "data": data}}


MEGABYTE = "A" * 1_048_576

GEMINI: dict[str, Case] = {
    "ge.proto.unknown": (body(temperature=1), body(generationConfig={"temperature": 1})),
    "ge.proto.content": (body({**HI, "name": "x"}), body()),
    "ge.proto.config": config({"max_tokens": 9}, {"max_output_tokens": 9}),
    "ge.proto.declaration": (body(tools=declared("look", strict=True)), body(tools=declared("look"))),
    "ge.proto.schema": schema({**OBJECT, "additionalProperties": False}, {**OBJECT, "max_properties": 2}),
    "ge.part.one": (body(user({"text": "x", **picture()})), body(user(text("x"), picture()))),
    "ge.parts.empty": (body(user()), body()),
    "ge.role": (body(HI, {**answer(text("x")), "role": "assistant"}, HI), body(HI, answer(text("x")), HI)),
    "ge.args.object": (
        body(HI, answer(called(args=[])), user(responded())),
        body(HI, answer(called()), user(responded())),
    ),
    "ge.tool.name": (body(tools=declared("1st")), body(tools=declared("_a.b:c-d"))),
    "ge.tool.unique": (body(tools=declared("look", "look")), body(tools=declared("look", "see"))),
    "ge.pair.count": (
        body(HI, answer(called(), called()), user(responded())),
        body(HI, answer(called(), called()), user(responded(), responded())),
    ),
    "ge.pair.response": (body(HI, answer(text("x")), user(responded())), body(HI, answer(called()), user(responded()))),
    "ge.pair.call": (body(answer(called()), user(responded())), body(HI, answer(called()), user(responded()))),
    "ge.last.user": (body(HI, answer(text("x"))), body(HI, answer(text("x")), HI)),
    "ge.signature": (
        body(HI, answer(called()), user(responded()), model="gemini-3-pro"),
        body(
            HI,
            answer(called(thoughtSignature="c2ln"), called()),
            user(responded(), responded()),
            model="gemini-3-pro",
        ),
    ),
    "ge.tools.mime": config(
        {"responseMimeType": "application/json"},
        {"responseMimeType": "text/plain"},
        tools=declared("look"),
        model="gemini-2.5-flash",
    ),
    "ge.thinking.zero": thinks({"thinkingBudget": 0}, {"thinkingBudget": 128}, "gemini-2.5-pro"),
    "ge.thinking.level": thinks({"thinkingLevel": "low"}, {"thinkingBudget": 128}, "gemini-2.5-pro"),
    "ge.thinking.both": thinks({"thinkingLevel": "low", "thinkingBudget": 128}, {"thinkingLevel": "low"}),
    "ge.inline.type": (body(user(picture("image/gif"))), body(user(picture()))),
    "ge.inline": (body(user(*[picture(data=MEGABYTE)] * 101)), body(user(*[picture(data=MEGABYTE)] * 100))),
    "ge.cached": (
        body(cachedContent="cachedContents/a", systemInstruction=user(text("x"))),
        body(systemInstruction=user(text("x"))),
    ),
    "ge.schema.type": schema(having({"description": "x"}), having({"anyOf": [{"type": "string"}]})),
    "ge.schema.items": schema(having({"type": "array"}), having({"type": "array", "items": {"type": "string"}})),
    "ge.schema.object": schema({"type": "object", "properties": {}}, OBJECT),
    "ge.schema.enum": schema(having({"type": "integer", "enum": [1]}), having({"type": "string", "enum": ["a"]})),
    "ge.schema.required": schema({**OBJECT, "required": ["b"]}, OBJECT),
}
