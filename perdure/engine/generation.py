"""The model calls of a turn: their requests, and what an answer, a failure or a compaction changes."""

from collections.abc import Sequence
from dataclasses import dataclass

from perdure.contracts.budgets import Paid
from perdure.contracts.errors import ErrorDetail, ReasonCode
from perdure.contracts.generations import CUT_OFF, Compact, Compacted, CompactionTrigger, Generate, Generation
from perdure.contracts.tool_choice import NamedTool, ToolChoice
from perdure.contracts.tools import PlannedCall
from perdure.contracts.turns import StopReason
from perdure.contracts.values import replace
from perdure.engine import calls, limits
from perdure.engine.state import Calls, Context, Ending, Mailbox, TurnState

GROWTH_BEFORE_COMPACTION = 1.1
"""After a compaction, or a failed one, the next is due only when the context has grown by 10 %."""


MOST_REMINDERS = 2
"""Times that a model which answers in words is told to make the call that its request wants."""


@dataclass(frozen=True)
class Failed:
    """An activity that failed for good, and what its tries have cost."""

    error: ErrorDetail
    paid: Paid = Paid()


def generate(state: TurnState, mail: Mailbox) -> Generate:
    """The request of the next model call."""
    return Generate(
        session=state.origin.session,
        store=state.origin.store,
        trace=state.origin.trace,
        turn=state.origin.turn,
        step=state.step + 1,
        parent=state.tip,
        definition=state.origin.definition,
        call_ids=state.calls.ids,
        failed=state.calls.outcomes,
        steered=mail.steered,
        said=(*state.hooks.said, *_reminder(state)),
        failures=state.failures_in_row,
        corrections=state.corrections,
        compacted=state.policy.compaction is None or _is_compacted(state),
        decided=state.decided,
        fallback=state.fallback,
        text_only=state.completing and (not mail.steered or limits.tool_turns_used_up(state)),
        tool_choice=state.tool_choice,
        cost_left=limits.cost_left(state.policy.budgets, state.taken),
    )


def _reminder(state: TurnState) -> tuple[str, ...]:
    """The call that the request wants, for a model that has just answered in words instead."""
    choice = state.tool_choice
    if not state.reminders or choice in {None, "none"} or state.calls.ids:
        return ()
    what = f"the tool {choice.name}" if isinstance(choice, NamedTool) else "a tool"
    return (f"Answer with a call of {what}, and with no text: that is what this request asks for.",)


def _is_compacted(state: TurnState) -> bool:
    """Whether a compaction was tried for the next generation. Each gets one try."""
    return state.context.compacted_step > state.step


def with_answer(state: TurnState, answer: Generation) -> TurnState:
    """The state after an answer: its calls are to run, or its text ends the turn.

    In place of an answer the generation may be a failed model call that the model is told of (``is_told_failure``).
    """
    failed, cut = answer.is_told_failure, answer.finish_reason == CUT_OFF
    budgets = state.policy.budgets
    spent = state.spent.with_call(answer.usage, answer.cost_usd).with_failed(answer.failed)
    asked = [call for call in answer.calls if call.rejected is None]
    granted = state.granted if state.running else None
    spent, errors, exhausted = limits.admit(budgets, spent, [calls.uses_of(state, call) for call in asked], granted)
    allowed = [call for call, error in zip(asked, errors, strict=True) if error is None]
    refused = [(call, error) for call, error in zip(asked, errors, strict=True) if error is not None]
    if failed:
        tally = state.tally.without_calls()
    else:
        tally = state.tally.with_generation(answer.calls, matched=answer.matched, retries=answer.retries)
    tokens = answer.usage.total_tokens or state.context.tokens
    not_below = int(tokens * GROWTH_BEFORE_COMPACTION) if _is_compacted(state) else state.context.not_below
    state = replace(
        state,
        tip=answer.tip,
        step=state.step + 1,
        tally=tally.with_ended([(call.tool, False) for call, _ in refused]),
        calls=Calls(
            ids=tuple(call.call_id for call in answer.calls),
            pending=tuple(call for call in allowed if call.needs is None and not call.is_own),
            own=tuple(call for call in allowed if call.needs is None and call.is_own),
            asking=tuple(call for call in allowed if call.needs is not None),
            outcomes=tuple(calls.failed_outcome(call.call_id, error) for call, error in refused),
            unknown_tool=calls.unknown_tool_error(state, answer),
            has_text=bool(answer.preview.strip()),
            own_only=all(call.is_own for call in allowed),
        ),
        tool_turns=state.tool_turns + bool(answer.calls),
        failures_in_row=state.failures_in_row + 1 if failed else 0,
        corrections=state.corrections + (answer.rejected is not None),
        tool_choice=_choice_behind(state, asked),
        context=replace(state.context, tokens=tokens, not_below=not_below),
        exhausted=limits.cut_off_error(budgets, spent) if cut else exhausted,
    )
    state = limits.charge(state, spent)
    unrun = [call.rejected for call in answer.calls if call.rejected is not None]
    if unrun and not asked and state.policy.most_refused:
        state = calls.with_refused(state, unrun)
    return state if failed or cut else replace(_ended_by_text(state, answer), completing=False)


