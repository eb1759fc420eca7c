"""Masks secrets in a text that comes in pieces, also secrets that are split between pieces.

A part that may be the beginning of a secret is held back until that is clear: at most one character less than the
longest secret, and a short secret before it; mostly nothing.
"""

from collections.abc import Collection

from perdure.security.redaction import SHORTEST_PART, SHORTEST_WORD, spellings, without_known

_HALF = range(0xD800, 0xDC00)
"""High surrogates: first halves of characters that two pieces may share."""


class HeldText:
    """One text: :meth:`add` takes a piece and returns what may be shown of the pieces so far."""

    def __init__(self, secrets: Collection[str] = ()) -> None:
        """Begin a text.

        Args:
            secrets: Values to mask, as for :func:`perdure.security.redaction.without_known`.
        """
        self._secrets = tuple(secret for secret in secrets if len(secret) >= SHORTEST_WORD)
        self._by_first: dict[str, list[str]] = {}
        for secret in self._secrets:
            for spelling in spellings(secret) if len(secret) >= SHORTEST_PART else (secret,):
                self._by_first.setdefault(spelling[0], []).append(spelling)
        self._longest = max((len(part) for parts in self._by_first.values() for part in parts), default=0)
        self._before = ""  # the last character that was shown: what follows may be part of its word
        self._rest = ""

    def add(self, piece: str) -> str:
        """Take a piece, and return the text that may be shown now."""
        self._rest += piece
        # As much of the rest is settled as no later piece can turn into a part of a secret.
        rest, settled = self._rest, len(self._rest)
        for at in range(max(0, len(rest) - self._longest), len(rest)):
            tail = self._rest[at:]
            if any(spelling.startswith(tail) for spelling in self._by_first.get(tail[0], ())):
                settled = at
                break
        if settled and ord(rest[settled - 1]) in _HALF:
            settled -= 1
        while (earlier := self._find_straddling(settled)) is not None:
            settled = earlier
        shown, self._rest = self._rest[:settled], self._rest[settled:]
        return self._mask(shown)

    def close(self) -> str:
        """End the text, and return what was held back."""
        shown, self._rest = self._rest, ""
        return self._mask(shown)

    def _mask(self, shown: str) -> str:
        if not shown:
            return ""
        after = self._rest[:1]
        masked = without_known(self._before + shown + after, self._secrets)
        masked = masked[len(self._before) : len(masked) - len(after)]
        self._before = masked[-1]
        return masked

    def _find_straddling(self, place: int) -> int | None:
        """The start of a secret that this place would cut in two; None if there is none.

        A short secret is held back too while what follows may be a long one: beside a mask it stands as a whole word.
        """
        tail = self._rest[place:]
        longer = (one for one in self._by_first.get(tail[:1], ()) if len(one) >= SHORTEST_PART)
        joins = any(one.startswith(tail) for one in longer)
        for at in range(max(0, place - self._longest), place):
            for spelling in self._by_first.get(self._rest[at], ()):
                end = at + len(spelling) + (joins and len(spelling) < SHORTEST_PART)
                if end > place and self._rest.startswith(spelling, at):
                    return at
        return None
