"""The erasure of a session over both databases: its tombstone, and what may no longer happen under its id."""

import pytest

from perdure.contracts.checkpoints import ResumeFrom
from perdure.contracts.messages import AssistantMessage
from perdure.contracts.turns import Continuation, OpenTurn
from perdure.store import Artifact, NotFoundError, SessionErasedError, Store
from perdure.store.errors import SessionRunsError
from perdure.store.keys import erase
from tests.unit.store.given import HELPER, SESSION, STARTED, answer, commit, generate, open_turn


async def make_session(store: Store) -> None:
    """An ended turn with an answer and an artifact."""
    opened = await open_turn(store)
    await store.keep_artifacts([Artifact(id="a1", session=SESSION, media_type="text/plain", text="a picture")])
    step = await answer(store, generate(opened.tip), "hello to you")
    await store.commit_turn(commit(step.id))


async def test_an_erased_session_leaves_a_tombstone_and_its_id_is_never_given_again(store: Store) -> None:
    await make_session(store)
    stone = await store.erase_session(SESSION, by="alice")
    assert (stone.session, stone.agent, stone.erased_by, stone.reason) == (SESSION, "helper", "alice", "request")
    assert stone.finished_at is not None
    assert stone.finished_at >= stone.erased_at
    assert {"events": 2, "steps": 2, "turns": 1, "artifacts": 1, "kept_steps": 0}.items() <= stone.counts.items()
    assert await store.steps(SESSION) == await store.events(SESSION) == await store.turns(SESSION) == ()
    said = f"{SESSION!r} was erased on request by alice on .* \\(tombstone {stone.id}\\); its id is not given again"
    with pytest.raises(SessionErasedError, match=said):
        await store.session(SESSION)
    with pytest.raises(SessionErasedError, match=said):
        await open_turn(store)
    with pytest.raises(SessionErasedError, match=said):
        await store.claim_session(SESSION, "")
    with pytest.raises(SessionErasedError, match=said):
        await store.keep_artifacts([Artifact(id="a2", session=SESSION, media_type="text/plain", text="late")])
    with pytest.raises(SessionErasedError, match=said):
        await store.erase_session(SESSION)
    assert await store.tombstones() == (stone,)
    assert await store.tombstones(tenant="other") == ()


async def test_a_session_whose_turn_is_open_is_not_erased_unless_temporal_has_ended_it(store: Store) -> None:
    opened = await open_turn(store)
    with pytest.raises(SessionRunsError, match="turn 1 of session"):
        await store.begin_erasure(SESSION)
    await store.commit_turn(commit(opened.tip))
    await open_turn(store, request_id="r2")
    with pytest.raises(NotFoundError, match="there is no session 'other'"):
        await store.begin_erasure("other")
    assert (await store.begin_erasure(SESSION, closed=2)).turn == 2


async def test_nobody_reads_a_session_whose_erasure_was_cut_off_and_it_goes_on(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erase, "SLICE", 1)
    await make_session(store)
    erasure = await store.begin_erasure(SESSION)
    assert await store.erase_slice(erasure)
    with pytest.raises(SessionErasedError):
        await store.session(SESSION)
    assert (await store.tombstones())[0].finished_at is None
    assert (await store.erase_session(SESSION)).counts["events"] == 2


@pytest.mark.parametrize("size", [1, 500])
async def test_a_copy_of_the_database_gives_the_hash_of_the_tombstone(
    store: Store, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """However many rows a transaction deletes."""
    monkeypatch.setattr(erase, "SLICE", size)
    await make_session(store)
    before = await store.read("digest", lambda connection: erase.digest_of(connection, SESSION))
    assert (await store.erase_session(SESSION)).digest == before
    assert len(before) == 64


async def test_what_a_fork_stands_on_stays_under_a_name_that_no_session_has(store: Store) -> None:
    await make_session(store)
    request = Continuation(prompt="aside", resume_from=ResumeFrom(session=SESSION))
    fork = OpenTurn(session="fork", request=request, request_id="f1", run_started_at=STARTED)
    opened = await store.open_turn(fork, HELPER)
    stone = await store.erase_session(SESSION)
    assert stone.counts["kept_steps"] == 2
    said = [
        message.content for message in await store.conversation(opened.tip) if isinstance(message, AssistantMessage)
    ]
    assert said == ["hello to you"]
