"""What a turn has spent that its workflow cannot tell: nothing that was paid for is given back."""

from decimal import Decimal

import pytest

from perdure.contracts.budgets import Budgets, Spent, Usage
from perdure.contracts.errors import ErrorDetail
from perdure.contracts.events import CompactionEvent, DelegateEnd, DelegateStart, GenerationError, GenerationRetry
from perdure.contracts.generations import Generate
from perdure.contracts.hooks import Decided, ModelFallback
from perdure.contracts.tools import FinishCall, PlannedCall, ToolOutcome
from perdure.contracts.turns import StopReason
from perdure.store import StepRecord, Store
from perdure.store.commit_turn import output_of
from tests.unit.store.given import (
    HELPER,
    LATER,
    SESSION,
    STARTED,
    answer,
    commit,
    delegate_opening,
    generate,
    new_event,
    open_turn,
    opening,
    wish,
)

BOUNDED = HELPER.model_copy(update={"budgets": Budgets(cost_usd=Decimal(5), scope="session")})
UNWRITTEN = CompactionEvent(trigger="threshold", compaction_status="failed", messages_before=9, messages_after=9)
FALLEN = ModelFallback(failed="test/model", code="llm.server_error", model="test/other")


def retry(cost: str, *, compaction: bool = False, fallback: int = 0) -> GenerationRetry:
    return GenerationRetry(
        attempt=1,
        max_attempts=5,
        wait_seconds=1,
        code="llm.invalid_response",
        error_type="EmptyAnswerError",
        error_message="nothing",
        failed_at=STARTED,
        compaction=compaction,
        fallback=fallback,
        usage=Usage(output_tokens=1),
        cost_usd=Decimal(cost),
    )


async def terminated(store: Store) -> Spent:
    """What the session's next turn is told of the turn that is gone."""
    opened = await store.open_turn(opening("again", request_id="r2", run_started_at=LATER), BOUNDED)
    return opened.earlier


async def test_a_terminated_turn_keeps_what_its_tries_and_its_withdrawn_answers_have_cost(store: Store) -> None:
    """S-16: a budget of the session is not fresh because somebody has terminated a turn and sent again."""
    opened = await open_turn(store)
    await answer(store, generate(opened.tip), "taken back", cost="0.10")
    await answer(store, generate(opened.tip, step=2), calls=[wish("c1"), wish("c2")], cost="0.20")
    await store.append_events(SESSION, [new_event("1/2/retry/1", retry("0.70"), step=2)])

    earlier = await terminated(store)

    assert earlier.cost_usd == Decimal("1.00")
    assert (earlier.llm_calls, earlier.tool_calls, earlier.events, earlier.delegated_steps) == (2, 2, 4, 2)


async def test_a_terminated_turn_keeps_what_the_last_try_of_a_failed_call_has_cost(store: Store) -> None:
    """S-07 S-70: of a generation and of a summary; one that is stored stands in its step."""
    await open_turn(store)
    used = Usage(output_tokens=1)
    error = ErrorDetail(code="llm.truncated", title="generation", message="cut off")
    summary = CompactionEvent(
        trigger="threshold",
        compaction_status="failed",
        messages_before=9,
        messages_after=9,
        usage=used,
        cost_usd=Decimal("0.20"),
    )
    written = summary.model_copy(update={"compaction_status": "completed"})
    for key, event in (("failed", summary), ("completed", written)):
        await store.append_events(SESSION, [new_event(f"1/1/compaction/{key}", event)])
    failure = GenerationError(error=error, usage=used, cost_usd=Decimal("0.10"))
    await store.append_events(SESSION, [new_event("1/1/error", failure)])

    earlier = await terminated(store)

    assert (earlier.cost_usd, earlier.usage.output_tokens) == (Decimal("0.30"), 2)


async def test_a_failure_that_the_model_was_told_of_counts_once(store: Store) -> None:
    opened = await open_turn(store)
    request = generate(opened.tip)
    step = StepRecord(
        id=request.step_id(), session=SESSION, turn=1, step=1, parent=opened.tip, messages=(), cost_usd=Decimal("0.70")
    )
    await store.finish_generation(step, [], [new_event("1/1/retry/1", retry("0.70"))])

    assert (await terminated(store)).cost_usd == Decimal("0.70")


