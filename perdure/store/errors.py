"""What can go wrong between perdure and its transcript store."""

from perdure.contracts.errors import PerdureError


class StoreError(PerdureError):
    """Base of everything the store raises."""


class StoreUnavailableError(StoreError):
    """The database cannot be reached, is locked or is full. Waiting may help."""


class StoreVersionError(StoreError):
    """The database was written by a release with another schema; the message names the way out."""


class NotFoundError(StoreError):
    """There is no session, turn, definition or artifact of that name."""


class OtherStoreError(StoreError):
    """The turn lives in another store than the one this process looks at."""


class TurnEndedError(StoreError):
    """The turn has ended: nothing may be written for it any more."""


class TurnMismatchError(StoreError):
    """The session is at another turn than the caller expected."""


class SessionRunsError(StoreError):
    """A turn of the session runs: the session cannot be erased."""


class ResumeRefusedError(StoreError):
    """The session cannot go on from that checkpoint; the message says why, and what can be done."""
