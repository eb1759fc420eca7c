"""Exact built-in values of what an author's code returned, made without calling a method of the author's.

A subclass of ``str`` may raise or lie in ``__len__``, ``__eq__`` or ``encode``, and any of them would run where perdure
looks at the value: on the worker's event loop, outside of the call that contains the author's code. The methods of the
built-in types read the value itself: ``str.__str__`` of a subclass is a copy of its characters.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any, cast


def is_of(value: object, kind: type) -> bool:
    """Whether a value is of a class. ``isinstance`` would also ask the value, whose ``__class__`` may be a property."""
    return issubclass(type(value), kind)


def to_text(value: object) -> str:
    """The value as a text. Unless it is a text already, this calls its ``__str__``."""
    return str.__str__(cast("str", value)) if is_of(value, str) else str.__str__(str(value))


def to_plain(value: object) -> object:
    """The value with exact texts, numbers, bytes, lists and mappings in place of subclasses of these.

    An enumeration's member becomes its value, as in JSON. Values of other classes stay as they are.

    Raises:
        RecursionError: It is nested too deeply.
    """
    kind = type(value)
    if kind in _EXACT:
        return value
    if issubclass(kind, Enum):
        return to_plain(object.__getattribute__(value, "_value_"))
    if issubclass(kind, dict):
        return _to_dict(cast("Mapping[object, object]", value))
    if issubclass(kind, list):
        return [to_plain(item) for item in _ITEMS_OF_LIST(value)]
    if issubclass(kind, tuple):
        return tuple(to_plain(item) for item in _ITEMS_OF_TUPLE(value))
    return next((read(value) for base, read in _READERS if issubclass(kind, base)), value)


_EXACT = frozenset({str, int, float, bool, bytes, type(None)})

_ITEMS_OF_LIST = cast("Callable[[object], Iterable[object]]", list.__iter__)
_ITEMS_OF_TUPLE = cast("Callable[[object], Iterable[object]]", tuple.__iter__)

_READERS: tuple[tuple[type, Callable[[Any], object]], ...] = (
    (str, str.__str__),
    (int, int.__int__),
    (float, float.__float__),
    (bytes, bytes.__bytes__),
)
"""Methods of the built-in types that return an exact value; each is called with the value, and not looked up in it."""


def _to_dict(value: Mapping[object, object]) -> dict[object, object]:
    items = cast("Iterable[tuple[object, object]]", dict.items(cast("dict[object, object]", value)))
    return {to_plain(name): to_plain(item) for name, item in items}


def to_number(value: object) -> float:
    """The value as a number; not a number (NaN) if it cannot be one."""
    try:
        number = value if is_of(value, int) or is_of(value, float) else float(cast("float", value))
    except Exception:  # noqa: BLE001 - the edge: ``__float__`` is the author's code
        return float("nan")
    return cast("float", to_plain(number))
