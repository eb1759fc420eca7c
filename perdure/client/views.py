"""Views: how a turn and a session stand for whoever asks, told alike at every door.

A turn is queued, runs, waits for people, has ended, or was refused before a worker opened it. The store says most of
this; Temporal is asked for what the store cannot know, and is reached only then.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import temporalio.client

from perdure.client.executions import Runs
from perdure.client.read import SESSION_FIELDS, Listed, closures, end_of, mark_ended, session_fields
from perdure.client.sessions import missing_turn, unknown_session_of
from perdure.client.turn import Place, Turn
from perdure.client.unopened import list_running_turns, tenant_of_unopened
from perdure.client.waits import Waits
from perdure.contracts.checkpoints import JobStatus
from perdure.contracts.input_requests import OpenRequest
from perdure.contracts.turns import RunState, StopReason, TurnResult
from perdure.contracts.values import JsonValue, Value, replace
from perdure.contracts.waits import TurnWait
from perdure.store import SessionRecord, Store, TurnRecord
from perdure.store.errors import NotFoundError, SessionErasedError
from perdure.store.records import Closure, QueuedTurn, TurnGlance

PATIENCE = timedelta(seconds=5)
"""Longest time that a list waits for the server's answer about the waits of turns."""

SLOWEST = 10
"""Turns a second that a slow server still says something of."""

_REFUSED = ("stop_reason", "reason_code", "error")
"""Fields about why a worker refused to open a turn."""


class TurnView(Value):
    """A turn: open while it has neither a result nor a closure.

    Attributes:
        state: ``running`` also before a worker has opened it, and ``ended`` also if a worker has refused to.
        agent: None, as what follows, before a worker has opened the turn.
        definition: Hash of its frozen agent.
        closure: End of its workflow by Temporal, which could not end the turn itself.
        trace_id: Of a turn that is traced, where that was asked for.
    """

    session: str
    turn: int
    state: RunState
    job_status: JobStatus
    request_id: str | None = None
    agent: str | None = None
    definition: str | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    result: TurnResult | None = None
    closure: Closure | None = None
    trace_id: str | None = None


