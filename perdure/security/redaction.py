"""Masks secrets in texts and arguments before they reach an event, a log, a trace or the Temporal history.

Two kinds of text need two kinds of masking. ``redact_text`` is for diagnostics (errors, logs): it masks known secrets
and everything that looks like a credential. ``without_known`` is for content (answers, results): it masks known secrets
only, as the model has to read the rest unchanged. Whoever writes a text masks it; the store masks nothing. Raw
arguments are kept in one place, the ledger, as long as a call can run; the commit of the turn wipes masked ones.
"""

import contextlib
import functools
import itertools
import json
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from urllib.parse import quote

from perdure.contracts.values import JsonValue
from perdure.security import credentials
from perdure.security.credentials import MASK

SHORTEST_PART = 8
"""Characters below which a secret is masked only as a whole word, since it would match everywhere."""

SHORTEST_WORD = 3
"""Characters below which a secret is not masked at all."""

SHORTEST_NUMBER = 4
"""Digits below which a masked number is not masked in other texts."""

DEEPEST_ARGUMENTS = 100
"""Levels of nesting; arguments that are nested deeper are masked as a whole."""

_PASSES = 8
"""Times that masking is repeated until nothing changes. A text that still changes then is masked as a whole."""


def redact_text(text: str, secrets: Collection[str] = ()) -> str:
    """The text without known secrets and without anything that looks like a credential; for diagnostics."""
    return _change_until_stable(
        text, lambda some: credentials.mask_named(credentials.mask_credentials(without_known(some, secrets)))
    )


def without_known(text: str, secrets: Collection[str]) -> str:
    """The text without known secrets, also in the spellings of JSON, Python and URLs, and otherwise unchanged."""
    for secret, written in _known(frozenset(secrets)):
        if len(secret) > len(text):
            continue  # every spelling is at least as long
        if len(secret) >= SHORTEST_PART:
            for spelling in written:
                text = text.replace(spelling, MASK)
        elif secret in text:
            text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", MASK, text)
    return text


@functools.lru_cache(maxsize=16)
def _known(secrets: frozenset[str]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Each secret that is long enough, with its spellings, the longest first: computed once for a worker's set."""
    told = (secret for secret in secrets if len(secret) >= SHORTEST_WORD)
    return tuple((secret, spellings(secret)) for secret in sorted(told, key=lambda one: (-len(one), one)))


def spellings(secret: str) -> tuple[str, ...]:
    """The spellings of a secret in a text: as it is, and as JSON, Python and URLs write it."""
    if secret.isalnum() and secret.isascii():
        return (secret,)
    written = {json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1], repr(secret)[1:-1]}
    with contextlib.suppress(UnicodeEncodeError):  # half a character
        written |= {quote(secret), quote(secret, safe="")}
    return (secret, *sorted(written - {secret}, key=len, reverse=True))


def mask_arguments(
    arguments: dict[str, JsonValue], names: Collection[str] = (), secrets: Collection[str] = ()
) -> dict[str, JsonValue]:
    """The arguments with credentials masked at any depth, recognised by name, flag, shape or value.

    Args:
        arguments: The arguments as the model wrote them.
        names: Names of further top-level arguments to mask.
        secrets: Known secrets.
    """
    return _Masking(secrets).mask_object(arguments, names, DEEPEST_ARGUMENTS)


@dataclass(frozen=True)
class Hidden:
    """Values that were masked in arguments, to be masked in other texts too.

    Attributes:
        named: Values of arguments with a credential's name, or that the tool masks: certainly secret.
        guessed: Values recognised by their shape or place in a text: perhaps ordinary words.
    """

    named: frozenset[str] = frozenset()
    guessed: frozenset[str] = frozenset()


def hidden_values_of(arguments: dict[str, JsonValue], names: Collection[str] = ()) -> Hidden:
    """The values that masking removes from the arguments: texts, and numbers of four digits or more."""
    masking = _Masking(collects=True)
    masking.mask_object(arguments, names, DEEPEST_ARGUMENTS)
    return Hidden(named=frozenset(masking.named), guessed=frozenset(masking.guessed))


