"""One turn from the outside: its number, its events as they come, its result, and a way to cancel it."""

import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection
from contextlib import aclosing
from dataclasses import dataclass
from datetime import timedelta
from typing import Unpack, overload

from perdure.client.deltas import with_deltas
from perdure.client.errors import TurnClosedError, WrongTurnError
from perdure.client.executions import Close, Runs
from perdure.client.read import ToolMetrics, read_tool_metrics
from perdure.client.requests import validate
from perdure.client.stream import (
    LOOK,
    EventReader,
    Every,
    Types,
    filter_events,
    from_store,
    heartbeat_at,
    lengthen_look,
)
from perdure.client.texts import refuses_odd_texts
from perdure.client.updates import extend_request, send_limits
from perdure.client.waits import Waits
from perdure.contracts.budgets import Limits
from perdure.contracts.deltas import Delta
from perdure.contracts.errors import ReasonCode
from perdure.contracts.events import Envelope
from perdure.contracts.input_requests import InputRequest
from perdure.contracts.turns import BudgetStatus, CancelRequest, TurnResult, TurnStatus
from perdure.contracts.waits import TurnWait
from perdure.store import Store
from perdure.store.errors import NotFoundError
from perdure.store.records import TurnRecord

FIRST_LOOK = timedelta(milliseconds=500)
"""After this long without any event, see whether the workflow still runs: it may have refused the request."""


UNRECORDED = frozenset({ReasonCode.RUNTIME_STORE_BEHIND, ReasonCode.RUNTIME_STORE_REFUSED})
"""Ends that Temporal may have and the store has not: it has lost the turn, or could not hold its end."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Address of a turn: its number, or the request that asked for it, in a run or the ones after.

    Attributes:
        turn: None until the turn has been opened.
        run_id: A run at or before the turn; None if Temporal has none of the session any more.
    """

    session: str
    request_id: str
    turn: int | None = None
    run_id: str | None = None


