"""Whose session a turn may open: looked at in the transaction that claims the turn, whoever asks."""

import pytest

from perdure.contracts.checkpoints import ResumeFrom
from perdure.contracts.ids import FORMS, Signed, delegate_session, refusal_of
from perdure.contracts.tools import Delegated
from perdure.contracts.turns import OpenTurn
from perdure.contracts.values import replace
from perdure.store import Store
from perdure.store.errors import NotFoundError, ResumeRefusedError
from tests.unit.store.given import HELPER, SESSION, commit, opening


def asked(session: str, *, tenant: str = "", request_id: str = "r1", delegated: Delegated | None = None) -> OpenTurn:
    """An opening for a tenant."""
    asking = opening(session=session, request_id=request_id)
    return replace(asking, request=replace(asking.request, tenant=tenant, delegated=delegated))


async def call_of(store: Store, session: str = SESSION, tenant: str = "") -> Delegated:
    """The first delegate's call of a new session."""
    opened = await store.open_turn(asked(session, tenant=tenant), HELPER)
    delegate = delegate_session(session, "helper", session, "call_1", opened.seed)
    about = {"step": 1, "definition": HELPER.digest(), "tool": "helper", "root": session, "delegate": delegate}
    return Delegated.model_validate({"session": session, "turn": opened.turn, "call_id": "call_1", **about})


def of_call(call: Delegated, tenant: str = "", **changes: str) -> OpenTurn:
    """The opening of the call's delegate."""
    about = {"session": call.delegate, "request_id": f"delegate:{call.call_id}", **changes}
    return asked(about["session"], tenant=tenant, request_id=about["request_id"], delegated=call)


async def test_a_turn_in_another_tenants_session_is_refused_whoever_asks(store: Store) -> None:
    """Also in a session that is only claimed, and from a checkpoint of another tenant's."""
    opened = await store.open_turn(asked(SESSION, tenant="acme"), HELPER)
    await store.commit_turn(commit(opened.tip))
    await store.claim_session("claimed", "acme")
    for session in (SESSION, "claimed"):
        for tenant in ("", "evil"):
            with pytest.raises(ResumeRefusedError, match="another tenant's"):
                await store.open_turn(asked(session, tenant=tenant, request_id="r2"), HELPER)
    fork = asked("fork", tenant="evil")
    fork = replace(fork, request=replace(fork.request, resume_from=ResumeFrom(session=SESSION)))
    with pytest.raises(NotFoundError, match=f"there is no session '{SESSION}'"):
        await store.open_turn(fork, HELPER)
    assert (await store.open_turn(asked("claimed", tenant="acme"), HELPER)).turn == 1


async def test_a_delegate_opens_its_calls_session_and_a_second_attempt_finds_the_turn(store: Store) -> None:
    call = await call_of(store)
    first = await store.open_turn(of_call(call), HELPER)
    again = await store.open_turn(of_call(call), HELPER)
    assert (first.turn, first.first, again.turn, again.first) == (1, True, 1, False)


async def test_a_delegate_whose_session_has_a_turn_of_somebody_else_is_refused(store: Store) -> None:
    """The id is of a release without seeds, so anybody could know it; the stranger even sent the delegate's request."""
    opened = await store.open_turn(asked(SESSION), HELPER)
    guessed = delegate_session(SESSION, "helper", SESSION, "call_1", "")
    about = {"step": 1, "definition": HELPER.digest(), "tool": "helper", "root": SESSION, "turn": opened.turn}
    call = Delegated.model_validate({"session": SESSION, "call_id": "call_1", **about})
    await store.open_turn(asked(guessed), HELPER)

    with pytest.raises(ResumeRefusedError, match="somebody else began it"):
        await store.open_turn(of_call(call, session=guessed), HELPER)


async def test_a_delegate_in_a_session_that_its_call_does_not_name_is_refused(store: Store) -> None:
    call = await call_of(store)
    other = delegate_session(SESSION, "helper", SESSION, "call_1", "another seed")
    for session in (SESSION, "free", other):
        with pytest.raises(ResumeRefusedError, match=r"somebody else began it|another tenant's"):
            await store.open_turn(of_call(call, session=session), HELPER)


async def test_a_request_id_of_the_form_of_a_delegates_is_refused(store: Store) -> None:
    """It would hide the turn from lists and from the count of slots."""
    with pytest.raises(ResumeRefusedError, match="are perdure's own, for delegates"):
        await store.open_turn(asked("mine", request_id="delegate:call_1"), HELPER)


async def test_a_new_session_of_a_derived_form_needs_the_stores_signature_for_its_tenant(store: Store) -> None:
    signed = await store.sign_id(Signed.RUN, "acme", "nightly")
    run = f"{signed}-2026-11-25T08:00:00Z"
    forged = f"{signed[:-1]}{'0' if signed[-1] != '0' else '1'}"
    for session, tenant in (
        (forged, "acme"),
        (run, "evil"),
        (run, ""),
        ("notify:wh_1:m", ""),
        (await store.sign_id(Signed.NOTIFY, "", "notify:wh_1:m"), ""),
        (f"{await store.sign_id(Signed.SWEEP, '', 'perdure-retention')}-2026-11-25T08:00:00Z", ""),
        ("a.b~d" + "0" * 24, ""),
    ):
        with pytest.raises(ResumeRefusedError, match=r"are perdure's own|another tenant's"):
            await store.open_turn(asked(session, tenant=tenant), HELPER)
    assert (await store.open_turn(asked(run, tenant="acme"), HELPER)).turn == 1


async def test_after_a_rotation_ids_differ_and_those_given_before_stay_valid(store: Store) -> None:
    kept = await store.sign_id(Signed.KEY, "acme", "tester", ("key-1",))
    await store.claim_session(kept, "acme")
    run = await store.sign_id(Signed.RUN, "acme", "nightly")

    assert await store.rotate_id_secret() == 2

    assert await store.sign_id(Signed.RUN, "acme", "nightly") != run
    assert await store.is_signed("acme", run)
    assert await store.sign_id(Signed.KEY, "acme", "tester", ("key-1",)) == kept
    assert await store.sign_id(Signed.KEY, "acme", "tester", ("key-2",)) != kept


async def test_two_stores_and_two_tenants_sign_the_same_parts_differently(store: Store) -> None:
    async with await Store.open("sqlite://", upgrade=True) as other:
        ids = {await at.sign_id(Signed.KEY, tenant, "a", ("k",)) for at in (store, other) for tenant in ("", "acme")}
    assert len(ids) == 4


def test_each_form_fits_an_id_that_its_maker_makes() -> None:
    """And no id that people choose today."""
    made = {
        "delegates": "a.b~d" + "0" * 24,
        "requests with a key": "a~k" + "0" * 32,
        "runs of schedules": f"a~r{'0' * 32}-2026-11-25T08:00:00Z",
        "derived ids": "a~b",
        "messages of schedules": "knock:a-2026-11-25T08:00:00Z",
        "deliveries of webhooks": "notify:wh_1:a:1:ended",
        "sweeps": "perdure-retention-2026-11-25T08:00:00Z",
        "schedules": "perdure:acme/nightly",
        "Temporal's own workflows": "temporal-sys-scheduler:perdure-retention",
    }
    assert list(made) == [form.names for form in FORMS]
    for names, session in made.items():
        assert f"for {names}" in str(refusal_of(session))
    for free in ("a", "order-7", "bank.helper.0123456789abcdef", "user@example.org", "a:b=c+d", "2026-11-25T08:00:00Z"):
        assert refusal_of(free) is None
