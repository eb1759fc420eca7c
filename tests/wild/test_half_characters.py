"""Half a character in any text of any verb: a lone surrogate, as JavaScript and Windows' file names send them.

Seen in public trackers: an emoji that was cut in two ends in an error of the serializer, without the field's name.
"""

import inspect
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import Mock

import pytest

from perdure.client import Client, RequestRefusedError, Turn
from perdure.client.schedules import Schedules
from perdure.client.webhooks import Webhooks

BROKEN = "cut \ud83d in two"
OF_NO_TEXT = {"self", "settings", "after", "before", "deltas", "heartbeat", "overlap", "limit"}


def verbs() -> Iterator[tuple[type, str, str]]:
    """Each argument of each verb."""
    for made in (Client, Turn, Schedules, Webhooks):
        for name, verb in vars(made).items():
            if inspect.isfunction(verb) and not name.startswith("_"):
                for parameter in inspect.signature(verb).parameters.values():
                    if parameter.name not in OF_NO_TEXT:
                        yield made, name, parameter.name


async def call(verb: Callable[..., Any], given: list[Any], named: dict[str, Any]) -> None:
    made = verb(*given, **named)
    if inspect.isasyncgen(made):
        await anext(made)
    elif inspect.isawaitable(made):
        await made


@pytest.mark.parametrize(("made", "name", "argument"), list(verbs()), ids=lambda part: getattr(part, "__name__", part))
@pytest.mark.parametrize("value", [BROKEN, {"a": [BROKEN]}, {BROKEN: 1}], ids=["text", "inside", "as a name"])
async def test_each_text_of_each_verb_is_refused_in_the_same_sentence(
    made: type, name: str, argument: str, value: Any
) -> None:
    """S-14: before anything is sent or stored."""
    verb = getattr(made, name)
    signature = inspect.signature(verb)
    given: list[Any] = [Mock()]
    named: dict[str, Any] = {}
    for parameter in list(signature.parameters.values())[1:]:
        if parameter.kind is parameter.VAR_KEYWORD:
            named |= {"extra": value} if parameter.name == argument else {}
        elif parameter.name == argument:
            named[parameter.name] = value
        elif parameter.default is parameter.empty:
            named[parameter.name] = "x"
    told = "extra" if "extra" in named else argument
    with pytest.raises(RequestRefusedError, match=f"^{told}: holds half a character, which no store can keep$"):
        await call(verb, given, named)
