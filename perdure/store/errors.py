"""Errors of the transcript store."""

from enum import StrEnum

from perdure.contracts.errors import PerdureError


class RefusalCause(StrEnum):
    """Cause of a database's refusal, as a label of the metric that counts refusals."""

    FULL = "full"
    """Its disk has no space."""
    READ_ONLY = "read_only"
    """It takes no writes: a standby, or a file without the right to write it."""
    CONNECTIONS = "connections"
    """It takes no more connections."""
    STARTING = "starting"
    """It starts or stops."""
    OTHER = "other"
    """It is unreachable, locked or damaged, or lacks tables, rights or keys."""


class StoreError(PerdureError):
    """Base of everything the store raises."""


class StoreUnavailableError(StoreError):
    """The database cannot be reached, is locked or is full. Waiting may help; the message ends with ``fix``, if any."""

    def __init__(self, message: str, *, fix: str = "", cause: RefusalCause = RefusalCause.OTHER) -> None:
        super().__init__(f"{message}; {fix}" if fix else message)
        self.fix = fix
        self.cause = cause


class StoreConfigError(StoreError):
    """An address of the store cannot be used, or a package for it is missing. Waiting does not help."""


class StoreVersionError(StoreError):
    """The database was written by a release with another schema; the message names the way out."""


class NotFoundError(StoreError):
    """The store has no such session, turn, step, call, definition or artifact."""


class SessionErasedError(NotFoundError):
    """The session was erased, and its id cannot be used again; the message says when, and names the tombstone."""


class StoreKeyError(StoreUnavailableError):
    """This process lacks a key of an encrypted store, or has a different one. With the key the same call succeeds."""


class OtherStoreError(StoreError):
    """The turn is in another store than this process's."""


class TurnEndedError(StoreError):
    """The turn has ended: nothing may be written for it any more."""


class TurnMismatchError(StoreError):
    """The session is at another turn than the caller expected."""


class SessionRunsError(StoreError):
    """A turn of the session runs: the session cannot be erased."""


class TurnBlockedError(StoreError):
    """A block refuses the turn; the message says whose it is, why, since when, and how it is lifted."""


class ResumeRefusedError(StoreError):
    """The session cannot go on from that checkpoint; the message says why, and what can be done."""


class ReservedIdError(ResumeRefusedError):
    """No caller may begin a session of that id, or write that request id."""
