"""The names of event types, for those who choose among events."""

from collections.abc import Collection
from difflib import get_close_matches
from typing import get_args

from perdure.contracts.events import EVENT_TYPES, PERSTACK_NAMES, AnyEvent, Names, name_of

_ALIASES = {
    **{event.__name__: kind for kind, event in EVENT_TYPES.items()},
    **PERSTACK_NAMES,
}
"""Other names of the types: our classes, and Perstack's."""

_ALL_NAMES: tuple[Names, ...] = get_args(Names)


def event_type(name: str) -> str:
    """The type of the events that are meant: by the type itself, its class, or Perstack's name.

    Raises:
        ValueError: There is no such type; the message has the nearest name and all types.
    """
    kind = _ALIASES.get(name, name)
    if kind in EVENT_TYPES:
        return kind
    near = get_close_matches(name, [*EVENT_TYPES, *_ALIASES], n=1)
    guess = f"; did you mean {near[0]!r}? The" if near else "; the"
    msg = f"there is no event type {name!r}{guess} types are {', '.join(EVENT_TYPES)}"
    raise ValueError(msg)


def is_called(event: AnyEvent, chosen: Collection[str]) -> bool:
    """Whether one of the names is the event's, whoever calls it so."""
    if event.type == "agent_error" and "stopRunByError" in chosen:
        return True
    return any(name_of(event, names) in chosen for names in _ALL_NAMES)
