"""What a second attempt does about a call that a lost one held, over a real store, in Temporal's environment."""

import asyncio
import dataclasses
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from perdure import DidNotHappen, EffectUnknown, Happened, Tool, ToolContext, tool
from perdure.activities.agents import TurnContexts
from perdure.activities.heartbeat import keep_beating
from perdure.activities.store_access import PATIENCE
from perdure.activities.toolbox import claims
from perdure.activities.toolbox.claims import (
    LONGEST_RECONCILIATION,
    MAX_ATTEMPTS,
    MAX_RUNS,
    Attempt,
    Claims,
    Recovery,
    RunningCalls,
)
from perdure.agents.context import InvalidOutputError
from perdure.contracts.exceptions import value_of
from perdure.contracts.tools import CallTool
from perdure.lanes.bodies import Bodies
from perdure.llm.tool_output import CallResult
from perdure.store import Claim, Store
from perdure.workflows.options import GRACE
from tests.unit.store.given import SESSION, answer, finish, generate, open_turn, result, types, wish
from tests.wild.test_author_exceptions import RAISED, made
from tests.wild.test_hostile_values import VALUES

Judged = tuple[Claim, Recovery | None]

LOST = "the worker was lost while the tool ran, so its effect is unknown"
ADVICE = "; look at what it did before it runs again"
CHECK = "the check whether it happened failed: "


@dataclasses.dataclass
class Ledger:
    """One planned call, and attempts at it, each later than those before."""

    store: Store
    bodies: Bodies
    attempts: int = 0

    async def attempt(self, called: Tool[..., Any], *, number: int = 2, replays: bool = False) -> Judged:
        """Claim the call in a further attempt; ``number`` is the one that the server counts."""
        self.attempts += 1
        claimant = f"run/7/{self.attempts:020.6f}"
        call = CallTool(session=SESSION, turn=1, step=1, call_id="c1", definition="d", arguments='{"query": "***"}')
        recording = Mock(replays=replays)
        attempt = Attempt(call, Mock(), called.declaration, called, claimant, recording, Mock())

        async def work() -> Judged:
            async with keep_beating(is_bounded=False):  # as the activity of tools does
                running, secrets = RunningCalls(), frozenset({"key-of-the-worker"})
                contexts = TurnContexts(self.store, {})
                judge = Claims(
                    store=self.store, bodies=self.bodies, running=running, contexts=contexts, secrets=secrets
                )
                return await judge.claim(attempt)

        environment = ActivityEnvironment()
        environment.info = dataclasses.replace(environment.info, attempt=number)
        judged: Judged = await environment.run(work)
        return judged

    async def after_a_loss(self, called: Tool[..., Any], *, number: int = 2) -> Recovery:
        """What a second attempt decides."""
        await self.attempt(called, number=1)
        claim, verdict = await self.attempt(called, number=number)
        assert claim.state == "free"
        assert verdict is not None
        return verdict


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[Ledger]:
    bodies = Bodies(4)
    async with await Store.open(f"sqlite:///{tmp_path / 'perdure.db'}", upgrade=True) as store:
        opened = await open_turn(store)
        await answer(store, generate(opened.tip), calls=[wish()])
        yield Ledger(store, bodies)
    bodies.close()


def search(reconcile: Callable[..., Any] | None = None, **settings: Any) -> Tool[..., Any]:
    """A tool with this reconciler."""

    @tool(name="search", reconcile=reconcile, **settings)
    def body(query: str) -> str:
        """Search."""
        return query

    return body


def says(effect: Any) -> Callable[[str], Any]:
    """A reconciler that gives this answer, or raises it."""

    def reconcile(query: str) -> Any:
        if isinstance(effect, Exception):
            raise effect
        return effect

    return reconcile


def test_a_reconciler_has_room_beside_the_waits_for_the_store() -> None:
    assert 2 * PATIENCE + LONGEST_RECONCILIATION <= GRACE


async def test_a_call_that_nobody_has_claimed_is_judged_by_nobody(ledger: Ledger) -> None:
    claim, verdict = await ledger.attempt(search(says(Happened("no"))))

    assert (claim.state, verdict) == ("free", None)


async def test_an_unsafe_tool_is_given_up(ledger: Ledger) -> None:
    """S-31."""
    verdict = await ledger.after_a_loss(search())

    assert (verdict.decision, verdict.code, verdict.told) == ("given_up", "tool.effect_unknown", LOST + ADVICE)


async def test_attempts_that_never_reached_the_body_use_up_no_run_of_it(ledger: Ledger) -> None:
    """S-31: a frozen worker is handed one attempt after the other."""
    verdict = await ledger.after_a_loss(search(idempotent=True), number=900)

    assert (verdict.decision, verdict.reason) == ("run_again", "the tool is idempotent")


