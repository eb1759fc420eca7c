"""Frozen definitions as the activities of one worker use them: loaded once each, by hash."""

from collections import OrderedDict

from perdure.activities.errors import store_failures
from perdure.contracts.agents import AgentDefinition
from perdure.store import Store

KEPT = 256
"""Definitions kept in memory; one is needed for each agent version with running turns."""


class Definitions:
    """A small cache over the store; a definition never changes under its hash."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept: OrderedDict[str, AgentDefinition] = OrderedDict()

    async def get(self, digest: str) -> AgentDefinition:
        """The definition of that hash."""
        definition = self._kept.get(digest)
        if definition is None:
            async with store_failures():
                definition = await self._store.definition(digest)
            self.keep(digest, definition)
        else:
            self._kept.move_to_end(digest)
        return definition

    def keep(self, digest: str, definition: AgentDefinition) -> None:
        """Remember a definition, and forget the one unused for longest."""
        self._kept[digest] = definition
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
