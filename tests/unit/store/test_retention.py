"""What is old is swept, and what nothing refers to is collected; what is needed stays. On both databases."""

from datetime import UTC, datetime, timedelta

import pytest

from perdure.activities.retention import sweep
from perdure.contracts.checkpoints import ResumeFrom
from perdure.contracts.retention import Retention, SweepSlice, Swept
from perdure.contracts.turns import Continuation, OpenTurn
from perdure.contracts.values import replace
from perdure.contracts.webhooks import Webhook
from perdure.store import Artifact, SessionErasedError, Store
from perdure.store.keys import erase
from perdure.store.tenants import claim_request
from tests.unit.store.given import HELPER, SESSION, STARTED, answer, commit, generate, open_turn
from tests.unit.store.test_sealing import OLD

DAY = timedelta(days=1)


async def keep_for(store: Store, **kept: object) -> None:
    """Register the agent with this retention."""
    await store.register_agents([replace(HELPER, retention=Retention(**kept))])  # type: ignore[arg-type]


async def make_turns(store: Store, number: int = 2) -> None:
    for turn in range(1, number + 1):
        opened = await open_turn(store, f"question {turn}", request_id=f"r{turn}")
        step = await answer(store, generate(opened.tip, turn=turn), f"answer {turn}")
        await store.commit_turn(commit(step.id, turn=turn))


async def sweep_all(store: Store, *, after: timedelta = 2 * DAY, dry_run: bool = False) -> Swept:
    """Sweep as if it were so much later."""
    total, part = Swept(), SweepSlice(now=datetime.now(UTC) + after, dry_run=dry_run)
    while True:
        total = total.plus(await sweep(store, part))
        if total.going_on is None:
            return total
        part = total.going_on


@pytest.mark.parametrize("written", [DAY, "1d", "24h", "P1D", 86_400])
def test_durations_are_written_as_people_do(written: object) -> None:
    assert Retention(events=written).events == DAY  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"keep_latest": True}, "set transcript too"),
        ({"events": "1 fortnight"}, "events"),
        ({"events": "0h"}, "write an hour or more, such as 12h"),
    ],
)
def test_a_retention_that_cannot_be_meant_is_refused(given: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Retention(**given)  # type: ignore[arg-type]


async def test_old_sessions_are_erased_and_young_ones_stay(store: Store) -> None:
    await keep_for(store, transcript=DAY)
    await make_turns(store)
    assert await sweep_all(store, after=timedelta(hours=1)) == Swept()
    assert await sweep_all(store, dry_run=True) == Swept(erased=1)
    assert (await store.session(SESSION)).turn == 2
    assert await sweep_all(store) == Swept(erased=1)
    with pytest.raises(SessionErasedError, match="at the end of its retention"):
        await store.session(SESSION)
    assert await sweep_all(store) == Swept()


async def test_agents_without_a_retention_keep_everything(store: Store) -> None:
    await store.register_agents([HELPER])
    await make_turns(store)
    assert await sweep_all(store, after=10_000 * DAY) == Swept()


async def test_events_and_artifacts_go_before_the_transcript(store: Store) -> None:
    await keep_for(store, events=DAY, artifacts=DAY)
    await make_turns(store)
    await store.keep_artifacts([Artifact(id="a1", session=SESSION, media_type="text/plain", text="a file")])
    head = (await store.session(SESSION)).head or ""
    before = await store.conversation(head)
    planned = await sweep_all(store, dry_run=True)
    assert (planned.events, planned.artifacts) == (4, 1)
    assert await sweep_all(store) == planned
    assert await store.events(SESSION) == ()
    assert (await store.swept_seq(SESSION), await store.conversation(head)) == (4, before)
    await open_turn(store, "and now?", request_id="r3")
    assert [event.seq for event in await store.events(SESSION)] == [5]


async def test_only_what_the_next_turn_needs_is_kept(store: Store) -> None:
    await keep_for(store, transcript=DAY, keep_latest=True)
    await make_turns(store, 3)
    head = (await store.session(SESSION)).head or ""
    before = await store.conversation(head)
    assert (await sweep_all(store, dry_run=True)).trimmed == 1
    swept = await sweep_all(store)
    assert (swept.trimmed, swept.events, swept.erased) == (1, 4, 0)
    assert await store.conversation(head) == before
    outputs = [turn.result.output for turn in await store.turns(SESSION) if turn.result is not None]
    assert outputs == ["", "", "answer 3"]
    assert (await sweep_all(store)).trimmed == 0
    opened = await open_turn(store, "on", request_id="r4")
    assert [message.content for message in await store.conversation(opened.tip)][-2:] == ["answer 3", "on"]


async def test_an_open_turn_and_a_fork_keep_a_session_and_the_sweep_says_so(store: Store) -> None:
    await keep_for(store, transcript=DAY)
    await make_turns(store, 1)
    request = Continuation(prompt="aside", resume_from=ResumeFrom(session=SESSION))
    fork = OpenTurn(session="fork", request=request, request_id="f1", run_started_at=STARTED)
    opened = await store.open_turn(fork, HELPER)
    swept = await sweep_all(store)
    assert (swept.erased, swept.kept_sessions) == (0, 2)
    assert {kept.session: kept.why for kept in swept.kept} == {
        SESSION: "fork stands on its steps",
        "fork": "its turn 1 is open",
    }
    await store.commit_turn(commit(opened.tip).model_copy(update={"session": "fork"}))
    await store.erase_session("fork")
    assert (await sweep_all(store)).erased == 1


async def test_garbage_is_what_nothing_refers_to(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is young, or used, stays; and an erasure that was cut off is ended."""
    monkeypatch.setattr(erase, "SLICE", 1)
    old = replace(HELPER, instructions="of a deployment before")
    await store.register_agents([old])
    await store.register_agents([HELPER])
    await make_turns(store, 1)
    await store.keep_artifacts([Artifact(id="lost", session="never", media_type="text/plain", text="unsent")])
    await store.keep_artifacts([Artifact(id="used", session=SESSION, media_type="text/plain", text="sent")])
    await store.write("claim", lambda connection: claim_request(connection, "", "key", "digest", SESSION))
    await store.erase_slice(await store.begin_erasure(SESSION))
    assert {kind: count for kind, count in (await store.collect_garbage(dry_run=True)).items() if count} == {
        "erasures": 1
    }
    monkeypatch.setattr("perdure.store.garbage.YOUNG", timedelta(days=-1))
    found = await store.collect_garbage(dry_run=True)
    assert (found["erasures"], found["definitions"]) == (1, 2 - 1)
    done = await store.collect_garbage()
    assert (done["erasures"], done["artifacts"], done["definitions"]) == (1, 1, 1)
    assert await store.definition(HELPER.digest()) == HELPER
    assert (await store.tombstones())[0].finished_at is not None
    assert not any((await store.collect_garbage()).values())


async def test_the_key_of_a_webhook_is_no_garbage(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.store.garbage.YOUNG", timedelta(days=-1))
    about = {"id": "w1", "url": "https://example.com", "events": ("ended",), "created_at": STARTED}
    async with await Store.open(url, upgrade=True, keyring=OLD) as store:
        await store.add_webhook(Webhook.model_validate(about), "whsec_first")
        assert (await store.collect_garbage())["keys"] == 0
        target = await store.webhook_target("w1")
        assert target is not None
        assert target.secrets == ("whsec_first",)


async def test_nothing_was_swept_of_a_session_that_no_sweep_has_met(store: Store) -> None:
    await open_turn(store)
    assert await store.swept_seq(SESSION) == 0
