"""Failed activities and failed turns: the facts of a failure for the model, for the result and for people."""

import contextlib
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError
from temporalio.exceptions import ActivityError, ApplicationError, TimeoutType, is_cancelled_exception
from temporalio.exceptions import TimeoutError as ActivityTimeoutError

from perdure.contracts.budgets import Paid
from perdure.contracts.errors import REASONS, ErrorDetail, ReasonCode, code_of_kind
from perdure.contracts.hooks import HookResults
from perdure.contracts.openings import Refusal
from perdure.contracts.tools import DelegateReport, PlannedCall, ToolOutcome
from perdure.contracts.turns import CommitTurn, OpenTurn, StopReason, TurnResult
from perdure.contracts.values import replace
from perdure.engine.calls import ToolResults, failed_outcome
from perdure.engine.generation import Failed
from perdure.engine.state import TurnState

MAX_ERROR_TEXT = 2_000
"""Longest message of a failure in a result."""


MEMO_OUTPUT = 1_000
"""Longest output in a memo."""


def result_of_refusal(opening: OpenTurn, error: ErrorDetail) -> TurnResult:
    """The result of a request that never became a turn. Every field is set explicitly, so that the JSON shows all."""
    result = TurnResult(
        session=opening.session,
        turn=None,
        agent=opening.request.agent or "",
        stop_reason=StopReason.ERROR,
        reason_code=error.code,
        error=error.message,
    )
    return TurnResult.model_validate(result.model_dump())


def result_of_lost_commit(state: TurnState, commit: CommitTurn, error: ErrorDetail) -> TurnResult:
    """The result of a turn whose commit the store refused, from what the workflow knows."""
    result = TurnResult(
        session=state.origin.session,
        turn=state.origin.turn,
        agent=state.policy.agent,
        stop_reason=StopReason.ERROR,
        reason_code=error.code,
        error=error.message,
        steps=commit.steps,
        usage=commit.spent.usage,
        cost_usd=commit.spent.cost_usd,
        unpriced_calls=commit.spent.unpriced_calls,
        delegated_steps=commit.spent.delegated_steps,
        report=DelegateReport(spent=commit.spent) if commit.delegated is not None else None,
        todos=commit.todos,
        spent=commit.spent,
    )
    return TurnResult.model_validate(result.model_dump())


def fails_workflow(error: ActivityError) -> bool:
    """Whether a request that ``open_turn`` refused closes its workflow as Failed."""
    with contextlib.suppress(IndexError, ValidationError):
        return (
            isinstance(error.cause, ApplicationError) and Refusal.model_validate(error.cause.details[-1]).fails_workflow
        )
    return False


def of_turn(result: TurnResult) -> ApplicationError:
    """The failure that closes the workflow of a failed or cancelled turn; its first detail is the turn's result."""
    code = result.reason_code or result.stop_reason
    return ApplicationError(result.error or code, result, type=code, non_retryable=True)


def result_in(error: BaseException | None) -> TurnResult | None:
    """The turn's result in a failure that :func:`of_turn` made; None in any other."""
    with contextlib.suppress(IndexError, ValidationError):
        return TurnResult.model_validate(error.details[0]) if isinstance(error, ApplicationError) else None
    return None


def for_memo(result: TurnResult) -> TurnResult:
    """The result, cut for the workflow's memo: every list of workflows carries it."""
    small = {"output": result.output[:MEMO_OUTPUT], "value": None, "requests": (), "todos": ()}
    return result.model_copy(update=small)


def detail(error: ActivityError, title: str) -> ErrorDetail:
    """The facts of a failed activity: the detail that it sent, or else what Temporal knows of it."""
    cause = error.cause
    if isinstance(cause, ApplicationError):
        with contextlib.suppress(IndexError, ValidationError):  # a user's own activity may fail with other details
            return ErrorDetail.model_validate(cause.details[0])
        code = code_of_kind(cause.type) if cause.type else ReasonCode.RUNTIME_WORKER_LOST
        return ErrorDetail(code=code, title=title, message=cause.message[:MAX_ERROR_TEXT], type=cause.type or "")
    if isinstance(cause, ActivityTimeoutError):
        text = f"{REASONS[ReasonCode.RUNTIME_WORKER_LOST].cause}, again and again: {cause.message}"
        return ErrorDetail(code=ReasonCode.RUNTIME_WORKER_LOST, title=title, message=text[:MAX_ERROR_TEXT])
    return ErrorDetail(code=ReasonCode.RUNTIME_WORKER_LOST, title=title, message=str(cause or error)[:MAX_ERROR_TEXT])


def of_model(error: ActivityError) -> Failed:
    """The failure of a model call that failed for good, with what its tries have cost."""
    paid = Paid()
    if isinstance(error.cause, ApplicationError):
        with contextlib.suppress(IndexError, ValidationError):
            paid = Paid.model_validate(error.cause.details[1])
    return Failed(detail(error, "generation"), paid)


def of_hooks(outcome: HookResults | BaseException) -> HookResults | Failed:
    """The results of the activity ``run_hooks``, or its failure."""
    if isinstance(outcome, HookResults):
        return outcome
    if isinstance(outcome, ActivityError):
        return Failed(detail(outcome, "hooks"))
    return Failed(ErrorDetail(code=ReasonCode.RUNTIME_HOOK_FAILED, title="hooks", message=str(outcome)))


def of_tools(called: Sequence[PlannedCall], settled: Sequence[Any]) -> ToolResults:
    """The outcome of each call, out of its activity's result or failure; a cancelled one has none.

    ``called`` and ``settled`` are in the same order.
    """
    outcomes: list[ToolOutcome] = []
    aborted: ErrorDetail | None = None
    for planned, outcome in zip(called, settled, strict=True):
        if isinstance(outcome, ToolOutcome):
            outcomes.append(outcome)
        elif not is_cancelled_exception(outcome):
            failure, aborts = _of_tool(outcome, planned.tool)
            outcomes.append(failed_outcome(planned.call_id, failure))
            aborted = aborted or (failure if aborts else None)
    return ToolResults(tuple(outcomes), aborted)


def _of_tool(error: ActivityError, tool: str) -> tuple[ErrorDetail, bool]:
    """The error that the model reads of a failed tool activity, and whether it ends the turn."""
    failure = detail(error, tool)
    if isinstance(error.cause, ApplicationError):
        return failure, True
    waited = isinstance(error.cause, ActivityTimeoutError) and error.cause.type is TimeoutType.SCHEDULE_TO_START
    code = ReasonCode.TOOL_STATE_LOST if waited else ReasonCode.TOOL_EFFECT_UNKNOWN
    return replace(failure, code=code, message=REASONS[code].text), False
