"""Checks that rules are made of: a row of a rule file says one by its name, with its limit.

Checks of single values stand in ``OF_VALUES``, checks of all values of a path together in ``OF_ALL``, and those that no
data can say are functions, in ``perdure.testing.rules.conversations`` and ``perdure.testing.rules.schemas``.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perdure.contracts.values import JsonValue
from perdure.testing.rules.paths import Body, Match, Place


@dataclass(frozen=True)
class Breach:
    """A place that breaks a rule; ``what`` is the value, or what is wrong with it, as the provider tells it."""

    place: Place
    what: str = ""


Holds = Callable[[JsonValue], str | None]
"""A check of a value: None if it holds, and otherwise what the provider tells of the value."""

_TYPES: Mapping[str, type[Any]] = {"object": dict, "text": str, "list": list, "number": int}


def _pattern(limit: str) -> Holds:
    fits = re.compile(limit).fullmatch
    return lambda value: None if isinstance(value, str) and fits(value) else _said(value)


def _forbidden(limit: bool | Sequence[JsonValue]) -> Holds:
    if isinstance(limit, bool):
        return _said
    return lambda value: _said(value) if value in limit else None


def _one_of(limit: Sequence[JsonValue]) -> Holds:
    return lambda value: None if value in limit else _said(value)


def _most(limit: float) -> Holds:
    return lambda value: _said(value) if _is_number(value) and value > limit else None  # type: ignore[operator]


def _least(limit: float) -> Holds:
    return lambda value: _said(value) if _is_number(value) and value < limit else None  # type: ignore[operator]


def _most_items(limit: int) -> Holds:
    return lambda value: str(len(value)) if isinstance(value, list | dict) and len(value) > limit else None


def _least_items(limit: int) -> Holds:
    return lambda value: str(len(value)) if isinstance(value, list | dict) and len(value) < limit else None


def _most_characters(limit: int) -> Holds:
    return lambda value: str(len(value)) if isinstance(value, str) and len(value) > limit else None


def _not_blank(_: bool) -> Holds:
    return lambda value: "" if isinstance(value, str) and not value.strip() else None


def _contains(limit: str) -> Holds:
    found = re.compile(limit).search
    return lambda value: None if not isinstance(value, str) or found(value) else _said(value)


def _type(limit: str) -> Holds:
    kind = _TYPES[limit]
    return lambda value: None if isinstance(value, kind) else _said(value)


def _only(limit: Sequence[str]) -> Holds:
    known = frozenset(limit)
    return lambda value: None if not isinstance(value, dict) or value.keys() <= known else min(value.keys() - known)


def _required(limit: Sequence[str]) -> Holds:
    wanted = frozenset(limit)
    return lambda value: None if not isinstance(value, dict) or wanted <= value.keys() else min(wanted - value.keys())


def _any_of(limit: Sequence[str]) -> Holds:
    return lambda value: None if not isinstance(value, dict) or any(map(value.get, limit)) else ", ".join(limit)


def _one_key_of(limit: Sequence[str]) -> Holds:
    known = frozenset(limit)
    return lambda value: (
        None if not isinstance(value, dict) or len(value.keys() & known) == 1 else ", ".join(value.keys() & known)
    )


OF_VALUES: Mapping[str, Callable[[Any], Holds]] = {
    "pattern": _pattern,
    "forbidden": _forbidden,
    "one_of": _one_of,
    "most": _most,
    "least": _least,
    "most_items": _most_items,
    "least_items": _least_items,
    "most_characters": _most_characters,
    "not_blank": _not_blank,
    "contains": _contains,
    "type": _type,
    "only": _only,
    "required": _required,
    "any_of": _any_of,
    "one_key_of": _one_key_of,
}
"""Makers of checks, by name, from the limit in the file."""


def _unique(matches: Sequence[Match], _: JsonValue, body: Body) -> Iterator[Breach]:
    del body
    seen: list[JsonValue] = []
    for place, value in matches:
        if value in seen:
            yield Breach(place, _said(value))
        seen.append(value)


def _at_most(matches: Sequence[Match], limit: int, body: Body) -> Iterator[Breach]:
    del body
    if len(matches) > limit:
        yield Breach(matches[limit][0], str(len(matches)))


def _characters_in_all(matches: Sequence[Match], limit: int, body: Body) -> Iterator[Breach]:
    del body
    length = sum(len(value) for _, value in matches if isinstance(value, str))
    if length > limit:
        yield Breach(matches[0][0], str(length))


def _above(matches: Sequence[Match], limit: str, body: Body) -> Iterator[Breach]:
    other = body.value(limit)
    for place, value in matches:
        if _is_number(value) and _is_number(other) and value <= other:  # type: ignore[operator]
            yield Breach(place, _said(value))


def _any_contains(matches: Sequence[Match], limit: str, body: Body) -> Iterator[Breach]:
    del body
    if not any(isinstance(value, str) and re.search(limit, value) for _, value in matches):
        yield Breach(())


OF_ALL: Mapping[str, Callable[[Sequence[Match], Any, Body], Iterable[Breach]]] = {
    "unique": _unique,
    "at_most": _at_most,
    "characters_in_all": _characters_in_all,
    "above": _above,
    "any_contains": _any_contains,
}
"""Checks of all values at a path together, by name."""


def _is_number(value: JsonValue) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _said(value: JsonValue) -> str:
    return value if isinstance(value, str) else repr(value)
