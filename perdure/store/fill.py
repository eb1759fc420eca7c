"""Filling: events that an older release has written are recorded in rows, session by session, while workers run.

Whoever locks a session makes up for it. This is for those that nobody locks, so that lists and searches find them.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Protocol, TypeVar

from sqlalchemy import Connection, select

from perdure.store import schema
from perdure.store.errors import StoreError
from perdure.store.session_lock import UNREADABLE, make_up

T = TypeVar("T")

SLICE = 50
"""Sessions that one transaction makes up for at most."""

EVERY = timedelta(seconds=10)
"""Interval at which a worker looks for turns of workers of an older release beside it."""

WHOLE_EVERY = 360
"""The number of such looks after which one is for all sessions, also those whose turns have ended: an hour."""

_S = schema.sessions.c

logger = logging.getLogger("perdure.store")


class FilledStore(Protocol):
    """The parts of a :class:`perdure.store.Store` that this needs: its transactions."""

    async def read(self, operation: str, work: Callable[[Connection], T]) -> T:
        """Do work that only reads."""
        ...

    async def write(self, operation: str, work: Callable[[Connection], T]) -> T:
        """Do work in one transaction that writes."""
        ...


async def fill(store: FilledStore, *, only_open: bool = False) -> int:
    """Record what an older release has written of sessions that are behind; returns how many there were.

    With ``only_open`` only of those with an open turn. A session that this process cannot read is passed over.
    """
    done, after = 0, ""
    while names := await store.read("find_unfilled", partial(_find, after=after, only_open=only_open)):
        try:
            await store.write("fill", partial(make_up, sessions=names))
        except UNREADABLE:
            for name in names:
                await _fill_alone(store, name)
        done, after = done + len(names), names[-1]
    return done


async def _fill_alone(store: FilledStore, session: str) -> None:
    try:
        await store.write("fill", partial(make_up, sessions=[session]))
    except UNREADABLE as error:
        logger.debug("session %s stays as an older release wrote it: %s", session, error)


@asynccontextmanager
async def filling(store: FilledStore) -> AsyncGenerator[None]:
    """Record all that is behind, and what workers of an older release still write, as long as this block lasts."""
    task = asyncio.create_task(_fill_again(store), name="perdure-fill")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _fill_again(store: FilledStore) -> None:
    looks = 0
    while True:
        try:
            done = await fill(store, only_open=True)
            if looks % WHOLE_EVERY == 0:
                done += await fill(store)
        except StoreError as error:  # it is away: whoever needs it says so
            logger.debug("what an older release has written is recorded later: %s", error)
        else:
            looks += 1
            if done:
                logger.info("recorded what an older release has written of %d sessions", done)
        await asyncio.sleep(EVERY.total_seconds())


def _find(connection: Connection, *, after: str, only_open: bool) -> tuple[str, ...]:
    """The next sessions that are behind, in the order of their ids."""
    behind = select(_S.session).where(_S.session > after, schema.IS_BEHIND, *([schema.IS_OPEN] if only_open else []))
    return tuple(connection.scalars(behind.order_by(_S.session).limit(SLICE)))
