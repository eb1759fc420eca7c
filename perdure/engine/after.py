"""What an outcome changes in a turn's state: each function takes the state and one outcome and gives the next."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from perdure.contracts.budgets import Paid, Spent
from perdure.contracts.conditions import AnyCondition
from perdure.contracts.errors import ErrorDetail, ReasonCode
from perdure.contracts.generations import CUT_OFF, Compacted, Generation
from perdure.contracts.hooks import OF_DELEGATES, BudgetWarning, StopConditionMet
from perdure.contracts.tools import ToolOutcome
from perdure.contracts.turns import StopReason, TurnResult
from perdure.engine import calls, conditions, delegates, limits
from perdure.engine.delegates import CallDelegates
from perdure.engine.state import Ending, Mailbox, TurnState
from perdure.engine.step import limit_reached

MAX_TOOL_ERRORS_IN_ROW = 10
"""With ``on_tool_error: feed_back``, so many answers in a row whose tool calls all fail end the turn."""


NOTHING_PAID = Paid()
"""By a call that failed."""

TRIED_AGAIN_ABOVE = 1.1
"""Behind a compaction, or one that could not be, the next one waits until the conversation has grown by a tenth."""


def generation(state: TurnState, generation: Generation) -> TurnState:
    """The model has answered: its calls are to run, or its text ends the turn. Or it is to be told of a failure."""
    failed, compacted = generation.retry_seconds is not None, state.compacted_step > state.step
    asked = tuple(call for call in generation.calls if call.rejected is None)
    before, spent = state.spent, state.spent.with_call(generation.usage, generation.cost_usd)
    spent = spent.with_failed(generation.failed)
    wanted = [calls.wanted(call) or delegates.wanted(state.policy, call) for call in asked]
    granted = state.granted if state.running else None
    spent, errors, exhausted = limits.admitted(state.policy.budgets, spent, wanted, granted)
    allowed = tuple(call for call, error in zip(asked, errors, strict=True) if error is None)
    over = [(call, error) for call, error in zip(asked, errors, strict=True) if error is not None]
    cut = generation.finish_reason == CUT_OFF
    if cut:
        exhausted = limits.cut_off(state.policy.budgets, spent)
    if failed:
        tally = state.tally.without_calls()
    else:
        tally = state.tally.with_generation(generation.calls, matched=generation.matched, retries=generation.retries)
    state = state.model_copy(
        update={
            "tip": generation.tip,
            "step": state.step + 1,
            "spent": spent,
            "tally": tally.with_ended([(call.tool, False) for call, _ in over]),
            "pending": tuple(call for call in allowed if call.needs is None and not call.is_own),
            "builtins": tuple(call for call in allowed if call.needs is None and call.is_own),
            "has_text": bool(generation.preview.strip()),
            "tool_turns": state.tool_turns + bool(generation.calls),
            "asking": tuple(call for call in allowed if call.needs is not None),
            "asked": False,
            "expires_at": None,
            "call_ids": tuple(call.call_id for call in generation.calls),
            "failed": tuple(not_run(call.call_id, error) for call, error in over),
            "unknown_tool": calls.unknown_tool_error(state, generation),
            "failures_in_row": state.failures_in_row + 1 if failed else 0,
            "corrections": state.corrections + (generation.rejected is not None),
            "context_tokens": (tokens := generation.usage.total_tokens or state.context_tokens),
            # Behind a compaction that left it large, or that was none, there has to be more before the next.
            "not_below_tokens": int(tokens * TRIED_AGAIN_ABOVE) if compacted else state.not_below_tokens,
            "exhausted": exhausted,
        }
    )
    state = with_warnings(state, before)
    if failed or cut:
        return state
    return _ended_by_answer(state, generation).model_copy(update={"completing": False})


def with_warnings(state: TurnState, before: Spent) -> TurnState:
    """The state, with a warning for each share of a budget that was passed since."""
    passed = limits.warnings(state.policy.budgets, before, state.spent)
    return state.with_decided(*(BudgetWarning(**dict(warned)) for warned in passed))


def _charged_for(state: TurnState, spent: Spent) -> TurnState:
    return with_warnings(state.model_copy(update={"spent": spent}), state.spent)


def not_run(call_id: str, error: ErrorDetail) -> ToolOutcome:
    """The outcome of a call whose activity could not record one."""
    return ToolOutcome(call_id=call_id, preview=error.message, error=error, recorded=False)


def _ended_by_answer(state: TurnState, generation: Generation) -> TurnState:
    """Text without calls ends the turn, unless a completion criterion is configured: then the turn has stalled.

    Text that is not what the agent's output schema allows goes back to the model while corrections are left.
    """
    if generation.calls:
        return state
    if generation.rejected is not None:
        used_up = state.corrections > state.policy.output_corrections
        return failure(state, generation.rejected) if used_up else state
    has_criterion = state.policy.finish_tool is not None or state.policy.stop_conditions
    reason = StopReason.STALLED if has_criterion and not state.completing else StopReason.FINISHED
    return state.model_copy(update={"ending": Ending(stop_reason=reason)})


def step_ended(state: TurnState, mail: Mailbox, now: datetime) -> TurnState:
    """What follows from results that have come: the workflow's own calls, stop conditions, and what was steered in."""
    return keep_listening(judge_step(calls.end_by_unknown_tool(calls.carry_out(state)), now), mail)


