"""A JSON schema in a form that every provider takes: valid by draft 2020-12, an object at the root, plain names.

Providers refuse the whole request for one keyword. What a form cannot say is left out of it, so it allows more than its
original: arguments are checked against the original.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import cast

from perdure.contracts.conditions import read_expression
from perdure.contracts.values import JsonValue, to_json_line

Schema = dict[str, JsonValue]

LONGEST_PROPERTY = 64
"""Longest name of a property, in characters. Source: Anthropic's ``^[a-zA-Z0-9_.-]{1,64}$``."""

DEEPEST = 40
"""Levels of a schema that are shown."""

_ODD = re.compile(r"[^a-zA-Z0-9_.-]")
_TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
_COMBINATORS = ("anyOf", "oneOf", "allOf")
_CONDITIONS = ("if", "then", "else", "not", "const", "enum", "dependentRequired", "dependentSchemas", "dependencies")
_DEFINITIONS = ("$defs", "definitions")


def shown_names(names: Iterable[str]) -> dict[str, str]:
    """The names of one object's properties in characters that providers take, by their own names."""
    own = list(names)
    taken = {name for name in own if _is_plain(name)}
    shown: dict[str, str] = {}
    for name in own:
        plain = name if _is_plain(name) else _ODD.sub("_", name)[:LONGEST_PROPERTY] or "_"
        if plain != name and (plain in taken or len(name) > LONGEST_PROPERTY):
            digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:8]
            plain = f"{plain[: LONGEST_PROPERTY - 9]}_{digest}"
        taken.add(plain)
        shown[name] = plain
    return shown


def _is_plain(name: str) -> bool:
    return 0 < len(name) <= LONGEST_PROPERTY and not _ODD.search(name)


def as_object(schema: Schema) -> Schema:
    """The schema of a tool's arguments with the properties of all its branches, under their own names."""
    return _Merge(schema).of(schema)


def root_form(schema: Schema) -> tuple[Schema, str]:
    """The schema of a tool's arguments as providers take it, and what it does not say; the latter may be empty."""
    merged = as_object(schema)
    shown = _form({**merged, "type": "object"}, schema, 0)
    shown.setdefault("properties", {})
    left_out: Schema = {word: schema[word] for word in (*_COMBINATORS, *_CONDITIONS) if word in schema}
    return shown, to_json_line(_renamed(left_out, shown_names(_properties(merged)), 0)) if left_out else ""


def _renamed(value: JsonValue, names: Mapping[str, str], depth: int) -> JsonValue:
    """The value with the properties' names as they are shown."""
    if isinstance(value, str):
        return names.get(value, value)
    if isinstance(value, list) and depth <= DEEPEST:
        return [_renamed(inner, names, depth + 1) for inner in value]
    if isinstance(value, dict) and depth <= DEEPEST:
        return {names.get(name, name): _renamed(inner, names, depth + 1) for name, inner in value.items()}
    return value