@pytest.mark.parametrize(
    ("called", "code", "cause", "advice"),
    [
        (search(idempotent=True), "tool.effect_unknown", f"{LOST}: ", ADVICE),
        (search(says(DidNotHappen())), "tool.execution_error", "search did not happen; ", ""),
    ],
)
async def test_a_body_that_loses_its_worker_each_time_is_given_up(
    ledger: Ledger, called: Tool[..., Any], code: str, cause: str, advice: str
) -> None:
    """It may be what kills them."""
    runs = [await ledger.attempt(called) for _ in range(MAX_RUNS)]
    assert [verdict and verdict.decision for _, verdict in runs] == [None, *["run_again"] * (MAX_RUNS - 1)]

    _, last = await ledger.attempt(called)

    assert last is not None
    assert (last.decision, last.code) == ("given_up", code)
    assert last.told == f"{cause}its worker was lost in each of 5 runs, so it is not run again{advice}"


@pytest.mark.parametrize("idempotent", [False, True])
async def test_a_result_that_the_reconciler_found_is_the_result(ledger: Ledger, idempotent: bool) -> None:
    """S-31: an idempotent tool is asked first too, which saves the run."""
    verdict = await ledger.after_a_loss(search(says(Happened({"id": 7})), idempotent=idempotent))

    assert (verdict.decision, verdict.found) == ("result_found", CallResult('{"id":7}'))


async def test_a_result_that_cannot_be_read_is_found_all_the_same(ledger: Ledger) -> None:
    """S-31: it happened, so the body does not run again; the model reads why there is no result."""
    verdict = await ledger.after_a_loss(search(says(Happened({"id": object()})), idempotent=True))

    assert verdict.decision == "result_found"
    with pytest.raises(InvalidOutputError, match="no JSON form"):
        value_of(verdict.found)


@pytest.mark.parametrize("name", ["text", "list", "map"])
async def test_a_result_of_a_class_of_its_own_is_read_where_the_reconciler_runs(ledger: Ledger, name: str) -> None:
    make, wanted = VALUES[name]
    verdict = await ledger.after_a_loss(search(says(Happened(make()))))

    assert isinstance(verdict.found, CallResult)
    assert verdict.found.text == (wanted if isinstance(wanted, str) else json.dumps(wanted, separators=(",", ":")))


async def test_a_reason_of_a_class_of_its_own_is_a_text(ledger: Ledger) -> None:
    make, _ = VALUES["text"]
    verdict = await ledger.after_a_loss(search(says(EffectUnknown(cast("str", make())))))

    assert verdict.reason == "a check could not tell whether it happened: a"


async def test_an_idempotent_tool_runs_again_if_its_reconciler_cannot_tell(ledger: Ledger) -> None:
    verdict = await ledger.after_a_loss(search(says(EffectUnknown()), idempotent=True))

    assert verdict.decision == "run_again"
    assert verdict.reason == "the tool is idempotent: a check could not tell whether it happened"


@pytest.mark.parametrize(
    ("effect", "why"),
    [
        (EffectUnknown(), "a check could not tell whether it happened"),
        (EffectUnknown("no list"), "a check could not tell whether it happened: no list"),
        (ValueError("not key-of-the-worker"), f"{CHECK}ValueError: not ***"),
        (ValueError(""), f"{CHECK}ValueError: no message"),
        ("yes", f"{CHECK}TypeError: it returned str, not Happened, DidNotHappen or EffectUnknown"),
        (Happened, f"{CHECK}TypeError: it returned type, not Happened, DidNotHappen or EffectUnknown"),
    ],
)
async def test_without_an_answer_the_effect_is_unknown_and_the_model_reads_why(
    ledger: Ledger, effect: Any, why: str
) -> None:
    verdict = await ledger.after_a_loss(search(says(effect)))

    assert (verdict.decision, verdict.code) == ("given_up", "tool.effect_unknown")
    assert (verdict.told, verdict.reason) == (f"{LOST}: {why}{ADVICE}", why)


async def never(query: str) -> Any:
    await asyncio.Event().wait()


def blocks(query: str, context: ToolContext) -> Any:
    context.wait(600)
    return DidNotHappen()


@pytest.mark.parametrize("reconcile", [never, blocks])
async def test_a_reconciler_has_the_time_out_of_the_tool(ledger: Ledger, reconcile: Callable[..., Any]) -> None:
    verdict = await ledger.after_a_loss(search(reconcile, timeout=timedelta(milliseconds=50)))

    assert verdict.told == f"{LOST}: {CHECK}ToolTimeoutError: it took longer than 0.05 s{ADVICE}"