def judge_step(state: TurnState, now: datetime) -> TurnState:
    """Look at the stop conditions, once for each step, when all of its calls have their results.

    A condition that holds makes the turn finished also where the model's text has ended it. Where a tool's error has,
    only a condition on errors of tools does.
    """
    known = state.policy.stop_conditions
    waits = state.pending or (state.asking and state.ending is None)
    if not known or state.judged_step == state.step or waits:
        return state
    if state.hooks.boundary in {"generation", "step"}:  # hooks come first
        return state
    state = state.model_copy(update={"judged_step": state.step})
    met = _first_met(state, facts(state, now))
    if met is None:
        return state
    ending = Ending(stop_reason=StopReason.FINISHED, stopped_by=conditions.title(met))
    return state.model_copy(update={"ending": ending}).with_decided(StopConditionMet(condition=conditions.title(met)))


def facts(state: TurnState, now: datetime) -> conditions.Facts:
    """What conditions may look at."""
    elapsed = now - state.started_at - state.waited
    return conditions.Facts(tally=state.tally, steps=state.step, spent=state.own_spent, elapsed=elapsed)


def _first_met(state: TurnState, facts: conditions.Facts) -> AnyCondition | None:
    """The first condition that holds and may finish the turn, whatever stands before it."""
    known, ending = state.policy.stop_conditions, state.ending
    if ending is None or ending.stop_reason in {StopReason.FINISHED, StopReason.STALLED}:
        is_free = ending is None or ending.stopped_by is None
        return conditions.fired(known, facts, state.policy.conditions) if is_free else None
    if ending.error is None or not ending.error.code.startswith("tool."):
        return None
    met = (one for one in known if conditions.holds_by_an_error(one, facts, state.policy.conditions))
    return next(met, None)


def tools(state: TurnState, outcomes: tuple[ToolOutcome, ...], aborted: ErrorDetail | None) -> TurnState:
    """The tools of the step have come back, or the delegates, which begin when no tool is pending.

    Args:
        state: The state with those calls pending.
        outcomes: One for each of them, in the same order.
        aborted: The failure that ends the turn, when a tool failed outside its ``catch`` and the policy is ``abort``.
    """
    # Calls of one answer count as one: the model has read of none before the last.
    helped = any(outcome.error is None for outcome in outcomes)
    in_row = 0 if helped else state.tool_errors_in_row + bool(outcomes)
    state = _with_lost_queues(state, outcomes)
    unknown, state = state.unknown_tool, state.model_copy(update={"unknown_tool": None})
    return _with_results(state, outcomes, aborted or unknown, _errors_in_row(in_row, outcomes))


ErrorsInRow = tuple[int, ErrorDetail | None]
"""Errors since the last success, and the last of them that has just come."""


def _errors_in_row(count: int, outcomes: Sequence[ToolOutcome]) -> ErrorsInRow:
    return count, next((outcome.error for outcome in reversed(outcomes) if outcome.error), None)


def _of_delegates_in_row(state: TurnState, outcomes: Sequence[ToolOutcome]) -> ErrorsInRow:
    """Delegates of an answer count as one call: they work side by side, and the model has read of none before the last.

    So what waits for delegates behind them decides, if there is any. Those that did not start do not count.
    """
    _, later = delegates.parted(state)
    one_more = bool(outcomes) and not later
    helped = any(outcome.error is None for outcome in outcomes)
    return _errors_in_row(0 if helped else state.tool_errors_in_row + one_more, outcomes)


def _with_results(
    state: TurnState, outcomes: tuple[ToolOutcome, ...], aborted: ErrorDetail | None, in_row: ErrorsInRow
) -> TurnState:
    called, later = delegates.parted(state)
    state = state.model_copy(update={"pending": called})
    unrecorded = tuple(outcome for outcome in outcomes if not outcome.recorded)
    ending = _ending_tools(state, outcomes, aborted, in_row)
    if ending is not None:
        later, unrecorded = (), (*unrecorded, *delegates.withdrawn(later))
    return state.model_copy(
        update={
            "pending": later,
            "failed": (*state.failed, *unrecorded),
            "tool_errors_in_row": in_row[0],
            "tally": state.tally.with_results(state.pending, outcomes),
            "ending": ending or state.ending,
        }
    )


