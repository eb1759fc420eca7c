"""What a turn does next, and what an outcome changes: the whole loop of an agent as pure functions.

``next_action`` looks at the state only. Each ``after_…`` takes the state and one outcome and gives the next state.
"""

from datetime import datetime, timedelta

from perdure.contracts.errors import REASONS, ErrorDetail, ReasonCode
from perdure.contracts.generations import Compact, Compacted, CompactionTrigger, Generate, Generation
from perdure.contracts.people import AskPeople
from perdure.contracts.tools import CallTool, PlannedCall, ToolOutcome
from perdure.contracts.turns import CommitTurn, OpenedTurn, OpenTurn, StopReason
from perdure.contracts.values import Value
from perdure.engine import people
from perdure.engine.people import WaitForPeople
from perdure.engine.state import Ending, Mailbox, TurnState

MAX_TOOL_ERRORS_IN_ROW = 10
"""With ``on_tool_error: feed_back``, so many tool errors in a row end the turn."""


TRIED_AGAIN_ABOVE = 1.1
"""Behind a compaction, or one that could not be, the next one waits until the conversation has grown by a tenth."""


class CallTools(Value):
    """Run these calls in parallel."""

    calls: tuple[CallTool, ...]


Action = Generate | Compact | CallTools | AskPeople | WaitForPeople | CommitTurn
"""What the workflow has to do next."""


def begin(opening: OpenTurn, opened: OpenedTurn, now: datetime) -> TurnState:
    """The state of a turn that was just opened."""
    return TurnState(
        session=opening.session,
        turn=opened.turn,
        definition=opened.definition,
        policy=opened.policy,
        tip=opened.tip,
        started_at=now,
        search_attributes=opened.search_attributes,
        tenant=opening.request.tenant,
        request_id=opening.request_id,
        guidance=opening.request.prompt if opening.request.compact else None,
        asking=opened.asking,
        call_ids=opened.call_ids,
        expires_at=opened.expires_at,
    )


def next_action(state: TurnState, mail: Mailbox) -> Action:
    """The one thing to do now.

    That is to call the tools that were asked for, ask people, make room, generate, or commit the ended turn.
    """
    if state.pending:
        return CallTools(calls=tuple(_call(state, planned) for planned in state.pending))
    if state.asking and state.ending is None:
        if state.asked and state.policy.interactive == "stop":
            return commit(state, mail, Ending(stop_reason=StopReason.WAITING_FOR_INPUT))
        return people.ask_or_wait(state)
    ending = state.ending or _limit_reached(state)
    if ending is not None:
        return commit(state, mail, ending)
    trigger = _compaction_due(state)
    if trigger is not None:
        return _compact(state, trigger)
    return Generate(
        session=state.session,
        turn=state.turn,
        step=state.step + 1,
        parent=state.tip,
        definition=state.definition,
        call_ids=state.call_ids,
        failed=state.failed,
        steered=mail.steered,
        failures=state.failures_in_row,
        corrections=state.corrections,
        compacted=state.policy.compaction is None or state.compacted_step > state.step,
    ).sparse()


def _compaction_due(state: TurnState) -> CompactionTrigger | None:
    """What asks for a compaction before the next generation, if anything does. Once for each generation."""
    policy = state.policy.compaction
    if policy is None or state.compacted_step > state.step:
        return None
    if state.overflow is not None:
        return "overflow_recovery"
    if state.guidance is not None and state.step == 0:
        return "manual"
    limit = policy.above_tokens
    return "threshold" if limit is not None and state.context_tokens > max(limit, state.not_below_tokens) else None


def _compact(state: TurnState, trigger: CompactionTrigger) -> Compact:
    return Compact(
        session=state.session,
        turn=state.turn,
        step=state.step + 1,
        parent=state.tip,
        definition=state.definition,
        trigger=trigger,
        guidance=state.guidance or "",
        failure=state.overflow,
    ).sparse()


def commit(state: TurnState, mail: Mailbox, ending: Ending) -> CommitTurn:
    """The commit of a turn that ends so; whatever has no result yet gets its error result there."""
    stops = ending.stop_reason is StopReason.WAITING_FOR_INPUT
    withdrawn = () if stops else people.unfinished(state, mail)
    return CommitTurn(
        session=state.session,
        turn=state.turn,
        tip=state.tip,
        stop_reason=ending.stop_reason,
        error=ending.error,
        steps=state.step,
        spent=state.spent,
        call_ids=state.call_ids,
        failed=(*state.failed, *withdrawn),
        # A message that the model has not read begins the next turn, in place of an answer.
        steered=() if stops else mail.steered,
        requests=people.input_requests(state) if stops else (),
        aborted_step=state.aborted_step,
        cancel_requested_at=mail.cancel_at,
        stopped_by=ending.stopped_by,
    ).sparse()


def _call(state: TurnState, planned: PlannedCall) -> CallTool:
    return CallTool(
        session=state.session,
        turn=state.turn,
        step=state.step,
        call_id=planned.call_id,
        definition=state.definition,
        arguments=planned.arguments,
        approval=planned.approval,
    )