def _choice_behind(state: TurnState, asked: Sequence[PlannedCall]) -> ToolChoice | None:
    """The choice of tools behind an answer with these calls: none any more, once the model has made its call.

    A call that the caller runs is what the caller waits for; any other one may be on the way there.
    """
    choice = state.tool_choice
    if choice is None or choice == "none":
        return choice
    if isinstance(choice, NamedTool):
        is_met = any(call.tool == choice.name for call in asked)
    elif any(tool.by_caller for tool in state.policy.tools.values()):
        is_met = any(call.needs == "result" for call in asked)
    else:
        is_met = bool(asked)
    return None if is_met else choice


def context_at_start(tokens: int, tokens_left: int) -> Context:
    """The context of a turn that begins: its size is that of the session's last answer, also for the next compaction.

    Args:
        tokens: Tokens of that answer; 0 if they are unknown.
        tokens_left: Tokens that the session's last compaction left.
    """
    return Context(tokens=tokens, not_below=int(tokens_left * GROWTH_BEFORE_COMPACTION))


def _ended_by_text(state: TurnState, answer: Generation) -> TurnState:
    """Text without calls ends the turn. If a completion criterion is configured, the turn has stalled.

    Text that the agent's output schema does not allow goes back to the model while corrections are left.
    """
    if answer.calls:
        return state
    if answer.rejected is not None:
        used_up = state.corrections > state.policy.output_corrections
        return with_failure(state, Failed(answer.rejected)) if used_up else state
    if state.tool_choice not in {None, "none"} and state.policy.tools and state.reminders < MOST_REMINDERS:
        return replace(state, reminders=state.reminders + 1)
    has_criterion = state.policy.finish_tool is not None or state.policy.stop_conditions
    reason = StopReason.STALLED if has_criterion and not state.completing else StopReason.FINISHED
    return replace(state, ending=Ending(stop_reason=reason))


def with_failure(state: TurnState, failed: Failed) -> TurnState:
    """A model call failed for good: the turn ends, unless a compaction may make room or another model may help."""
    state, error = limits.charge(state, state.spent.with_failed(failed.paid)), failed.error
    too_long = error.code == ReasonCode.LLM_CONTEXT_OVERFLOW and state.policy.compaction is not None
    if too_long and not _is_compacted(state):
        return replace(state, context=replace(state.context, overflow=error))
    return limits.fall_back(state, error) or _without_help(state, error)


def _without_help(state: TurnState, error: ErrorDetail) -> TurnState:
    """The failure ends the turn; but a call that was not affordable waits for delegates that still work."""
    if error.code == ReasonCode.BUDGET_COST and state.running:
        return replace(state, short=True)
    reason = StopReason.BUDGET_EXHAUSTED if limits.is_exhausted(error.code) else StopReason.ERROR
    return replace(state, ending=Ending(stop_reason=reason, error=error))


def compaction_due(state: TurnState) -> CompactionTrigger | None:
    """Trigger of a compaction that is due before the next generation, if any. Each generation gets one try."""
    policy = state.policy.compaction
    if policy is None or _is_compacted(state):
        return None
    if state.context.overflow is not None:
        return "overflow_recovery"
    if _is_only_compacting(state):
        return "manual"
    limit = policy.above_tokens
    return "threshold" if limit is not None and state.context.tokens > max(limit, state.context.not_below) else None


def _is_only_compacting(state: TurnState) -> bool:
    return state.origin.guidance is not None and state.step == 0


def compact(state: TurnState, trigger: CompactionTrigger) -> Compact:
    """The request of a compaction before the next generation."""
    return Compact(
        session=state.origin.session,
        store=state.origin.store,
        trace=state.origin.trace,
        turn=state.origin.turn,
        step=state.step + 1,
        parent=state.tip,
        definition=state.origin.definition,
        trigger=trigger,
        guidance=state.origin.guidance or "",
        failure=state.context.overflow,
        fallback=state.fallback,
        cost_left=limits.cost_left(state.policy.budgets, state.taken),
    )


def with_compaction(state: TurnState, outcome: Compacted | Failed) -> TurnState:
    """The state after a compaction. A failed one ends the turn only if the model had refused the long context.

    It also ends a turn that only compacts.
    """
    paid = outcome.failed if isinstance(outcome, Compacted) else outcome.paid
    state = limits.charge(state, state.spent.with_failed(paid))
    overflow = state.context.overflow
    tried = replace(
        state,
        context=replace(state.context, compacted_step=state.step + 1, overflow=None),
        ending=Ending(stop_reason=StopReason.FINISHED) if _is_only_compacting(state) else None,
    )
    if isinstance(outcome, Compacted) and outcome.summarised:
        shorter = replace(tried, tip=outcome.tip, context=replace(tried.context, tokens=0))
        return limits.charge(shorter, shorter.spent.with_call(outcome.usage, outcome.cost_usd))
    if isinstance(outcome, Failed) and (overflow is not None or tried.ending is not None):
        # Another model writes the summary, or the compaction is tried again when a delegate has ended.
        fallen = limits.fall_back(state, outcome.error)
        if fallen is not None:
            return fallen
        ended = _without_help(state, outcome.error)
        return ended if ended.ending is None else replace(tried, ending=ended.ending)
    if overflow is not None:
        fallen = limits.fall_back(replace(state, context=replace(state.context, overflow=None)), overflow)
        return fallen or replace(tried, ending=Ending(stop_reason=StopReason.ERROR, error=overflow))
    return tried
