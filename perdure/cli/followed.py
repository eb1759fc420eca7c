"""Sources to follow on a terminal: a turn, or a session through its turns."""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Protocol

from perdure.contracts.deltas import Delta
from perdure.contracts.events import Envelope
from perdure.contracts.input_requests import InputRequest
from perdure.contracts.turns import TurnResult, TurnStatus


class Followed(Protocol):
    """Source to follow: a turn, or a session through its turns."""

    @property
    def session(self) -> str:
        """The session's id."""
        ...

    def events(self, *, heartbeat: timedelta | None, deltas: bool) -> AsyncIterator[Envelope | Delta]:
        """The events as they come, to the end, and pieces of answers if they are wanted."""
        ...

    async def status(self) -> TurnStatus | None:
        """Status of the running turn, if one runs and a worker can tell it."""
        ...

    async def requests(self) -> tuple[InputRequest, ...]:
        """Input requests that the turn has stopped for."""
        ...

    async def result(self) -> TurnResult:
        """Result of the turn, or its refusal."""
        ...

    async def cancel(self, reason: str) -> bool:
        """Have the turn stopped."""
        ...
