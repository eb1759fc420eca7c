"""Calls in a model's answer: one pass from its beginning to its end."""

import re

from perdure.contracts.agents import ToolMode
from perdure.engine.tool_modes_pythonic import Pythonic
from perdure.engine.tool_modes_syntax import Found, Objects, Syntax, Tagged, TextCall, Tools, skipped

_TICKS = re.compile(r"`*")
_FENCE_END = re.compile(r"^[ \t]*```+[ \t]*$\n?", re.MULTILINE)


def calls_of(mode: ToolMode, text: str, tools: Tools) -> tuple[str, tuple[TextCall, ...]]:
    """The text without its calls, and these."""
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

    def read(self) -> tuple[str, tuple[TextCall, ...]]:
        text, kept, calls = self._text, list[str](), list[TextCall]()
        begin = at = 0
        while (marker := self._marker.search(text, at)) is not None:
            if marker["result"] and calls:
                text = text[: marker.start()]
                break
            found = self._found(marker)
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

    def _found(self, marker: re.Match[str]) -> Found:
        if marker["fence"] is not None:
            return self._block(marker)
        if marker["result"]:
            return Found(marker.end())
        quoted_until = self._quoted(marker.start())
        return Found(quoted_until) if quoted_until else self._syntax.read(self._text, marker.start())

    def _block(self, fence: re.Match[str]) -> Found:
        """A code block: its calls if it holds nothing else, otherwise a quotation."""
        text, calls = self._text, list[TextCall]()
        at = skipped(self._syntax.between, text, fence.end())
        while self._start.match(text, at) is not None:
            found = self._syntax.read(text, at)
            at = found.end
            if not found.calls:
                break
            calls += found.calls
            at = skipped(self._syntax.between, text, at)
            if text.startswith("```", at) or at >= len(text):
                return Found(skipped(_TICKS, text, at), tuple(calls))
        end = _FENCE_END.search(text, fence.end()) if self._blocks_end else None
        if end is None:
            self._blocks_end = False
            return Found(max(fence.end(), at if calls else 0))
        return Found(max(end.end(), at))

    def _quoted(self, at: int) -> int:
        """Where the back ticks around this place end, 0 if there are none; those within calls do not count."""
        line = self._text.rfind("\n", self._counted, at)
        before = self._ticks if line < 0 else 0
        self._ticks = before + self._text.count("`", max(line, self._counted), at)
        self._counted = at
        closing = self._place("`", at)
        return closing if self._ticks % 2 and closing < self._place("\n", at) else 0

    def _place(self, character: str, at: int) -> int:
        """The next place of a character, looked for once."""
        if self._next.get(character, -1) < at:
            place = self._text.find(character, at)
            self._next[character] = len(self._text) + (character == "`") if place < 0 else place
        return self._next[character]
