"""Requests of Gemini's generateContent. Source: Google's reference of its API, and its page on thought signatures.

The results of one answer's calls stand together, since Gemini counts them. A call of another model's goes with the
signature that Google documents for it, which Gemini 3 and later want with the first call of each answer.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from perdure.activities.models.encoders import Asked, effort_in, read_arguments, read_data, schema_in
from perdure.activities.models.encoders.messages import BUDGETS
from perdure.activities.models.provider_replies import Object
from perdure.activities.models.wires.reply import to_list, to_object, to_objects, to_text
from perdure.contracts.values import JsonValue, json_object
from perdure.llm.openai_format import WireMessage

FOREIGN = "skip_thought_signature_validator"
"""Signature of a call that Gemini has not made itself."""

_NAMES: Mapping[str, str] = {
    "top_p": "topP",
    "top_k": "topK",
    "max_tokens": "maxOutputTokens",
    "max_completion_tokens": "maxOutputTokens",
    "stop": "stopSequences",
    "presence_penalty": "presencePenalty",
    "frequency_penalty": "frequencyPenalty",
}

_BESIDE: Mapping[str, str] = {"safety_settings": "safetySettings", "labels": "labels"}
"""Settings of a request, and not of its model."""

_LEFT_OUT = frozenset({"parallel_tool_calls", "user"})
"""Settings of OpenAI's that it has nothing for."""

_MODES: Mapping[str, str] = {"auto": "AUTO", "required": "ANY", "none": "NONE"}

_VERSION = re.compile(r"gemini-(?P<major>\d+)")


def encode(asked: Asked) -> Object:
    """The body of a request; its path says which model is asked, and whether for a stream."""
    body: Object = {"contents": cast("JsonValue", list(_contents(asked)))}
    system = [message for message in asked.messages if message.get("role") == "system"]
    if system:
        body["systemInstruction"] = {"parts": [part for message in system for part in _parts(message.get("content"))]}
    settings = {name: value for name, value in asked.settings.items() if name not in _LEFT_OUT}
    choice = settings.pop("tool_choice", None)
    if asked.tools:
        functions = [_declaration(to_object(tool.get("function"))) for tool in asked.tools]
        body["tools"] = [{"functionDeclarations": functions}]
        if choice is not None:
            body["toolConfig"] = {"functionCallingConfig": _chosen(choice)}
    if isinstance(settings.get("stop"), str):
        settings["stop"] = [settings["stop"]]
    body |= {own: settings.pop(name) for name, own in _BESIDE.items() if name in settings}
    thinking = _thinking(asked.model, settings)
    config: Object = {_NAMES.get(name, name): value for name, value in settings.items()}
    if thinking:
        config["thinkingConfig"] = thinking
    if asked.output is not None and asked.output.get("type") != "text":
        config["responseMimeType"] = "application/json"
    if (schema := schema_in(asked.output)) is not None:
        config["responseJsonSchema"] = schema.get("schema")
    if config:
        body["generationConfig"] = config
    return body


def _thinking(model: str, settings: Object) -> Object:
    """The settings of thinking, taken out of the author's; empty if those do not say how much the model is to think.

    Gemini 3 and later have levels, and those before a number of tokens; the Pro models cannot be kept from thinking.
    """
    effort, own = effort_in(settings.pop("reasoning_effort", None)), to_object(settings.pop("thinking", None))
    if not effort and not own:
        return {}
    if own.get("type") == "disabled":
        effort = "none"
    shows = {"includeThoughts": effort != "none"}
    if _version_of(model) >= _LEVELS:
        level = _LEVELS_OF_EFFORTS.get(effort, "high" if own else effort)
        return {"thinkingLevel": level, **shows}
    if budget := own.get("budget_tokens"):
        return {"thinkingBudget": budget, **shows}
    if effort == "none":
        return {"thinkingBudget": LEAST_OF_PRO if "pro" in model else 0, **shows}
    return {"thinkingBudget": BUDGETS.get(effort, BUDGETS["medium"]), **shows}


def _version_of(model: str) -> int:
    found = _VERSION.search(model)
    return int(found["major"]) if found is not None else 0


