"""Lists of sessions and of turns for the doors: a page for services, and an overview for people, from the same views.

A page fails with the server. An overview is there without it, and says what it could not ask.
"""

import contextlib
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from perdure.client.causes import wait_for_person
from perdure.client.errors import ClientError
from perdure.client.read import Listed, is_listed, list_sessions, place_of
from perdure.client.stream import from_store
from perdure.client.unopened import find_unopened, is_meant
from perdure.client.views import SessionView, Views
from perdure.contracts.input_requests import OpenRequest
from perdure.contracts.turns import RunState
from perdure.contracts.values import replace
from perdure.contracts.waits import Cause, TurnWait
from perdure.store.records import Closure, QueuedTurn, SessionFilter
from perdure.store.turn_lists import ListedTurn, TurnFilter
from perdure.store.turn_lists import Place as TurnPlace

MOST = 20
"""Running turns of an overview that the server is asked about."""

MOST_LOOKED_AT = 500
"""Running turns that it is asked about if the waits choose what is listed."""

_OPEN = (RunState.RUNNING, RunState.WAITING_FOR_INPUT)

Place = tuple[datetime, str]
"""Place in a list: start of a session's last turn, and its id."""


class SessionPage(NamedTuple):
    """A part of a list of sessions; ``place`` is where the next part begins, None at the end."""

    views: Sequence[SessionView]
    place: Place | None


class Overview(NamedTuple):
    """Sessions for people.

    Attributes:
        queued: Turns that wait for a slot, of sessions that are not among the listed ones.
        listed: Sessions and their last turns.
        unopened: Turns that run and stand still before a worker has opened them.
        trouble: Why it is not known which open turns Temporal has ended; None if it is.
    """

    queued: Sequence[SessionView]
    listed: Sequence[SessionView]
    unopened: Sequence[SessionView]
    trouble: ClientError | None


async def read_page(views: Views, wanted: SessionFilter, limit: int) -> SessionPage:
    """The sessions of a filter, those whose last turn began last first, unopened turns that stand still among them.

    Raises:
        ClientError: The server does not answer.
    """
    if wanted.get("state") is RunState.QUEUED:
        return await _read_queued(views, wanted, limit)
    store, waits, queue = await views.sources.store(), await views.waits(), views.sources.queue
    reported = await waits.reported(queue)
    unopened = await waits.list_unopened(store, queue, wanted, reported)
    rows = await list_sessions(store, views.closures, limit=limit, **wanted)
    failing = await waits.failing_of(
        [session.session for session, _ in rows if session.open_turn is not None], reported
    )
    found: dict[Place, SessionView] = {
        (turn.began, turn.session): SessionView(
            session=turn.session,
            tenant=turn.tenant,
            agent=turn.agent or None,
            state=RunState.RUNNING,
            waits_for=wait,
        )
        for turn, wait in unopened
    }
    listed = {session for _, session in found}
    known = await views.views_of(rows)
    for row in rows:
        name = row[0].session
        if name not in listed:
            found[place_of(row)] = replace(known[name], waits_for=failing.get(name))
    places = sorted(found, reverse=True)[:limit]
    is_full = bool(places) and (len(rows) == limit or len(found) > limit)
    return SessionPage([found[place] for place in places], places[-1] if is_full else None)


async def _read_queued(views: Views, wanted: SessionFilter, limit: int) -> SessionPage:
    """The sessions whose turns wait for a slot, those that came last first; one has maybe no turn yet."""
    store, before = await views.sources.store(), wanted.get("before")
    turns = [turn for turn in await store.queued_turns(wanted.get("tenant")) if is_listed(turn, wanted)]
    turns = [turn for turn in turns if before is None or (turn.queued_at, turn.session) < before]
    shown = turns[:limit]
    rows = await store.sessions(limit=limit, only=[turn.session for turn in shown]) if shown else ()
    known = await views.views_of(rows)
    last = shown[-1] if len(turns) > limit else None
    return SessionPage(
        [known.get(turn.session) or _queued_view(turn) for turn in shown],
        (last.queued_at, last.session) if last is not None else None,
    )


def _queued_view(turn: QueuedTurn, wait: TurnWait | None = None) -> SessionView:
    return SessionView(
        session=turn.session,
        tenant=turn.tenant,
        agent=turn.agent,
        state=RunState.QUEUED,
        queued=turn,
        waits_for=wait,
    )


class TurnPage(NamedTuple):
    """A part of a list of turns.

    Attributes:
        closures: Ends by Temporal of turns that the store has as open, by session.
        place: Where the next part begins; None at the end.
        total: Number of turns in the whole list.
    """

    turns: Sequence[ListedTurn]
    closures: Mapping[str, Closure]
    place: TurnPlace | None
    total: int


