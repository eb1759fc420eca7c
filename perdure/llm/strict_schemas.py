"""Schemas that a provider takes as strict, so that its models can write nothing else.

Any other schema is sent as a hint or stands in the prompt, and perdure checks the answer: a schema that is called
strict and is not of the provider's subset is refused, at each turn.

Source: OpenAI's page "Structured model outputs", section "Supported schemas"; for Azure, Microsoft's page "Structured
outputs"; for Claude, Anthropic's page "Structured outputs" and the schemas that its SDK writes; for Gemini, Google's
page "Structured output".
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

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
    """Keywords and sizes that a provider takes in a strict schema.

    Attributes:
        keywords: The keywords.
        properties: Most properties of all objects.
        levels: Most objects and lists inside each other.
        choices: Most values of all enums and constants.
        optional: Most properties that an object may lack; None if any may.
        unions: Most schemas with ``anyOf`` or several types.
        formats: Formats of texts.
        is_closed: Whether an object has to forbid other properties.
        closes: Whether an object that says nothing of other properties is written as one that forbids them. Pydantic
            passes over what a model writes there.
        recurs: Whether a schema may refer to itself.
    """

    keywords: frozenset[str]
    properties: int = 5_000
    levels: int = 10
    choices: int = 1_000
    optional: int | None = 0
    unions: int = 5_000
    formats: frozenset[str] = _FORMATS
    is_closed: bool = True
    closes: bool = False
    recurs: bool = True


_OPENAI = _Subset(_STRUCTURE | _BOUNDS)
_CLAUDE = _Subset(
    _STRUCTURE | {"default", "format"},
    optional=24,
    unions=16,
    formats=_FORMATS | {"uri"},
    closes=True,
    recurs=False,
)
_GEMINI = _Subset(
    _STRUCTURE - {"const"} | {"format", "maximum", "maxItems", "minimum", "minItems"},
    optional=None,
    formats=frozenset({"date", "date-time", "time"}),
    is_closed=False,
)
_SUBSETS: Mapping[str, _Subset] = {
    "azure": _Subset(_STRUCTURE, properties=100, levels=5, choices=500),
    "anthropic": _CLAUDE,
    "bedrock": _CLAUDE,
    "gemini": _GEMINI,
    "vertex_ai": _GEMINI,
}
"""The subsets by the prefix of a model's name; any other has OpenAI's."""

MOST_CHARACTERS = 120_000
"""Most characters of all names of properties and definitions, and of all values of enums and constants."""


_BOUNDS_OF_VALUES = _BOUNDS | {"maxLength", "minLength", "uniqueItems"}
"""Keywords without which a schema takes what it took, and more."""


_REMARKS = frozenset({"$comment", "default", "deprecated", "examples", "readOnly", "writeOnly"})
"""Keywords for readers, which no value breaks."""


def fit(schema: JsonValue, provider: str = "openai") -> Node | None:
    """The schema as the provider takes it as strict; None if its subset cannot say it.

    What it takes is never less than the schema does. Bounds that the subset has not are told in the description, and
    checked in the answer.

    Args:
        schema: A JSON schema, with its definitions under ``$defs``.
        provider: Prefix of a model's name.
    """
    subset = _SUBSETS.get(provider, _OPENAI)
    if not isinstance(schema, dict):
        return None
    fitted = _rewritten(schema, subset, schema)
    return fitted if isinstance(fitted, dict) and is_strict(fitted, provider) else None


def _rewritten(node: JsonValue, subset: _Subset, root: Node) -> JsonValue:
    """The schema in the words of the subset, as far as it has any."""
    if not isinstance(node, dict):
        return node
    found = dict(node)
    if "$ref" in found and len(found) > 1:  # a description beside it, which no subset takes
        target = _definition(root, found.pop("$ref"))
        if target is None or _recurs(root):
            return node
        return _rewritten({**target, **found}, subset, root)
    if isinstance(found.get("oneOf"), list) and "anyOf" not in found:
        found["anyOf"] = found.pop("oneOf")
    if "anyOf" in found:
        found.pop("discriminator", None)  # a hint for readers
    if "const" in found and "const" not in subset.keywords:
        found["enum"] = [found.pop("const")]
    found = {name: value for name, value in found.items() if name not in _REMARKS - subset.keywords}
    untold = {name: found[name] for name in _untold(found, subset)}
    if untold:
        found = {name: value for name, value in found.items() if name not in untold}
        told = f"({', '.join(f'{name}: {value}' for name, value in untold.items())})"
        found["description"] = f"{found['description']} {told}" if found.get("description") else told
    if subset.closes and "properties" in found:
        found.setdefault("additionalProperties", False)
    for name in ("properties", "$defs"):
        if isinstance(inner := found.get(name), dict):
            found[name] = {key: _rewritten(part, subset, root) for key, part in inner.items()}
    if "items" in found:
        found["items"] = _rewritten(found["items"], subset, root)
    if isinstance(choices := found.get("anyOf"), list):
        found["anyOf"] = [_rewritten(part, subset, root) for part in choices]
    return found


def _untold(node: Node, subset: _Subset) -> Iterator[str]:
    """The bounds of a schema that the subset has no word for."""
    for name in node:
        if name == "format" and "format" in subset.keywords:
            if node["format"] not in subset.formats:
                yield name
        elif name in _BOUNDS_OF_VALUES and name not in subset.keywords:
            yield name


def _definition(root: Node, reference: JsonValue) -> Node | None:
    definitions = root.get("$defs")
    name = str(reference).removeprefix("#/$defs/")
    found = definitions.get(name) if isinstance(definitions, dict) else None
    return found if isinstance(found, dict) else None


def is_strict(schema: JsonValue, provider: str = "openai") -> bool:
    """Whether each keyword of the schema is of the subset that the provider takes as strict."""
    subset = _SUBSETS.get(provider, _OPENAI)
    if not isinstance(schema, dict) or schema.get("type") != "object" or "anyOf" in schema:
        return False
    nodes = list(_nodes(schema, 1))
    if not all(_fits(node, subset) for node, _ in nodes) or (_recurs(schema) and not subset.recurs):
        return False
    sizes = Counter[str]()
    for node, level in nodes:
        sizes["levels"] = max(sizes["levels"], level)
        names, choices = [*_names(node, "properties"), *_names(node, "$defs")], node.get("enum")
        values = [*(choices if isinstance(choices, list) else ()), *([node["const"]] if "const" in node else ())]
        sizes["properties"] += len(_names(node, "properties"))
        sizes["optional"] += len(_names(node, "properties")) - len(_required(node))
        sizes["unions"] += "anyOf" in node or isinstance(node.get("type"), list)
        sizes["choices"] += len(values)
        sizes["characters"] += sum(len(str(text)) for text in (*names, *values))
    return (
        sizes["levels"] <= subset.levels
        and sizes["properties"] <= subset.properties
        and sizes["choices"] <= subset.choices
        and sizes["unions"] <= subset.unions
        and (subset.optional is None or sizes["optional"] <= subset.optional)
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
    if "format" in node and node["format"] not in subset.formats:
        return False
    types = node.get("type")
    kinds = set(map(str, types if isinstance(types, list) else [types]))
    if "array" in kinds and "items" not in node:
        return False
    if "object" not in kinds and "properties" not in node:
        return True
    if node.get("additionalProperties") is not False and (subset.is_closed or "additionalProperties" in node):
        return False
    return _required(node) <= set(_names(node, "properties"))


def _required(node: Node) -> set[str]:
    found = node.get("required")
    return set(map(str, found)) if isinstance(found, list) else set()


def _recurs(schema: Node) -> bool:
    """Whether a definition of the schema refers to itself, or to one that does."""
    definitions = schema.get("$defs")
    refers = {
        f"#/$defs/{name}": {str(node["$ref"]) for node, _ in _nodes(part, 1) if "$ref" in node}
        for name, part in (definitions.items() if isinstance(definitions, dict) else ())
    }
    refers["#"] = {str(node["$ref"]) for node, _ in _nodes(schema, 1) if node.get("$ref") == "#"}
    try:
        TopologicalSorter(refers).prepare()
    except CycleError:
        return True
    return False


def _names(node: Node, keyword: str) -> list[str]:
    found = node.get(keyword)
    return list(found) if isinstance(found, dict) else []
