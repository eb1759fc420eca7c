"""A worker that holds each turn at its commit, before the write and behind it, until the worker is killed.

The files in ``HELD`` say what its predecessors have held, and what it therefore lets pass.
"""

import asyncio
import os
from pathlib import Path
from typing import Any

from perdure.contracts.turns import CommitTurn
from perdure.store import Store
from perdure.worker.__main__ import main

commit_turn = Store.commit_turn


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


if __name__ == "__main__":
    setattr(Store, "commit_turn", committing)  # noqa: B010 - both checkers allow it
    main()
