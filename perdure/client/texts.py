"""Texts that no verb of the client takes, as nothing behind it can keep them: halves of characters, NUL in a name."""

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pydantic_core import PydanticSerializationError, to_json

from perdure.client.errors import RequestRefusedError
from perdure.contracts.values import Value

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Made = TypeVar("Made", bound=type)

NAMES = frozenset(
    {
        *("agent", "artifact", "at", "block", "by", "caller", "digest", "into", "message", "model", "name", "note"),
        *("reason", "reason_code", "recording", "request", "request_id", "schedule", "session", "state", "tenant"),
        *("traceparent", "types", "url", "webhook"),
    }
)
"""Arguments that are no content: databases keep them in columns of text, and Temporal in ids."""

LONGEST_NAME = 10_000
"""Longest of them that is looked at, in characters; each has a tighter limit of its own where it is used."""

Verb = Callable[..., Any]


def refuse_odd_texts(ask: "DataclassInstance") -> None:
    """Refuse such a text in a field of a value, or in its options, as a verb does in its arguments.

    Raises:
        RequestRefusedError: There is one; the message names the field.
    """
    told = {part.name: getattr(ask, part.name) for part in fields(ask)}
    _check(told | cast("dict[str, object]", told.pop("options", {})))


def _check(arguments: Mapping[str, object]) -> None:
    for argument, told in arguments.items():
        why = None if _is_whole(told) else next(filter(None, map(_explain_half, _texts_in(told))), None)
        if why is None and argument in NAMES:
            why = next(filter(None, map(_explain_name, _texts_in(told))), None)
        if why is not None:
            msg = f"{argument}: {why}"
            raise RequestRefusedError(msg)


def refuses_odd_texts(made: Made) -> Made:
    """The class, each of whose verbs refuses such a text with the name of its argument, before it does anything."""
    for name, verb in list(vars(made).items()):
        if inspect.isfunction(verb) and not name.startswith("_"):
            setattr(made, name, _checked(verb))
    return made


def _checked(verb: Verb) -> Verb:
    signature = inspect.signature(verb)

    def check(given: tuple[object, ...], named: Mapping[str, object]) -> None:
        try:
            bound = signature.bind(*given, **named).arguments
        except TypeError:
            return  # Python says what is wrong
        for name, value in bound.items():
            is_extra = signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD
            arguments = cast("Mapping[str, object]", value) if is_extra else {name: value}
            _check(arguments)

    @functools.wraps(verb)
    async def checked_coroutine(*given: Any, **named: Any) -> Any:  # noqa: ANN401 - the verb's own
        check(given, named)
        return await verb(*given, **named)

    @functools.wraps(verb)
    async def checked_items(*given: Any, **named: Any) -> AsyncGenerator[Any, None]:  # noqa: ANN401 - likewise
        check(given, named)
        items = verb(*given, **named)
        try:
            async for item in items:
                yield item
        finally:
            await items.aclose()

    @functools.wraps(verb)
    def checked(*given: Any, **named: Any) -> Any:  # noqa: ANN401 - likewise
        check(given, named)
        return verb(*given, **named)

    if inspect.iscoroutinefunction(verb):
        return checked_coroutine
    return checked_items if inspect.isasyncgenfunction(verb) else checked


def _is_whole(value: object) -> bool:
    """Whether no text in it can hold half a character; that of 100,000 values is seen in a hundredth of a walk."""
    if not isinstance(value, dict | list | tuple):
        return False
    try:
        to_json(value)
    except (PydanticSerializationError, ValueError, TypeError, RecursionError):
        return False
    return True


def _texts_in(value: object) -> Iterator[str]:
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
        return "holds half a character, which no store can keep"
    return None


def _explain_name(text: str) -> str | None:
    if "\0" in text:
        return "has the character NUL; leave it out"
    if len(text) > LONGEST_NAME:
        return f"has {len(text):,} characters, at most {LONGEST_NAME:,} are taken"
    return None
