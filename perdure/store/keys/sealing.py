"""The column type for contents of sessions, which seals (encrypts) what is written and opens what is read.

A sealed text begins with ``~``, which no JSON does. So plain and sealed rows can be told apart, and encryption can be
switched on for a store in use. A value is written as a :class:`Content`, which names its session; a bare text is
refused.
"""

import json
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol

from sqlalchemy import Dialect, Text, TypeDecorator
from sqlalchemy.types import TypeEngine

SEAL = "~"
"""Prefix of a sealed text."""


class Content(NamedTuple):
    """A text, and the session whose key seals it."""

    session: str
    text: str


class Sealer(Protocol):
    """Seals and opens texts inside one transaction."""

    def seal(self, content: Content, place: str) -> str:
        """Seal a text if there are keys. It can be opened only with the same ``place``, its table and column."""
        ...

    def open(self, sealed: str, place: str) -> str:
        """Open a text that was sealed for that place."""
        ...


class TextSealer(Protocol):
    """Seals and opens texts outside of transactions."""

    async def seal_text(self, content: Content, place: str) -> str:
        """Seal a text if there are keys."""
        ...

    async def open_text(self, sealed: str, place: str) -> str:
        """Open a text that was sealed for that place."""
        ...

    def open_known(self, sealed: str, place: str) -> str | None:
        """Open a text without asking the database; None if this process does not have the key."""
        ...


_sealer: ContextVar[Sealer] = ContextVar("perdure_sealer")


@contextmanager
def sealing_with(sealer: Sealer) -> Generator[None]:
    """Have columns use this sealer in this block."""
    token = _sealer.set(sealer)
    try:
        yield
    finally:
        _sealer.reset(token)


def current_sealer() -> Sealer:
    """The sealer of the transaction that runs on this thread."""
    return _sealer.get()


class SealedText(TypeDecorator[Any]):
    """JSON of a session, written as a :class:`Content` and read as a text."""

    impl = Text
    cache_ok = True

    def __init__(self, place: str, *, quoted: bool = False) -> None:
        """Bind the column to its place.

        Args:
            place: Table and column.
            quoted: Whether the text is not JSON. It is then held as a JSON string, since PostgreSQL refuses NUL.
        """
        super().__init__()
        self.place = place
        self.quoted = quoted

    def process_bind_param(self, value: Content | str | None, dialect: Dialect) -> str | None:
        """Seal the text if there are keys."""
        if value is None:
            return None
        if not isinstance(value, Content):
            msg = f"{self.place} takes Content, which names its session"
            raise TypeError(msg)
        text = json.dumps(value.text, ensure_ascii=False) if self.quoted else value.text
        return _sealer.get().seal(Content(value.session, text), self.place)

    def process_result_value(self, value: str | None, dialect: Dialect) -> str | None:
        """Open the text if it is sealed."""
        if value is None:
            return None
        text = _sealer.get().open(value, self.place) if value.startswith(SEAL) else value
        return str(json.loads(text)) if self.quoted else text

    def coerce_compared_value(self, op: object, value: object) -> TypeEngine[Any]:
        """Compare the column with plain text: SQL can search only rows that are not sealed."""
        return Text()
