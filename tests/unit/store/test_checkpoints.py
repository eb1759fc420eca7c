"""What is told of each step as a place to go on from."""

from collections.abc import Sequence
from decimal import Decimal

import pytest

from perdure.contracts.agents import AgentDefinition
from perdure.contracts.budgets import Usage
from perdure.contracts.checkpoints import Checkpoint, CheckpointStatus, JobStatus
from perdure.contracts.errors import ErrorDetail, ReasonCode
from perdure.contracts.events import GenerationRetry
from perdure.contracts.input_requests import Need
from perdure.contracts.messages import AssistantMessage, ToolCall, UserMessage
from perdure.contracts.tools import DelegateSettings, PlannedCall, ToolDeclaration
from perdure.contracts.turns import StopReason
from perdure.store import LedgerCall, NotFoundError, StepRecord, Store
from tests.unit.store.given import (
    HELPER,
    SESSION,
    STARTED,
    answer,
    claim,
    commit,
    finish,
    generate,
    new_event,
    open_turn,
    opening,
    result,
    wish,
)
from tests.unit.store.test_compaction import compact, summarise
from tests.unit.store.test_fork import FORK, fork, rewind

LEAD = AgentDefinition(
    name="lead",
    model="test/model",
    tools=(
        ToolDeclaration(
            name="helper", description="", parameters={}, reference="", delegate=DelegateSettings(agent="helper")
        ),
    ),
)


async def statuses(store: Store) -> list[str]:
    return [checkpoint.status for checkpoint in await store.checkpoints(SESSION)]


async def last(store: Store) -> Checkpoint:
    return (await store.checkpoints(SESSION))[-1]


async def asks(store: Store, tip: str, *calls: tuple[str, str, Need | None]) -> StepRecord:
    """An answer with calls of these ids, tools and needs."""
    request = generate(tip)
    await store.begin_generation(request, [])
    wished = tuple(ToolCall(id=call_id, name=tool) for call_id, tool, _ in calls)
    step = StepRecord(
        id=request.step_id(),
        session=SESSION,
        turn=1,
        step=1,
        parent=tip,
        messages=(AssistantMessage(tool_calls=wished),),
        calls=tuple(PlannedCall(call_id=call_id, tool=tool, needs=needs) for call_id, tool, needs in calls),
    )
    ledger = [LedgerCall(call_id=call_id, tool=tool, arguments="{}") for call_id, tool, _ in calls]
    return await store.finish_generation(step, ledger, [])


async def test_a_checkpoint_is_stored_for_each_step_with_what_the_model_call_used(store: Store) -> None:
    """S-66: a checkpoint is stored per step."""
    opened = await store.open_turn(opening(), HELPER, context_window=1_000)
    first = await answer(store, generate(opened.tip), "let me see", [wish()], cost="0.10")
    await claim(store, "w")
    await finish(store, "w")
    retry = GenerationRetry(
        code="llm.rate_limited",
        error_type="RateLimitError",
        error_message="slowly",
        attempt=1,
        max_attempts=5,
        wait_seconds=1,
        failed_at=STARTED,
    )
    await store.append_events(SESSION, [new_event("1/2/retry/1", retry, step=2)])
    second = await answer(store, generate(first.id, step=2, call_ids=["c1"]), "there", cost="0.05")
    await store.commit_turn(commit(second.id))

    start, first_step, two = await store.checkpoints(SESSION)

    assert [(point.id, point.turn, point.step) for point in (start, first_step, two)] == [
        (opened.tip, 1, 0),
        (first.id, 1, 1),
        (second.id, 1, 2),
    ]
    assert [point.status for point in (start, first_step, two)] == ["init", "proceeding", "completed"]
    assert [point.messages for point in (start, first_step, two)] == [1, 2, 4]
    assert (two.agent, two.model, two.retries, first_step.retries) == ("helper", "test/model", 1, 0)
    assert (two.context_tokens, two.context_window, two.context_used) == (15, 1_000, 0.015)
    assert (two.usage, two.cost_usd) == (Usage(input_tokens=20, output_tokens=10), Decimal("0.15"))


async def test_calls_that_run_are_pending_beside_the_results_that_are_there(store: Store) -> None:
    opened = await open_turn(store)
    await answer(store, generate(opened.tip), "let me see", [wish(), wish("c2")])
    await claim(store, "w")
    await finish(store, "w")

    found = await last(store)

    assert found.status == CheckpointStatus.PROCEEDING
    assert [call.call_id for call in found.pending_calls] == ["c2"]
    assert found.partial_results == (result(),)


