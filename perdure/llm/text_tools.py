"""Tool modes: tools offered, called and answered in plain text, for models without tool calls of their own.

In the mode ``api`` the provider does all of this. In the others the system prompt lists the tools, the model writes its
calls into its answer, and the results come in a user message. The conversation in the store is the same in every mode,
so mode and model may change from turn to turn. Source: rigging's transforms (modes, formats of the calls).
"""

import json
import keyword
import re
from collections.abc import Iterator, Mapping, Sequence

from perdure.contracts.agents import ToolMode
from perdure.contracts.tools import RawCall, ToolDeclaration
from perdure.contracts.values import JsonValue, json_object
from perdure.llm.openai_format import WireMessage
from perdure.llm.text_tools_pythonic import Pythonic
from perdure.llm.text_tools_syntax import Found, Objects, Syntax, Tagged, Tools, read_value, skip, types_of

_TICKS = re.compile(r"`*")
_FENCE_END = re.compile(r"^[ \t]*```+[ \t]*$\n?", re.MULTILINE)


def calls_of(mode: ToolMode, text: str, tools: Tools) -> tuple[str, tuple[RawCall, ...]]:
    """The text without its calls, and the calls."""
    return _Reader(text, _syntax(mode, tools)).read()


def _syntax(mode: ToolMode, tools: Tools) -> Syntax:
    if mode == "pythonic":
        return Pythonic(tools)
    return Objects(tools) if mode == "json" else Tagged(tools)


class _Reader:
    def __init__(self, text: str, syntax: Syntax) -> None:
        self._text = text
        self._syntax = syntax
        self._start = re.compile(syntax.start, re.MULTILINE | re.IGNORECASE)
        self._marker = re.compile(
            rf"(?P<fence>(?<!`)```+[ \w.+-]{{0,40}}$\n?)|(?P<result><tool[-_]result\b)|{syntax.start}",
            re.MULTILINE | re.IGNORECASE,
        )
        self._next: dict[str, int] = {}
        self._counted, self._ticks = 0, 0
        self._blocks_end = True

    def read(self) -> tuple[str, tuple[RawCall, ...]]:
        text, kept, calls = self._text, list[str](), list[RawCall]()
        begin = at = 0
        while (marker := self._marker.search(text, at)) is not None:
            if marker["result"] and calls:
                text = text[: marker.start()]
                break
            if marker["fence"] is not None:
                found = self._block(marker)
            elif marker["result"]:
                found = Found(marker.end())
            elif quoted_until := self._quoted(marker.start()):
                found = Found(quoted_until)
            else:
                found = self._syntax.read(self._text, marker.start())
            if found.calls:
                kept.append(text[begin : marker.start()])
                calls += found.calls
                begin = self._counted = found.end
                self._ticks = 0
            at = max(found.end, at + 1)
        if not calls:
            return self._text, ()
        kept.append(text[begin:])
        return "\n\n".join(part.strip() for part in kept if part.strip("[], \t\r\n")), tuple(calls)

    def _block(self, fence: re.Match[str]) -> Found:
        """The calls of a code block if it holds nothing else; otherwise the block is a quotation."""
        text, calls = self._text, list[RawCall]()
        at = skip(self._syntax.between, text, fence.end())
        while self._start.match(text, at) is not None:
            found = self._syntax.read(text, at)
            at = found.end
            if not found.calls:
                break
            calls += found.calls
            at = skip(self._syntax.between, text, at)
            if text.startswith("```", at) or at >= len(text):
                return Found(skip(_TICKS, text, at), tuple(calls))
        end = _FENCE_END.search(text, fence.end()) if self._blocks_end else None
        if end is None:
            self._blocks_end = False
            return Found(max(fence.end(), at if calls else 0))
        return Found(max(end.end(), at))

    def _quoted(self, at: int) -> int:
        """The end of the backtick quotation around this place; 0 if there is none. Backticks in calls do not count."""
        line = self._text.rfind("\n", self._counted, at)
        before = self._ticks if line < 0 else 0
        self._ticks = before + self._text.count("`", max(line, self._counted), at)
        self._counted = at
        closing = self._place("`", at)
        return closing if self._ticks % 2 and closing < self._place("\n", at) else 0

    def _place(self, character: str, at: int) -> int:
        """The next place of a character; cached, so that each part of the text is searched once."""
        if self._next.get(character, -1) < at:
            place = self._text.find(character, at)
            self._next[character] = len(self._text) + (character == "`") if place < 0 else place
        return self._next[character]


