"""Words of other systems for settings of ours: what their users write is taken, and kept under our name.

One table, by the class that has the setting. Sources: Dreadnode's agent API, Perstack's configuration, ActiveGraph's
budgets and Dawn's ``retry`` field; ``docs/coming-from.md`` has them for people.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

Given = Mapping[str, object]
"""All that was written, by its names."""


def _as_it_is(value: object, _: Given) -> object:
    return value


def _retries(value: object, _: Given) -> object:
    """Retries of a number of calls, the first one counted."""
    if not isinstance(value, int) or isinstance(value, bool):
        return value
    if value < 1:
        msg = f"write 1 or more attempts: the first call is one (got {value})"
        raise ValueError(msg)
    return value - 1


def _milliseconds(value: object, _: Given) -> object:
    return value / 1000 if isinstance(value, int | float) and not isinstance(value, bool) else value


def _jitter(value: object, given: Given) -> object:
    """The upper bound of a jitter that is on or off: it is the first wait."""
    if not isinstance(value, bool):
        return value
    return given.get("backoff_base_factor", given.get("base", 1.0)) if value else 0.0


@dataclass(frozen=True)
class Synonym:
    """A word of another system.

    Attributes:
        field: Our name of the setting.
        read: What is written under the word, as our setting has it.
        inside: The setting is one of this object, which takes the word too.
        also: Another setting that gets the same value, unless it is written itself.
    """

    field: str
    read: Callable[[object, Given], object] = _as_it_is
    inside: bool = False
    also: str = ""


_BUDGETS = {
    f"max_{field}": Synonym(field)
    for field in ("cost_usd", "llm_calls", "tool_calls", "behavior_calls", "events", "seconds", "patches", "depth")
}

_BACKOFF = {
    "backoff_max_tries": Synonym("max_retries"),
    "backoff_max_time": Synonym("max_time"),
    "backoff_base_factor": Synonym("base", also="jitter"),
    "backoff_jitter": Synonym("jitter", _jitter),
}

SYNONYMS: Mapping[str, Mapping[str, Synonym]] = {
    "Agent": {
        "maxSteps": Synonym("max_steps"),
        "generate_params_extra": Synonym("generate_params"),
        **dict.fromkeys((*_BACKOFF, "maxRetries"), Synonym("retry", inside=True)),
        **dict.fromkeys(_BUDGETS, Synonym("budgets", inside=True)),
    },
    "RetryPolicy": {
        **dict.fromkeys(("attempts", "maxAttempts", "max_attempts"), Synonym("max_retries", _retries)),
        "maxRetries": Synonym("max_retries"),
        "baseDelay": Synonym("base", _milliseconds),
        **_BACKOFF,
    },
    "Budgets": _BUDGETS,
    "ToolUse": {"tool_name": Synonym("tool")},
    "ToolFailed": {"tool_name": Synonym("tool")},
    "ToolOutput": {"tool_name": Synonym("tool")},
    "ElapsedTime": {"max_seconds": Synonym("seconds")},
    "GenerationCount": {"max_generations": Synonym("count")},
    "StepCount": {"max_steps": Synonym("count")},
    "NoNewToolUsed": {"for_steps": Synonym("steps")},
    "NoToolCalls": {"for_steps": Synonym("steps")},
}
"""The words that each class takes."""


def in_our_words(owner: str, given: Given) -> dict[str, object]:
    """What was written for a class, under our names.

    Raises:
        ValueError: A setting stands there under two names; or a word's value cannot be ours.
    """
    words = SYNONYMS.get(owner, {})
    ours: dict[str, object] = {name: value for name, value in given.items() if name not in words}
    said = {name: name for name in ours}
    inner: dict[str, dict[str, object]] = {}
    for word in (name for name in given if name in words):
        synonym = words[word]
        if synonym.inside:
            inner.setdefault(synonym.field, {})[word] = given[word]
        other = said.setdefault(synonym.field, word)
        if other != word and not (synonym.inside and other in words):
            msg = f"{other} and {word} are two names of one setting; write one of them"
            raise ValueError(msg)
        if not synonym.inside:
            ours[synonym.field] = synonym.read(given[word], given)
    for word in (name for name in given if name in words and words[name].also):
        if words[word].also not in said:
            ours[words[word].also] = given[word]
    return {**ours, **inner}
