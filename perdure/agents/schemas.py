"""JSON schemas that authors write, checked where they are written."""

from collections.abc import Iterator

from jsonschema import Draft202012Validator, SchemaError
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012, EMPTY_REGISTRY

from perdure.contracts.tools import ToolDeclaration
from perdure.contracts.values import JsonValue, json_objects

_REFERENCES = frozenset({"$ref", "$dynamicRef"})

_META = "https://json-schema.org/draft/2020-12/schema"

_STRICT = Draft202012Validator(
    {
        "$schema": _META,
        "$id": "perdure:rule",
        "$dynamicAnchor": "meta",
        "$ref": _META,
        "properties": {"format": {"enum": sorted(Draft202012Validator.FORMAT_CHECKER.checkers)}},
        "unevaluatedProperties": False,
    }
)
"""JSON schema without room for misspelt keywords, and with those formats only that are checked."""


def check_schema(value: dict[str, JsonValue]) -> None:
    """Refuse what is no JSON schema, or refers to something outside itself.

    Raises:
        ValueError: It cannot be used; the message is one line.
    """
    try:
        Draft202012Validator.check_schema(value, format_checker=Draft202012Validator.FORMAT_CHECKER)
    except SchemaError as error:
        msg = f"this is no JSON schema: at {error.json_path}: {error.message}"
        raise ValueError(msg) from error
    resolver = EMPTY_REGISTRY.with_resource("", DRAFT202012.create_resource(value)).resolver()
    for keyword, reference in _references(value):
        try:
            resolver.lookup(reference)
        except (Unresolvable, ValueError):  # the latter of a word in place of an item's number
            msg = f"{keyword} {reference!r} leads nowhere in the schema; what it names must stand there, as in $defs"
            raise ValueError(msg) from None


def check_rule(value: dict[str, JsonValue]) -> None:
    """Refuse the schema of a rule that says less than its author thinks: JSON schema passes over unknown words.

    Raises:
        ValueError: It cannot be used; the message is one line.
    """
    check_schema(value)
    found = max(_STRICT.iter_errors(value), key=lambda error: len(error.path), default=None)
    if found is not None:
        hint = "; a rule is written as {'properties': {'amount': {'maximum': 20}}}"
        msg = f"nothing would be checked by a part of this rule: at {found.json_path}: {found.message}{hint}"
        raise ValueError(msg)


def unknown_arguments(schema: dict[str, JsonValue], tool: ToolDeclaration) -> set[str]:
    """What a rule's schema names and is no argument of the tool; nothing if the tool does not say what it takes."""
    taken = tool.parameters.get("properties")
    if not isinstance(taken, dict) or not taken:
        return set()
    properties, required = schema.get("properties"), schema.get("required")
    named = [*(properties if isinstance(properties, dict) else ()), *(required if isinstance(required, list) else ())]
    return {str(name) for name in named} - taken.keys()


def has_expressions(value: JsonValue) -> bool:
    """Whether regular expressions may stand in a schema: some take for ever on a short text.

    Parts that only look like keywords count too, for a ``$ref`` can make a schema of any part.
    """
    return any(isinstance(one.get("pattern"), str) or "patternProperties" in one for one in json_objects(value))


def _references(schema: JsonValue) -> Iterator[tuple[str, str]]:
    """Every reference of a schema, with its keyword."""
    if isinstance(schema, list):
        for part in schema:
            yield from _references(part)
    elif isinstance(schema, dict):
        for name, part in schema.items():
            if name in _REFERENCES and isinstance(part, str):
                yield name, part
            else:
                yield from _references(part)
