"""Bounds of all JSON that a request brings: how deep it is, how many values it has, and which numbers.

A text is measured before it is parsed, so that no parser builds what is refused afterwards.
"""

import json
import math
import re
from collections.abc import Iterable
from itertools import chain
from typing import TypeVar

from pydantic import AfterValidator
from pydantic_core import to_json

from perdure.contracts.values import JsonValue

MOST_DEPTH = 64
"""Levels of objects and lists inside each other."""

MOST_VALUES = 100_000
"""Values of one request, those inside objects and lists counted."""

T = TypeVar("T")

_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def most_bytes(limit: int) -> AfterValidator:
    """A check of a field: its value has at most so many bytes as JSON in UTF-8."""

    def check(value: T) -> T:
        size = len(to_json(value))
        if size > limit:
            msg = f"is {size:,} bytes, the limit is {limit:,}"
            raise ValueError(msg)
        return value

    return AfterValidator(check)


class BoundsError(ValueError):
    """The JSON is too deep, has too many values, or a number that is not JSON's; the message says which."""


def read_json(text: bytes) -> JsonValue:
    """The JSON of a text in UTF-8, within the bounds.

    Raises:
        BoundsError: It passes a bound.
        ValueError: The text is not JSON, or not in UTF-8.
    """
    check_text(text)
    try:
        value: JsonValue = json.loads(
            text.decode(), parse_constant=_read_float, parse_float=_read_float, parse_int=_read_int
        )
    except RecursionError:  # no text that was measured; a parser may count otherwise
        raise _too_deep() from None
    return value


def check_text(text: bytes) -> None:
    """See that the JSON of a text is neither too deep nor has too many values, without parsing it.

    What counts is what a parser would read up to the first mistake. Each line is one pass in C over the bytes.

    Raises:
        BoundsError: It passes a bound.
    """
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    if text.count(b'"') > 4 * MOST_VALUES:  # each value has a name and may be a text
        raise _too_many()
    outside = b"".join(text.split(b'"')[::2])
    if outside.count(b",") + outside.count(b"[") + outside.count(b"{") > MOST_VALUES:
        raise _too_many()
    if outside.count(b"]") + outside.count(b"}") > MOST_VALUES:
        raise _too_many()
    depth = 0
    for bracket in outside.translate(None, _NOT_BRACKETS):
        depth += 1 if bracket in b"[{" else -1
        if depth > MOST_DEPTH:
            raise _too_deep()


def check_value(value: object) -> None:
    """Check that a value is within the bounds; parts other than JSON are not looked into.

    Raises:
        BoundsError: It passes a bound.
    """
    level: Iterable[object] = (value,)
    count = 0
    for _ in range(MOST_DEPTH + 1):
        inner: list[Iterable[object]] = []
        for part in level:
            count += 1
            if isinstance(part, dict):
                inner.append(part.values())  # pyright: ignore[reportUnknownArgumentType] - whatever came
            elif isinstance(part, list | tuple):
                inner.append(part)  # pyright: ignore[reportUnknownArgumentType]
            elif isinstance(part, float) and not math.isfinite(part):
                raise _no_number()
        if count > MOST_VALUES:
            raise _too_many()
        if not inner:
            return
        level = chain.from_iterable(inner)
    raise _too_deep()


def _read_float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise _no_number()
    return number


def _read_int(text: str) -> int:
    try:
        return int(text)
    except ValueError:  # Python reads no more than some thousand digits
        raise _no_number() from None


def _too_deep() -> BoundsError:
    return BoundsError(f"is more than {MOST_DEPTH} levels deep, the limit; send less, or as a text")


def _too_many() -> BoundsError:
    return BoundsError(f"has more than {MOST_VALUES:,} values, the limit; send less, or as a text")


def _no_number() -> BoundsError:
    return BoundsError("has a number that is not finite or has too many digits; send it as a text")


_NULL = re.compile(r"\s*(?:null|(?:(?!```).)*```[\w-]*\s*\n\s*null\s*```.*)\s*", re.DOTALL)


def reads_as_null(text: str) -> bool:
    """Whether a text is null as JSON, alone or in its first fenced block."""
    return _NULL.fullmatch(text) is not None