__all__ = ["calls_in", "describe_tools", "to_text", "write_calls"]

_FORMS: dict[ToolMode, str] = {
    "xml": '<tool-call name="TOOL">\n<parameter name="FIRST">a text</parameter>\n<parameter name="SECOND">[1, true]'
    "</parameter>\n</tool-call>",
    "json": '{"name": "TOOL", "arguments": {"FIRST": "a text", "SECOND": [1, true]}}',
    "json-in-xml": '<tool-call name="TOOL">\n{"FIRST": "a text", "SECOND": [1, true]}\n</tool-call>',
    "json-with-tag": '<tool-call>\n{"name": "TOOL", "arguments": {"FIRST": "a text", "SECOND": [1, true]}}\n'
    "</tool-call>",
    "pythonic": '[TOOL(FIRST="a text", SECOND=[1, True]), OTHER_TOOL()]',
}
"""A call of each mode, as the system prompt shows it."""

_RULES: dict[ToolMode, str] = {
    "xml": "Write a text as it is, but &lt; for < and &amp; for &; write any other value as JSON.",
    "json": "The call is one JSON object, and stands on lines of its own.",
    "json-in-xml": "Between the tags stands one JSON object.",
    "json-with-tag": "Between the tags stands one JSON object.",
    "pythonic": "All calls stand in one list. Arguments have names, and are literals as Python writes them.",
}

_OFFER = """\
# Tools

You have the tools below, one on each line, with a JSON schema of its arguments. Everything else you must do yourself.

{tools}

To call a tool, write it into your answer in exactly this form, and in no code block:

{form}

{rule} You may make several calls in one answer. End the answer behind the last of them: the next message then holds
what came of each, as <tool-result id="..." name="TOOL">...</tool-result>. Never write such a result yourself. To answer
without a tool, just write the answer."""

_RESULT_END = "</tool-result"


def describe_tools(mode: ToolMode, tools: Sequence[ToolDeclaration]) -> str:
    """The part of the system prompt about the tools; empty without tools, or in the mode ``api``."""
    if mode not in _FORMS or not tools:
        return ""
    lines = (
        json.dumps(
            {"name": tool.name, "description": tool.description, "parameters": tool.parameters}, ensure_ascii=False
        )
        for tool in tools
    )
    return _OFFER.format(tools="\n".join(lines), form=_FORMS[mode], rule=_RULES[mode])


def calls_in(mode: ToolMode, text: str, tools: Sequence[ToolDeclaration]) -> tuple[str, tuple[RawCall, ...]]:
    """The text of an answer without its calls, and the calls in order.

    A broken call counts too: its arguments are then the model's text, which is not a JSON object. Text between
    backticks, or in a code block that holds more than calls, is a quotation, not a call. If the model makes up a result
    after a call, the answer ends before it.
    """
    if mode not in _FORMS:
        return text, ()
    return calls_of(mode, text, {tool.name: tool.parameters for tool in tools})


