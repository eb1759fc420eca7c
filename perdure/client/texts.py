"""Has each verb of the client refuse texts that nothing behind it can keep."""

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar, cast

from perdure.client.errors import RequestRefusedError
from perdure.contracts.texts import find_odd_text

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Made = TypeVar("Made", bound=type)

Verb = Callable[..., Any]


def refuse_odd_texts(ask: "DataclassInstance") -> None:
    """Refuse such a text in a field of a value, or in its options, as a verb does in its arguments.

    Raises:
        RequestRefusedError: There is one; the message names the field.
    """
    told = {part.name: getattr(ask, part.name) for part in fields(ask)}
    _check(told | cast("dict[str, object]", told.pop("options", {})))


def _check(arguments: Mapping[str, object]) -> None:
    if (problem := find_odd_text(arguments)) is not None:
        raise RequestRefusedError(problem)


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
