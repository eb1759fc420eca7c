"""Standing approvals in the store: kept with the decision, once, and looked for under the lock that revokes them."""

from datetime import UTC, datetime, timedelta

import pytest

from perdure.contracts.events import NewEvent, UserInputReceived
from perdure.contracts.input_requests import InputReceipt
from perdure.contracts.standing_approvals import StandingTerms
from perdure.contracts.tools import PlannedCall, ToolOutcome
from perdure.contracts.values import replace
from perdure.store import LedgerCall, StepRecord, Store, session_lock
from perdure.store.errors import NotFoundError, SessionErasedError
from tests.unit.store.given import SESSION, answer, commit, generate, new_event, open_turn, wish
from tests.unit.store.test_sealing import MARKER, everything_in, opened

AT = datetime(2026, 11, 27, 10, tzinfo=UTC)
TOOL = StandingTerms(scope="tool", reason="small sums")
SAME = StandingTerms(scope="arguments", arguments='{"amount": 1}')


def received(terms: StandingTerms = TOOL, *, request: str = "c0", digest: str = "d" * 32, by: str = "ann") -> NewEvent:
    """The decision that gives a standing approval."""
    event = UserInputReceived(
        request_id=request, tool="search", decision="approved", by=by, at=AT, digest=digest, always=terms
    )
    return new_event(f"1/{request}/user_input_received", event)


async def store_answer(
    store: Store, parent: str, *digests: str, step: int = 1, tool: str = "search"
) -> tuple[PlannedCall, ...]:
    """Store an answer with a call for each digest, which needs an approval; the calls as they are stored."""
    request = generate(parent, step=step)
    planned = tuple(
        PlannedCall(call_id=f"c{step}{place}", tool=tool, needs="approval", digest=digest)
        for place, digest in enumerate(digests)
    )
    await store.begin_generation(request, [])
    ledger = [LedgerCall(call_id=call.call_id, tool=tool, arguments="{}") for call in planned]
    record = StepRecord(
        id=request.step_id(), session=SESSION, turn=1, step=step, parent=parent, messages=(), calls=planned
    )
    stored = await store.finish_generation(record, ledger, [])
    again = await store.finish_generation(record, ledger, [])
    assert again == stored == await store.step(record.id)
    return stored.calls


async def test_it_is_kept_once_with_the_event_and_a_repeat_does_not_bring_a_revoked_one_back(store: Store) -> None:
    """S-84: a transaction that fails keeps neither; the same decision again, as after a reset, is the same row."""
    await open_turn(store)
    broken = replace(received(), key=None)  # type: ignore[arg-type]
    with pytest.raises(Exception, match=r"(?i)null"):
        await store.append_events(SESSION, [received(), broken])
    assert (await store.standing_approvals(SESSION), len(await store.events(SESSION))) == ((), 1)
    await store.append_events(SESSION, [received()])
    await store.append_events(SESSION, [received(SAME)])
    (given,) = await store.standing_approvals(SESSION)
    assert (given.id, given.agent, given.tool, given.scope, given.by) == ("c0", "helper", "search", "tool", "ann")
    assert (given.reason, given.given_at, given.digest, given.arguments) == ("small sums", AT, "d" * 32, "")
    revoked = await store.revoke_standing(SESSION, "c0", by="bob")
    await store.append_events(SESSION, [received()])
    assert await store.standing_approvals(SESSION) == ()
    assert await store.standing_approvals(SESSION, ended=True) == (revoked,)


async def test_every_way_in_which_a_decision_is_written_keeps_it(store: Store) -> None:
    """S-84: also that of a call which did not run any more, because the turn ended first."""
    tip = (await open_turn(store)).tip
    step = await answer(store, generate(tip), calls=[wish("c1"), wish("c2")])
    claimed = replace(received(request="c1"), key="1/c1/user_input_received")
    await store.claim_call(session=SESSION, turn=1, call_id="c1", claimant="run/1/1", events=[claimed])
    receipt = InputReceipt(request_id="c2", decision="approved", by="ann", at=AT, digest="d", always=SAME)
    ended = ToolOutcome(call_id="c2", preview="it did not run", recorded=False, decided=receipt)
    await store.commit_turn(replace(commit(step.id, call_ids=["c1", "c2"]), failed=(ended,)))
    kept = {given.id: given.arguments for given in await store.standing_approvals(SESSION)}
    assert kept == {"c1": "", "c2": '{"amount": 1}'}