def without_hidden(text: str, hidden: Hidden, secrets: Collection[str] = ()) -> str:
    """A tool's result without known secrets and without ``hidden.named``; the model reads the rest unchanged.

    Named values shorter than ``SHORTEST_PART`` stay: they may be ordinary words.
    """
    return without_known(text, [*secrets, *(value for value in hidden.named if len(value) >= SHORTEST_PART)])


class _Masking:
    """One walk through arguments; with ``collects`` it notes the values that it masks."""

    def __init__(self, secrets: Collection[str] = (), *, collects: bool = False) -> None:
        self.named: set[str] = set()
        self.guessed: set[str] = set()
        self._secrets = secrets
        self._collects = collects

    def mask_object(self, value: dict[str, JsonValue], names: Collection[str], depth: int) -> dict[str, JsonValue]:
        """Mask an object: its names, the values of ``names`` and of credentials' names, and what else needs it."""
        secret = {*names, *credentials.names_in(value)}
        shown: dict[str, JsonValue] = {}
        numbers: dict[str, int] = {}
        for name, inner in value.items():
            free = _make_free_name(self._mask_text(name), shown, numbers)
            shown[free] = self._mask_whole(inner) if name in secret else self._mask(inner, depth - 1)
        return shown

    def _mask(self, value: JsonValue, depth: int) -> JsonValue:
        if isinstance(value, str):
            return self._mask_text(value)
        if not isinstance(value, dict | list):
            return value
        if depth <= 0:
            if self._collects:
                self.guessed |= set(_leaves(value))
            return MASK
        if isinstance(value, dict):
            return self.mask_object(value, (), depth)
        before: list[JsonValue] = [None, *value]
        return [self._mask_item(*pair, depth - 1) for pair in zip(before, value, strict=False)]

    def _mask_item(self, before: JsonValue, value: JsonValue, depth: int) -> JsonValue:
        """Mask an item of a list; the item before may say that it is a credential."""
        if isinstance(before, str):
            if credentials.is_before_credential(before, value):
                return self._mask_whole(value)
            if isinstance(value, str) and before in credentials.BEFORE_USER:
                return self._mask_text(f"-u {value}").removeprefix("-u ")
        return self._mask(value, depth)

    def _mask_whole(self, value: JsonValue) -> str:
        if self._collects:
            self.named |= set(_leaves(value))
        return MASK

    def _mask_text(self, text: str) -> str:
        shown = _change_until_stable(
            text, lambda some: credentials.mask_credentials(without_known(some, self._secrets))
        )
        if self._collects and shown != text:
            self.guessed |= set(credentials.find_credentials(text))
        return shown


def _make_free_name(name: str, taken: Collection[str], numbers: dict[str, int]) -> str:
    """The name, with a number after it if masking made it equal to another one; ``numbers`` are those given so far."""
    for number in itertools.count(numbers.get(name, 1)):
        free = name if number == 1 else f"{name}{number}"
        if free not in taken:
            numbers[name] = number + 1
            return free
    raise AssertionError


def _leaves(value: JsonValue) -> Iterator[str]:
    """The texts in a value, and its numbers of at least ``SHORTEST_NUMBER`` digits."""
    rest = [value]
    while rest:
        inner = rest.pop()
        if isinstance(inner, dict):
            rest += inner.values()
        elif isinstance(inner, list):
            rest += inner
        elif isinstance(inner, str):
            yield inner
        elif not isinstance(inner, bool) and sum(map(str.isdecimal, str(inner))) >= SHORTEST_NUMBER:
            yield str(inner)


def _change_until_stable(text: str, change: Callable[[str], str]) -> str:
    """Apply a change until the text does not change any more, so that masking is idempotent."""
    for _ in range(_PASSES):
        changed = change(text)
        if changed == text:
            return text
        text = changed
    return MASK
