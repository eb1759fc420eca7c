"""The erasure of a session and of its delegates' sessions: each that can be erased now is, and the others are told."""

from perdure.client.errors import SessionBusyError
from perdure.client.sessions import Sessions, unknown_session_of
from perdure.contracts.values import Value
from perdure.store import Store
from perdure.store.delegates import Below
from perdure.store.errors import NotFoundError, SessionRunsError
from perdure.store.keys.tombstones import Tombstone


class NotErased(Value):
    """The session of a delegate that was not erased, as a turn of it runs, and what ends that turn."""

    session: str
    why: str


class Erased(Value):
    """Report of an erasure.

    Attributes:
        delegates: The sessions of delegates that were erased with it, and of their delegates.
        not_erased: Those that could not be erased now; the same call erases them once their turns have ended.
        kept_steps: Steps that forks stand on, which stay under a name that no session can have.
        schedules: The schedules that sent messages to one of them, which were removed.
        histories: Runs that the Temporal server was told to delete, of all of them.
        tombstone: The proof, which the store keeps.
    """

    session: str
    delegates: tuple[str, ...] = ()
    not_erased: tuple[NotErased, ...] = ()
    kept_steps: int = 0
    schedules: tuple[str, ...] = ()
    histories: int = 0
    tombstone: Tombstone


async def erase(sessions: Sessions, session: str, *, histories: bool, by: str) -> Erased:
    """Erase a session, the sessions of its delegates first, and what Temporal has of them if that is asked for.

    Of a session that was erased before, this erases what is left: delegates that ran then, and ``histories``.

    Raises:
        SessionBusyError: A turn of the session runs.
        SessionErasedError: The session was erased before, and nothing is left.
        UnknownSessionError: There is no such session.
    """
    store = await sessions.store()
    await sessions.wait_until_idle(session)
    try:
        before = await store.tombstone(session)
        # A turn that is open all the same was ended by Temporal.
        closed = (await store.session(session)).open_turn if before is None else None
        below = await store.sessions_below(session)
        delegates, not_erased = await _erase_below(sessions, store, below, by)
        goes_on = bool(histories or delegates or not_erased)
        if before is None or before.finished_at is None or not goes_on:
            await store.erase_session(session, closed=closed, by=by)
    except NotFoundError as error:
        raise unknown_session_of(error) from None
    except SessionRunsError as error:
        raise SessionBusyError(str(error)) from error
    runs = 0
    if histories:
        standing = {each.session for each in not_erased}
        for name in (*(each.session for each in below if each.session not in standing), session):
            runs += await sessions.runs.delete_histories(name)
    tombstone = await store.tombstone(session)
    assert tombstone is not None, "it was just erased"  # noqa: S101 - narrows the type
    return Erased(
        session=session,
        delegates=delegates,
        not_erased=not_erased,
        kept_steps=tombstone.counts.get("kept_steps", 0),
        histories=runs,
        tombstone=tombstone,
    )


async def _erase_below(
    sessions: Sessions, store: Store, below: tuple[Below, ...], by: str
) -> tuple[tuple[str, ...], tuple[NotErased, ...]]:
    """Erase these sessions, the deepest first; those that were erased and those that run, each after its caller."""
    erased, not_erased = list[str](), list[NotErased]()
    for each in below:
        if each.is_erased:
            continue
        try:
            await sessions.wait_until_idle(each.session)
            await store.erase_session(each.session, closed=each.open_turn, by=by)
        except (SessionBusyError, SessionRunsError) as error:
            not_erased.append(NotErased(session=each.session, why=str(error)))
        except NotFoundError:  # a sweep has erased it meanwhile
            continue
        else:
            erased.append(each.session)
    return tuple(reversed(erased)), tuple(reversed(not_erased))