LEAST_OF_PRO = 128
"""Least tokens of thinking of Gemini 2.5 Pro."""

_LEVELS = 3
"""First version of Gemini with levels of thinking."""

_LEVELS_OF_EFFORTS: Mapping[str, str] = {
    "none": "low",
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "high",
    "max": "high",
}
"""Levels of every model; Flash alone has more of them."""


def _declaration(function: Object) -> JsonValue:
    """A function, with its JSON schema as it is."""
    told: Object = {"name": function.get("name"), "description": function.get("description") or ""}
    return {**told, "parametersJsonSchema": function.get("parameters") or {"type": "object", "properties": {}}}


def _chosen(choice: JsonValue) -> JsonValue:
    name = to_object(to_object(choice).get("function")).get("name")
    if name:
        return {"mode": "ANY", "allowedFunctionNames": [name]}
    said = to_text(choice) or to_text(to_object(choice).get("type"))
    return {"mode": _MODES.get(said, said)}


def _contents(asked: Asked) -> Iterator[Object]:
    """The conversation; results in a row are one content."""
    wants_signatures = _version_of(asked.model) >= 3
    names: dict[object, JsonValue] = {}
    results: list[JsonValue] = []
    for message in asked.messages:
        role = message.get("role")
        if results and role != "tool":
            yield {"role": "user", "parts": results}
            results = []
        if role == "tool":
            results.append(_result(message, names.get(message.get("tool_call_id"))))
        elif role == "assistant":
            names |= {call.get("id"): to_object(call.get("function")).get("name") for call in _calls(message)}
            yield {"role": "model", "parts": list(_answer(message, wants_signatures=wants_signatures))}
        elif role != "system":
            yield {"role": "user", "parts": _parts(message.get("content"))}
    if results:
        yield {"role": "user", "parts": results}


def _calls(message: WireMessage) -> Sequence[Object]:
    return to_objects(message.get("tool_calls"))


def _result(message: WireMessage, name: JsonValue) -> JsonValue:
    """The result of a call, as an object of its own if it is one."""
    content = message.get("content")
    text = to_text(content) or "".join(to_text(part.get("text")) for part in to_objects(to_list(content)))
    try:
        response: JsonValue = json_object(text)
    except ValueError:
        response = {"output": text}
    return {"functionResponse": {"name": name or "", "response": response}}


def _answer(message: WireMessage, *, wants_signatures: bool) -> Iterator[JsonValue]:
    """The parts of an answer, with their signatures."""
    of_text = to_object(message.get("provider_specific_fields")).get("thought_signatures")
    signature = next((each for each in of_text if isinstance(each, str)), "") if isinstance(of_text, list) else ""
    texts = _parts(message.get("content"))
    for number, part in enumerate(texts, start=1):
        is_signed = signature and number == len(texts)
        yield {**to_object(part), "thoughtSignature": signature} if is_signed else part
    calls = _calls(message)
    signed = [to_text(to_object(call.get("provider_specific_fields")).get("thought_signature")) for call in calls]
    for number, (call, of_call) in enumerate(zip(calls, signed, strict=True)):
        function = to_object(call.get("function"))
        part = {
            "functionCall": {"name": function.get("name"), "args": read_arguments(to_text(function.get("arguments")))}
        }
        is_foreign = wants_signatures and number == 0 and not any(signed)
        own = FOREIGN if is_foreign else of_call
        yield cast("JsonValue", {**part, "thoughtSignature": own} if own else part)


def _parts(content: JsonValue) -> list[JsonValue]:
    """Texts, pictures and files of a content."""
    if isinstance(content, str):
        return [{"text": content}] if content else []
    return [_part(block) for block in to_objects(content)]


def _part(block: Object) -> JsonValue:
    match block.get("type"):
        case "image_url":
            return _media(to_text(to_object(block.get("image_url")).get("url")))
        case "file":
            return _media(to_text(to_object(block.get("file")).get("file_data")))
        case _:
            return {"text": to_text(block.get("text"))}


def _media(url: str) -> JsonValue:
    if (data := read_data(url)) is not None:
        return {"inlineData": {"mimeType": data[0], "data": data[1]}}
    return {"fileData": {"fileUri": url}}
