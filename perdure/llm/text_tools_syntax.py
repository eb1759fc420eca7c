"""Tool calls in plain text, as JSON or in tags, and the conversion of their values to a tool's schema.

A syntax returns the place where reading goes on, which is never before the place that it has reached: so the time is
linear in the length of the text. Tags are not parsed as XML: models do not escape < and &, and entities are not
expanded. No public function here raises.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from perdure.contracts.tools import RawCall
from perdure.contracts.values import JsonValue

_ENTITY = re.compile(r"&(?:(?P<name>lt|gt|amp|quot|apos)|#(?P<decimal>\d{1,7})|#x(?P<hex>[0-9a-fA-F]{1,6}));")
_NAMED = {"lt": "<", "gt": ">", "amp": "&", "quot": '"', "apos": "'"}
_TEXT_ONLY = frozenset({"string"})
_JSON_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}


def unescape(text: str) -> str:
    """A text with XML's five entities and numeric character references replaced. No other entities can be defined."""
    return _ENTITY.sub(_character, text)


def _character(found: re.Match[str]) -> str:
    if found["name"]:
        return _NAMED[found["name"]]
    number = int(found["decimal"]) if found["decimal"] else int(found["hex"], 16)
    is_one = 0 < number < 0x110000 and not 0xD800 <= number < 0xE000
    return chr(number) if is_one else found[0]


def types_of(schema: Mapping[str, JsonValue], name: str) -> frozenset[str]:
    """The JSON types that an argument may have; empty if the schema does not say."""
    properties = schema.get("properties")
    return _types(properties.get(name)) if isinstance(properties, dict) else frozenset()


def _types(schema: JsonValue) -> frozenset[str]:
    if not isinstance(schema, dict):
        return frozenset()
    kind, choices = schema.get("type"), schema.get("anyOf") or schema.get("oneOf")
    if isinstance(kind, str | list):
        return frozenset([kind] if isinstance(kind, str) else map(str, kind))
    if isinstance(choices, list):
        each = [_types(choice) for choice in choices]
        return frozenset(kind for kinds in each for kind in kinds) if all(each) else frozenset()
    values = schema.get("enum")
    return frozenset(map(_type, values)) if isinstance(values, list) else frozenset()


def _type(value: JsonValue) -> str:
    return "null" if value is None else _JSON_TYPES[type(value)]


def read_value(text: str, types: frozenset[str]) -> JsonValue:
    """The value of an element: JSON if the argument may have that value, or may not be a text; otherwise the text."""
    if types != _TEXT_ONLY:
        try:
            value: JsonValue = json.loads(text)
        except (ValueError, RecursionError):
            pass
        else:
            if "string" not in types or _type(value) in types or (_type(value) == "integer" and "number" in types):
                return value
    # A text stands without the line breaks between it and its tags.
    head, line_break, rest = text.partition("\n")
    if not line_break or head.strip(" \t"):
        return text
    body, line_break, tail = rest.rpartition("\n")
    return body if line_break and not tail.strip(" \t") else rest


Tools = Mapping[str, Mapping[str, JsonValue]]
"""The schema of each tool's arguments, by the tool's name."""


@dataclass(frozen=True)
class Found:
    """Reading at a place: calls, or none. Reading goes on at ``end``."""

    end: int
    calls: tuple[RawCall, ...] = ()


class Syntax(Protocol):
    """A format of calls in plain text."""

    start: str
    """A pattern of places where a call may begin."""
    between: re.Pattern[str]
    """A pattern of text between the calls of a code block."""

    def read(self, text: str, at: int) -> Found:
        """Read at a place where ``start`` was found."""
        ...


SPACE = re.compile(r"\s*")
_PARAGRAPH_END = re.compile(r"\n[ \t]*\n|\n[ \t]*```|\n(?=\{)|\Z")


def skip(pattern: re.Pattern[str], text: str, at: int) -> int:
    """The place after the pattern's match here."""
    found = pattern.match(text, at)
    return at if found is None else found.end()


def paragraph_end(text: str, at: int) -> int:
    """The end of the paragraph, which is the end of a broken call."""
    found = _PARAGRAPH_END.search(text, at)
    return len(text) if found is None else found.start()