@pytest.mark.parametrize("told", [True, False], ids=["that has told its caller", "that still runs"])
async def test_a_terminated_turn_is_charged_for_a_delegate(store: Store, told: bool) -> None:
    opened = await open_turn(store)
    await answer(store, generate(opened.tip), calls=[wish("c1")], cost="0.10")
    child = delegate_opening(opened, "c1")
    start = DelegateStart(call_id="c1", tool="search", agent="helper", delegate=child.session)
    await store.append_events(SESSION, [new_event("1/c1/delegate_start", start)])
    below = await store.open_turn(child, HELPER)
    asked = Generate(session=child.session, turn=1, step=1, parent=below.tip, definition=HELPER.digest())
    step = await answer(store, asked, "found", cost="3.00")
    if told:
        ended = commit(step.id).model_copy(update={"session": child.session, "spent": Spent(cost_usd=Decimal("3.00"))})
        await store.commit_turn(ended)
        end = DelegateEnd(
            **{name: getattr(start, name) for name in ("call_id", "tool", "agent", "delegate")},
            stop_reason=StopReason.FINISHED,
            steps=1,
            usage=Usage(),
            cost_usd=Decimal("3.00"),
        )
        await store.append_events(SESSION, [new_event("1/c1/delegate_end", end)])

    earlier = await terminated(store)

    assert (earlier.cost_usd, earlier.delegated_steps, earlier.behavior_calls) == (Decimal("3.10"), 2, 1)


async def test_a_stop_while_the_model_is_asked_keeps_what_its_failed_tries_have_cost(store: Store) -> None:
    """S-56"""
    opened = await open_turn(store)
    tries = [
        new_event("1/1/retry/1", retry("0.70")),
        new_event("1/1/compaction/retry/1", retry("0.02", compaction=True)),
    ]
    await store.append_events(SESSION, tries)
    await answer(store, generate(opened.tip), "hi", cost="0.20")

    result = (await store.commit_turn(commit(opened.tip, stop_reason=StopReason.CANCELLED, aborted_step=1))).result

    assert result.cost_usd == Decimal("1.02")  # 0.10 are the workflow's


async def test_a_stop_counts_no_tries_that_the_workflow_has_counted(store: Store) -> None:
    """Those of the model before the fallback, of a summary that failed, and of another step."""
    opened = await open_turn(store)
    tries = [
        new_event("1/1/retry/1", retry("0.70")),
        new_event("1/2/retry/1", retry("0.70"), step=2),
        new_event("1/2/fallback1/compaction/retry/1", retry("0.70", compaction=True, fallback=1), step=2),
        new_event("1/2/fallback1/compaction/failed", UNWRITTEN, step=2),
        new_event("1/2/fallback1/retry/1", retry("0.03", fallback=1), step=2),
    ]
    await store.append_events(SESSION, tries)
    stopped = commit(opened.tip, stop_reason=StopReason.CANCELLED, aborted_step=2)
    at_work = {"fallback": 1, "decided": (Decided(key="2/decided/1", step=2, event=FALLEN),)}

    result = (await store.commit_turn(stopped.model_copy(update=at_work))).result

    assert result.cost_usd == Decimal("0.13")


@pytest.mark.parametrize(("approved", "output"), [(True, "the result"), (False, "")])
def test_a_finish_that_was_approved_in_the_next_turn_gives_its_summary(approved: bool, output: str) -> None:
    call = PlannedCall(call_id="c1", tool="finish", needs="approval", builtin=FinishCall(summary="the result"))
    tip = StepRecord(id="p", session=SESSION, turn=2, step=0, parent="t", messages=(), calls=(call,))
    done = (ToolOutcome(call_id="c1", preview="finished", recorded=False),) if approved else ()

    assert output_of(tip, commit("p", turn=2).model_copy(update={"steps": 0, "failed": done})) == output