async def test_an_answers_calls_are_let_through_by_tool_agent_and_digest(store: Store) -> None:
    tip = (await open_turn(store)).tip
    await open_turn(store, session="other")
    await store.append_events("other", [received(TOOL)])
    assert [call.needs for call in await store_answer(store, tip, "d" * 32)] == ["approval"]
    await store.append_events(SESSION, [received(SAME)])
    tip = generate(tip).step_id()
    same, another = await store_answer(store, tip, "d" * 32, "e" * 32, step=2)
    assert (same.needs, another.needs, another.approval) == (None, "approval", None)
    assert same.approval == InputReceipt(
        request_id="c20", decision="approved", by="ann", at=AT, digest="d" * 32, standing="c0"
    )
    tip = generate(tip, step=2).step_id()
    (of_another_tool,) = await store_answer(store, tip, "d" * 32, step=3, tool="pay")
    assert of_another_tool.needs == "approval"


async def test_neither_a_revoked_one_nor_one_that_is_over_lets_a_call_through(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    tip = (await open_turn(store)).tip
    until = datetime.now(UTC) + timedelta(hours=1)
    await store.append_events(SESSION, [received(replace(TOOL, until=until))])
    assert [call.needs for call in await store_answer(store, tip, "e")] == [None]

    class Later(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
            return until

    tip = generate(tip).step_id()
    with monkeypatch.context() as patched:
        patched.setattr(session_lock, "datetime", Later)
        assert [call.needs for call in await store_answer(store, tip, "e", step=2)] == ["approval"]
    await store.revoke_standing(SESSION, "c0", by="bob")
    tip = generate(tip, step=2).step_id()
    assert [call.needs for call in await store_answer(store, tip, "e", step=3)] == ["approval"]


async def test_what_is_not_there_cannot_be_revoked(store: Store) -> None:
    await open_turn(store)
    with pytest.raises(NotFoundError, match="session 's' has no standing approval 'c0'"):
        await store.revoke_standing(SESSION, "c0", by="bob")
    with pytest.raises(NotFoundError):
        await store.revoke_standing("nowhere", "c0", by="bob")


async def test_what_people_said_is_sealed_and_an_erasure_deletes_the_rows(url: str) -> None:
    """Tool, scope, times and names are plain, as in other tables; a digest lets guess arguments."""
    digest, said = "f00d" * 8, f"{MARKER}-reason"
    async with opened(url) as store:
        tip = (await open_turn(store)).tip
        terms = StandingTerms(scope="arguments", reason=said, arguments=f"{MARKER}-arguments")
        await store.append_events(SESSION, [received(terms, digest=digest)])
        (given,) = await store.standing_approvals(SESSION)
        assert (given.reason, given.arguments, given.digest) == (said, f"{MARKER}-arguments", digest)
        found = everything_in(url)
        assert [text in found for text in (MARKER, digest)] == [False, False]
        await store.commit_turn(commit(tip))
        await store.erase_session(SESSION)
        assert await store.standing_approvals(SESSION, ended=True) == ()
        with pytest.raises(SessionErasedError):
            await store.revoke_standing(SESSION, "c0", by="bob")


async def test_texts_with_nul_are_kept_as_they_came(store: Store) -> None:
    await open_turn(store)
    await store.append_events(SESSION, [received(replace(TOOL, reason="a\0b"), by="a\0nn")])
    revoked = await store.revoke_standing(SESSION, "c0", by="b\0b")
    assert (revoked.reason, revoked.by, revoked.revoked_by) == ("a\0b", "a\0nn", "b\0b")
