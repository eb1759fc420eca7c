"""The erasure of a session over both databases."""

import pytest

from perdure.store import NotFoundError, Store
from perdure.store.errors import SessionRunsError
from tests.unit.store.given import SESSION, commit, open_turn


async def test_a_session_is_erased_and_what_began_meanwhile_stays(store: Store) -> None:
    opened = await open_turn(store)
    with pytest.raises(SessionRunsError, match="turn 1 of session"):
        await store.begin_erasure(SESSION)
    await store.commit_turn(commit(opened.tip))
    erasure = await store.begin_erasure(SESSION)
    await open_turn(store, request_id="r2")
    while await store.erase_slice(erasure):
        pass
    assert [turn.turn for turn in await store.turns(SESSION)] == [2]
    assert (await store.begin_erasure(SESSION, closed=2)).turn == 2
    while await store.erase_slice(await store.begin_erasure(SESSION, closed=2)):
        pass
    with pytest.raises(NotFoundError):
        await store.begin_erasure(SESSION)
    assert await store.steps(SESSION) == await store.events(SESSION) == ()