def _limit_reached(state: TurnState) -> Ending | None:
    """The limit that forbids another generation, if one does. N allows exactly N."""
    if state.exhausted is not None:
        return Ending(stop_reason=StopReason.BUDGET_EXHAUSTED, error=state.exhausted)
    if state.step >= state.policy.max_steps:
        return Ending(stop_reason=StopReason.MAX_STEPS_REACHED)
    budgets, spent = state.policy.budgets, state.spent
    if budgets.llm_calls is not None and spent.llm_calls >= budgets.llm_calls:
        return out_of_budget(ReasonCode.BUDGET_LLM_CALLS, f"{spent.llm_calls} of {budgets.llm_calls} model calls")
    if budgets.cost_usd is not None and spent.cost_usd >= budgets.cost_usd:
        return out_of_budget(ReasonCode.BUDGET_COST, f"${spent.cost_usd} of ${budgets.cost_usd}")
    return None


def out_of_budget(code: ReasonCode, used: str) -> Ending:
    """The ending of a turn that has used up a budget."""
    error = ErrorDetail(code=code, title="agent", message=f"{REASONS[code].text}: {used}")
    return Ending(stop_reason=StopReason.BUDGET_EXHAUSTED, error=error)


def after_generation(state: TurnState, generation: Generation) -> TurnState:
    """The model has answered: its calls are to run, or its text ends the turn. Or it is to be told of a failure."""
    failed, compacted = generation.retry_seconds is not None, state.compacted_step > state.step
    calls = tuple(call for call in generation.calls if call.rejected is None)
    allowed, over = _within_tool_budget(state, calls)
    spent = state.spent.with_call(generation.usage, generation.cost_usd, tool_calls=len(allowed))
    state = state.model_copy(
        update={
            "tip": generation.tip,
            "step": state.step + 1,
            "spent": spent,
            "pending": tuple(call for call in allowed if call.needs is None),
            "asking": tuple(call for call in allowed if call.needs is not None),
            "asked": False,
            "expires_at": None,
            "call_ids": tuple(call.call_id for call in generation.calls),
            "failed": tuple(not_run(call.call_id, error) for call, error in over),
            "failures_in_row": state.failures_in_row + 1 if failed else 0,
            "corrections": state.corrections + (generation.rejected is not None),
            "context_tokens": (tokens := generation.usage.total_tokens or state.context_tokens),
            # Behind a compaction that left it large, or that was none, there has to be more before the next.
            "not_below_tokens": int(tokens * TRIED_AGAIN_ABOVE) if compacted else state.not_below_tokens,
            "exhausted": _out_of_tool_calls(state) if over else None,
        }
    )
    return state if failed else _ended_by_answer(state, generation)


def not_run(call_id: str, error: ErrorDetail) -> ToolOutcome:
    """The outcome of a call whose activity could not record one."""
    return ToolOutcome(call_id=call_id, preview=error.message, error=error, recorded=False)


def _within_tool_budget(
    state: TurnState, calls: tuple[PlannedCall, ...]
) -> tuple[tuple[PlannedCall, ...], tuple[tuple[PlannedCall, ErrorDetail], ...]]:
    """The calls that the budget of tool calls allows, and the others with their error."""
    limit = state.policy.budgets.tool_calls
    if limit is None:
        return calls, ()
    left = max(0, limit - state.spent.tool_calls)
    code = ReasonCode.BUDGET_TOOL_CALLS
    message = f"{REASONS[code].text}: {limit} of {limit} calls; this call did not run"
    return calls[:left], tuple(
        (call, ErrorDetail(code=code, title=call.tool, message=message)) for call in calls[left:]
    )


def _out_of_tool_calls(state: TurnState) -> ErrorDetail | None:
    limit = state.policy.budgets.tool_calls
    return out_of_budget(ReasonCode.BUDGET_TOOL_CALLS, f"{limit} of {limit} calls").error


def _ended_by_answer(state: TurnState, generation: Generation) -> TurnState:
    """Text without calls ends the turn, unless a completion criterion is configured: then the turn has stalled.

    Text that is not what the agent's output schema allows goes back to the model while corrections are left.
    """
    if generation.calls:
        return state
    if generation.rejected is not None:
        used_up = state.corrections > state.policy.output_corrections
        return after_failure(state, generation.rejected) if used_up else state
    reason = StopReason.FINISHED if state.policy.finish_tool is None else StopReason.STALLED
    return state.model_copy(update={"ending": Ending(stop_reason=reason)})


def keep_listening(state: TurnState, mail: Mailbox) -> TurnState:
    """Take back an ending by text when messages were steered in meanwhile: the model has to read them first."""
    ending = state.ending
    if ending is None or ending.stopped_by is not None:
        return state
    by_text = ending.stop_reason in {StopReason.FINISHED, StopReason.STALLED}
    if by_text and mail.steered and _limit_reached(state) is None:
        return state.model_copy(update={"ending": None})
    return state


