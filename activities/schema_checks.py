"""Schemas of other people's servers, held to a value without holding up the worker.

A regular expression can take for ever on a short text, and so can references that lead to two others each. What takes
too long is given up, and the value then counts as unchecked: the server that wrote the schema may check it itself.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import cache
from typing import Any, cast

import regex
from jsonschema import Draft202012Validator, ValidationError, validators
from jsonschema.protocols import Validator
from referencing.jsonschema import EMPTY_REGISTRY

from perdure.contracts.values import JsonValue, json_objects
from perdure.engine.approvals import described

CHECK_SECONDS = 0.25
"""So long a value may take; the worker does nothing else meanwhile."""

UNBOUNDED = frozenset({"patternProperties", "unevaluatedProperties", "unevaluatedItems", "$dynamicRef"})
"""Keywords whose work jsonschema does out of our sight; a schema with one of them is not held to anything."""

_Keyword = Callable[[Validator, Any, Any, Mapping[str, Any]], Iterator[ValidationError] | None]

_deadline: ContextVar[float] = ContextVar("deadline")


class GivenUpError(Exception):
    """The value was not checked."""


def problem(schema: dict[str, JsonValue], value: JsonValue) -> str | None:
    """What is wrong with the value, in one phrase without the value.

    Raises:
        GivenUpError: That cannot be said.
    """
    found = first_error(schema, value)
    return None if found is None else described(found)


def first_error(schema: dict[str, JsonValue], value: JsonValue) -> ValidationError | None:
    """The first thing that is wrong with the value.

    Raises:
        GivenUpError: That cannot be said.
    """
    if any(not UNBOUNDED.isdisjoint(part) for part in json_objects(schema)):
        raise GivenUpError
    token = _deadline.set(time.monotonic() + CHECK_SECONDS)
    try:
        kind = _bounded(validators.validator_for(schema, default=Draft202012Validator))
        # With an empty registry, so that nothing is fetched.
        return next(iter(kind(schema, registry=EMPTY_REGISTRY).iter_errors(value)), None)
    except Exception as error:  # whatever a schema that nobody foresaw makes of the value
        raise GivenUpError from error
    finally:
        _deadline.reset(token)


@cache
def _bounded(kind: type[Validator]) -> type[Validator]:
    """The draft's validator, whose every step looks at the clock."""
    keywords = {name: _timed(function) for name, function in kind.VALIDATORS.items()}
    return cast("type[Validator]", cast("Any", validators).extend(kind, {**keywords, "pattern": _timed(_pattern)}))


def _timed(keyword: _Keyword) -> _Keyword:
    def check(
        validator: Validator,
        value: Any,  # noqa: ANN401 - any JSON
        instance: Any,  # noqa: ANN401 - any JSON
        schema: Mapping[str, Any],
    ) -> Iterator[ValidationError]:
        _left()
        yield from keyword(validator, value, instance, schema) or ()

    return check


def _pattern(
    validator: Validator,
    value: Any,  # noqa: ANN401 - any JSON
    instance: Any,  # noqa: ANN401 - any JSON
    _schema: Mapping[str, Any],
) -> Iterator[ValidationError]:
    if validator.is_type(instance, "string") and not regex.search(value, instance, timeout=_left()):
        yield ValidationError(f"a text does not match {value!r}")


def _left() -> float:
    """How long the check may go on."""
    left = _deadline.get() - time.monotonic()
    if left <= 0:
        raise GivenUpError
    return left