class _Merge:
    """Merges schemas with branches into one object each; every schema once, however often it is referred to."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._merged: dict[int, Schema] = {}

    def of(self, schema: Schema) -> Schema:
        """The schema without branches: it has the properties of all of them, and demands what all demand."""
        if (known := self._merged.get(id(schema))) is not None:
            return known
        words = [word for word in (*_COMBINATORS, *_CONDITIONS, "$ref") if word in schema]
        if not words:
            return schema
        self._merged[id(schema)] = {}  # what a schema within it that refers to it adds: nothing
        plain = {word: value for word, value in schema.items() if word not in words}
        found = {name: [inner] for name, inner in _properties(plain).items()}
        required = _required(plain)
        for word in words:
            parts = [self.of(part) for part in _branches(schema, word, self._root)]
            for name, inner in (pair for part in parts for pair in _properties(part).items()):
                if inner not in found.setdefault(name, []):
                    found[name].append(inner)
            if parts and word in {*_COMBINATORS, "$ref"}:  # what all branches demand together
                first, *others = (set(_required(part)) for part in parts)
                required += sorted(first.intersection(*others) if word in {"anyOf", "oneOf"} else first.union(*others))
        if plain.get("additionalProperties") is False:
            del plain["additionalProperties"]
        plain["properties"] = {
            name: inners[0] if len(inners) == 1 else {"anyOf": inners} for name, inners in found.items()
        }
        merged: Schema = {**plain, "required": list(dict.fromkeys(required))}
        self._merged[id(schema)] = merged
        return merged


def _branches(schema: Schema, word: str, root: Schema) -> Iterator[Schema]:
    value = schema[word]
    if word == "$ref":
        value = resolve(value, root)
    parts: list[JsonValue] = []
    if word in _COMBINATORS:
        parts = value if isinstance(value, list) else []
    elif word in {"dependentSchemas", "dependencies"}:
        parts = list(value.values()) if isinstance(value, dict) else []
    elif word in {"$ref", "if", "then", "else"}:
        parts = [value]
    yield from (part for part in parts if isinstance(part, dict))


def resolve(reference: JsonValue, root: Schema) -> JsonValue:
    """Resolve a reference within the schema; None if it leads nowhere."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    place: JsonValue = root
    for step in reference.removeprefix("#").split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(place, dict):
            place = place.get(name)
        elif isinstance(place, list) and name.isdecimal() and int(name) < len(place):
            place = place[int(name)]
        else:
            return None
    return place


def _properties(schema: Mapping[str, JsonValue]) -> Schema:
    found = schema.get("properties")
    return found if isinstance(found, dict) else {}


def _required(schema: Mapping[str, JsonValue]) -> list[str]:
    found = schema.get("required")
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []


def _form(schema: JsonValue, root: Schema, depth: int) -> Schema:
    """The schema without what providers refuse anywhere in it."""
    if not isinstance(schema, dict) or depth > DEEPEST:
        return {}
    shown: Schema = {}
    for word, value in schema.items():
        reader = _READERS.get(word, _leave_out if word in _FORBIDDEN else _as_it_is)
        kept = reader(value, root, depth + 1)
        if kept is not None or reader is _as_it_is:
            shown[word] = kept
    names = shown_names(_properties(schema))
    if "properties" in shown:
        shown["properties"] = {names[name]: inner for name, inner in _properties(shown).items()}
    if "required" in shown:
        listed = dict.fromkeys(names.get(name, name) for name in _required(shown))
        shown["required"] = [name for name in listed if name in _properties(shown)]
    # What draft 4 says in another way, and items for each array.
    for bound, strict in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if schema.get(strict) is True and bound in shown:
            shown[strict] = shown.pop(bound)
    kind = shown.get("type")
    if (kind == "array" or (isinstance(kind, list) and "array" in kind)) and "items" not in shown:
        shown["items"] = {}
    return shown


Reader = Callable[[JsonValue, Schema, int], JsonValue | None]
"""Reads the value of a keyword within a schema at a depth; None leaves the keyword out."""


def _as_it_is(value: JsonValue, *_: object) -> JsonValue | None:
    return value


def _leave_out(*_: object) -> JsonValue | None:
    return None


def _schemas_by_name(value: JsonValue, root: Schema, depth: int) -> JsonValue | None:
    if not isinstance(value, dict):
        return None
    return {name: _form(inner, root, depth) for name, inner in value.items() if isinstance(inner, dict | bool)}


def _schemas_by_pattern(value: JsonValue, root: Schema, depth: int) -> JsonValue | None:
    named = _schemas_by_name(value, root, depth)
    if not isinstance(named, dict):
        return None
    return {pattern: inner for pattern, inner in named.items() if _expression(pattern, root, depth) is not None}


def _list_of_schemas(value: JsonValue, root: Schema, depth: int) -> JsonValue | None:
    listed = value if isinstance(value, list) else []
    forms = [_form(inner, root, depth) for inner in listed if isinstance(inner, dict | bool)]
    return cast("JsonValue", forms) if forms else None