def after_tools(state: TurnState, outcomes: tuple[ToolOutcome, ...], aborted: ErrorDetail | None) -> TurnState:
    """All calls of the step have come back.

    Args:
        state: The state with those calls pending.
        outcomes: One for each pending call, in the same order.
        aborted: The failure that ends the turn, when a tool failed outside its ``catch`` and the policy is ``abort``.
    """
    in_row = state.tool_errors_in_row
    for outcome in outcomes:
        in_row = in_row + 1 if outcome.error else 0
    unrecorded = tuple(outcome for outcome in outcomes if not outcome.recorded)
    ending = _ending_after_tools(state, outcomes, aborted, in_row)
    return state.model_copy(
        update={
            "pending": (),
            "failed": (*state.failed, *unrecorded),
            "tool_errors_in_row": in_row,
            "ending": ending or state.ending,
        }
    )


def _ending_after_tools(
    state: TurnState, outcomes: tuple[ToolOutcome, ...], aborted: ErrorDetail | None, in_row: int
) -> Ending | None:
    if aborted is not None:
        return Ending(stop_reason=StopReason.ERROR, error=aborted)
    stopped_by = _stop_request(state, outcomes)
    if stopped_by is not None:
        return Ending(stop_reason=StopReason.FINISHED, stopped_by=stopped_by)
    finish = state.policy.finish_tool
    for planned, outcome in zip(state.pending, outcomes, strict=True):
        if planned.tool == finish and outcome.error is None:
            return Ending(stop_reason=StopReason.FINISHED)
    last = next((outcome.error for outcome in reversed(outcomes) if outcome.error), None)
    if in_row >= MAX_TOOL_ERRORS_IN_ROW and last is not None:
        message = f"{in_row} tool errors in a row; the last one, of {last.title}: {last.message}"[:2000]
        error = last.model_copy(update={"title": "agent", "message": message})
        return Ending(stop_reason=StopReason.ERROR, error=error)
    return None


def _stop_request(state: TurnState, outcomes: tuple[ToolOutcome, ...]) -> str | None:
    """The first tool that asked the turn to end, and why."""
    for planned, outcome in zip(state.pending, outcomes, strict=True):
        if outcome.stop is not None:
            return f"{planned.tool}: {outcome.stop}"
    return None


def after_failure(state: TurnState, error: ErrorDetail) -> TurnState:
    """A generation failed for good: the turn ends with its error, unless a compaction may make room for another."""
    compacted = state.compacted_step > state.step
    if error.code == ReasonCode.LLM_CONTEXT_OVERFLOW and state.policy.compaction is not None and not compacted:
        return state.model_copy(update={"overflow": error})
    return state.model_copy(update={"ending": Ending(stop_reason=StopReason.ERROR, error=error)})


def after_compaction(state: TurnState, outcome: Compacted | ErrorDetail) -> TurnState:
    """The conversation is shorter now; or it is not, which ends the turn only if there was no room for more."""
    tried: dict[str, object] = {"compacted_step": state.step + 1, "overflow": None}
    ending = Ending(stop_reason=StopReason.FINISHED) if state.guidance is not None and state.step == 0 else None
    if isinstance(outcome, Compacted) and outcome.summarised:
        spent = state.spent.with_call(outcome.usage, outcome.cost_usd)
        tried |= {"tip": outcome.tip, "spent": spent, "context_tokens": 0}
        return state.model_copy(update={**tried, "ending": ending})
    if isinstance(outcome, ErrorDetail) and (state.overflow is not None or ending is not None):
        ending = Ending(stop_reason=StopReason.ERROR, error=outcome)
    elif state.overflow is not None:
        ending = Ending(stop_reason=StopReason.ERROR, error=state.overflow)
    return state.model_copy(update={**tried, "ending": ending})


def after_cancel(state: TurnState, mail: Mailbox) -> TurnState:
    """The turn was cancelled: nothing pending is started any more; the commit gives each its error result."""
    reason = mail.cancel.reason if mail.cancel else ""
    message = f"Operation aborted: {reason}" if reason else "Operation aborted"
    error = ErrorDetail(code=ReasonCode.RUNTIME_ABORTED, title="runtime", message=message)
    return state.model_copy(update={"pending": (), "ending": Ending(stop_reason=StopReason.CANCELLED, error=error)})


def after_asking(state: TurnState) -> TurnState:
    """People have been told of the requests."""
    return state.model_copy(update={"asked": True})


def after_waiting(state: TurnState, waited: timedelta) -> TurnState:
    """Somebody replied, or nobody did for so long."""
    return state.model_copy(update={"waited": state.waited + waited})


def after_aborted_generation(state: TurnState) -> TurnState:
    """The turn was stopped while the model was asked: the transcript will say that the operation was aborted."""
    return state.model_copy(update={"aborted_step": state.step + 1})


def after_deadline(state: TurnState, _mail: Mailbox) -> TurnState:
    """The time budget is used up: what runs was stopped as by a cancel."""
    limit = state.policy.budgets.seconds
    seconds = limit.total_seconds() if limit else 0
    return state.model_copy(
        update={"pending": (), "ending": out_of_budget(ReasonCode.BUDGET_SECONDS, f"{seconds:g} s")}
    )