def write_calls(mode: ToolMode, calls: Sequence[tuple[str, Mapping[str, JsonValue]]], tools: Tools) -> str:
    """Write calls, given as pairs of a tool's name and arguments, as the model writes them in this mode."""
    written: list[str] = []
    for name, arguments in calls:
        if mode == "pythonic":
            parts = [f"{key}={_to_literal(value)}" for key, value in arguments.items() if _is_name(key)]
            others = {key: value for key, value in arguments.items() if not _is_name(key)}
            parts += [f"**{_to_literal(others)}"] if others else []
            written.append(f"{name}({', '.join(parts)})")
        elif mode == "xml":
            schema = tools.get(name, {})
            lines = "".join(f"{_parameter(key, value, schema)}\n" for key, value in arguments.items())
            written.append(f'<tool-call name="{name}">\n{lines}</tool-call>')
        elif mode == "json-in-xml":
            written.append(f'<tool-call name="{name}">\n{_json(arguments)}\n</tool-call>')
        else:
            call = _json({"name": name, "arguments": dict(arguments)})
            written.append(f"<tool-call>\n{call}\n</tool-call>" if mode == "json-with-tag" else call)
    return f"[{', '.join(written)}]" if mode == "pythonic" else "\n".join(written)


def to_text(mode: ToolMode, messages: Sequence[WireMessage], tools: Sequence[ToolDeclaration]) -> list[WireMessage]:
    """The conversation with calls and results as plain text, for a request without tools."""
    known: Tools = {tool.name: tool.parameters for tool in tools}
    names: dict[str, str] = {}
    told: list[WireMessage] = []
    open_results = False
    for message in messages:
        calls = list(_calls(message))
        names.update((call_id, name) for call_id, name, _ in calls)
        is_result = message.get("role") == "tool"
        if is_result or (open_results and message.get("role") == "user"):
            # Joined, because some models do not take two user messages in a row.
            part = _result(message, names) if is_result else str(message.get("content") or "")
            files = message.get("parts")
            parts = files if isinstance(files, list) else []
            if open_results:
                last = told.pop()
                part = f"{last.get('content')}\n\n{part}"
                before = last.get("parts")
                parts = [*(before if isinstance(before, list) else []), *parts]
            told.append({"role": "user", "content": part, **({"parts": parts} if parts else {})})
        elif calls:
            text = write_calls(mode, [(name, arguments) for _, name, arguments in calls], known)
            kept = {name: value for name, value in message.items() if name != "tool_calls"}
            said = message.get("content")
            told.append({**kept, "content": f"{said}\n\n{text}" if said else text})
        else:
            told.append(message)
        open_results = is_result
    return told


def _result(message: WireMessage, names: Mapping[str, str]) -> str:
    """A result in its tags; a closing tag inside of it is escaped."""
    call_id = str(message.get("tool_call_id"))
    content = str(message.get("content") or "").replace(_RESULT_END, "&lt;" + _RESULT_END[1:])
    return f'<tool-result id="{call_id}" name="{names.get(call_id, "")}">\n{content}\n</tool-result>'


def _calls(message: WireMessage) -> Iterator[tuple[str, str, dict[str, JsonValue]]]:
    """Id, name and arguments of each call of a message. Stored arguments were made JSON objects by ``wire``."""
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(call, dict) and isinstance(function, dict):
            arguments = json_object(str(function.get("arguments") or "{}"))
            yield str(call.get("id")), str(function.get("name")), arguments


def _json(value: Mapping[str, JsonValue]) -> str:
    return json.dumps(value, ensure_ascii=False)


def _parameter(name: str, value: JsonValue, schema: Mapping[str, JsonValue]) -> str:
    """One argument as XML: a text unchanged if it can be read back as that text, any other value as JSON."""
    types = types_of(schema, name)
    text = json.dumps(value, ensure_ascii=False)
    if isinstance(value, str):
        plain = f"\n{value}\n" if "\n" in value else value
        if read_value(plain, types) == value:
            text = plain
    return f'<parameter name="{_escape(name)}">{_escape(text)}</parameter>'


def _escape(text: str) -> str:
    for character, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;"), ("\r", "&#13;")):
        text = text.replace(character, entity)
    return text


def _is_name(key: str) -> bool:
    return key.isascii() and key.isidentifier() and not keyword.iskeyword(key) and key != "__debug__"


def _to_literal(value: JsonValue) -> str:
    """A value as a Python literal. A JSON string is also a valid Python string."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_to_literal(key)}: {_to_literal(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(_to_literal, value))}]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