async def test_a_body_that_looks_at_its_flag_ends_with_its_time(ledger: Ledger) -> None:
    """S-25: a thread cannot be ended from outside; the flag tells its body."""
    left = threading.Event()

    def polls(query: str, context: ToolContext) -> Any:
        for _ in range(3_000):
            if context.cancelled:
                left.set()
                break
            threading.Event().wait(0.01)
        return DidNotHappen()

    await ledger.after_a_loss(search(polls, timeout=timedelta(milliseconds=50)))
    assert await asyncio.to_thread(left.wait, 30)


async def cancels_itself(query: str) -> Any:
    raise asyncio.CancelledError


async def test_a_reconciler_that_cancels_itself_has_given_no_answer(ledger: Ledger) -> None:
    verdict = await ledger.after_a_loss(search(cancels_itself))

    assert verdict.told == f"{LOST}: {CHECK}CancelledError: no message{ADVICE}"


async def test_a_reconciler_sees_what_the_body_saw(ledger: Ledger) -> None:
    """S-31: the raw arguments, and the same idempotency key."""
    seen: list[tuple[str, str]] = []

    async def look(query: str, its_call: ToolContext) -> Any:
        seen.append((query, its_call.idempotency_key))
        return DidNotHappen()

    await ledger.after_a_loss(search(look))

    assert seen == [("x", "s/1/c1")]


async def test_a_reconciler_whose_worker_is_lost_time_and_again_is_not_asked_for_ever(ledger: Ledger) -> None:
    verdict = await ledger.after_a_loss(search(says(Happened("no"))), number=MAX_ATTEMPTS + 1)

    assert verdict.told == f"{LOST}: after 25 attempts nobody checks any more whether it happened{ADVICE}"


async def test_a_replayed_call_is_replayed_again(ledger: Ledger) -> None:
    """Its body never runs, so nothing can have happened."""
    called = search(says(Happened("no")))
    await ledger.attempt(called, replays=True)

    _, verdict = await ledger.attempt(called, replays=True)

    assert verdict is not None
    assert verdict.decision == "run_again"


def while_it_is_asked(interrupt: Callable[[], Awaitable[Any]], effect: Any) -> Callable[[str], Any]:
    """A reconciler during which something else happens."""
    loop = asyncio.get_running_loop()

    def reconcile(query: str) -> Any:
        asyncio.run_coroutine_threadsafe(interrupt(), loop).result(10)  # type: ignore[arg-type]
        return effect

    return reconcile


async def test_a_result_that_comes_while_the_reconciler_looks_is_the_result(ledger: Ledger) -> None:
    """S-31: the lost attempt was not lost."""
    called = search(while_it_is_asked(lambda: finish(ledger.store, "run/7/0000000000001.000000"), DidNotHappen()))
    await ledger.attempt(called)

    claim, _ = await ledger.attempt(called)

    assert (claim.state, claim.message) == ("committed", result())
    assert await types(ledger.store) == ["agent_start", "tool_start", "tool_end"]


async def test_an_attempt_that_is_overtaken_while_its_reconciler_looks_does_not_run(ledger: Ledger) -> None:
    """S-31: the later one has the call."""
    called = search(while_it_is_asked(lambda: ledger.attempt(search(idempotent=True)), DidNotHappen()))
    await ledger.attempt(called)

    with pytest.raises(ApplicationError, match="in the hands of a later attempt"):
        await ledger.attempt(called)

    assert await types(ledger.store) == ["agent_start", "tool_start", "tool_recovery"]


async def test_a_claim_that_is_heard_of_late_is_made_once_more(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """S-31: a worker that stood still after its claim does not begin a body that another one has taken over."""
    monkeypatch.setattr(claims, "FRESH", timedelta(0))
    claim = ledger.store.claim_call
    later: list[Judged] = []

    async def overtaken(**options: Any) -> Claim:
        claimed = await claim(**options)
        if ledger.attempts == 1:
            later.append(await ledger.attempt(search(idempotent=True)))
        return claimed

    monkeypatch.setattr(ledger.store, "claim_call", overtaken)

    with pytest.raises(ApplicationError, match="in the hands of a later attempt"):
        await ledger.attempt(search(idempotent=True))

    assert [claimed.state for claimed, _ in later] == ["free"]


@pytest.mark.parametrize("kind", RAISED)
@pytest.mark.parametrize("is_async", [False, True])
async def test_whatever_a_reconciler_raises_leaves_the_effect_unknown_after_one_run(
    ledger: Ledger, kind: str, is_async: bool
) -> None:
    """S-31: also what no handler of exceptions sees, and what cannot be printed."""
    runs: list[str] = []

    def fail(query: str) -> Any:
        runs.append(query)
        raise made(kind)

    async def fail_async(query: str) -> Any:
        fail(query)

    verdict = await ledger.after_a_loss(search(fail_async if is_async else fail))
    assert (verdict.decision, verdict.code, len(runs)) == ("given_up", "tool.effect_unknown", 1)
