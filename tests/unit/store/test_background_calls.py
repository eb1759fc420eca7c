"""The ledger's row of a call that a delegate works on in the background: it has a result before the delegate begins."""

from decimal import Decimal

import pytest

from perdure.contracts.budgets import Usage
from perdure.contracts.events import DelegateEnd, DelegateStart, NewEvent
from perdure.contracts.tools import ToolOutcome, claimant_of
from perdure.contracts.turns import StopReason
from perdure.store import Claim, Store
from tests.unit.store.given import SESSION, answer, commit, generate, new_event, open_turn, types, wish
from tests.unit.store.test_ledger import ledger_at

CHILD = "s.search.1"
STARTED = ToolOutcome(call_id="c1", preview='{"session": "s.search.1"}', recorded=False, delegate=CHILD)


async def asked(store: Store) -> str:
    """A turn whose answer calls the delegate, with an argument that nobody may see."""
    return (await answer(store, generate((await open_turn(store)).tip), calls=[wish(masked=True)])).id


async def goes_on(store: Store, tip: str) -> None:
    """The caller's next model call reads the first result."""
    await store.begin_generation(generate(tip, step=2, call_ids=["c1"], failed=[STARTED]), [])


async def take(store: Store, session: str = CHILD) -> Claim:
    """What the delegate does first."""
    start = DelegateStart(call_id="c1", tool="search", agent="helper", delegate=session)
    events = [new_event("1/c1/delegate_start", start)]
    return await store.claim_call(session=SESSION, turn=1, call_id="c1", claimant=claimant_of(session), events=events)


async def end(store: Store, session: str = CHILD) -> bool:
    """What the delegate does last."""
    ended = DelegateEnd(
        call_id="c1",
        tool="search",
        agent="helper",
        delegate=session,
        stop_reason=StopReason.FINISHED,
        steps=1,
        usage=Usage(),
        cost_usd=Decimal(0),
    )
    events: list[NewEvent] = [new_event("1/c1/delegate_end", ended)]
    return await store.finish_call(
        session=SESSION, turn=1, call_id="c1", claimant=claimant_of(session), message=None, events=events
    )


@pytest.mark.parametrize("first", ["caller", "delegate"])
async def test_the_delegate_reads_its_arguments_whoever_comes_first(store: Store, first: str) -> None:
    """S-64: the caller does not wait until it has, and masked arguments are kept until then."""
    tip = await asked(store)
    if first == "caller":
        await goes_on(store, tip)
    claim = await take(store)
    if first == "delegate":
        await goes_on(store, tip)

    assert (claim.state, claim.arguments) == ("free", '{"password": "hunter2"}')
    assert (await take(store)).arguments == '{"password": "hunter2"}'
    assert (await store.result_of_call(SESSION, 1, "c1")) is not None
    assert (await take(store, "s.search.2")).state == "committed"


@pytest.mark.parametrize("first", ["caller", "delegate"])
async def test_its_end_is_told_once_and_forgets_what_is_masked(store: Store, first: str) -> None:
    """S-64: also where it has ended before its caller went on."""
    tip = await asked(store)
    await take(store)
    if first == "caller":
        await goes_on(store, tip)
    assert await end(store)
    assert await end(store)
    if first == "delegate":
        await goes_on(store, tip)

    message = await store.result_of_call(SESSION, 1, "c1")
    assert message is not None
    assert (message.content, message.delegate) == (STARTED.preview, CHILD)
    assert (await take(store)).arguments == "{}"
    assert (await types(store)).count("delegate_end") == 1


async def test_the_end_of_the_turn_forgets_what_a_lost_delegate_has_never_read(store: Store, url: str) -> None:
    """S-64: and nothing is written of one that ends later."""
    tip = await asked(store)
    await goes_on(store, tip)
    await store.commit_turn(commit(tip, call_ids=["c1"]))

    assert not await end(store)
    assert "hunter2" not in ledger_at(url)
    assert "delegate_end" not in await types(store)
