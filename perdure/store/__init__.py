"""The transcript store: sessions, turns, steps, tool calls, events and artifacts in SQLite or PostgreSQL.

May import ``perdure.contracts``, SQLAlchemy, Alembic, pydantic and the standard library. ``Store`` is loaded on first
use: a command that only needs the errors does not pay for SQLAlchemy.
"""

from typing import TYPE_CHECKING

from perdure.store.errors import (
    NotFoundError,
    OtherStoreError,
    ResumeRefusedError,
    SessionErasedError,
    StoreError,
    StoreKeyError,
    StoreUnavailableError,
    StoreVersionError,
    TurnEndedError,
    TurnMismatchError,
)
from perdure.store.records import (
    RERUN,
    Artifact,
    Begun,
    Claim,
    ClaimedTurn,
    Committed,
    LedgerCall,
    RegisteredAgent,
    SessionBefore,
    SessionRecord,
    StepRecord,
    TurnRecord,
)

if TYPE_CHECKING:
    from perdure.store.store import Store

__all__ = [
    "RERUN",
    "Artifact",
    "Begun",
    "Claim",
    "ClaimedTurn",
    "Committed",
    "LedgerCall",
    "NotFoundError",
    "OtherStoreError",
    "RegisteredAgent",
    "ResumeRefusedError",
    "SessionBefore",
    "SessionErasedError",
    "SessionRecord",
    "StepRecord",
    "Store",
    "StoreError",
    "StoreKeyError",
    "StoreUnavailableError",
    "StoreVersionError",
    "TurnEndedError",
    "TurnMismatchError",
    "TurnRecord",
]


def __getattr__(name: str) -> object:
    if name == "Store":
        from perdure.store.store import Store  # noqa: PLC0415 - the point of this function

        return Store
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