@refuses_odd_texts
class Turn:
    """A turn that runs, waits or has ended. Made by the client; each of its methods may be called at any time."""

    def __init__(self, place: Place, runs: Runs, open_store: Callable[[], Awaitable[Store]]) -> None:
        self._place = place
        self._runs = runs
        self._open_store = open_store
        self._turn = place.turn
        self._run_id = place.run_id

    def __repr__(self) -> str:
        return f"Turn(session={self.session!r}, turn={self._turn})"

    @property
    def session(self) -> str:
        """The session's id, which is the workflow id."""
        return self._place.session

    @property
    def request_id(self) -> str:
        """The id of the request; asking again with it gives this turn."""
        return self._place.request_id

    @property
    def turn(self) -> int | None:
        """The turn's number in its session, once it is known."""
        return self._turn

    async def number(self) -> int | None:
        """Wait until the turn has its number; None if it was refused before it had one.

        Raises:
            TurnClosedError: The workflow closed before it opened the turn.
        """
        look = timedelta(0)
        with (await self._open_store()).doorbell.follow(self.session) as bell:
            rung = bell.rung
            while self._turn is None and await self._record() is None:
                if not await bell.wait(rung, look):
                    close, look = await self._find_close(), lengthen_look(look)
                    if close is not None and await self._record() is None:
                        self._check_end(close, None)
                        return None
                rung = bell.rung
        return self._turn

    @overload
    def events(self, after: int = ..., types: Types = ..., *, heartbeat: Every = ...) -> AsyncIterator[Envelope]: ...

    @overload
    def events(
        self, after: int = ..., types: Types = ..., *, heartbeat: Every = ..., deltas: bool
    ) -> AsyncIterator[Envelope | Delta]: ...

    async def events(
        self, after: int = 0, types: Types = (), *, heartbeat: Every = None, deltas: bool = False
    ) -> AsyncIterator[Envelope | Delta]:
        """The turn's events after that sequence number, as they come, to its ``agent_end``.

        Reading can be taken up again with the ``seq`` of the last event one has seen. What stood in the log already is
        marked as ``replayed``. :meth:`perdure.client.Client.events` goes on with the turns after this one.

        Args:
            after: The sequence number.
            types: Only events of these types, by any name that :func:`perdure.contracts.events.event_type` knows.
            heartbeat: After so long without an event comes a :class:`~perdure.contracts.events.Heartbeat`, whatever
                the types, and again after as long. It has the number of the event before it.
            deltas: Whether pieces of answers come too, while models write them: see
                :class:`~perdure.contracts.deltas.Delta`. Agents with ``stream="watched"`` are asked for them from the
                next model call on.

        Raises:
            RequestRefusedError: The log of the session ends before ``after``, there is no such type, or the heartbeat
                is too short.
            TurnClosedError: The workflow closed and the turn will never end.
            StoreError: The store did not answer for a minute.
        """
        before = heartbeat_at(self.session, self._turn or 0, after)
        plain = self._events(after)
        log = with_deltas(plain, await self._open_store(), self.session, after) if deltas else plain
        async with aclosing(filter_events(log, types, heartbeat=heartbeat, before=before)) as events:
            async for item in events:
                yield item

    async def listen(
        self,
        callback: Callable[[Envelope], object],
        *,
        after: int = 0,
        types: Collection[str] = (),
        heartbeat: timedelta | None = None,
    ) -> None:
        """Call back with each event that :meth:`events` gives, one after another, until the turn has ended.

        An awaitable that the callback returns is awaited. What the callback raises is raised here and ends the
        listening, not the turn.

        Raises:
            Exception: Whatever the callback raises, and what :meth:`events` does.
        """
        async for envelope in self.events(after, types, heartbeat=heartbeat):
            outcome = callback(envelope)
            if inspect.isawaitable(outcome):
                await outcome

    async def _events(self, after: int) -> AsyncGenerator[Envelope, None]:
        store = await self._open_store()
        with store.doorbell.follow(self.session) as bell:
            reader = EventReader(store, self.session, after, bell)
            if await self._record() is not None and self._turn is not None:
                await reader.skip_to(self._turn)
            async with aclosing(self._read(reader)) as events:
                async for envelope in events:
                    yield envelope

    async def _read(self, reader: EventReader) -> AsyncGenerator[Envelope, None]:
        close: Close | None = None
        look = FIRST_LOOK
        while True:
            events = await reader.read()
            for envelope in events:
                if await self._owns(envelope):
                    look = LOOK
                    yield envelope
                    if envelope.event.type == "agent_end":
                        return
            if events:
                continue
            if close is not None:
                self._check_end(close, await self._record())
                return
            if not await reader.wait(look):
                close, look = await self._find_end(), lengthen_look(look)

    async def result(self) -> TurnResult:
        """Wait for the turn's end and return its result, also when its execution is long gone from Temporal.

        Raises:
            TurnClosedError: The workflow closed and the turn will never end.
            StoreError: The store did not answer for a minute.
        """
        while True:
            record = await self._record()
            if record is not None and record.result is not None:
                return record.result
            if self._run_id is None:
                raise TurnClosedError(
                    f"turn {self._turn} of session {self.session!r} is not in the store, and Temporal has no run of it"
                )
            close = await self._runs.close(self.session, self._run_id)
            if close.result is not None and self._turn is not None and close.result.turn == self._turn:
                return close.result
            record = await self._record()
            if record is not None and record.result is not None:
                return record.result
            if close.next_run is None:
                self._check_end(close, record)
                if close.result is not None:
                    return close.result
            self._run_id = close.next_run

    async def notice(self) -> str:
        """The first message of a turn that goes on behind what was done, as after a restore of the store; else empty.

        It says which turn went on after which step. Waits until the turn has its number.

        Raises:
            TurnClosedError: The workflow closed before it opened the turn.
        """
        number = await self.number()
        store = await self._open_store()
        return "" if number is None else await from_store(lambda: store.notice_of_behind(self.session, number - 1))

    async def requests(self) -> tuple[InputRequest, ...]:
        """Input requests that the turn waits for, or has stopped for; nothing if no worker can say."""
        record = await self._record()
        if record is not None and record.result is not None:
            return record.result.requests
        status = await self.status()
        return status.requests if status is not None else ()

    async def status(self) -> TurnStatus | None:
        """Status of the running turn; None if it has ended or was not opened, or no worker answers.

        Its ``waits_for`` says why the turn stands still, if it does; :meth:`waits_for` says so without a worker too.
        """
        status = await self._runs.status(self.session)
        if status is None or status.turn != self._turn:
            return None
        return await Waits(self._runs).with_wait(status)

    async def waits_for(self) -> TurnWait | None:
        """Reason the session's running turn stands still, since when, and what to do; None if it goes on, or none runs.

        Raises:
            ServerUnreachableError: The server does not answer.
        """
        return await Waits(self._runs).wait_of(self.session)

    async def cancel(self, reason: str = "") -> bool:
        """Have the turn stopped, also one that waits for those before it; False if it had ended, or is ending.

        Raises:
            ServerUnreachableError: The server does not answer.
        """
        asked_for = self.request_id if self._turn is None else None
        request = validate(CancelRequest, {"reason": reason, "turn": self._turn, "request_id": asked_for})
        try:
            return await self._runs.cancel(self.session, request)
        except WrongTurnError:  # it has ended, and another one runs
            return False

    async def tool_metrics(self, *, detailed: bool = False) -> ToolMetrics:
        """Figures of the turn's tools so far: calls, errors, seconds; ``detailed`` counts each tool apart too.

        Raises:
            TurnClosedError: The workflow closed before it opened the turn.
            StoreError: The store did not answer for a minute.
        """
        number = await self.number()
        if number is None:
            return ToolMetrics()
        return await read_tool_metrics(await self._open_store(), self.session, number, detailed=detailed)

    async def extend(self, *, end: bool = False, **limits: Unpack[Limits]) -> BudgetStatus:
        """Set limits of the turn while it runs: see :meth:`perdure.client.Client.extend`.

        Raises:
            RequestRefusedError: A limit cannot be set, or another turn of the session runs.
            SessionIdleError: No turn of the session runs.
            NoWorkerError: No worker took the limits.
        """
        number = await self.number()
        request = extend_request(turn=number, end=end, **limits)
        return await send_limits(self._runs.temporal, self.session, request)

    async def _record(self) -> TurnRecord | None:
        """The turn's row in the store, if it has been opened."""
        store = await self._open_store()

        async def look() -> TurnRecord | None:
            if self._turn is not None:
                return await store.turn(self.session, self._turn)
            return await store.turn_by_request(self.session, self.request_id)

        try:
            record = await from_store(look)
        except NotFoundError:
            return None
        if record is not None:
            self._turn = record.turn
        return record

    async def _owns(self, envelope: Envelope) -> bool:
        if self._turn is None:
            await self._record()
        return envelope.turn == self._turn

    async def _find_end(self) -> Close | None:
        """Close of the turn, or None while it may go on; asked when no events come."""
        record = await self._record()
        if record is not None and record.result is not None:
            return Close(result=record.result)
        return await self._find_close()

    async def _find_close(self) -> Close | None:
        """Close of the last run, or None while one runs."""
        while self._run_id is not None:
            if await self._runs.is_running_patiently(self.session, self._run_id):
                return None
            close = await self._runs.close(self.session, self._run_id)
            if close.next_run is None:
                return close
            self._run_id = close.next_run
        return Close(failure=f"Temporal has no run of session {self.session!r}")

    def _check_end(self, close: Close, record: TurnRecord | None) -> None:
        """Tell a turn that was refused or has ended from one that never will."""
        if record is not None and record.result is not None:
            return
        if close.result is not None and (close.result.turn is None or close.result.reason_code in UNRECORDED):
            return
        if close.failure:
            raise TurnClosedError(f"{close.failure}; 'perdure send {self.session} …' goes on from its last step")
        raise TurnClosedError(
            f"the workflow of session {self.session!r} has ended, and the turn's end is not in this store; "
            "set PERDURE_STORE_URL to the store of the workers"
        )
