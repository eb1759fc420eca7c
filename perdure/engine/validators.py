"""Validators of JSON schemas that can be stopped: each of their steps looks at a watch, which activities set.

Some schemas take for ever on a short value: references that lead to two others each, for one, or a regular expression.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import cache
from typing import Any, Protocol, cast

from jsonschema import Draft202012Validator, ValidationError, validators
from jsonschema.protocols import Validator

Keyword = Callable[[Validator, Any, Any, Mapping[str, Any]], Iterator[ValidationError] | None]
"""How jsonschema checks a value by one keyword of a schema."""


class GivenUpError(Exception):
    """A value was not checked to the end; the message says why."""


class Watch(Protocol):
    """What a check looks at."""

    def look(self) -> None:
        """Stop the check if it must.

        Raises:
            GivenUpError: It must stop.
        """
        ...

    def finds(self, pattern: str, text: str) -> bool:
        """Whether a regular expression is found in a text.

        Raises:
            GivenUpError: The search must stop.
        """
        ...


watch: ContextVar[Watch | None] = ContextVar("watch", default=None)
"""What the checks of this context look at; None stops none, which is for schemas and values that are trusted."""


@cache
def watched(kind: type[Validator]) -> type[Validator]:
    """A draft's validator, whose every step looks at the watch."""
    keywords = {name: _looking(keyword) for name, keyword in kind.VALIDATORS.items()}
    return extended(kind, {**keywords, "pattern": _pattern})


def extended(kind: type[Validator], keywords: Mapping[str, Keyword]) -> type[Validator]:
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


def _looking(keyword: Keyword) -> Keyword:
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
    if not (re.search(value, instance) if looked_at is None else looked_at.finds(value, instance)):
        yield ValidationError(f"{instance!r} does not match {value!r}")


Watched = watched(Draft202012Validator)
"""The validator of the draft that authors write in."""
