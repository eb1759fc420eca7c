"""Tool calls in plain text as Python calls. Only literals are read, and nothing is ever executed."""

import ast
import json
import re
from collections.abc import Sequence

from perdure.contracts.tools import RawCall
from perdure.contracts.values import JsonValue
from perdure.llm.text_tools_syntax import SPACE, Found, Tools, paragraph_end, skip

_PYTHON_TEXT = (
    r"[rR]?(?:"
    r'"""[^"\\]*(?:(?:\\.|"(?!""))[^"\\]*)*"""'
    r"|'''[^'\\]*(?:(?:\\.|'(?!''))[^'\\]*)*'''"
    r'|"[^"\\]*(?:\\.[^"\\]*)*"'
    r"|'[^'\\]*(?:\\.[^'\\]*)*'"
    r")"
)
"""A pattern of a string literal. Models also put line breaks into single-quoted ones, which Python does not allow."""
_TEXT = re.compile(_PYTHON_TEXT, re.DOTALL)
_IN_TEXT = re.compile(r"\\(.)|\n", re.DOTALL)
_ESCAPES = frozenset("\\'\"abfnrtvxuUN01234567\n")
_CONSTANTS: dict[str, JsonValue] = {"true": True, "false": False, "null": None, "none": None}
_PYTHON_TOKEN = re.compile(rf"{_PYTHON_TEXT}|[\"'()\[\]{{}}]", re.DOTALL)
_PYTHON_CALL = re.compile(r"\s*(?P<name>[\w.-]+)\s*\(")
_LINE_END = re.compile(r"[ \t]*(?:\r?\n|\Z|```)")


class Pythonic:
    """Mode ``pythonic``: a list of calls with keyword arguments, or a call of a known tool on a line of its own."""

    between = SPACE

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        names = "|".join(re.escape(name) for name in tools)
        self.start = r"\[(?=\s*[\w.-]+\s*\()" + (rf"|^[ \t]*(?=(?:{names})\s*\()" if tools else "")
        self._walked = False

    def read(self, text: str, at: int) -> Found:
        """Read a list of calls, or a call on a line of its own."""
        is_list = text.startswith("[", at)
        calls, end = self._read_list(text, at + 1) if is_list else self._call(text, at)
        if not is_list and end > 0 and _LINE_END.match(text, end) is None:
            end = -end
        if calls and end > 0:
            # A list means calls if it names a known tool, or stands alone on its lines with valid arguments.
            before = text[max(0, at - 80) : at].rpartition("\n")[2]
            is_alone = not before.strip() and _LINE_END.match(text, end) is not None
            is_meant = any(call.name in self._tools for call in calls) or (
                is_alone and all(call.arguments.startswith("{") for call in calls)
            )
            return Found(end, calls if is_meant else ())
        begun = _PYTHON_CALL.match(text, at + is_list)
        is_sentence = calls and not is_list
        if begun is None or begun["name"] not in self._tools or is_sentence:
            return Found(max(-end, at + 1))
        stop = paragraph_end(text, max(-end, begun.end()))
        return Found(stop, (RawCall(begun["name"], text[at:stop].strip()),))

    def _read_list(self, text: str, at: int) -> tuple[tuple[RawCall, ...], int]:
        """The calls of a list, and its end; a negative number is the place, negated, at which it stops being a list."""
        calls: list[RawCall] = []
        while True:
            found, at = self._call(text, at)
            calls += found
            if at <= 0:
                return tuple(calls), at
            at = skip(SPACE, text, at)
            if text.startswith(",", at):
                at = skip(SPACE, text, at + 1)
            elif not text.startswith("]", at):
                return tuple(calls), -at
            if text.startswith("]", at):
                return tuple(calls), at + 1

    def _call(self, text: str, at: int) -> tuple[tuple[RawCall, ...], int]:
        opened = _PYTHON_CALL.match(text, at)
        if opened is None:
            return (), -at
        closing = self._find_closing(text, opened.end(), known=opened["name"] in self._tools)
        if closing < 0:
            return (), closing
        raw = text[opened.start() : closing + 1].strip()
        properties = self._tools.get(opened["name"], {}).get("properties")
        order = list(properties) if isinstance(properties, dict) else []
        try:
            arguments = json.dumps(read_arguments(text[opened.end() : closing], order), ensure_ascii=False)
        except (ValueError, RecursionError):
            arguments = raw
        return (RawCall(opened["name"], arguments),), closing + 1

    def _find_closing(self, text: str, at: int, *, known: bool) -> int:
        """Place of the closing bracket; negative if there is none, which is found out only once."""
        if self._walked and not known:
            return -at
        depth = 0
        for token in _PYTHON_TOKEN.finditer(text, at):
            depth += (token[0] in "([{") - (token[0] in ")]}")
            if depth < 0:
                return token.start()
            if token[0] in "\"'":
                break
        self._walked = True
        return -len(text) if known else -at


def read_arguments(text: str, order: Sequence[str]) -> dict[str, JsonValue]:
    """The arguments of a Python call; positional ones get the names in ``order``.

    Raises:
        ValueError: An argument is not a literal.
    """
    try:
        call = ast.parse(f"f({_TEXT.sub(_to_plain_text, text)}\n)", mode="eval").body
        if not isinstance(call, ast.Call) or len(call.args) > len(order):
            msg = "no arguments of a call"
            raise ValueError(msg)
        arguments = {name: _value(node) for name, node in zip(order, call.args, strict=False)}
        for given in call.keywords:
            value = _value(given.value)
            if given.arg is not None:
                arguments[given.arg] = value
            elif isinstance(value, dict):
                arguments |= value
            else:
                msg = "** needs a dict"
                raise ValueError(msg)
    except (SyntaxError, MemoryError, RecursionError, SystemError) as error:  # the last one: python/cpython#106905
        raise ValueError(str(error)) from error
    return arguments


def _to_plain_text(found: re.Match[str]) -> str:
    """A string literal that Python accepts: with line breaks and meaningless backslashes escaped."""
    literal = found[0]
    if literal[0] in "rR":
        return literal
    is_long = literal[:3] in {'"""', "'''"}

    def plain(part: re.Match[str]) -> str:
        if part[1] is None:
            return part[0] if is_long else "\\n"
        return part[0] if part[1] in _ESCAPES else "\\" + part[0]

    return _IN_TEXT.sub(plain, literal)


def _value(node: ast.expr) -> JsonValue:
    """The JSON value of a literal. JSON's names of constants (``true``, ``null``) are accepted too."""
    match node:
        case ast.Constant(value=str() | int() | float() | None as value):
            return value
        case ast.Name(id=name) if name.lower() in _CONSTANTS:
            return _CONSTANTS[name.lower()]
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=ast.Constant(value=int() | float() as number)):
            return -number if isinstance(sign, ast.USub) else number
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_value(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            return {_key(key): _value(value) for key, value in zip(keys, values, strict=True)}
        case _:
            msg = f"no literal: {type(node).__name__}"
            raise ValueError(msg)


def _key(node: ast.expr | None) -> str:
    value = None if node is None else _value(node)
    if not isinstance(value, str):
        msg = "a key that is no text"
        raise ValueError(msg)  # noqa: TRY004 - every fault in a literal is one
    return value