@pytest.mark.parametrize(
    ("calls", "status"),
    [
        ([("c1", "search", "answer")], "stoppedByInteractiveTool"),
        ([("c1", "helper", None)], "stoppedByDelegate"),
        ([("c1", "search", "approval"), ("c2", "helper", None)], "stoppedByDelegate"),
        ([("c1", "search", None), ("c2", "helper", None), ("c3", "search", "answer")], "proceeding"),
    ],
)
async def test_an_open_turn_waits_for_tools_then_for_delegates_then_for_people(
    store: Store, calls: Sequence[tuple[str, str, Need | None]], status: str
) -> None:
    """S-66."""
    opened = await store.open_turn(opening(), LEAD)
    await asks(store, opened.tip, *calls)

    assert await statuses(store) == ["init", status]


async def test_an_approved_call_that_runs_waits_for_nobody(store: Store) -> None:
    opened = await open_turn(store)
    await asks(store, opened.tip, ("c1", "search", "approval"))
    await claim(store, "w")

    assert (await last(store)).status == CheckpointStatus.PROCEEDING


@pytest.mark.parametrize(
    ("how", "checkpoint", "job"),
    [
        (StopReason.FINISHED, CheckpointStatus.COMPLETED, JobStatus.COMPLETED),
        (
            StopReason.MAX_STEPS_REACHED,
            CheckpointStatus.STOPPED_BY_EXCEEDED_MAX_STEPS,
            JobStatus.STOPPED_BY_MAX_STEPS,
        ),
        (StopReason.BUDGET_EXHAUSTED, CheckpointStatus.STOPPED_BY_EXCEEDED_MAX_STEPS, JobStatus.STOPPED_BY_MAX_STEPS),
        (StopReason.ERROR, CheckpointStatus.STOPPED_BY_ERROR, JobStatus.STOPPED_BY_ERROR),
        (StopReason.CANCELLED, CheckpointStatus.STOPPED_BY_ERROR, JobStatus.STOPPED_BY_ERROR),
    ],
)
async def test_the_last_checkpoint_of_a_turn_says_how_it_ended(
    store: Store, how: StopReason, checkpoint: CheckpointStatus, job: JobStatus
) -> None:
    """S-66. The step that holds the last results is the end of that checkpoint, and none of its own."""
    opened = await open_turn(store)
    first = await answer(store, generate(opened.tip), "let me see", [wish()])
    assert (await store.turn(SESSION, 1)).job_status == JobStatus.RUNNING
    error = ErrorDetail(code=ReasonCode.LLM_TIMEOUT, title="generation", message="no answer")
    await store.commit_turn(
        commit(first.id, stop_reason=how, call_ids=["c1"], error=error if how is StopReason.ERROR else None)
    )

    assert await statuses(store) == ["init", checkpoint]
    assert (await store.turn(SESSION, 1)).job_status == job
    assert (await last(store)).error == (error if how is StopReason.ERROR else None)


async def test_a_turn_that_failed_at_once_stopped_at_its_prompt(store: Store) -> None:
    opened = await open_turn(store)
    await store.commit_turn(commit(opened.tip, stop_reason=StopReason.CANCELLED))

    assert await statuses(store) == ["stoppedByError"]


async def test_messages_are_those_a_model_reads(store: Store) -> None:
    """A summary stands for what it summarises, and a fork reads what came before it in another session."""
    opened = await open_turn(store)
    first = await answer(store, generate(opened.tip), "one")
    summary = await summarise(store, compact(first.id), UserMessage(content="kept"))
    await answer(store, generate(summary.id, step=2), "two")
    await fork(store, 2)

    found = await store.checkpoints(SESSION)
    assert [(checkpoint.step, checkpoint.messages, checkpoint.usage.input_tokens) for checkpoint in found] == [
        (0, 1, 0),
        (1, 2, 10),
        (2, 3, 120),
    ]
    assert [checkpoint.messages for checkpoint in await store.checkpoints(FORK)] == [4]


async def test_what_a_rewind_left_behind_is_still_a_checkpoint(store: Store) -> None:
    opened = await open_turn(store)
    first = await answer(store, generate(opened.tip), "one")
    await store.commit_turn(commit(first.id))
    await rewind(store, 0)

    assert [
        (checkpoint.turn, checkpoint.step, checkpoint.status, checkpoint.messages)
        for checkpoint in await store.checkpoints(SESSION)
    ] == [
        (1, 0, "init", 1),
        (1, 1, "completed", 2),
        (2, 0, "init", 1),
    ]


async def test_a_session_that_nobody_began_has_no_checkpoints(store: Store) -> None:
    with pytest.raises(NotFoundError, match="no session"):
        await store.checkpoints("nobody")
