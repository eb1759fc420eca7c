"""What a turn asks of the world, and the limits that forbid more. What an answer changes stands in ``after``."""

from datetime import datetime

from perdure.contracts.errors import ErrorDetail, ReasonCode
from perdure.contracts.generations import Compact, CompactionTrigger, Generate
from perdure.contracts.hooks import Boundary, React
from perdure.contracts.input_requests import AskPeople
from perdure.contracts.tools import CallTool, PlannedCall
from perdure.contracts.turns import CommitTurn, OpenedTurn, OpenTurn, StopReason
from perdure.contracts.values import Value
from perdure.engine import calls, delegates, input_requests, limits
from perdure.engine.delegates import AwaitDelegates, CallDelegates
from perdure.engine.input_requests import WaitForPeople
from perdure.engine.state import Ending, HookState, Mailbox, TurnState


class CallTools(Value):
    """Run these calls in parallel."""

    calls: tuple[CallTool, ...]


Action = (
    React | Generate | Compact | CallTools | CallDelegates | AwaitDelegates | AskPeople | WaitForPeople | CommitTurn
)
"""What a turn asks of the world."""


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
        fails_workflow=opened.fails_workflow,
        store=opened.store,
        tenant=opening.request.tenant or opened.tenant,
        request_id=opening.request_id,
        guidance=opening.request.prompt if opening.request.compact else None,
        asking=opened.asking,
        call_ids=opened.call_ids,
        expires_at=opened.expires_at,
        delegated=opening.request.delegated,
        hooks=HookState(
            boundary="start" if opened.policy.hooks and not opening.request.compact else None,
            said=opened.said,
            calls=tuple((call.call_id, call.tool) for call in opened.asking) if opened.policy.hooks else (),
        ),
        todos=opened.todos,
        spent=opened.earlier,
        earlier=opened.earlier,
    )


def generate(state: TurnState, mail: Mailbox) -> Generate:
    """The next generation."""
    return Generate(
        session=state.session,
        store=state.store,
        turn=state.turn,
        step=state.step + 1,
        parent=state.tip,
        definition=state.definition,
        call_ids=state.call_ids,
        failed=state.failed,
        steered=mail.steered,
        said=state.hooks.said,
        failures=state.failures_in_row,
        corrections=state.corrections,
        compacted=state.policy.compaction is None or state.compacted_step > state.step,
        decided=state.decided,
        fallback=state.fallback,
        text_only=state.completing and (not mail.steered or _tool_turns_used_up(state)),
        cost_left=limits.cost_left(state.policy.budgets, state.taken),
    ).sparse()


def next_calls(state: TurnState) -> CallTools | CallDelegates | AwaitDelegates:
    """The pending calls that are next."""
    called, _ = delegates.parted(state)
    if called[0].builtin is not None:
        return delegates.await_delegates(state, called[0])
    if delegates.settings_of(state.policy, called[0]) is not None:
        return delegates.call_delegates(state, called)
    return CallTools(calls=tuple(_call(state, planned) for planned in called))


def waits_for_grants(state: TurnState) -> bool:
    """Whether nothing is left to go on with beside what delegates in the background may spend."""
    if not state.running:
        return False
    return state.short or limit_reached(state.model_copy(update={"spent": state.taken})) is not None


def await_one(state: TurnState) -> AwaitDelegates:
    """Wait until a delegate in the background has ended."""
    return AwaitDelegates(sessions=tuple(one.session for one in state.running))


def ending_of(state: TurnState) -> Ending | None:
    """What ends the turn before another generation, if something does."""
    return state.ending or _propagated(state) or limit_reached(state)


def _propagated(state: TurnState) -> Ending | None:
    error = delegates.propagated(state)
    return None if error is None else Ending(stop_reason=StopReason.ERROR, error=error)


def react(state: TurnState, boundary: Boundary) -> React:
    """Call the hooks that were chosen."""
    limit = state.policy.budgets.behavior_calls
    return React(
        session=state.session,
        store=state.store,
        turn=state.turn,
        step=state.step + (boundary == "error"),  # the one that was not made
        tip=state.tip,
        definition=state.definition,
        boundary=boundary,
        calling=state.hooks.calling,
        spent=state.spent,
        left=None if limit is None else max(0, limit - state.taken.behavior_calls),
        failed=state.failed if boundary == "step" else (),
        decided=state.hooks.unheard[: state.hooks.told[0]] if boundary == "step" else (),
        ended=state.hooks.ended[: state.hooks.told[1]] if boundary == "step" else (),
    ).sparse()


def compaction_due(state: TurnState) -> CompactionTrigger | None:
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


def compact(state: TurnState, trigger: CompactionTrigger) -> Compact:
    """Make room for the next generation."""
    return Compact(
        session=state.session,
        store=state.store,
        turn=state.turn,
        step=state.step + 1,
        parent=state.tip,
        definition=state.definition,
        trigger=trigger,
        guidance=state.guidance or "",
        failure=state.overflow,
        fallback=state.fallback,
        cost_left=limits.cost_left(state.policy.budgets, state.taken),
    ).sparse()


def commit(state: TurnState, mail: Mailbox, ending: Ending) -> CommitTurn:
    """The commit of a turn that ends so; whatever has no result yet gets its error result there."""
    stops = ending.stop_reason is StopReason.WAITING_FOR_INPUT
    withdrawn = () if stops else input_requests.unfinished(state, mail)
    return CommitTurn(
        session=state.session,
        store=state.store,
        turn=state.turn,
        tip=state.tip,
        stop_reason=ending.stop_reason,
        error=ending.error,
        steps=state.step,
        spent=state.own_spent,
        call_ids=state.call_ids,
        failed=(*state.failed, *withdrawn, *calls.left(state)),
        # A message that the model has not read begins the next turn, in place of an answer.
        steered=() if stops else mail.steered,
        said=() if stops else state.hooks.said,
        requests=input_requests.input_requests(state) if stops else (),
        aborted_step=state.aborted_step,
        cancel_requested_at=mail.cancel_at,
        stopped_by=ending.stopped_by,
        decided=state.decided,
        delegated=state.delegated,
        todos=state.todos,
    ).sparse()


def _call(state: TurnState, planned: PlannedCall) -> CallTool:
    return CallTool(
        session=state.session,
        store=state.store,
        turn=state.turn,
        step=state.step,
        call_id=planned.call_id,
        definition=state.definition,
        arguments=planned.arguments,
        approval=planned.approval,
    )


def limit_reached(state: TurnState) -> Ending | None:
    """The limit that forbids another generation, if one does. N allows exactly N."""
    if state.exhausted is not None:
        return Ending(stop_reason=StopReason.BUDGET_EXHAUSTED, error=state.exhausted)
    if state.step + state.spent.delegated_steps >= state.policy.max_steps:
        return Ending(stop_reason=StopReason.MAX_STEPS_REACHED)
    if _tool_turns_used_up(state) and not state.completing:
        most = state.policy.max_tool_turns
        message = f"the model has called tools in {most} answers, which is max_tool_turns, and has not finished"
        error = ErrorDetail(code=ReasonCode.TOOL_MAX_TURNS_EXHAUSTED, title="agent", message=message)
        return Ending(stop_reason=StopReason.ERROR, error=error)
    forbidden = limits.forbids_generation(state.policy.budgets, state.spent)
    return None if forbidden is None else Ending(stop_reason=StopReason.BUDGET_EXHAUSTED, error=forbidden)


def _tool_turns_used_up(state: TurnState) -> bool:
    most = state.policy.max_tool_turns
    return most is not None and state.tool_turns >= most
