"""JSON schemas: checked where authors write them, and validators of values that can be stopped.

Some schemas take for ever on a short value: references that lead to two others each, for one, or a regular expression.
So each step of a validator looks at a watch, which activities set.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import cache
from typing import Any, Protocol, cast

from jsonschema import Draft202012Validator, SchemaError, ValidationError, validators
from jsonschema.protocols import Validator
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012, EMPTY_REGISTRY

from perdure.contracts.tools import ToolDeclaration
from perdure.contracts.values import JsonValue, json_objects

MAX_REFERENCES = 5_000
"""Most references that one value is held to, with what each leads to written out."""

MAX_PARTS = 1_000
"""Most parts of the schemas that a request may bring: to look at a schema takes a millisecond for each of its parts."""

_REFERENCES = frozenset({"$ref", "$dynamicRef"})

_OF_THE_SAME_VALUE = frozenset({"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas"})
"""Keywords whose parts a value is held to itself, and not what is in it."""

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
    """Refuse what is no JSON schema, refers to something outside itself, or would take for ever to hold a value to.

    Raises:
        ValueError: It cannot be used; the message is one line.
    """
    try:
        Draft202012Validator.check_schema(value, format_checker=Draft202012Validator.FORMAT_CHECKER)
        _check_references(value)
    except SchemaError as error:
        raise ValueError(f"this is no JSON schema: at {error.json_path}: {error.message}") from error
    except RecursionError:
        raise ValueError("this JSON schema is nested too deeply; use fewer levels") from None


def check_rule(value: dict[str, JsonValue]) -> None:
    """Refuse the schema of a rule that says less than its author thinks: JSON schema passes over unknown words."""
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
    return any(isinstance(node.get("pattern"), str) or "patternProperties" in node for node in json_objects(value))


def count_parts(value: JsonValue) -> int:
    """How many parts of schemas a JSON value may hold: objects, and what stands in lists and objects for one."""
    return sum(1 + sum(isinstance(part, bool) for part in _subschemas_of(node)) for node in json_objects(value))


def _subschemas_of(value: dict[str, JsonValue]) -> Iterator[JsonValue]:
    for part in value.values():
        yield from part if isinstance(part, list) else [part]


def _check_references(schema: dict[str, JsonValue]) -> None:
    """Refuse a reference that leads nowhere, and such as double again and again."""
    resolver = EMPTY_REGISTRY.with_resource("", DRAFT202012.create_resource(schema)).resolver()
    for keyword, reference in _references(schema):
        try:
            resolver.lookup(reference)
        except (Unresolvable, ValueError):  # the latter of a word in place of an item's number
            msg = f"{keyword} {reference!r} leads nowhere in the schema; what it names must stand there, as in $defs"
            raise ValueError(msg) from None
    counted: dict[int, int] = {}
    if max((_count_references(part, resolver, counted) for part in json_objects(schema)), default=0) > MAX_REFERENCES:
        raise ValueError(
            f"its $refs come to more than {MAX_REFERENCES:,} for one value, with what each leads to written out; name "
            "once what allOf, anyOf or oneOf name again and again"
        )


def _count_references(
    part: JsonValue,
    resolver: Any,  # noqa: ANN401 - of `referencing`
    counted: dict[int, int],
) -> int:
    """How many references one value is held to by the part. A circle counts once: no value gets through it."""
    if not isinstance(part, dict):
        return 0
    if id(part) not in counted:
        counted[id(part)] = count = 0
        for keyword, value in part.items():
            if keyword in _REFERENCES and isinstance(value, str):
                found = resolver.lookup(value)
                count += 1 + _count_references(found.contents, found.resolver, counted)
            elif keyword in _OF_THE_SAME_VALUE:
                inner = value if isinstance(value, list) else [value]
                inner = [*value.values()] if keyword == "dependentSchemas" and isinstance(value, dict) else inner
                count += sum(_count_references(subschema, resolver, counted) for subschema in inner)
        counted[id(part)] = min(count, MAX_REFERENCES + 1)
    return counted[id(part)]


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


Keyword = Callable[[Validator, Any, Any, Mapping[str, Any]], Iterator[ValidationError] | None]
"""How jsonschema checks a value by one keyword of a schema."""


class GivenUpError(Exception):
    """A value was not checked to the end; the message says why."""


class Watch(Protocol):
    """What a check looks at."""

    def look(self) -> None:
        """Stop the check if it must."""
        ...

    def is_found(self, pattern: str, text: str) -> bool:
        """Whether a regular expression is found in a text."""
        ...


watch: ContextVar[Watch | None] = ContextVar("watch", default=None)
"""What the checks of this context look at; None stops none, which is for schemas and values that are trusted."""


@cache
def with_watch(kind: type[Validator]) -> type[Validator]:
    """A draft's validator, whose every step looks at the watch."""
    keywords = {name: _look_at_watch(keyword) for name, keyword in kind.VALIDATORS.items()}
    return with_keywords(kind, {**keywords, "pattern": _pattern})


def with_keywords(kind: type[Validator], keywords: Mapping[str, Keyword]) -> type[Validator]:
    """A validator with other keywords, which stay in force in all parts of a schema."""
    made = cast("Any", validators).extend(kind, keywords)
    plain = made.evolve

    def evolve(self: Validator, **changes: Any) -> Validator:  # noqa: ANN401 - as jsonschema has it
        part = cast("Mapping[str, Any] | bool", changes.get("schema", self.schema))
        if not isinstance(part, bool) and "$schema" in part:  # which would choose the plain validator of that draft
            changes["schema"] = {name: value for name, value in part.items() if name != "$schema"}
        return cast("Validator", plain(self, **changes))

    made.evolve = evolve
    return cast("type[Validator]", made)


def _look_at_watch(keyword: Keyword) -> Keyword:
    def check(
        validator: Validator,
        value: Any,  # noqa: ANN401 - any JSON
        instance: Any,  # noqa: ANN401 - any JSON
        schema: Mapping[str, Any],
    ) -> Iterator[ValidationError]:
        if (looked_at := watch.get()) is not None:
            looked_at.look()
        yield from keyword(validator, value, instance, schema) or ()

    return check


def _pattern(
    validator: Validator,
    value: Any,  # noqa: ANN401 - any JSON
    instance: Any,  # noqa: ANN401 - any JSON
    _schema: Mapping[str, Any],
) -> Iterator[ValidationError]:
    looked_at = watch.get()
    if not validator.is_type(instance, "string"):
        return
    if not (re.search(value, instance) if looked_at is None else looked_at.is_found(value, instance)):
        yield ValidationError(f"{instance!r} does not match {value!r}")


Watched = with_watch(Draft202012Validator)
"""The validator of the draft that authors write in."""
