"""JSON schemas: checked where authors write them, and validators of values that can be stopped.

Some schemas take for ever on a short value: references that lead to two others each, for one, or a regular expression.
So each step of a validator looks at a watch, which activities set.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from functools import cache
from typing import Any, Protocol, cast

from jsonschema import Draft202012Validator, FormatChecker, SchemaError, ValidationError, validators
from jsonschema.protocols import Validator
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012, EMPTY_REGISTRY

from perdure.contracts.conditions import check_expression, check_length, count_wide_sets
from perdure.contracts.tools import ToolDeclaration
from perdure.contracts.values import JsonValue, json_objects

MAX_REFERENCES = 5_000
"""Most references that one value is held to, with what each leads to written out."""

MAX_PARTS = 1_000
"""Most parts of the schemas that a request may bring: to look at a schema takes a millisecond for each of its parts."""

MOST_SETS = 50
"""Most sets of characters beyond Latin-1 in the expressions of a request: to compile one takes ten milliseconds."""

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


_UNREAD = FormatChecker(set(Draft202012Validator.FORMAT_CHECKER.checkers) - {"regex"})
"""The formats of a schema's own parts, without that of expressions: to read a stranger's can fail or take long."""


def check_schema(value: dict[str, JsonValue], *, expressions: bool = True) -> None:
    """Refuse a value that is not a JSON schema, refers outside itself, or would take for ever to check by.

    Args:
        value: What may be a schema.
        expressions: Whether its regular expressions have to be Python's; else nothing looks at them.

    Raises:
        ValueError: It cannot be used; the message is one line.
    """
    kind: type[Validator] = Draft202012Validator if expressions else draft_of(value)
    formats = Draft202012Validator.FORMAT_CHECKER if expressions else _UNREAD
    try:
        cast("Any", kind).check_schema(value, format_checker=formats)
        _check_references(value)
    except SchemaError as error:
        raise ValueError(f"this is no JSON schema: at {error.json_path}: {error.message}") from error
    except RecursionError:
        raise ValueError("this JSON schema is nested too deeply; use fewer levels") from None


def draft_of(schema: dict[str, JsonValue]) -> type[Validator]:
    """The validator of the draft that a schema says it is written in; of 2020-12 if it says none that is known."""
    named = schema.get("$schema")
    known = {"$schema": named} if isinstance(named, str) else {}
    return validators.validator_for(known, default=Draft202012Validator)


def root_of(schema: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """The schema that a root which is a ``$ref`` leads to; the schema itself if it is none. It was checked before."""
    resolver = EMPTY_REGISTRY.with_resource("", DRAFT202012.create_resource(schema)).resolver()
    root: JsonValue = schema
    seen: set[str] = set()
    while isinstance(root, dict) and isinstance(reference := root.get("$ref"), str) and "type" not in root:
        if reference in seen:
            return {}
        seen.add(reference)
        found = resolver.lookup(reference)
        root, resolver = cast("JsonValue", found.contents), found.resolver
    return root if isinstance(root, dict) else {}


def check_rule(value: dict[str, JsonValue]) -> None:
    """Refuse the schema of a rule that says less than its author thinks: JSON schema passes over unknown words."""
    check_schema(value)
    found = max(_STRICT.iter_errors(value), key=lambda error: len(error.path), default=None)
    if found is not None:
        hint = "; a rule is written as {'properties': {'amount': {'maximum': 20}}}"
        msg = f"nothing would be checked by a part of this rule: at {found.json_path}: {found.message}{hint}"
        raise ValueError(msg)


def unknown_arguments(schema: dict[str, JsonValue], tool: ToolDeclaration) -> set[str]:
    """Names in a rule's schema that are not arguments of the tool; nothing if the tool does not say what it takes."""
    taken = tool.parameters.get("properties")
    if not isinstance(taken, dict) or not taken:
        return set()
    properties, required = schema.get("properties"), schema.get("required")
    named = [*(properties if isinstance(properties, dict) else ()), *(required if isinstance(required, list) else ())]
    return {str(name) for name in named} - taken.keys()


def check_expressions(value: JsonValue) -> None:
    """Refuse schemas of a request with a regular expression that would cost too much to read, or is none of Python's.

    Parts that only look like keywords count too, for a ``$ref`` can make a schema of any part.

    Raises:
        ValueError: There is one; the message is one line.
    """
    for expression in _expressions_in(value):
        check_length(expression)
        check_expression(expression)


