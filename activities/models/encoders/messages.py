"""Requests of Anthropic's messages. Source: Anthropic's reference of its API, and its pages on tools and thinking.

Results of tools stand in the message of the user behind the calls, and messages of one side are one message. Thinking
goes back where it stood. A conversation with calls is refused without tools, so that those of old calls are named.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import cast

from perdure.activities.models.encoders import Asked, effort_in, read_arguments, read_data, schema_in
from perdure.activities.models.provider_replies import Object
from perdure.activities.models.reasoning import PLACES
from perdure.activities.models.wires.reply import to_object, to_objects, to_text
from perdure.contracts.values import JsonValue
from perdure.llm.openai_format import WireMessage

BUDGETS = {"minimal": 1_024, "low": 1_024, "medium": 2_048, "high": 4_096, "xhigh": 8_192, "max": 16_384}
"""Tokens of thinking by effort, for the models before those that think as much as they want (those of litellm)."""

LEAST_BUDGET = 1_024
"""Least tokens of thinking that Anthropic takes."""

BEFORE_THE_FIRST = "."
"""Text of a message before an answer that begins a conversation; Anthropic wants the user to begin."""

_EFFORTS = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "xhigh", "max": "max"}


def encode(asked: Asked) -> Object:
    """The body of a request."""
    body: Object = {
        "model": asked.model,
        "messages": cast("JsonValue", _joined(_messages(asked.messages))),
        **_settings(asked),
    }
    system = [
        block for message in asked.messages if message.get("role") == "system" for block in _blocks(message["content"])
    ]
    if system:
        body["system"] = cast("JsonValue", system)
    if asked.tools:
        body["tools"] = [cast("JsonValue", _tool(to_object(tool.get("function")))) for tool in asked.tools]
    elif gone := names_of_calls(asked.messages):
        body["tools"] = [_GONE | {"name": name} for name in gone]
        body["tool_choice"] = {"type": "none"}
    if asked.streams:
        body["stream"] = True
    if to_object(body.get("thinking")).get("type") == "enabled" and _began_without_thinking(body["messages"]):
        del body["thinking"]
    return body


def _began_without_thinking(messages: JsonValue) -> bool:
    """Whether the calls that have their results now came without thinking, so that Anthropic refuses to enable it.

    They are another model's, or of an answer before thinking was asked for. It is enabled again behind the next answer.
    """
    contents: list[list[Object]] = [to_objects(message.get("content")) for message in to_objects(messages)]
    has_results = any(block.get("type") == "tool_result" for said in contents[-1:] for block in said)
    first = [to_text(block.get("type")) for answered in contents[-2:-1] for block in answered[:1]]
    return has_results and not any(kind.endswith("thinking") for kind in first)


_GONE: Object = {"description": "Not there any more.", "input_schema": {"type": "object", "properties": {}}}


def names_of_calls(messages: Iterable[WireMessage]) -> list[str]:
    """The tools that a conversation has calls of, each once."""
    calls = (call for message in messages for call in to_objects(message.get("tool_calls")))
    return list(dict.fromkeys(to_text(to_object(call.get("function")).get("name")) for call in calls))


def _settings(asked: Asked) -> Object:
    """The author's settings under Anthropic's names."""
    settings = dict(asked.settings)
    ceilings = [settings.pop(name, None) for name in ("max_tokens", "max_completion_tokens")]
    most = next((most for most in ceilings if most is not None), asked.most_tokens)
    named: Object = {"max_tokens": most}
    stop = settings.pop("stop", None)
    if stop is not None:
        named["stop_sequences"] = [stop] if isinstance(stop, str) else stop
    user = settings.pop("user", None)
    if user is not None:
        named["metadata"] = {"user_id": user}
    if effort := effort_in(settings.pop("reasoning_effort", None)):
        named |= think(effort, most, thinks_as_needed=asked.thinks_as_needed)
    if (schema := schema_in(asked.output)) is not None:
        form = {"type": "json_schema", "schema": schema.get("schema")}
        own = to_object(settings.pop("output_config", None))
        named["output_config"] = {**to_object(named.get("output_config")), "format": form, **own}
    choice = choose(settings.pop("tool_choice", None), settings.pop("parallel_tool_calls", None))
    if choice and asked.tools:
        named["tool_choice"] = choice
    return {**named, **settings}


def think(effort: str, most: JsonValue, *, thinks_as_needed: bool) -> Object:
    """Anthropic's settings of an effort; none of one that the model cannot have within its ceiling.

    Args:
        effort: OpenAI's word.
        most: Longest answer in tokens.
        thinks_as_needed: Whether the model decides itself how much it thinks.
    """
    if effort == "none":
        return {}
    if thinks_as_needed:
        thinking: Object = {"type": "adaptive", "display": "summarized"}
        return {"thinking": thinking, "output_config": {"effort": _EFFORTS.get(effort, effort)}}
    budget = BUDGETS.get(effort, BUDGETS["medium"])
    if isinstance(most, int) and budget >= most:
        budget = most - 1
    return {"thinking": {"type": "enabled", "budget_tokens": budget}} if budget >= LEAST_BUDGET else {}


def choose(choice: JsonValue, parallel: JsonValue) -> Object:
    """The choice of tools; empty if the author says nothing about it."""
    given = to_object(choice)
    name = to_object(given.get("function")).get("name")
    said = to_text(choice) or to_text(given.get("type"))
    made: Object = {"type": "tool", "name": name} if name else {"type": {"required": "any"}.get(said, said)}
    if parallel is None or made["type"] == "none":
        return made if made["type"] else {}
    return {**made, "type": made["type"] or "auto", "disable_parallel_tool_use": not parallel}


def _tool(function: Object) -> Object:
    fields = {name: function[name] for name in ("name", "description", "cache_control") if function.get(name)}
    return {**fields, "input_schema": function.get("parameters") or {"type": "object", "properties": {}}}


def _messages(messages: Sequence[WireMessage]) -> Iterator[tuple[str, list[Object]]]:
    """Each message but the system's, as its side and its blocks."""
    for message in messages:
        match message.get("role"):
            case "system":
                continue
            case "assistant":
                yield "assistant", list(_answer(message))
            case "tool":
                yield "user", [_result(message)]
            case _:
                yield "user", _blocks(message.get("content"))


