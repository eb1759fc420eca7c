"""Paths into a request's body, as rules are written with them.

A path is keys with dots between: ``temperature``, ``tools[].function.name``. ``[]`` is each entry of a list, ``[0]``
and ``[-1]`` one of them; ``[role=tool]``, ``[type=text|image]``, ``[role!=user]`` those with or without a value,
``[id]`` those with a key, and ``&`` joins such conditions. ``@keys`` is each key of an object, ``$`` alone the whole
body. A path that leads nowhere finds nothing.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from perdure.contracts.values import JsonValue

Place = tuple[str | int, ...]
"""Keys and numbers that lead to a value."""

Match = tuple[Place, JsonValue]

_STEP = re.compile(r"\.?(?P<key>@?[A-Za-z_$][\w$-]*)|\[(?P<entries>[^\]]*)\]")
_CONDITION = re.compile(r"(?P<key>[\w$]+)(?:(?P<sign>!?=)(?P<values>.*))?")


@dataclass(frozen=True)
class Path:
    """A path: its last step, and the path to the values from which that step is taken."""

    text: str
    parent: "Path | None"
    step: Callable[[JsonValue], Iterator[tuple[str | int, JsonValue]]]


class Body:
    """The body of a request, in which each path is looked up once."""

    def __init__(self, body: Mapping[str, JsonValue], model: str) -> None:
        self.body = body
        self.model = model
        self._found: dict[str, list[Match]] = {"$": [((), dict(body))]}

    def find(self, path: str) -> list[Match]:
        """The values at a path, with their places."""
        found = self._found.get(path)
        return self._look_up(read_path(path)) if found is None else found

    def value(self, path: str) -> JsonValue:
        """The first value at a path; None if there is none."""
        found = self.find(path)
        return found[0][1] if found else None

    def _look_up(self, path: Path) -> list[Match]:
        if path.parent is None:
            owners = self._found["$"]
        else:
            known = self._found.get(path.parent.text)
            owners = self._look_up(path.parent) if known is None else known
        found = [((*place, key), value) for place, owner in owners for key, value in path.step(owner)]
        self._found[path.text] = found
        return found


@cache
def read_path(text: str) -> Path:
    """The path of a text.

    Raises:
        ValueError: The text is not a path.
    """
    path: Path | None = None
    end = 0
    while end < len(text):
        step = _STEP.match(text, end)
        if step is None:
            msg = f"no path: {text!r}, at {text[end:]!r}"
            raise ValueError(msg)
        end = step.end()
        key = step["key"]
        taken = _entries(step["entries"]) if key is None else _keys if key == "@keys" else _member(key)
        path = Path(text[:end], path, taken)
    if path is None:
        msg = "a path has at least one key"
        raise ValueError(msg)
    return path


def dotted(place: Place) -> str:
    """A place as Anthropic writes it: ``messages.3.content``."""
    return ".".join(map(str, place))


def bracketed(place: Place) -> str:
    """A place as OpenAI writes it: ``messages[3].content``."""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in place).removeprefix(".")


_AUTHORS = frozenset({"args", "response", "parametersJsonSchema", "responseJsonSchema", "labels"})
"""Members of Gemini's requests whose keys are not Gemini's."""


def in_camel_case(value: JsonValue) -> JsonValue:
    """A body of Gemini's, which takes ``top_p`` for ``topP``, with its names as the reference writes them."""
    if isinstance(value, list):
        return [in_camel_case(part) for part in value]
    if not isinstance(value, dict):
        return value
    named = {_camel(key) if "_" in key else key: part for key, part in value.items()}
    return {key: part if key in _AUTHORS else _inside(key, part) for key, part in named.items()}


def _inside(key: str, part: JsonValue) -> JsonValue:
    if key == "properties" and isinstance(part, dict):
        return {name: in_camel_case(schema) for name, schema in part.items()}
    return in_camel_case(part)


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


def _member(key: str) -> Callable[[JsonValue], Iterator[tuple[str | int, JsonValue]]]:
    def take(owner: JsonValue) -> Iterator[tuple[str | int, JsonValue]]:
        if isinstance(owner, dict) and key in owner:
            yield key, owner[key]

    return take


def _keys(owner: JsonValue) -> Iterator[tuple[str | int, JsonValue]]:
    if isinstance(owner, dict):
        for key in owner:
            yield key, key


def _entries(condition: str) -> Callable[[JsonValue], Iterator[tuple[str | int, JsonValue]]]:
    if not condition:
        return _each
    if condition.lstrip("-").isdecimal():
        number = int(condition)

        def take_one(owner: JsonValue) -> Iterator[tuple[str | int, JsonValue]]:
            if isinstance(owner, list) and -len(owner) <= number < len(owner):
                yield number % len(owner), owner[number]

        return take_one
    holds = [_condition(part) for part in condition.split("&")]

    def take(owner: JsonValue) -> Iterator[tuple[str | int, JsonValue]]:
        for number, entry in _each(owner):
            if isinstance(entry, dict) and all(each(entry) for each in holds):
                yield number, entry

    return take


def _each(owner: JsonValue) -> Iterator[tuple[str | int, JsonValue]]:
    return enumerate(owner) if isinstance(owner, list) else iter(())


def _condition(text: str) -> Callable[[Mapping[str, JsonValue]], bool]:
    found = _CONDITION.fullmatch(text)
    if found is None:
        msg = f"no condition: {text!r}"
        raise ValueError(msg)
    key, sign, values = found["key"], found["sign"], frozenset((found["values"] or "").split("|"))
    match sign:
        case "=":
            return lambda entry: entry.get(key) in values if isinstance(entry.get(key), str) else False
        case "!=":
            return lambda entry: not isinstance(entry.get(key), str) or entry[key] not in values
        case _:
            return lambda entry: bool(entry.get(key))