class SessionView(Value):
    """A session with its open or last turn.

    Attributes:
        tenant: None if only Temporal has the session, and cannot tell.
        agent: None before a worker has opened the first turn, unless that is queued.
        opened: The session and its open or last turn; None before a worker has opened the first one. A turn that
            Temporal has ended has a ``closure``.
        glance: Steps, cost and prompt of that turn.
        queued: The next turn, if it waits for a slot.
        requests: Open input requests.
        waits_for: Reason the turn stands still.
        refusal: The result of a first turn that a worker refused to open.
    """

    session: str
    state: RunState
    tenant: str | None = None
    agent: str | None = None
    opened: tuple[SessionRecord, TurnRecord] | None = None
    glance: TurnGlance = TurnGlance()
    queued: QueuedTurn | None = None
    requests: tuple[OpenRequest, ...] = ()
    waits_for: TurnWait | None = None
    refusal: TurnResult | None = None

    @property
    def open_turn(self) -> int | None:
        """Number of the open turn."""
        return None if self.opened is None else self.opened[0].open_turn

    @property
    def tip(self) -> str | None:
        """Last step of the conversation."""
        return None if self.opened is None else self.opened[0].tip or self.opened[0].head

    @property
    def fields(self) -> dict[str, JsonValue]:
        """The fields of the session in lists, :data:`perdure.client.read.SESSION_FIELDS`, null where unknown."""
        if self.opened is not None:
            return session_fields(*self.opened)
        known: dict[str, JsonValue] = {"session": self.session, "agent": self.agent, "state": self.state}
        if self.refusal is not None:
            known |= {"job_status": self.refusal.job_status, **end_of(self.refusal, _REFUSED)}
        return {**dict.fromkeys(SESSION_FIELDS), **known}


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Sources of views: the store and the server, each opened by the first question to it, and the task queue."""

    store: Callable[[], Awaitable[Store]]
    temporal: Callable[[], Awaitable[temporalio.client.Client]]
    queue: str


class Views:
    """Views of turns and sessions."""

    def __init__(self, sources: Sources) -> None:
        self.sources = sources

    async def turn_view(self, session: str, turn: int) -> TurnView:
        """View of a turn, also of one that is queued, unopened or refused; see :meth:`Client.turn_view`."""
        try:
            view = await self.stored_turn_view(session, turn)
        except NotFoundError as error:
            return await self._unopened_turn_view(session, turn, error)
        (view,) = await self._mark_closed([view])
        return view

    async def turn_of_request(self, session: str, request_id: str) -> int | None:
        """Number of the turn that a request has begun; None if no worker has opened one."""
        store = await self.sources.store()
        try:
            found = await store.turn_by_request(session, request_id)
        except NotFoundError:
            return None
        return None if found is None else found.turn

    async def is_turn_coming(self, last: TurnRecord) -> bool:
        """Whether a turn behind this one, a session's last, was begun that no worker has opened yet."""
        newest = await (await self._runs()).find_newest(last.session)
        return newest is not None and newest.running and newest.request_id != last.request_id

    async def turn_views(self, session: str) -> list[TurnView]:
        """Views of the turns that workers have opened, in order."""
        return await self._mark_closed(await self.stored_turn_views(session))

    async def stored_turn_views(self, session: str, *, traces: bool = False) -> list[TurnView]:
        """The same as the store knows them; with the ids of their traces if asked for."""
        store = await self.sources.store()
        waiting = {request.turn for request in await store.open_requests(session)}
        records = await store.turns(session)
        known = await store.traces(session, [record.turn for record in records]) if traces else {}
        return [_turn_view(record, waiting, known.get(record.turn)) for record in records]

    async def _mark_closed(self, views: list[TurnView]) -> list[TurnView]:
        """Mark the last of a session's turns as ended if Temporal has ended its workflow."""
        if not views or views[-1].state is RunState.ENDED:
            return views
        last, closure = views[-1], await self._find_closure(views[-1].session)
        if closure is None:
            return views
        status, ended = StopReason.ERROR.job_status, RunState.ENDED
        closed = replace(last, state=ended, job_status=status, ended_at=closure.at, closure=closure)
        return [*views[:-1], closed]

    async def _find_closure(self, session: str) -> Closure | None:
        store = await self.sources.store()
        return (await self.closures(await store.open_runs([session]))).get(session)

    async def stored_turn_view(self, session: str, turn: int) -> TurnView:
        """View of a turn that a worker has opened, as the store knows it.

        Raises:
            NotFoundError: The store has no such session or turn.
        """
        store = await self.sources.store()
        record = await store.turn(session, turn)
        waiting = {request.turn for request in await store.open_requests(session)}
        return _turn_view(record, waiting, (await store.traces(session, [turn])).get(turn))

    async def _unopened_turn_view(self, session: str, turn: int, missing: NotFoundError) -> TurnView:
        """View of a turn without a row: refused, queued, or not opened yet."""
        runs, store = await self._runs(), await self.sources.store()
        try:
            last = (await store.session(session)).turn
        except NotFoundError:
            last = 0
        if 1 <= turn <= last:  # a worker has opened it meanwhile
            return await self.stored_turn_view(session, turn)
        newest = await runs.find_newest(session)
        is_ahead = newest is not None and newest.running
        if newest is not None and not is_ahead and turn == last + 1:
            result = (await runs.close(session, newest.run_id)).result
            if result is not None and result.turn is None:
                return TurnView(
                    session=session,
                    turn=turn,
                    state=RunState.ENDED,
                    job_status=result.job_status,
                    agent=result.agent,
                    result=result,
                )
        if not last and (newest is None or isinstance(missing, SessionErasedError)):
            raise unknown_session_of(missing)
        if turn < 1 or (last and not is_ahead):
            raise missing_turn(session, turn, last)
        state = RunState.QUEUED if await store.queued_turns(session=session) else RunState.RUNNING
        return TurnView(session=session, turn=turn, state=state, job_status=JobStatus.RUNNING)

    async def session_view(self, session: str) -> SessionView:
        """View of a session; see :meth:`Client.session_view`."""
        try:
            view = await self.stored_session_view(session)
        except NotFoundError as error:
            return await self.unopened_session_view(session, error)
        is_open = view.opened is not None and view.opened[1].result is None
        closure = await self._find_closure(session) if is_open else None
        if view.opened is not None and closure is not None:
            record, last = mark_ended(view.opened, closure)
            view = replace(view, opened=(record, last), state=record.state, requests=())
        if view.state is RunState.ENDED:
            return view
        return replace(view, waits_for=await (await self.waits()).wait_of(session))

    async def stored_session_view(self, session: str) -> SessionView:
        """View of a session as the store knows it: the server is not asked whether the open turn goes on.

        Raises:
            NotFoundError: No worker has opened a turn of it.
        """
        store = await self.sources.store()
        record = await store.session(session)
        last = await store.turn(session, record.turn)
        requests = await store.open_requests(session)
        if last.result is not None:  # it may have ended since the session was read
            record = replace(record, open_turn=None)
        queued = next(iter(await store.queued_turns(session=session)), None)
        is_waiting = bool(requests) and record.open_turn is not None
        record = replace(record, waiting=is_waiting, queued=queued is not None)
        glances = await store.glances({session: last.turn})
        return replace(_session_view(record, last, glances), requests=requests, queued=queued)

    async def views_of(self, rows: Sequence[Listed]) -> dict[str, SessionView]:
        """Views of listed sessions and their last turns, by session."""
        store = await self.sources.store()
        glances = await store.glances({session.session: last.turn for session, last in rows})
        return {session.session: _session_view(session, last, glances) for session, last in rows}

    async def unopened_session_view(self, session: str, missing: NotFoundError) -> SessionView:
        """View of a session whose first turn no worker has opened, or has refused to.

        Raises:
            UnknownSessionError: Temporal has no turn of it either; ``missing`` is what the store said.
            TurnClosedError: Temporal has ended that turn.
        """
        runs, store = await self._runs(), await self.sources.store()
        newest = await runs.find_newest(session)
        if newest is None or (isinstance(missing, SessionErasedError) and not newest.running):
            raise unknown_session_of(missing) from None
        wait, tenant = await Waits(runs).wait_of(session), await store.tenant_of(session)
        if wait is not None or await runs.is_running(session):
            queued = next(iter(await store.queued_turns(session=session)), None)
            state, agent = (RunState.RUNNING, None) if queued is None else (RunState.QUEUED, queued.agent)
            return SessionView(session=session, tenant=tenant, agent=agent, state=state, queued=queued, waits_for=wait)
        place = Place(session=session, request_id=newest.request_id, run_id=newest.run_id, turn=None)
        refusal = await Turn(place, runs, self.sources.store).result()
        return SessionView(session=session, tenant=tenant, state=RunState.ENDED, refusal=refusal)

    async def check_opened(self, session: str, turn: int | None = None) -> None:
        """See that a worker has opened the turn, or any turn of the session.

        Raises:
            NotFoundError: None has.
        """
        store = await self.sources.store()
        await (store.session(session) if turn is None else store.turn(session, turn))

    async def closures(self, begun: Mapping[str, datetime]) -> Mapping[str, Closure]:
        """Closures by Temporal of open turns; see :func:`perdure.client.read.closures`."""
        return await closures(await self.sources.temporal(), begun)

    async def closed_turns(self) -> Mapping[str, Closure]:
        """Closures by Temporal of all open turns, by session."""
        return await self.closures(await (await self.sources.store()).open_runs())

    async def running_sessions(self) -> list[str]:
        """Sessions whose turns run in Temporal, also those that no worker has opened yet."""
        running = await list_running_turns(await self.sources.temporal(), self.sources.queue)
        return [run.id for run in running]

    async def session_names(self, limit: int) -> list[str]:
        """Ids of the sessions whose last turns began last."""
        return [record.session for record, _ in await (await self.sources.store()).sessions(limit=limit)]

    async def tenant_of_unopened(self, session: str) -> str | None:
        """Tenant of a turn that runs, as its input says; None if none runs that tells."""
        return await tenant_of_unopened(await self.sources.temporal(), session)

    async def waits(self) -> Waits:
        """Waits of turns, asked of the server."""
        return Waits(await self._runs())

    async def waits_in_time(self, sessions: Collection[str]) -> dict[str, TurnWait]:
        """Waits of these turns; none if the server takes long.

        Raises:
            ClientError: The server does not answer.
        """
        if not sessions:
            return {}
        waits = await self.waits()
        try:
            async with asyncio.timeout(max(PATIENCE.total_seconds(), len(sessions) / SLOWEST)):
                return await waits.waits_of(sessions)
        except TimeoutError:
            return {}

    async def _runs(self) -> Runs:
        return Runs(await self.sources.temporal())


def _turn_view(record: TurnRecord, waiting: Collection[int], trace: str | None) -> TurnView:
    open_state = RunState.WAITING_FOR_INPUT if record.turn in waiting else RunState.RUNNING
    return TurnView(
        session=record.session,
        turn=record.turn,
        state=open_state if record.result is None else RunState.ENDED,
        job_status=record.job_status,
        request_id=record.request_id,
        agent=record.agent,
        definition=record.definition,
        started_at=record.started_at,
        ended_at=record.ended_at,
        result=record.result,
        trace_id=trace,
    )


def _session_view(record: SessionRecord, last: TurnRecord, glances: Mapping[str, TurnGlance]) -> SessionView:
    glance = glances.get(record.session, TurnGlance())
    return SessionView(
        session=record.session,
        state=record.state,
        tenant=record.tenant,
        agent=record.agent,
        opened=(record, last),
        glance=glance,
    )
