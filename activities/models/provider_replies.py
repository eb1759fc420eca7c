"""Replies that are no answers, and the JSON of replies, read within bounds.

Python's JSON parser fails at numbers of 4,300 digits and at a thousand levels, and a model may write either.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import cast

from perdure.activities.models.error_objects import NOTHING_SAID, ErrorObject
from perdure.contracts.budgets import Paid, Usage
from perdure.contracts.values import JsonValue

Object = dict[str, JsonValue]

MOST_TOKENS = 10**12
"""Counts of tokens are clamped to 0 … this. A larger one does not fit a search attribute, a negative one would raise
budgets.
"""

DEEPEST = 200
"""Levels of nesting in a reply. Python's JSON parser fails at about a thousand; a dozen is enough for any reply."""

LONGEST_NUMBER = 4_000
"""Digits of an integer in a reply. Python parses up to 4,300."""

DEEPEST_ARGUMENTS = 500
"""Levels of nesting in the text of a call's arguments: litellm parses it for some providers whenever it is sent."""

_MARK = "\0unreadable\0"
"""Put in place of an unreadable value until it is known which field holds it."""

_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)


class UnusableAnswerError(Exception):
    """An answer that is paid for and cannot be used."""

    paid = Paid()


class UnusableReplyError(UnusableAnswerError):
    """An unusable reply; ``usage`` is what the provider counted for it.

    Attributes:
        uncounted: Bytes that the model wrote in it, if the provider's count of them has not come.
    """

    uncounted = 0

    def __init__(self, text: str, usage: Usage | None = None) -> None:
        super().__init__(text)
        self.usage = usage or Usage()


class InvalidReplyError(UnusableReplyError):
    """A reply that does not have the shape of an answer. A retry may help."""


class StreamCutError(UnusableReplyError):
    """A stream that ended, or went silent, before the answer did.

    Attributes:
        has_ended_well: Whether it ended in good order, not as an answer: another stream would end in the same way.
    """

    def __init__(self, text: str, usage: Usage | None = None, *, has_ended_well: bool = False) -> None:
        super().__init__(text, usage)
        self.has_ended_well = has_ended_well


class RedirectedError(UnusableReplyError):
    """The provider's address redirects requests; the text names the target's origin."""


class BrokenOffReplyError(UnusableReplyError):
    """The provider failed while the model wrote, and said so inside its answer.

    Attributes:
        said: The error object that it sent.
        headers: The headers of the reply with the answer.
        status_code: The status that the error names, or that of the reply; None if it only ended the answer.
    """

    def __init__(self, text: str, usage: Usage, said: ErrorObject = NOTHING_SAID) -> None:
        super().__init__(said.words() or text, usage)
        self.said = said
        self.headers: Mapping[str, str] = {}
        self.status_code = said.status or (None if said is NOTHING_SAID else 200)


def parse_body(body: bytes | str) -> JsonValue:
    """The JSON value at the beginning of a body, whatever follows it; None without a value.

    A number or a depth that cannot be read becomes a mark, which :func:`has_mark` finds.
    """
    return next(parse_values(body), None)


def parse_values(body: bytes | str) -> Iterator[JsonValue]:
    """The JSON values in a body one after the other, whatever white space is between them."""
    decoder, at = json.JSONDecoder(parse_int=_integer), 0
    try:
        text = (body.decode("utf-8-sig") if isinstance(body, bytes) else body).strip()
        while at < len(text):
            try:
                value, end = decoder.raw_decode(text, at)
            except (ValueError, RecursionError):
                shallow = _without_depths(text[at:])
                if shallow == text[at:]:
                    return
                text, at = shallow, 0
                value, end = decoder.raw_decode(text)
            yield cast("JsonValue", value)
            at = _SPACE.match(text, end).end()  # type: ignore[union-attr] # it matches nothing, too
    except ValueError:
        return


_SPACE = re.compile(r"\s*")


def _integer(digits: str) -> JsonValue:
    return int(digits) if len(digits) <= LONGEST_NUMBER else _MARK


def is_deeper(text: str, levels: int) -> bool:
    """Whether a JSON text has so many levels of nesting, closed or not."""
    if text.count("[") + text.count("{") < levels:
        return False
    depth = 0
    for token in _TOKEN.finditer(text):
        depth += (token[0] in "[{") - (token[0] in "]}")
        if depth >= levels:
            return True
    return False


def _without_depths(text: str) -> str:
    """The JSON text with a mark in place of each value that is nested too deep."""
    parts: list[str] = []
    depth, since = 0, 0
    for token in _TOKEN.finditer(text):
        if token[0] in "[{":
            depth += 1
            if depth == DEEPEST:
                parts.append(text[since : token.start()])
        elif token[0] in "]}":
            if depth == DEEPEST:
                parts.append(json.dumps(_MARK))
                since = token.end()
            depth -= 1
    return "".join(parts) + ("" if depth >= DEEPEST else text[since:])


def has_mark(value: JsonValue) -> bool:
    """Whether a part of the value could not be read."""
    if isinstance(value, dict):
        return any(map(has_mark, value.values()))
    return any(map(has_mark, value)) if isinstance(value, list) else value == _MARK
