"""Errors of the transcript store."""

from perdure.contracts.errors import PerdureError


class StoreError(PerdureError):
    """Base of everything the store raises."""


class StoreUnavailableError(StoreError):
    """The database cannot be reached, is locked or is full. Waiting may help."""


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
