"""Patterns over the names of tools, in rules and hooks."""

from fnmatch import fnmatchcase


def is_like(name: str, pattern: str) -> bool:
    """Whether the whole name fits a pattern in which ``*`` is any text and ``?`` one character.

    Takes no longer than the lengths of both suggest, however many stars there are; workflows call it.
    """
    return fnmatchcase(name, pattern.replace("[", "[[]"))  # fnmatch alone knows sets in brackets too