def _with_lost_queues(state: TurnState, outcomes: Sequence[ToolOutcome]) -> TurnState:
    """The state with the queues of workers that took no calls any more: the next calls do not count on them."""
    of_lost_workers = {
        outcome.call_id
        for outcome in outcomes
        if outcome.error is not None and outcome.error.code == ReasonCode.TOOL_STATE_LOST and not outcome.recorded
    }
    if not of_lost_workers:
        return state
    tools = [state.policy.tools.get(call.tool) for call in state.pending if call.call_id in of_lost_workers]
    lost = [tool.task_queue for tool in tools if tool is not None and tool.task_queue is not None]
    return state.model_copy(update={"lost_queues": tuple(dict.fromkeys((*state.lost_queues, *lost)))})


def delegated(state: TurnState, action: CallDelegates, ended: Sequence[delegates.End]) -> TurnState:
    """The delegates of the step have ended, one for each that was started.

    Those that work in the background have not, and have their first result. Under ``on_child_error: propagate``, the
    first that did not finish ends the turn; one that did not start is told to the model, and its limit ends the turn.
    """
    came = tuple(delegates.outcome_of(start, one) for start, one in zip(action.starts, ended, strict=True))
    propagates = state.policy.on_child_error == "propagate"
    failed = next((outcome.error for outcome in came if outcome.error is not None), None) if propagates else None
    return _with_results(state, (*came, *action.refused), failed, _of_delegates_in_row(state, came))


def charged(state: TurnState, action: CallDelegates, ended: Sequence[delegates.End]) -> TurnState:
    """The state with what the delegates have used, also of a turn that was stopped while they worked."""
    return with_charges(with_background(state, action, ended), ended)


def with_background(state: TurnState, action: CallDelegates, ended: Sequence[delegates.End]) -> TurnState:
    """The state with those that work in the background from now on, also where the turn was stopped meanwhile."""
    began = tuple(delegates.begun(start) for start, one in zip(action.starts, ended, strict=True) if one is None)
    return state.model_copy(update={"background": (*state.background, *began)}) if began else state


def with_charges(state: TurnState, ended: Sequence[delegates.End]) -> TurnState:
    """The state with what delegates have used, also where the turn was stopped meanwhile."""
    charged = state.model_copy(update={"spent": delegates.charged(state.spent, ended)})
    return with_warnings(charged, state.spent)


def background_ended(state: TurnState, session: str, ended: TurnResult | ErrorDetail) -> TurnState:
    """A delegate in the background has ended: it is charged for, once, and what it did not use is there again."""
    known = tuple(delegates.told(one, ended) if one.session == session else one for one in state.background)
    if any(map(state.is_hooked, OF_DELEGATES)):
        ended_calls = tuple(one.call_id for one in known if one.session == session)
        state = state.with_hooks(ended=(*state.hooks.ended, *ended_calls))
    return with_charges(state.model_copy(update={"background": known, "short": False}), [ended])


def background_cancelled(state: TurnState) -> TurnState:
    """The turn ends, and with it what works in the background, whose ends change nothing any more."""
    known = tuple(one if one.ended else one.model_copy(update={"cancelled": True}) for one in state.background)
    return state.model_copy(update={"background": known})


def awaited(state: TurnState, action: delegates.AwaitDelegates, outcome: ToolOutcome) -> TurnState:
    """The model's call that waited for delegates has its result."""
    known = tuple(
        one.model_copy(update={"awaited": state.step})
        if one.session in action.sessions and one.awaited is None
        else one
        for one in state.background
    )
    state = state.model_copy(update={"background": known})
    return _with_results(state, (outcome,), delegates.propagated(state), _of_delegates_in_row(state, (outcome,)))


def _ending_tools(
    state: TurnState, outcomes: tuple[ToolOutcome, ...], aborted: ErrorDetail | None, in_row: ErrorsInRow
) -> Ending | None:
    aborted = aborted or next((outcome.problem for outcome in outcomes if outcome.problem is not None), None)
    if aborted is not None:
        return Ending(stop_reason=StopReason.ERROR, error=aborted)
    stopped_by = _stop_request(state, outcomes)
    if stopped_by is not None:
        return Ending(stop_reason=StopReason.FINISHED, stopped_by=stopped_by)
    finish = state.policy.finish_tool
    for planned, outcome in zip(state.pending, outcomes, strict=True):
        if planned.tool == finish and outcome.error is None:
            return Ending(stop_reason=StopReason.FINISHED)
    count, last = in_row
    if count >= MAX_TOOL_ERRORS_IN_ROW and last is not None:
        message = f"{count} tool errors in a row; the last one, of {last.title}: {last.message}"[:2000]
        error = last.model_copy(update={"title": "agent", "message": message})
        return Ending(stop_reason=StopReason.ERROR, error=error)
    return None