def _joined(messages: Iterable[tuple[str, list[Object]]]) -> list[Object]:
    """The messages, with those of one side that follow each other as one, and the user's first."""
    sent: list[tuple[str, list[Object]]] = []
    for role, blocks in messages:
        if not sent and role == "assistant":
            sent.append(("user", [{"type": "text", "text": BEFORE_THE_FIRST}]))
        if sent and sent[-1][0] == role:
            sent[-1][1].extend(blocks)
        else:
            sent.append((role, blocks))
    return [{"role": role, "content": cast("JsonValue", blocks)} for role, blocks in sent]


def _result(message: WireMessage) -> Object:
    content = message.get("content")
    marked = {"cache_control": message["cache_control"]} if message.get("cache_control") else {}
    given = content if isinstance(content, str) else cast("JsonValue", _blocks(content))
    return {"type": "tool_result", "tool_use_id": message.get("tool_call_id"), "content": given, **marked}


def _answer(message: WireMessage) -> Iterator[Object]:
    """The blocks of an answer, with its thinking where it stood."""
    for kind, block in with_thinking(message, cast("list[JsonValue]", _blocks(message.get("content")))):
        if kind != "call":
            yield to_object(block)
            continue
        call = to_object(block)
        function = to_object(call.get("function"))
        given = read_arguments(to_text(function.get("arguments")))
        yield {"type": "tool_use", "id": call.get("id"), "name": function.get("name"), "input": given}


def with_thinking(message: WireMessage, contents: Sequence[JsonValue]) -> Iterator[tuple[str, JsonValue]]:
    """The parts of an answer in their order: each with its kind, which is ``thinking``, ``content`` or ``call``."""
    thinking = to_objects(message.get("thinking_blocks"))
    given = message.get(PLACES)
    places = given if isinstance(given, list) else [0] * len(thinking)
    placed = [*zip(thinking, places, strict=False)]
    calls = to_objects(message.get("tool_calls"))
    yield from (("thinking", block) for block, place in placed if not place)
    yield from (("content", block) for block in contents)
    for number, call in enumerate(calls, start=1):
        yield "call", call
        yield from (("thinking", block) for block, place in placed if place == number)
    yield from (("thinking", block) for block, place in placed if isinstance(place, int) and place > len(calls))


def _blocks(content: JsonValue) -> list[Object]:
    """Texts, pictures and files of a content."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return [_block(block) for block in to_objects(content)]


def _block(block: Object) -> Object:
    match block.get("type"):
        case "image_url":
            source = _source(to_text(to_object(block.get("image_url")).get("url")))
            return {"type": "image", "source": source}
        case "file":
            file = to_object(block.get("file"))
            title = {"title": file["filename"]} if file.get("filename") else {}
            return {"type": "document", "source": _source(to_text(file.get("file_data"))), **title}
        case _:
            return block


def _source(url: str) -> Object:
    if (data := read_data(url)) is not None:
        return {"type": "base64", "media_type": data[0], "data": data[1]}
    return {"type": "url", "url": url}
