"""Schemas that OpenAI takes as strict, so that its models can write nothing else.

Any other schema is sent as a hint, and perdure checks the answer: a schema that is called strict and is not of the
subset is refused, at each turn.

Source: OpenAI's page "Structured model outputs", section "Supported schemas"; for Azure, Microsoft's page "Structured
outputs".
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from perdure.contracts.values import JsonValue

Node = dict[str, JsonValue]

_STRUCTURE = frozenset(
    {
        *("$defs", "$ref", "additionalProperties", "anyOf", "const", "description", "enum", "items", "properties"),
        *("required", "title", "type"),
    }
)
_BOUNDS = frozenset(
    {
        *("exclusiveMaximum", "exclusiveMinimum", "format", "maximum", "maxItems", "minimum", "minItems"),
        *("multipleOf", "pattern"),
    }
)
_FORMATS = frozenset({"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uuid"})


@dataclass(frozen=True)
class _Subset:
    """Keywords and sizes that a provider takes in a strict schema."""

    keywords: frozenset[str]
    properties: int
    levels: int
    choices: int


_OPENAI = _Subset(_STRUCTURE | _BOUNDS, properties=5_000, levels=10, choices=1_000)
_AZURE = _Subset(_STRUCTURE, properties=100, levels=5, choices=500)

MOST_CHARACTERS = 120_000
"""Most characters of all names of properties and definitions, and of all values of enums and constants."""


def is_strict(schema: JsonValue, provider: str = "openai") -> bool:
    """Whether each keyword of the schema is of the subset that the provider takes as strict."""
    subset = _AZURE if provider == "azure" else _OPENAI
    if not isinstance(schema, dict) or schema.get("type") != "object" or "anyOf" in schema:
        return False
    nodes = list(_nodes(schema, 1))
    if not all(_fits(node, subset) for node, _ in nodes):
        return False
    sizes = Counter[str]()
    for node, level in nodes:
        sizes["levels"] = max(sizes["levels"], level)
        names, choices = [*_names(node, "properties"), *_names(node, "$defs")], node.get("enum")
        values = [*(choices if isinstance(choices, list) else ()), *([node["const"]] if "const" in node else ())]
        sizes["properties"] += len(_names(node, "properties"))
        sizes["choices"] += len(values)
        sizes["characters"] += sum(len(str(text)) for text in (*names, *values))
    return (
        sizes["levels"] <= subset.levels
        and sizes["properties"] <= subset.properties
        and sizes["choices"] <= subset.choices
        and sizes["characters"] <= MOST_CHARACTERS
    )


def _nodes(node: JsonValue, level: int) -> Iterator[tuple[Node, int]]:
    """Every schema in a schema, with the number of objects and lists that it stands in, its own included.

    Anything else, such as ``true``, counts as an empty one, which no subset takes.
    """
    if not isinstance(node, dict):
        yield {}, level
        return
    yield node, level
    for name in ("properties", "$defs"):
        inner = node.get(name)
        for part in inner.values() if isinstance(inner, dict) else ():
            yield from _nodes(part, level + 1 if name == "properties" else level)
    if "items" in node:
        yield from _nodes(node["items"], level + 1)
    choices = node.get("anyOf")
    for part in choices if isinstance(choices, list) else ():
        yield from _nodes(part, level)


def _fits(node: Node, subset: _Subset) -> bool:
    if "$ref" in node:
        return node.keys() == {"$ref"}
    if not node.keys() <= subset.keywords or not node.keys() & {"type", "anyOf", "enum", "const"}:
        return False
    if "format" in node and node["format"] not in _FORMATS:
        return False
    types = node.get("type")
    kinds = set(map(str, types if isinstance(types, list) else [types]))
    if "array" in kinds and "items" not in node:
        return False
    if "object" not in kinds and "properties" not in node:
        return True
    required = node.get("required", [])
    is_closed = node.get("additionalProperties") is False
    return is_closed and isinstance(required, list) and set(map(str, required)) == set(_names(node, "properties"))


def _names(node: Node, keyword: str) -> list[str]:
    found = node.get(keyword)
    return list(found) if isinstance(found, dict) else []