def _stop_request(state: TurnState, outcomes: tuple[ToolOutcome, ...]) -> str | None:
    """The first tool that asked the turn to end, and why."""
    for planned, outcome in zip(state.pending, outcomes, strict=True):
        if outcome.stop is not None:
            return f"{planned.tool}: {outcome.stop}"
    return None


def failure(state: TurnState, error: ErrorDetail, paid: Paid = NOTHING_PAID) -> TurnState:
    """A generation failed for good: the turn ends, unless a compaction may make room or another model may help."""
    state = _charged_for(state, state.spent.with_failed(paid))
    compacted = state.compacted_step > state.step
    if error.code == ReasonCode.LLM_CONTEXT_OVERFLOW and state.policy.compaction is not None and not compacted:
        return state.model_copy(update={"overflow": error})
    fallen = limits.fall_back(state, error)
    if fallen is not None:
        return fallen
    if error.code == ReasonCode.BUDGET_COST and state.running:
        return state.model_copy(update={"short": True})
    return state.model_copy(update={"ending": _failed(error)})


def _failed(error: ErrorDetail) -> Ending:
    """The end of a turn by the failure of a model call, or by a call that was not affordable."""
    exhausted = limits.is_exhausted(error.code)
    return Ending(stop_reason=StopReason.BUDGET_EXHAUSTED if exhausted else StopReason.ERROR, error=error)


def compaction(state: TurnState, outcome: Compacted | ErrorDetail, paid: Paid = NOTHING_PAID) -> TurnState:
    """The conversation is shorter now; or it is not, which ends the turn only if there was no room for more."""
    paid = outcome.failed if isinstance(outcome, Compacted) else paid
    state = _charged_for(state, state.spent.with_failed(paid))
    tried: dict[str, object] = {"compacted_step": state.step + 1, "overflow": None}
    ending = Ending(stop_reason=StopReason.FINISHED) if state.guidance is not None and state.step == 0 else None
    if isinstance(outcome, Compacted) and outcome.summarised:
        state = _charged_for(state, state.spent.with_call(outcome.usage, outcome.cost_usd))
        tried |= {"tip": outcome.tip, "context_tokens": 0}
        return state.model_copy(update={**tried, "ending": ending})
    if isinstance(outcome, ErrorDetail) and (state.overflow is not None or ending is not None):
        fallen = limits.fall_back(state, outcome)
        if fallen is not None:  # which then writes the summary
            return fallen
        if outcome.code == ReasonCode.BUDGET_COST and state.running:
            return state.model_copy(update={"short": True})
        ending = _failed(outcome)
    elif state.overflow is not None:
        fallen = limits.fall_back(state.model_copy(update={"overflow": None}), state.overflow)
        if fallen is not None:
            return fallen
        ending = Ending(stop_reason=StopReason.ERROR, error=state.overflow)
    return state.model_copy(update={**tried, "ending": ending})


def cancel(state: TurnState, mail: Mailbox) -> TurnState:
    """The turn was cancelled: nothing pending is started any more; the commit gives each its error result."""
    reason = mail.cancel.reason if mail.cancel else ""
    message = f"Operation aborted: {reason}" if reason else "Operation aborted"
    error = ErrorDetail(code=ReasonCode.RUNTIME_ABORTED, title="runtime", message=message)
    return state.model_copy(update={"pending": (), "ending": Ending(stop_reason=StopReason.CANCELLED, error=error)})


def waiting(state: TurnState, waited: timedelta) -> TurnState:
    """Somebody replied, or nobody did for so long."""
    return state.model_copy(update={"waited": state.waited + waited})


def aborted_generation(state: TurnState) -> TurnState:
    """The turn was stopped while the model was asked: the transcript will say that the operation was aborted."""
    return state.model_copy(update={"aborted_step": state.step + 1})


def deadline(state: TurnState) -> TurnState:
    """The time budget is used up: what runs was stopped as by a cancel."""
    limit = state.policy.budgets.seconds
    seconds = limit.total_seconds() if limit else 0
    return state.model_copy(
        update={
            "pending": (),
            "ending": Ending(
                stop_reason=StopReason.BUDGET_EXHAUSTED, error=limits.used_up("seconds", f"{seconds:g} s")
            ),
        }
    )


def keep_listening(state: TurnState, mail: Mailbox) -> TurnState:
    """Take back an ending by text when messages were steered in meanwhile: the model has to read them first."""
    ending = state.ending
    if ending is None or ending.stopped_by is not None:
        return state
    by_text = ending.stop_reason in {StopReason.FINISHED, StopReason.STALLED}
    if by_text and mail.steered and limit_reached(state) is None:
        return state.model_copy(update={"ending": None})
    return state
