"""Arguments of calls in tags: the values of elements.

These are no XML documents: models leave < and & as they are. There is no parser that could be made to expand anything.
"""

import json
import re
from collections.abc import Mapping

from perdure.contracts.values import JsonValue

_ENTITY = re.compile(r"&(?:(?P<name>lt|gt|amp|quot|apos)|#(?P<decimal>\d{1,7})|#x(?P<hex>[0-9a-fA-F]{1,6}));")
_NAMED = {"lt": "<", "gt": ">", "amp": "&", "quot": '"', "apos": "'"}
_TEXT_ONLY = frozenset({"string"})
_JSON_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}


def unescaped(text: str) -> str:
    """A text with XML's own entities and numbered characters replaced; no others exist, so none can be defined."""
    return _ENTITY.sub(_character, text)


def _character(found: re.Match[str]) -> str:
    if found["name"]:
        return _NAMED[found["name"]]
    number = int(found["decimal"]) if found["decimal"] else int(found["hex"], 16)
    is_one = 0 < number < 0x110000 and not 0xD800 <= number < 0xE000
    return chr(number) if is_one else found[0]


def types_of(schema: Mapping[str, JsonValue], name: str) -> frozenset[str]:
    """The JSON types that an argument may have; none if the schema does not say."""
    properties = schema.get("properties")
    return _types(properties.get(name)) if isinstance(properties, dict) else frozenset()


def _types(schema: JsonValue) -> frozenset[str]:
    if not isinstance(schema, dict):
        return frozenset()
    kind, choices = schema.get("type"), schema.get("anyOf") or schema.get("oneOf")
    if isinstance(kind, str | list):
        return frozenset([kind] if isinstance(kind, str) else map(str, kind))
    if isinstance(choices, list):
        each = [_types(choice) for choice in choices]
        return frozenset(kind for one in each for kind in one) if all(each) else frozenset()
    values = schema.get("enum")
    return frozenset(map(_type, values)) if isinstance(values, list) else frozenset()


def _type(value: JsonValue) -> str:
    return "null" if value is None else _JSON_TYPES[type(value)]


def read_value(text: str, types: frozenset[str]) -> JsonValue:
    """The value of an element: JSON, unless the argument is a text, or is read as one for want of another type."""
    if types != _TEXT_ONLY:
        try:
            value: JsonValue = json.loads(text)
        except (ValueError, RecursionError):
            pass
        else:
            if "string" not in types or _type(value) in types or (_type(value) == "integer" and "number" in types):
                return value
    return _without_frame(text)


def _without_frame(text: str) -> str:
    """A text without the line breaks that set it apart from its tags."""
    head, line_break, rest = text.partition("\n")
    if not line_break or head.strip(" \t"):
        return text
    body, line_break, tail = rest.rpartition("\n")
    return body if line_break and not tail.strip(" \t") else rest
