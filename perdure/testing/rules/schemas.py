"""Dialects of JSON schema: which keywords a provider takes in the schemas of tools and answers, and what each needs.

A rule file says a dialect by what it forbids (``forbid``, ``forbid_root``), allows (``allow``, ``formats``) or needs.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice

from jsonschema import Draft202012Validator, SchemaError

from perdure.contracts.values import JsonValue
from perdure.testing.rules.checks import Holds
from perdure.testing.rules.paths import Place

Schema = dict[str, JsonValue]

_HOLDS_SCHEMAS: Mapping[str, str] = {
    **dict.fromkeys(("properties", "$defs", "definitions", "patternProperties"), "named"),
    **dict.fromkeys(("anyOf", "oneOf", "allOf", "prefixItems"), "listed"),
    **dict.fromkeys(("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames"), "one"),
}
"""Keywords whose value holds schemas, and whether by name, in a list, or as it is."""


def nodes(schema: JsonValue) -> Iterator[tuple[Place, Schema]]:
    """Each schema within a schema, itself first, with its place."""
    ahead: list[tuple[Place, JsonValue]] = [((), schema)]
    for place, node in ahead:
        if not isinstance(node, dict):
            continue
        yield place, node
        for keyword, held in node.items():
            kind = _HOLDS_SCHEMAS.get(keyword)
            if kind is None:
                continue
            if kind == "named" and isinstance(held, dict):
                ahead.extend(((*place, keyword, name), part) for name, part in held.items())
            elif kind == "listed" and isinstance(held, list):
                ahead.extend(((*place, keyword, number), part) for number, part in enumerate(held))
            elif kind == "one":
                ahead.append(((*place, keyword), held))


def _is(node: Schema, kind: str) -> bool:
    said = node.get("type")
    return said == kind or (isinstance(said, list) and kind in said)


def _root_object(place: Place, node: Schema) -> str | None:
    return None if place or _is(node, "object") else f"got type {node.get('type')!r}"


def _root_without_alternatives(place: Place, node: Schema) -> str | None:
    return "anyOf" if not place and "anyOf" in node else None


def _closed(_: Place, node: Schema) -> str | None:
    is_open = _is(node, "object") and node.get("additionalProperties") is not False
    return "'additionalProperties' is required to be supplied and to be false" if is_open else None


def _all_required(_: Place, node: Schema) -> str | None:
    properties, required = node.get("properties"), node.get("required")
    names = properties if isinstance(properties, dict) else {}
    missing = [name for name in names if not isinstance(required, list) or name not in required]
    return f"'required' must include every key in properties. Missing '{missing[0]}'" if missing else None


def _items(_: Place, node: Schema) -> str | None:
    return "array schema missing items" if _is(node, "array") and "items" not in node else None


def _type(_: Place, node: Schema) -> str | None:
    says = node.keys() & {"type", "anyOf", "oneOf", "allOf", "$ref", "enum", "const"}
    return None if says else "schema must have a 'type' key"


def _type_or_alternatives(_: Place, node: Schema) -> str | None:
    says = node.keys() & {"type", "anyOf", "oneOf", "allOf"}
    return None if says else "type: must be specified when not using one_of, any_of or all_of fields"


def _ref_alone(_: Place, node: Schema) -> str | None:
    beside = sorted(node.keys() - {"$ref", "$defs", "definitions"}) if "$ref" in node else []
    return f"$ref cannot have keywords {beside}" if beside else None


def _text_enums(_: Place, node: Schema) -> str | None:
    values = node.get("enum")
    is_text = not isinstance(values, list) or (
        all(isinstance(value, str) and value for value in values)
        and str(node.get("type", "string")).lower() == "string"
    )
    return None if is_text else "enum: only allowed for STRING type"


def _properties(_: Place, node: Schema) -> str | None:
    is_empty = str(node.get("type")).lower() == "object" and not node.get("properties")
    return "properties: should be non-empty for OBJECT type" if is_empty else None


def _known_required(_: Place, node: Schema) -> str | None:
    properties, required = node.get("properties"), node.get("required")
    names = properties if isinstance(properties, dict) else {}
    strange = [name for name in required if name not in names] if isinstance(required, list) else []
    return f"required[0]: property is not defined: {strange[0]}" if strange else None


def _not_recursive(place: Place, node: Schema) -> str | None:
    target = node.get("$ref")
    inside = "/".join(("#", *map(str, place)))
    is_recursive = isinstance(target, str) and (target == "#" or inside.startswith(f"{target}/"))
    return "recursive $ref" if is_recursive else None


def _in_the_metaschema(place: Place, node: Schema) -> str | None:
    return None if place else _error_of(json.dumps(node))


@lru_cache(maxsize=1_000)
def _error_of(schema: str) -> str | None:
    """The error of a schema that is none. To check one takes milliseconds, and a turn has the same ones each time."""
    try:
        Draft202012Validator.check_schema(json.loads(schema))
    except SchemaError as error:
        return error.message
    return None


_NEEDS: Mapping[str, Callable[[Place, Schema], str | None]] = {
    "root object": _root_object,
    "no anyOf at the root": _root_without_alternatives,
    "closed objects": _closed,
    "all required": _all_required,
    "items": _items,
    "type": _type,
    "type or anyOf": _type_or_alternatives,
    "$ref alone": _ref_alone,
    "enums of texts": _text_enums,
    "properties": _properties,
    "required is known": _known_required,
    "no recursion": _not_recursive,
    "draft 2020-12": _in_the_metaschema,
}


_OF_ROOT = frozenset({"root object", "no anyOf at the root", "draft 2020-12"})
"""Needs of the outermost schema alone."""


def dialect(said: Mapping[str, Sequence[str]]) -> Holds:
    """The check of a schema that a rule file describes."""
    forbidden, at_root = frozenset(said.get("forbid", ())), frozenset(said.get("forbid_root", ()))
    allowed, formats = frozenset(said.get("allow", ())), frozenset(said.get("formats", ()))
    needs = [_NEEDS[name] for name in said.get("need", ())]

    def wrong(place: Place, node: Schema) -> str | None:
        banned = node.keys() & (forbidden if place else forbidden | at_root)
        if banned:
            return f"'{min(banned)}' is not permitted"
        if allowed and node.keys() - allowed:
            return f'Unknown name "{min(node.keys() - allowed)}"'
        if formats and isinstance(node.get("format"), str) and node["format"] not in formats:
            return f"'{node['format']}' is not a valid format"
        return next(filter(None, (need(place, node) for need in needs)), None)

    is_of_root = not forbidden and not allowed and not formats and _OF_ROOT.issuperset(said.get("need", ()))

    def check(schema: JsonValue) -> str | None:
        for place, node in islice(nodes(schema), 1 if is_of_root else None):
            said_of = wrong(place, node)
            if said_of is not None:
                return f"In context={place}, {said_of}"
        return None

    return check
