"""The names of event types, for those who choose among events."""

from difflib import get_close_matches

from perdure.contracts.events import EVENT_TYPES

_ALIASES = {
    **{event.__name__: kind for kind, event in EVENT_TYPES.items()},
    "errorRun": "agent_error",
    "stopRunByError": "agent_error",
}
"""Other names of the types: our classes, and what Perstack's documents and its code call the error of a run."""


def event_type(name: str) -> str:
    """The type of the events that are meant: by the type itself, its class, or Perstack's name of the error.

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
