"""Texts that no verb takes, as nothing behind it can keep them: half a character anywhere, and in a name NUL or a book.

The same sentences are told by the client, the command line and the gateway.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import cast

from pydantic_core import PydanticSerializationError, to_json

from perdure.contracts.values import Value

CONTENT = frozenset(
    {
        *("prompt", "context", "data", "definition", "history", "tools", "value", "error"),
        *("ask", "admitted", "payloads"),
    }
)
"""Arguments that hold content, which is kept as it is and has limits of its own. Every other text is a name."""

LONGEST_NAME = 10_000
"""Longest name that is looked at, in characters; each has a tighter limit of its own where it is used."""


def find_odd_text(arguments: Mapping[str, object], content: Collection[str] = CONTENT) -> str | None:
    """The first argument with such a text, however deep, and what to do about it; None if there is none."""
    for argument, value in arguments.items():
        if (why := explain_odd_text(argument, value, content)) is not None:
            return f"{argument}: {why}"
    return None


def explain_odd_text(argument: str, value: object, content: Collection[str] = CONTENT) -> str | None:
    """Reason an argument cannot be taken, with the fix; None if it can."""
    is_name = argument not in content
    if not is_name and _is_whole(value):
        return None
    for text in texts_in(value):
        if (why := _explain_half(text) or (_explain_name(text) if is_name else None)) is not None:
            return why
    return None


def _is_whole(value: object) -> bool:
    """Whether no text in it can hold half a character; that of 100,000 values is seen in a hundredth of a walk."""
    if not isinstance(value, dict | list | tuple):
        return False
    try:
        to_json(value)
    except (PydanticSerializationError, ValueError, TypeError, RecursionError):
        return False
    return True


def texts_in(value: object) -> Iterator[str]:
    """The texts in an argument, however deep."""
    unread, seen = [value], set[int]()
    while unread:
        part = unread.pop()
        if isinstance(part, str):
            yield part
        elif isinstance(part, Mapping | list | tuple | set | frozenset | Value):
            holder = cast("object", part)
            if id(holder) not in seen:
                seen.add(id(holder))
                unread.extend(_parts_of(holder))


def _parts_of(value: object) -> list[object]:
    if isinstance(value, Value):
        return [inner for _, inner in value]
    if isinstance(value, Mapping):
        mapping = cast("Mapping[object, object]", value)
        return [*mapping.keys(), *mapping.values()]
    return list(cast("list[object]", value))


def _explain_half(text: str) -> str | None:
    if text.isascii():
        return None
    try:
        text.encode()
    except UnicodeEncodeError:
        return "holds half a character, which no store can keep; send whole ones, in UTF-8"
    return None


def _explain_name(text: str) -> str | None:
    if "\0" in text:
        return "has the character NUL; leave it out"
    if len(text) > LONGEST_NAME:
        return f"has {len(text):,} characters, at most {LONGEST_NAME:,} are taken; shorten it"
    return None