class _BrokenError(Exception):
    """There is no JSON value; reading stopped at the place ``at``."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) < 4_000 else float(digits)


_FIRST_PIECE, _LONGEST_WORD = 512, len("-Infinity")
_CUT = ("Unterminated", "Invalid \\u")
"""Messages of errors that may come from the cut at a piece's end."""
_DECODER = json.JSONDecoder(strict=False, parse_int=_integer)


def _decode_at(text: str, at: int) -> tuple[JsonValue, int]:
    """The JSON value at a place, and where it ends.

    Pieces of growing length are tried, because an error costs time linear in the length of the whole input.

    Raises:
        _BrokenError: There is no JSON value.
    """
    length = _FIRST_PIECE
    while True:
        piece = text[at : at + length]
        try:
            value, end = _DECODER.raw_decode(piece)
        except json.JSONDecodeError as error:
            is_cut = error.msg.startswith(_CUT) or error.pos >= len(piece) - _LONGEST_WORD
            if not is_cut or at + length >= len(text):
                raise _BrokenError(at + error.pos) from None
        except RecursionError:
            raise _BrokenError(len(text)) from None
        else:
            return value, at + end
        length *= 4


def _text_of(value: JsonValue, raw: str) -> str:
    """Arguments as JSON text, from an object or a text that holds one; ``raw`` if they are nested too deeply."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps({} if value is None else value, ensure_ascii=False)
    except RecursionError:
        return raw


_CALL_KEYS = frozenset({"name", "arguments", "parameters", "id", "type"})


def _call_of(value: JsonValue, raw: str) -> RawCall | None:
    """The call in an object with ``name`` and ``arguments``; None if it is not a call."""
    call = _inner_of(value)
    name = call.get("name")
    return (
        RawCall(name, _text_of(call.get("arguments", call.get("parameters")), raw)) if isinstance(name, str) else None
    )


def _inner_of(value: JsonValue) -> dict[str, JsonValue]:
    """The object with the name: OpenAI's format has it inside ``function``."""
    if not isinstance(value, dict):
        return {}
    inner = value.get("function")
    return inner if isinstance(inner, dict) else value


_NAME_IN_JSON = re.compile(
    r"""\{\s*["']name["']\s*:\s*["'](?P<name>[\w.-]{1,64})["'](?P<more>\s*,\s*["'](arg|param))?"""
)


class Objects:
    """Mode ``json``: an object with ``name`` and ``arguments``, and at most OpenAI's other fields."""

    start = r"\{(?=\s*[\"'])"
    between = re.compile(r"[\s,\[\]]*")

    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    def read(self, text: str, at: int) -> Found:
        """Read an object: a call, another object, or a broken one."""
        try:
            value, end = _decode_at(text, at)
        except _BrokenError as error:
            return self._read_broken(text, at, error.at)
        call, keys = _call_of(value, text[at:end]), _inner_of(value).keys()
        if call is None or not keys <= _CALL_KEYS:
            return Found(end)
        is_call = call.name in self._tools or not keys.isdisjoint({"arguments", "parameters"})
        return Found(end, (call,) if is_call else ())

    def _read_broken(self, text: str, at: int, stopped: int) -> Found:
        begun = _NAME_IN_JSON.match(text, at)
        if begun is None or not (begun["more"] or begun["name"] in self._tools):
            return Found(max(stopped, at + 1))
        stop = paragraph_end(text, max(stopped, begun.end()))
        return Found(stop, (RawCall(begun["name"], text[at:stop].strip()),))


_OPEN = re.compile(r"<tool[-_]?call(?P<attributes>\s[^<>]*|/)?>", re.IGNORECASE)
_NAME = re.compile(r"""\bname\s*=\s*(?:"([^"]*)"|'([^']*)'|([\w.-]+))""")
_CLOSE = re.compile(r"\s*(?:```+\s*)?</tool[-_]?call\s*>", re.IGNORECASE)
_ANY_TAG = re.compile(r"<(?P<closing>/?)tool[-_]?call\b[^<>]*>?", re.IGNORECASE)
_BODY = re.compile(r"\s*(?:```+\w*\s*)?")
_ELEMENT = re.compile(r"\s*<(?P<tag>[A-Za-z_][\w.-]*)(?P<attributes>\s[^<>]*|/)?>")
_CDATA = re.compile(r"\s*<!\[CDATA\[")
_ANY_END = re.compile(r"</tool[-_]?call\b", re.IGNORECASE)


