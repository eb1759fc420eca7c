"""Searches of long texts in windows: one search holds the interpreter, and heartbeats come in between two."""

import re
from collections.abc import Iterator

WINDOW = 256 * 1024
"""Characters in which one search looks for the beginning of a match: a tenth of a second for the slowest pattern."""

AHEAD = 64 * 1024
"""Characters that it sees behind these. A match that needs more of them to be recognised is not found."""


def find(pattern: re.Pattern[str], text: str, window: int = WINDOW) -> Iterator[re.Match[str]]:
    """Yield the matches of a pattern as :meth:`re.Pattern.finditer` does."""
    position = 0
    while position < len(text):
        last = position + window
        match = pattern.search(text, position, last + AHEAD)
        if match is None or match.start() >= last:
            position = last
            continue
        begin = match.start()
        if match.end() >= last + AHEAD:  # it may go on, or be none with what follows
            match = pattern.match(text, begin)
        if match is None:
            position = begin + 1
            continue
        yield match
        position = max(match.end(), begin + 1)


def replace(pattern: re.Pattern[str], template: str, text: str, window: int = WINDOW) -> str:
    """The text with a template in place of each match, as :meth:`re.Pattern.sub` gives it."""
    if len(text) <= window:
        return pattern.sub(template, text)
    parts: list[str] = []
    position = 0
    for match in find(pattern, text, window):
        parts += text[position : match.start()], match.expand(template)
        position = match.end()
    return "".join([*parts, text[position:]])
