"""How calls are written in plain text, as JSON and in tags, and how their values are made to fit a tool's schema.

Every syntax says where it cannot go on, and reading continues from there, never from before: so the time is in
proportion to the length. Tags are no XML documents: models leave < and & as they are, and nothing is expanded. Nothing
in here raises.
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
    """A text with XML's own entities and numbered characters replaced; no others exist, so none can be defined."""
    return _ENTITY.sub(_character, text)


def _character(found: re.Match[str]) -> str:
    if found["name"]:
        return _NAMED[found["name"]]
    number = int(found["decimal"]) if found["decimal"] else int(found["hex"], 16)
    is_one = 0 < number < 0x110000 and not 0xD800 <= number < 0xE000
    return chr(number) if is_one else found[0]


def types_of(schema: Mapping[str, JsonValue], name: str) -> frozenset[str]:
    """The JSON types that an argument may have; none if the schema does not say."""
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
    """The value of an element: JSON, unless the argument is a text, or is read as one for want of another type."""
    if types != _TEXT_ONLY:
        try:
            value: JsonValue = json.loads(text)
        except (ValueError, RecursionError):
            pass
        else:
            if "string" not in types or _type(value) in types or (_type(value) == "integer" and "number" in types):
                return value
    return _without_frame(text)


def _without_frame(text: str) -> str:
    """A text without the line breaks that set it apart from its tags."""
    head, line_break, rest = text.partition("\n")
    if not line_break or head.strip(" \t"):
        return text
    body, line_break, tail = rest.rpartition("\n")
    return body if line_break and not tail.strip(" \t") else rest


Tools = Mapping[str, Mapping[str, JsonValue]]
"""The schema of the arguments of each tool, by its name."""


@dataclass(frozen=True)
class Found:
    """What stands at a place: calls, or none; ``end`` is where reading goes on."""

    end: int
    calls: tuple[RawCall, ...] = ()


class Syntax(Protocol):
    """How calls are written."""

    start: str
    """A pattern of where one may begin."""
    between: re.Pattern[str]
    """What may stand around the calls of one code block."""

    def read(self, text: str, at: int) -> Found:
        """What stands at the place where the pattern was found."""
        ...


SPACE = re.compile(r"\s*")
_PARAGRAPH_END = re.compile(r"\n[ \t]*\n|\n[ \t]*```|\n(?=\{)|\Z")


def skip(pattern: re.Pattern[str], text: str, at: int) -> int:
    """The place after the pattern's match here."""
    found = pattern.match(text, at)
    return at if found is None else found.end()


def paragraph_end(text: str, at: int) -> int:
    """Where a broken call that has no end of its own ends."""
    found = _PARAGRAPH_END.search(text, at)
    return len(text) if found is None else found.start()


class _BrokenError(Exception):
    """There is no JSON; reading stopped at this place."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) < 4_000 else float(digits)


_FIRST_PIECE, _LONGEST_WORD = 512, len("-Infinity")
_CUT = ("Unterminated", "Invalid \\u")
"""Messages of errors that the end of a piece may have made."""
_DECODER = json.JSONDecoder(strict=False, parse_int=_integer)


def _decode_at(text: str, at: int) -> tuple[JsonValue, int]:
    """The JSON value at a place, and where it ends.

    Ever longer pieces are tried: an error in one costs time in proportion to its length, wherever it is.

    Raises:
        _BrokenError: There is none.
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
    """Arguments as JSON: an object, or a text that holds one; what is nested too deeply stays as it is."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps({} if value is None else value, ensure_ascii=False)
    except RecursionError:
        return raw


_CALL_KEYS = frozenset({"name", "arguments", "parameters", "id", "type"})


def _call_of(value: JsonValue, raw: str) -> RawCall | None:
    """The call that an object with ``name`` and ``arguments`` is."""
    call = _inner_of(value)
    name = call.get("name")
    return (
        RawCall(name, _text_of(call.get("arguments", call.get("parameters")), raw)) if isinstance(name, str) else None
    )


def _inner_of(value: JsonValue) -> dict[str, JsonValue]:
    """The object that holds the name: OpenAI has one more around it."""
    if not isinstance(value, dict):
        return {}
    inner = value.get("function")
    return inner if isinstance(inner, dict) else value


_NAME_IN_JSON = re.compile(
    r"""\{\s*["']name["']\s*:\s*["'](?P<name>[\w.-]{1,64})["'](?P<more>\s*,\s*["'](arg|param))?"""
)


class Objects:
    """Mode ``json``: a bare object with ``name`` and ``arguments`` and little else."""

    start = r"\{(?=\s*[\"'])"
    between = re.compile(r"[\s,\[\]]*")

    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    def read(self, text: str, at: int) -> Found:
        """An object that is a call, is another, or is broken."""
        try:
            value, end = _decode_at(text, at)
        except _BrokenError as error:
            return self._read_broken(text, at, error.at)
        return Found(end, self._calls(value, text[at:end]))

    def _calls(self, value: JsonValue, raw: str) -> tuple[RawCall, ...]:
        call, keys = _call_of(value, raw), _inner_of(value).keys()
        if call is None or not keys <= _CALL_KEYS:
            return ()
        return (call,) if call.name in self._tools or not keys.isdisjoint({"arguments", "parameters"}) else ()

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
    """The modes with tags; each takes the forms of the others.

    Tags with a name stand around arguments, as JSON or as elements, tags without around an object that has a name.
    """

    start = r"<tool[-_]?call\b"
    between = SPACE

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._next_end = self._next_cdata_end = 0

    def read(self, text: str, at: int) -> Found:
        """A call if it names a tool or has an object right after its tag; otherwise the tag is only mentioned."""
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
            inner = self._cdata_end(text, cdata.end())
            end = -1 if inner < 0 else skip(SPACE, text, inner + len("]]>"))
            is_whole = end >= 0 and text.startswith(closer, end)
            return (text[cdata.end() : inner], end + len(closer)) if is_whole else (None, max(end, at))
        limit = self._call_end(text, at)
        end = text.find(closer, at, limit)
        return (None, limit) if end < 0 else (unescape(text[at:end]), end + len(closer))

    def _call_end(self, text: str, at: int) -> int:
        """Where the next closing tag of a call begins, searched for once; this place without one."""
        if 0 <= self._next_end < at:
            found = _ANY_END.search(text, at)
            self._next_end = -1 if found is None else found.start()
        return max(at, self._next_end)

    def _cdata_end(self, text: str, at: int) -> int:
        if 0 <= self._next_cdata_end < at:
            self._next_cdata_end = text.find("]]>", at)
        return self._next_cdata_end


def _first_of(found: re.Match[str]) -> str:
    return next(part for part in found.groups() if part is not None)


def _rest_of(text: str, at: int) -> tuple[int, int]:
    """Where what is left of a call ends, at the latest with the next one, and where reading goes on."""
    following = _ANY_TAG.search(text, at)
    if following is None:
        return len(text), len(text)
    return following.start(), following.end() if following["closing"] else following.start()


def _read_broken(text: str, at: int, name: str, read: int = 0) -> Found:
    """A call with what stands between its tags; reading does not go back to before ``read``."""
    stop, end = _rest_of(text, max(at, read))
    raw = text[at:stop].strip()
    named = None if name else _NAME_IN_JSON.match(raw)
    return Found(end, (RawCall(named["name"] if named else name, raw),))