class Tagged:
    """The modes with tags; each also reads the formats of the others.

    A tag with a name encloses arguments, as JSON or as elements; a tag without encloses an object that has a name.
    """

    start = r"<tool[-_]?call\b"
    between = SPACE

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._next_end = self._next_cdata_end = 0

    def read(self, text: str, at: int) -> Found:
        """Read a call, if the tag names a tool or an object follows it; otherwise the tag is only mentioned."""
        tag = _OPEN.match(text, at)
        if tag is None:
            stop, end = _rest_of(text, at + 1)
            named = _NAME.search(text, at, stop)
            return Found(at + 1) if named is None else Found(end, (RawCall(_first_of(named), text[at:stop].strip()),))
        attributes = tag["attributes"] or ""
        named = _NAME.search(attributes)
        name = "" if named is None else unescape(_first_of(named))
        if attributes.endswith("/"):
            return Found(tag.end(), (RawCall(name, "{}"),) if name else ())
        body = skip(_BODY, text, tag.end())
        if text.startswith("{", body):
            return self._with_json(text, body, name)
        if not name:
            return Found(tag.end())
        return self._with_elements(text, tag.end(), name)

    def _with_json(self, text: str, body: int, name: str) -> Found:
        try:
            value, end = _decode_at(text, body)
        except _BrokenError:
            return _read_broken(text, body, name)
        raw = text[body:end]
        call = RawCall(name, _text_of(value, raw)) if name else _call_of(value, raw)
        closing = _CLOSE.match(text, end)
        if closing is None:
            following = _ANY_TAG.search(text, end)
            if following is not None and following["closing"]:
                return _read_broken(text, body, name)  # there is more than an object between the tags
        if call is None:
            return _read_broken(text, body, name)
        return Found(end if closing is None else closing.end(), (call,))

    def _with_elements(self, text: str, body: int, name: str) -> Found:
        arguments: dict[str, JsonValue] = {}
        at, schema = body, self._tools.get(name, {})
        while (closing := _CLOSE.match(text, at)) is None:
            element = _ELEMENT.match(text, at)
            if element is None:
                return _read_broken(text, body, name, read=at)
            named = _NAME.search(element["attributes"] or "") if element["tag"].startswith("param") else None
            key = element["tag"] if named is None else unescape(_first_of(named))
            value, at = self._content(text, element)
            if value is None:
                return _read_broken(text, body, name, read=at)
            arguments[key] = read_value(value, types_of(schema, key))
        return Found(closing.end(), (RawCall(name, json.dumps(arguments, ensure_ascii=False)),))

    def _content(self, text: str, element: re.Match[str]) -> tuple[str | None, int]:
        """The text of an element, and where it ends; None if it does not end within its call."""
        at, closer = element.end(), f"</{element['tag']}>"
        if (element["attributes"] or "").endswith("/"):
            return "", at
        cdata = _CDATA.match(text, at)
        if cdata is not None:
            if 0 <= self._next_cdata_end < cdata.end():
                self._next_cdata_end = text.find("]]>", cdata.end())
            inner = self._next_cdata_end
            end = -1 if inner < 0 else skip(SPACE, text, inner + len("]]>"))
            is_whole = end >= 0 and text.startswith(closer, end)
            return (text[cdata.end() : inner], end + len(closer)) if is_whole else (None, max(end, at))
        if 0 <= self._next_end < at:
            found = _ANY_END.search(text, at)
            self._next_end = -1 if found is None else found.start()
        limit = max(at, self._next_end)
        end = text.find(closer, at, limit)
        return (None, limit) if end < 0 else (unescape(text[at:end]), end + len(closer))


def _first_of(found: re.Match[str]) -> str:
    return next(part for part in found.groups() if part is not None)


def _rest_of(text: str, at: int) -> tuple[int, int]:
    """The end of the rest of a call, at the latest the next call, and the place where reading goes on."""
    following = _ANY_TAG.search(text, at)
    if following is None:
        return len(text), len(text)
    return following.start(), following.end() if following["closing"] else following.start()


def _read_broken(text: str, at: int, name: str, read: int = 0) -> Found:
    """A broken call with the text between its tags as arguments. Reading does not go back before ``read``."""
    stop, end = _rest_of(text, max(at, read))
    raw = text[at:stop].strip()
    named = None if name else _NAME_IN_JSON.match(raw)
    return Found(end, (RawCall(named["name"] if named else name, raw),))