def _one_schema(value: JsonValue, root: Schema, depth: int) -> JsonValue | None:
    return _form(value, root, depth) if isinstance(value, dict) else {} if value is True else None


def _items(value: JsonValue, root: Schema, depth: int) -> JsonValue | None:
    if not isinstance(value, list):
        return _one_schema(value, root, depth)
    choices = _list_of_schemas(value, root, depth)  # draft 4 writes a tuple so
    return {"anyOf": choices} if choices else {}


def _schema_or_flag(value: JsonValue, root: Schema, depth: int) -> JsonValue | None:
    return value if isinstance(value, bool) else _one_schema(value, root, depth)


def _reference(value: JsonValue, root: Schema, depth: int) -> JsonValue | None:
    del depth
    places = tuple(f"#/{word}/" for word in _DEFINITIONS)
    is_known = value == "#" or (isinstance(value, str) and value.startswith(places) and value.count("/") == 2)
    return value if is_known and isinstance(resolve(value, root), dict) else None


def _type(value: JsonValue, root: Schema, depth: int) -> JsonValue | None:
    del root, depth
    if isinstance(value, list):
        kinds = list(dict.fromkeys(kind for kind in value if isinstance(kind, str) and kind in _TYPES))
        return cast("JsonValue", kinds) if kinds else None
    return value if isinstance(value, str) and value in _TYPES else None


def _choices(value: JsonValue, root: Schema, depth: int) -> JsonValue | None:
    del root, depth
    if not isinstance(value, list):
        return None
    unique = {to_json_line(choice): choice for choice in value}
    return list(unique.values()) or None


def _list(value: JsonValue, *_: object) -> JsonValue | None:
    return value if isinstance(value, list) else None


def _strings(value: JsonValue, root: Schema, depth: int) -> JsonValue | None:
    del root, depth
    return [name for name in value if isinstance(name, str)] if isinstance(value, list) else None


def _if(kind: type | tuple[type, ...], *, least: float | None = None) -> Reader:
    def read(value: JsonValue, root: Schema, depth: int) -> JsonValue | None:
        del root, depth
        fits = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
        return value if fits and (least is None or cast("float", value) >= least) else None

    return read


def _expression(value: JsonValue, root: Schema, depth: int) -> JsonValue | None:
    del root, depth
    if not isinstance(value, str):
        return None
    try:
        read_expression(value)
    except ValueError:
        return None
    return value


_READERS: dict[str, Reader] = {
    **dict.fromkeys(("properties", *_DEFINITIONS), _schemas_by_name),
    "patternProperties": _schemas_by_pattern,
    **dict.fromkeys((*_COMBINATORS, "prefixItems"), _list_of_schemas),
    **dict.fromkeys(("not", "contains", "propertyNames", "if", "then", "else"), _one_schema),
    "items": _items,
    **dict.fromkeys(("additionalProperties", "unevaluatedProperties", "unevaluatedItems"), _schema_or_flag),
    "$ref": _reference,
    "type": _type,
    "enum": _choices,
    "required": _strings,
    "examples": _list,
    "pattern": _expression,
    **dict.fromkeys(
        ("title", "description", "format", "$comment", "$schema", "contentEncoding", "contentMediaType"), _if(str)
    ),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _if((int, float))),
    "multipleOf": _if((int, float), least=1e-300),
    **dict.fromkeys(
        (
            "minLength",
            "maxLength",
            "minItems",
            "maxItems",
            "minProperties",
            "maxProperties",
            "minContains",
            "maxContains",
        ),
        _if(int, least=0),
    ),
    **dict.fromkeys(("uniqueItems", "deprecated", "readOnly", "writeOnly"), _if(bool)),
}

_FORBIDDEN = frozenset(
    {
        *("$id", "id", "$anchor", "$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor", "$vocabulary"),
        *("dependentRequired", "dependentSchemas", "dependencies", "additionalItems", "contentSchema"),
    }
)
"""Keywords that are left out: they point elsewhere, or no provider reads them."""
