"""Conversations as models read them, kept by the worker so that a step does not read the whole chain again."""

from collections import OrderedDict
from dataclasses import dataclass

from perdure.activities.store_access import store_failures
from perdure.contracts.messages import Message
from perdure.llm.openai_format import WireMessage, wire
from perdure.store import Store

KEPT_CHARACTERS = 200_000_000
"""Characters kept in memory over all sessions; the session unused for longest is dropped first."""


@dataclass
class _Kept:
    tip: str
    messages: list[WireMessage]
    characters: int


class Conversations:
    """The wire messages of the sessions this worker serves; the store is asked only when the cache cannot answer."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._characters = 0

    async def read(self, session: str, tip: str) -> list[WireMessage]:
        """The conversation up to the step ``tip``, system prompt excepted; the caller's own list."""
        kept = self._kept.get(session)
        if kept is None or kept.tip != tip:
            async with store_failures():
                messages = await self._store.conversation(tip)
            kept = self._keep(session, tip, [wire(message) for message in messages])
        self._kept.move_to_end(session)
        return list(kept.messages)

    def extend(self, session: str, parent: str, tip: str, messages: tuple[Message, ...]) -> None:
        """A step was stored: move the kept conversation on, unless another attempt has done so."""
        kept = self._kept.get(session)
        if kept is None or kept.tip != parent:
            return
        new = [wire(message) for message in messages]
        kept.tip = tip
        kept.messages.extend(new)
        added = _size(new)
        kept.characters += added
        self._characters += added
        self._forget()

    def _keep(self, session: str, tip: str, messages: list[WireMessage]) -> _Kept:
        before = self._kept.pop(session, None)
        if before is not None:
            self._characters -= before.characters
        kept = self._kept[session] = _Kept(tip, messages, _size(messages))
        self._characters += kept.characters
        self._forget()
        return kept

    def _forget(self) -> None:
        while self._characters > KEPT_CHARACTERS and len(self._kept) > 1:
            _, dropped = self._kept.popitem(last=False)
            self._characters -= dropped.characters


def _size(messages: list[WireMessage]) -> int:
    """Characters of the messages, with arguments and reasoning: these may be longer than any text."""
    parts = (part for message in messages for part in message.values() if part is not None)
    return sum(len(part) if isinstance(part, str) else len(str(part)) for part in parts) + 200 * len(messages)
