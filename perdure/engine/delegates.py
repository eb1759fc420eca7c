"""Delegates of a turn: which calls are theirs, what each of them may use, and what the turn makes of their ends."""

from collections.abc import Sequence

from perdure.contracts.agents import TurnPolicy
from perdure.contracts.budgets import Budgets, Spent
from perdure.contracts.delegates import (
    DELEGATE_OUTPUT,
    DELEGATED,
    Delegated,
    DelegateSettings,
    delegate_session,
)
from perdure.contracts.errors import REASONS, ErrorDetail, ReasonCode
from perdure.contracts.tools import PlannedCall, ToolOutcome
from perdure.contracts.turns import StopReason, TurnRequest, TurnResult
from perdure.contracts.values import Value
from perdure.engine import budgets
from perdure.engine.budgets import Wanted
from perdure.engine.state import TurnState


class StartDelegate(Value):
    """A turn of a delegate that is to begin: in this session, with this request."""

    session: str
    call: PlannedCall
    request: TurnRequest


class CallDelegates(Value):
    """Have these calls carried out by delegates, in parallel; for the refused ones nothing is left."""

    starts: tuple[StartDelegate, ...] = ()
    refused: tuple[ToolOutcome, ...] = ()


def settings_of(policy: TurnPolicy, call: PlannedCall) -> DelegateSettings | None:
    """What the called tool is as a delegate; None if it is none."""
    tool = policy.tools.get(call.tool)
    return None if tool is None else tool.delegate


def wanted(policy: TurnPolicy, call: PlannedCall) -> Wanted:
    """What a call of the model uses up as such: one of a delegate also counts as a behaviour, one level deeper."""
    settings = settings_of(policy, call)
    if settings is None:
        return Wanted(tool=call.tool)
    return Wanted(tool=call.tool, uses=("tool_calls", "behavior_calls", "events"), depth=1)


def parted(state: TurnState) -> tuple[tuple[PlannedCall, ...], tuple[PlannedCall, ...]]:
    """The pending calls that are next, and those after them: delegates wait until the tools have their results."""
    tools = tuple(call for call in state.pending if settings_of(state.policy, call) is None)
    others = tuple(call for call in state.pending if settings_of(state.policy, call) is not None)
    return (tools, others) if tools else (others, ())


def withdrawn(calls: Sequence[PlannedCall]) -> tuple[ToolOutcome, ...]:
    """The outcomes of delegates that are not started any more, as the turn ends."""
    said = "Operation aborted: the turn ended before {} began; it did not run"
    return tuple(_error(call, ReasonCode.TOOL_CANCELLED, said.format(call.tool)) for call in calls)


def call_delegates(state: TurnState, calls: Sequence[PlannedCall]) -> CallDelegates:
    """As many of the calls as can each have a share of what is left with which a model can be asked."""
    limits, left = state.policy.budgets, state.policy.max_steps - state.step - state.spent.delegated_steps
    count = len(calls)
    while count and _too_little(limits, state.spent, left, count) is not None:
        count -= 1
    why = None if count == len(calls) else _too_little(limits, state.spent, left, count + 1)
    return CallDelegates(
        starts=tuple(_start(state, call, count, left) for call in calls[:count]),
        refused=tuple(_error(call, why.code, why.message) for call in calls[count:] if why is not None),
    )


def _too_little(limits: Budgets, spent: Spent, left: int, count: int) -> ErrorDetail | None:
    """Why so many delegates at once would not each have enough for one generation."""
    if left < count:
        message = (
            f"{max(0, left)} of the turn's steps are left, which is too little for this delegate; it did not start"
        )
        return ErrorDetail(code=ReasonCode.TOOL_DELEGATE_FAILED, title="agent", message=message)
    if limits.depth == 0:  # the limit was lowered since the call was admitted
        return budgets.used_up("depth", "0 of 0 levels of delegates")
    forbidden = budgets.forbids_generation(budgets.share(limits, spent, count), Spent())
    if forbidden is None:
        return None
    text = REASONS[ReasonCode(forbidden.code)].text
    return forbidden.model_copy(update={"message": f"{text}: too little is left for this delegate; it did not start"})


