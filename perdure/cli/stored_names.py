"""Names that the store has, for completions: sessions and agents."""

import asyncio
import os
import threading
from collections.abc import Sequence

from click.shell_completion import CompletionItem

PATIENCE = 1.5
"""Seconds that a person at a prompt waits for names; a store that takes longer is left alone."""

MOST = 200
"""Names that are offered."""


KINDS = {"session": "session", "caller": "session", "agent": "agent"}
"""Kind of the name that each argument and option of this name is."""


def complete_name(parameter: str, incomplete: str) -> list[CompletionItem]:
    """The names that begin so; none if the store does not give them at once, or the parameter has other values."""
    kind = KINDS.get(parameter)
    return [] if kind is None else [CompletionItem(name) for name in find_names(kind, incomplete)]


def find_names(kind: str, incomplete: str) -> Sequence[str]:
    """The names that begin so, those in use last first; nothing is said of a store that fails."""
    found: list[str] = []

    def look() -> None:
        try:
            found.extend(asyncio.run(_read(kind)))
        except BaseException:  # noqa: BLE001 - a prompt is no place for an error
            found.clear()

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    if thread.is_alive():  # its connection would keep the process, and the prompt, until it gives up
        os._exit(0)
    return [name for name in found if name.startswith(incomplete)]


async def _read(kind: str) -> list[str]:
    # Loaded here: the store is needed for names alone, and verbs are completed without it.
    from perdure.cli.connection import open_store, views_of  # noqa: PLC0415

    async with open_store() as store:
        if kind == "agent":
            return [agent.name for agent in await store.agents()]
        return await views_of(store).session_names(MOST)