def _expressions_in(value: JsonValue) -> Iterator[str]:
    for node in json_objects(value):
        named, pattern = node.get("patternProperties"), node.get("pattern")
        if isinstance(named, dict):
            yield from named
        if isinstance(pattern, str):
            yield pattern


def check_size(schemas: Iterable[JsonValue]) -> None:
    """Refuse schemas of a request that would take long to look at.

    Raises:
        ValueError: They would; the message is one line.
    """
    schemas = tuple(schemas)
    if sum(map(count_parts, schemas)) > MAX_PARTS:
        msg = f"a request may have schemas of {MAX_PARTS:,} parts at most; write shorter ones"
        raise ValueError(msg)
    if sum(count_wide_sets(expression) for schema in schemas for expression in _expressions_in(schema)) > MOST_SETS:
        msg = f"the expressions of a request may have {MOST_SETS} sets […] with characters beyond Latin-1; use fewer"
        raise ValueError(msg)


def count_parts(value: JsonValue) -> int:
    """Count the parts of schemas that a JSON value may hold: objects, and what stands in lists and objects for one."""
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
    """Count the references that one value is held to by the part. A circle counts once: no value gets through it."""
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
"""Function by which jsonschema checks a value against one keyword of a schema."""


class GivenUpError(Exception):
    """A value was not checked to the end; the message says why."""


class Watch(Protocol):
    """Watcher of a running check."""

    def look(self) -> None:
        """Stop the check if it must."""
        ...

    def is_found(self, pattern: str, text: str) -> bool:
        """Whether a regular expression is found in a text."""
        ...


watch: ContextVar[Watch | None] = ContextVar("watch", default=None)
"""Watcher of the checks of this context; None stops none, which is for schemas and values that are trusted."""


@cache
def with_watch(kind: type[Validator]) -> type[Validator]:
    """A draft's validator, whose every step looks at the watch."""
    own: dict[str, Keyword] = {"pattern": _pattern, "patternProperties": _pattern_properties}
    if "additionalProperties" in kind.VALIDATORS:
        own["additionalProperties"] = _additional_properties(kind.VALIDATORS["additionalProperties"])
    return with_keywords(kind, {name: _look_at_watch(keyword) for name, keyword in {**kind.VALIDATORS, **own}.items()})


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


def _is_found(pattern: str, text: str) -> bool:
    looked_at = watch.get()
    return re.search(pattern, text) is not None if looked_at is None else looked_at.is_found(pattern, text)


def _pattern(
    validator: Validator,
    value: Any,  # noqa: ANN401 - any JSON
    instance: Any,  # noqa: ANN401 - any JSON
    _schema: Mapping[str, Any],
) -> Iterator[ValidationError]:
    if validator.is_type(instance, "string") and not _is_found(value, instance):
        yield ValidationError(f"{instance!r} does not match {value!r}")


def _pattern_properties(
    validator: Validator,
    value: Any,  # noqa: ANN401 - any JSON
    instance: Any,  # noqa: ANN401 - any JSON
    _schema: Mapping[str, Any],
) -> Iterator[ValidationError]:
    if not validator.is_type(instance, "object"):
        return
    for pattern, subschema in value.items():
        for name, inner in instance.items():
            if _is_found(pattern, name):
                yield from cast("Any", validator).descend(inner, subschema, path=name, schema_path=pattern)


def _additional_properties(plain: Keyword) -> Keyword:
    """The keyword, which leaves to it only what no ``patternProperties`` beside it are about."""

    def check(
        validator: Validator,
        value: Any,  # noqa: ANN401 - any JSON
        instance: Any,  # noqa: ANN401 - any JSON
        schema: Mapping[str, Any],
    ) -> Iterator[ValidationError]:
        patterns = schema.get("patternProperties")
        if patterns and validator.is_type(instance, "object"):
            properties = schema.get("properties", {})
            instance = {
                name: inner
                for name, inner in instance.items()
                if name in properties or not any(_is_found(pattern, name) for pattern in patterns)
            }
            schema = {name: part for name, part in schema.items() if name != "patternProperties"}
        yield from plain(validator, value, instance, schema) or ()

    return check


Watched = with_watch(Draft202012Validator)
"""The validator of the draft that authors write in."""
