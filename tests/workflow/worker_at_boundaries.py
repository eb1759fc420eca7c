"""A worker that holds each turn at its commit, before the write and behind it, until the worker is killed.

It holds a model call that has failed for good, too, behind the record of that and before Temporal has the failure.

The files in ``HELD`` say what its predecessors have held, and what it therefore lets pass. Without ``HELD`` nothing is
held. The secrets of turns are always the same, so that the delegates of two runs have the same ids.
"""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perdure.contracts.events import GenerationError, NewEvent
from perdure.contracts.turns import CommitTurn
from perdure.store import Store, open_turn
from perdure.worker.__main__ import main

append_events, commit_turn = Store.append_events, Store.commit_turn


async def hold(session: str, place: str) -> None:
    """Wait to be killed, once for each place; an attempt that is repeated in this process waits as well."""
    file, own = Path(os.environ["HELD"]) / f"{session} {place}", str(os.getpid())
    if not file.exists():
        file.write_text(own, encoding="utf-8")
    if file.read_text(encoding="utf-8") == own:
        await asyncio.Event().wait()


async def committing(store: Store, commit: CommitTurn) -> Any:
    """Hold a turn that no other turn has called on both sides of its commit, and a delegate of it behind its own."""
    if commit.delegated is None:
        await hold(commit.session, "before")
    committed = await commit_turn(store, commit)
    if commit.delegated is None or commit.delegated.depth == 1:
        await hold(commit.session, "behind")
    return committed


async def appending(store: Store, session: str, events: Sequence[NewEvent]) -> None:
    """Hold an activity behind the failure that ends it."""
    await append_events(store, session, events)
    for event in events:
        if isinstance(event.event, GenerationError):
            await hold(session, f"failure {event.step}")


if __name__ == "__main__":
    setattr(open_turn, "new_seed", lambda: "the same in every run")  # noqa: B010 - both checkers allow it
    if "HELD" in os.environ:
        setattr(Store, "append_events", appending)  # noqa: B010
        setattr(Store, "commit_turn", committing)  # noqa: B010
    main()
