"""What a turn finds when it is about to open: read once, before the agent is resolved. On both databases."""

import pytest

from perdure.contracts.checkpoints import ResumeFrom
from perdure.contracts.input_requests import InputRequest, Reply
from perdure.contracts.tools import PlannedCall
from perdure.contracts.turns import Continuation, OpenTurn, StopReason
from perdure.store import SessionBefore, StepRecord, Store
from tests.unit.store.given import HELPER, LATER, SESSION, answer, commit, generate, open_turn, opening, wish

REQUEST = InputRequest(request_id="c1", needs="approval", tool="search", expires_at=LATER)


def asking(request_id: str = "r9", *, session: str = SESSION, **request: object) -> OpenTurn:
    continued = Continuation.model_validate({"prompt": "go on"} | request)
    return OpenTurn(session=session, request=continued, request_id=request_id, run_started_at=LATER)


async def two_turns(store: Store) -> None:
    opened = await open_turn(store)
    step = await answer(store, generate(opened.tip), "hi")
    await store.commit_turn(commit(step.id))
    await store.open_turn(opening("again", request_id="r2"), HELPER)


async def stop_for_people(store: Store) -> None:
    """A turn that ends with a call that needs an approval, and another that has its result."""
    opened = await open_turn(store)
    request = generate(opened.tip)
    await store.begin_generation(request, [])
    calls = (PlannedCall(call_id="c1", tool="search", needs="approval"), PlannedCall(call_id="c2", tool="search"))
    step = StepRecord(
        id=request.step_id(), session=SESSION, turn=1, step=1, parent=opened.tip, messages=(), calls=calls
    )
    await store.finish_generation(step, [wish("c1"), wish("c2")], [])
    ended = commit(step.id, stop_reason=StopReason.WAITING_FOR_INPUT, call_ids=["c1", "c2"])
    await store.commit_turn(ended.model_copy(update={"requests": (REQUEST,)}))


async def test_a_new_session_has_nothing_before(store: Store) -> None:
    before = await store.session_before(asking())
    assert (before, before.number) == (SessionBefore(), 1)


async def test_the_last_turn_is_what_the_next_one_goes_on_from(store: Store) -> None:
    await two_turns(store)
    before = await store.session_before(asking())
    assert before.last is not None
    assert (before.last.turn, before.last.agent, before.last.definition) == (2, "helper", HELPER.digest())
    assert (before.source, before.begun, before.number) == (before.last, None, 3)


async def test_what_the_same_request_has_begun_is_found_also_behind_a_later_turn(store: Store) -> None:
    await two_turns(store)
    before = await store.session_before(asking("r1"))
    assert before.begun is not None
    assert before.last is not None
    assert (before.begun.turn, before.last.turn, before.number) == (1, 2, 1)


@pytest.mark.parametrize(
    ("session", "origin", "source"),
    [
        (SESSION, ResumeFrom(turn=1), 1),
        (SESSION, ResumeFrom(turn=0), 2),
        (SESSION, ResumeFrom(turn=7), None),
        ("fork", ResumeFrom(session=SESSION), 2),
        ("fork", ResumeFrom(session=SESSION, turn=1), 1),
        ("fork", ResumeFrom(session="nobody"), None),
    ],
)
async def test_a_checkpoint_says_whose_agent_goes_on(
    store: Store, session: str, origin: ResumeFrom, source: int | None
) -> None:
    await two_turns(store)
    before = await store.session_before(asking(session=session, resume_from=origin))
    assert (before.source.turn if before.source is not None else None) == source
    assert (before.last is None) is (session == "fork")


async def test_a_reply_finds_what_waits_and_finds_it_again_after_its_turn_has_begun(store: Store) -> None:
    """S-52: the second attempt of an opening tells the workflow the same as the first."""
    await stop_for_people(store)
    said = asking(reply=Reply(request="c1", decision="approved"))
    before = await store.session_before(said)
    assert [call.call_id for call in before.calls] == ["c1", "c2"]
    assert (before.waiting, before.requests) == (frozenset({"c1"}), (REQUEST,))
    assert (await store.session_before(asking())).calls == ()

    await store.open_turn(said, HELPER)
    again = await store.session_before(said)
    assert again.begun is not None
    assert (again.begun.turn, again.number) == (2, 2)
    assert (again.calls, again.waiting, again.requests) == (before.calls, before.waiting, before.requests)