def _start(state: TurnState, call: PlannedCall, count: int, left: int) -> StartDelegate:
    settings = settings_of(state.policy, call) or DelegateSettings()
    above = state.delegated
    root = above.root if above is not None else state.session
    delegated = Delegated(
        session=state.session,
        turn=state.turn,
        step=state.step,
        call_id=call.call_id,
        tool=call.tool,
        definition=state.definition,
        root=root,
        depth=above.depth + 1 if above is not None else 1,
        interactive=settings.interactive and state.policy.interactive != "refuse",
        spawns=settings.spawns,
        approval=call.approval,
    )
    request = TurnRequest(
        agent=settings.agent or state.policy.agent,
        prompt=f"the query of call {call.call_id} of session {state.session}",
        request_id=f"{DELEGATED}{call.call_id}",
        max_steps=left // count,
        budgets=budgets.share(state.policy.budgets, state.spent, count).sparse(),
        tenant=state.tenant,
        delegated=delegated.sparse(),
    )
    return StartDelegate(
        session=delegate_session(root, call.tool, state.session, call.call_id), call=call, request=request.sparse()
    )


def outcome_of(start: StartDelegate, ended: TurnResult | ErrorDetail) -> ToolOutcome:
    """What a delegate's end is for its caller. A turn that was committed has recorded its result there itself."""
    call = start.call
    if isinstance(ended, ErrorDetail):
        return _error(call, ReasonCode.TOOL_DELEGATE_FAILED, f"{call.tool} {ended.message} (session {start.session})")
    if ended.report is None:
        message = f"{call.tool} could not begin: {ended.error} (session {start.session})"
        return _error(call, ReasonCode.TOOL_DELEGATE_FAILED, message, type_=ended.reason_code or "")
    error = failure_of(call.tool, ended)
    preview = ended.output[:DELEGATE_OUTPUT] if error is None else error.message
    return ToolOutcome(call_id=call.call_id, preview=preview, error=error, matched=ended.report.matched).sparse()


def failure_of(tool: str, ended: TurnResult) -> ErrorDetail | None:
    """The error that a delegate's end is for its caller; None if it finished."""
    if ended.stop_reason is StopReason.FINISHED:
        return None
    why = f", {ended.reason_code}" if ended.reason_code else ""
    said = f": {ended.error}" if ended.error else ""
    message = f"{tool} ended with {ended.stop_reason}{why} after {ended.steps} steps (session {ended.session}){said}"
    cancelled = ended.stop_reason is StopReason.CANCELLED
    code = ReasonCode.TOOL_CANCELLED if cancelled else ReasonCode.TOOL_DELEGATE_FAILED
    return ErrorDetail(code=code, title=tool, message=message[:2_000], type=ended.reason_code or ended.stop_reason)


def charged(spent: Spent, ended: Sequence[TurnResult | ErrorDetail]) -> Spent:
    """What the caller has spent with its delegates, whatever their ends were."""
    for one in ended:
        if isinstance(one, TurnResult) and one.report is not None:
            spent = spent.with_delegate(one.report.spent, one.steps)
    return spent


def within(own: Budgets, share: Budgets) -> Budgets:
    """The smaller of both limits in each dimension."""
    limits = {name: (getattr(own, name), getattr(share, name)) for name in budgets.CODES}
    smaller = {name: min((one for one in both if one is not None), default=None) for name, both in limits.items()}
    return own.model_copy(update=smaller)


def _error(call: PlannedCall, code: str, message: str, *, type_: str = "") -> ToolOutcome:
    error = ErrorDetail(code=code, title=call.tool, message=message[:2_000], type=type_)
    return ToolOutcome(call_id=call.call_id, preview=error.message, error=error, recorded=False).sparse()