async def read_turns(views: Views, wanted: TurnFilter, limit: int, before: TurnPlace | None = None) -> TurnPage:
    """The turns of an agent that workers have opened, the latest change first.

    Raises:
        ClientError: The server does not answer.
    """
    store = await views.sources.store()
    found = await from_store(lambda: store.list_turns(wanted, limit + 1, before))
    shown = found.turns[:limit]
    running = [turn.session for turn in shown if turn.stop_reason is None]
    closures: Mapping[str, Closure] = await views.closures(await store.open_runs(running)) if running else {}
    return TurnPage(shown, closures, shown[-1].place if len(found.turns) > limit else None, found.total)


async def read_overview(
    views: Views, wanted: SessionFilter, limit: int, causes: Collection[Cause] | None = None
) -> Overview:
    """The sessions of a filter with the waits of their open turns, the newest first.

    Args:
        views: Whose sources are asked.
        wanted: The filter.
        limit: Most sessions of each kind.
        causes: Only turns that stand still for one of these causes.
    """
    store, trouble = await views.sources.store(), list[ClientError]()

    async def find_closures(begun: Mapping[str, datetime]) -> Mapping[str, Closure]:
        try:
            return await views.closures(begun)
        except ClientError as error:
            trouble.append(error)
            return {}

    rows: list[Listed] = []
    for state in _OPEN if causes is not None and wanted.get("state") is None else (wanted.get("state"),):
        chosen: SessionFilter = {**wanted, "state": state}
        rows += await list_sessions(store, find_closures, limit=limit if causes is None else MOST_LOOKED_AT, **chosen)
    known = {session.session for session, _ in rows}
    queued = [turn for turn in await store.queued_turns() if turn.session not in known and is_listed(turn, wanted)]
    queued = queued[:limit]
    waits = await _find_waits(views, rows, [turn.session for turn in queued], causes)
    if causes is not None:
        rows = [row for row in rows if row[0].session in waits][:limit]
    shown = await views.views_of(rows)
    return Overview(
        queued=[_queued_view(turn, waits.get(turn.session)) for turn in queued],
        listed=[replace(shown[session.session], waits_for=waits.get(session.session)) for session, _ in rows],
        unopened=[
            SessionView(session=name, state=RunState.RUNNING, waits_for=wait)
            for name, wait in (await _find_unopened(views, wanted, causes)).items()
        ],
        trouble=trouble[0] if trouble else None,
    )


async def _find_waits(
    views: Views, rows: Sequence[Listed], queued: Sequence[str], causes: Collection[Cause] | None
) -> Mapping[str, TurnWait]:
    """Waits of turns: of the first of a list and of those that ask people, or all waits of these causes."""
    open_turns = [session for session, last in rows if not last.closure or session.queued]
    running = [*queued, *(session.session for session in open_turns if session.state is not RunState.ENDED)]
    if causes is not None:
        return {name: wait for name, wait in (await views.waits_in_time(running)).items() if wait.cause in causes}
    people = await _find_people(
        views, {session.session for session in open_turns if session.state is RunState.WAITING_FOR_INPUT}
    )
    with contextlib.suppress(ClientError):  # which the look for closures has told
        waits = await views.waits_in_time(running[:MOST])
        asked = {name: wait for name, wait in people.items() if name not in waits or not waits[name].is_stuck}
        return {**waits, **asked}
    return people


async def _find_people(views: Views, asking: Collection[str]) -> Mapping[str, TurnWait]:
    """Waits of these sessions for people, which the store knows."""
    asked: dict[str, list[OpenRequest]] = {}
    for request in await (await views.sources.store()).open_requests() if asking else ():
        if request.session in asking:
            asked.setdefault(request.session, []).append(request)
    return {
        name: wait_for_person(name, those, min(request.asked_at for request in those)) for name, those in asked.items()
    }


async def _find_unopened(
    views: Views, wanted: SessionFilter, causes: Collection[Cause] | None
) -> Mapping[str, TurnWait]:
    """Waits of running turns that the store does not know."""
    with contextlib.suppress(ClientError):  # as above
        store = await views.sources.store()
        turns = await find_unopened(await views.sources.temporal(), store, views.sources.queue)
        meant = [turn.session for turn in turns if is_meant(turn, wanted, states={RunState.RUNNING})]
        waits = await views.waits_in_time(meant[:MOST])
        return {name: wait for name, wait in waits.items() if causes is None or wait.cause in causes}
    return {}
