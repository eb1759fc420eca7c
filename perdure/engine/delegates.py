"""Delegates of a turn: which calls they carry out, what each may spend, and what their ends change."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from perdure.contracts.agents import TurnPolicy
from perdure.contracts.budgets import Budgets, Spent
from perdure.contracts.dimensions import COUNTED
from perdure.contracts.errors import REASONS, ErrorDetail, ReasonCode
from perdure.contracts.hooks import OF_DELEGATES
from perdure.contracts.ids import DELEGATED, delegate_session
from perdure.contracts.tools import (
    DELEGATE_OUTPUT,
    AwaitCall,
    AwaitedDelegate,
    CollectDelegates,
    Delegated,
    DelegateSettings,
    PlannedCall,
    ToolDeclaration,
    ToolOutcome,
)
from perdure.contracts.turns import Continuation, StopReason, TurnResult
from perdure.contracts.values import JsonValue, json_object, replace
from perdure.engine import limits
from perdure.engine.limits import Wanted
from perdure.engine.state import BackgroundDelegate, TurnState

End = TurnResult | ErrorDetail | None
"""End of a delegate: its result, or why it has none; None while it works in the background."""

KEPT_ERROR = 500
"""Longest message of a failed delegate that the turn's state keeps, in characters."""


@dataclass(frozen=True, kw_only=True)
class StartDelegate:
    """A turn of a delegate that is to begin: in this session, with this request."""

    session: str
    call: PlannedCall
    request: Continuation


@dataclass(frozen=True, kw_only=True)
class CallDelegates:
    """Have delegates carry out these calls, in parallel. For the refused ones too little of the budget was left."""

    starts: tuple[StartDelegate, ...] = ()
    refused: tuple[ToolOutcome, ...] = ()


@dataclass(frozen=True, kw_only=True)
class AwaitDelegates:
    """Wait for background delegates.

    Attributes:
        sessions: The sessions of the delegates.
        call: The model's call that gets their results; None if the turn itself waits until one has ended.
        ends: Whether the turn ends, and its delegates with it: they are cancelled first, and all are waited for.
        refused: The result of a call that waits for nothing.
    """

    sessions: tuple[str, ...]
    call: PlannedCall | None = None
    ends: bool = False
    refused: ToolOutcome | None = None


def plan(tool: ToolDeclaration, call: PlannedCall, raw: str) -> PlannedCall:
    """The call, marked if its raw arguments ask for the background. For activities: only they have raw arguments."""
    if tool.delegate is None or not tool.delegate.background or call.rejected is not None:
        return call
    try:
        asked = json_object(raw or "{}").get("run_in_background")
    except ValueError:  # the delegate says so when it reads them
        return call
    return replace(call, background=True) if asked in (True, "true") else call


def settings_of(policy: TurnPolicy, call: PlannedCall) -> DelegateSettings | None:
    """The delegate settings of the called tool; None if the tool is not a delegate."""
    tool = policy.tools.get(call.tool)
    return None if tool is None else tool.delegate


def uses_of(policy: TurnPolicy, call: PlannedCall) -> Wanted:
    """The budgets that a call of the model uses up. A delegate's also uses up ``behavior_calls`` and one level."""
    settings = settings_of(policy, call)
    if settings is None:
        return Wanted(tool=call.tool)
    return Wanted(tool=call.tool, uses=("tool_calls", "behavior_calls", "events"), depth=1)


def next_batch(state: TurnState) -> tuple[tuple[PlannedCall, ...], tuple[PlannedCall, ...]]:
    """The pending calls that run next, and the later ones.

    Tools run first, then delegates, then the calls that wait for delegates, one after the other.
    """
    waiting = tuple(call for call in state.calls.pending if call.builtin is not None)
    working = tuple(call for call in state.calls.pending if call.builtin is None)
    tools = tuple(call for call in working if settings_of(state.policy, call) is None)
    others = tuple(call for call in working if settings_of(state.policy, call) is not None)
    if tools:
        return tools, (*others, *waiting)
    return (others, waiting) if others else (waiting[:1], waiting[1:])


def withdraw(calls: Sequence[PlannedCall]) -> tuple[ToolOutcome, ...]:
    """The outcomes of delegates that do not start, because the turn ends."""
    said = "Operation aborted: the turn ended before {} began; it did not run"
    return tuple(call.as_error(ReasonCode.TOOL_CANCELLED, said.format(call.tool)) for call in calls)


def call_delegates(state: TurnState, calls: Sequence[PlannedCall]) -> CallDelegates:
    """Start delegates, in order, as long as the share of each still pays for a generation; refuse the others."""
    left = state.policy.max_steps - state.step - state.taken.delegated_steps
    count, why = len(calls), None
    while count and (refusal := _refusal(state, calls[:count], left)) is not None:
        count, why = count - 1, refusal
    return CallDelegates(
        starts=tuple(_start(state, call, _parts(calls[:count]), left) for call in calls[:count]),
        refused=tuple(call.as_error(why.code, why.message) for call in calls[count:] if why is not None),
    )


def _parts(calls: Sequence[PlannedCall]) -> int:
    """Number of equal shares of what is left: one per delegate, and one for a caller that goes on meanwhile."""
    return len(calls) + any(call.background for call in calls)


def _refusal(state: TurnState, calls: Sequence[PlannedCall], left: int) -> ErrorDetail | None:
    """Reason the last of the calls cannot start beside the others; None if it can.

    Each share must pay for its delegate's first model call (``first_call_usd``), or all would be too small to use.
    A single delegate starts all the same: its own model call is then refused.
    """
    budgets, count = state.policy.budgets, _parts(calls)
    if left < count:
        message = (
            f"{max(0, left)} of the turn's steps are left, which is too little for this delegate; it did not start"
        )
        return ErrorDetail(code=ReasonCode.TOOL_DELEGATE_FAILED, title="agent", message=message)
    if budgets.depth == 0:  # the limit was lowered since the call was admitted
        return limits.exhausted_error("depth", "0 of 0 levels of delegates")
    share = limits.share(budgets, state.taken, count)
    forbidden = limits.forbids_generation(share, Spent())
    if forbidden is not None:
        text = REASONS[ReasonCode(forbidden.code)].cause
        message = f"{text}: too little is left for this delegate; it did not start"
        return forbidden.model_copy(update={"message": message})
    each = share.cost_usd
    if each is None or len(calls) == 1:
        return None
    tools = [state.policy.tools.get(call.tool) for call in calls]
    if all(tool is None or tool.first_call_usd is None or tool.first_call_usd <= each for tool in tools):
        return None
    message = "too little money is left for so many delegates at once; this one did not start: ask for it again"
    return ErrorDetail(code=ReasonCode.TOOL_DELEGATE_FAILED, title="agent", message=message)


def _start(state: TurnState, call: PlannedCall, count: int, left: int) -> StartDelegate:
    settings = settings_of(state.policy, call) or DelegateSettings()
    origin = state.origin
    above = origin.delegated
    root = above.root if above is not None else origin.session
    session = delegate_session(root, call.tool, origin.session, call.call_id, origin.seed)
    delegated = Delegated(
        delegate=session if origin.seed else "",
        session=origin.session,
        turn=origin.turn,
        step=state.step,
        call_id=call.call_id,
        tool=call.tool,
        definition=origin.definition,
        root=root,
        depth=above.depth + 1 if above is not None else 1,
        interactive=settings.interactive and state.policy.interactive != "refuse",
        spawns=settings.spawns,
        approval=call.approval,
        background=call.background,
        trace=origin.trace,
    )
    request = Continuation(
        agent=settings.agent or state.policy.agent,
        prompt=f"the query of call {call.call_id} of session {origin.session}",
        request_id=f"{DELEGATED}{call.call_id}",
        max_steps=left // count,
        budgets=limits.share(state.policy.budgets, state.taken, count),
        tenant=origin.tenant,
        delegated=delegated,
        store=origin.store,
    )
    return StartDelegate(session=session, call=call, request=request)


def charge(state: TurnState, action: CallDelegates, ended: Sequence[End]) -> TurnState:
    """The state charged for delegates that have ended, and with those that work in the background from now on."""
    began = [_granted(start) for start, end in zip(action.starts, ended, strict=True) if end is None]
    state = replace(state, background=(*state.background, *began)) if began else state
    return _charge(state, ended)


def _charge(state: TurnState, ended: Sequence[End]) -> TurnState:
    spent = state.spent
    for end in ended:
        if isinstance(end, TurnResult) and end.report is not None:
            spent = spent.with_delegate(end.report.spent, end.steps)
    return limits.charge(state, spent)


def _granted(start: StartDelegate) -> BackgroundDelegate:
    """A delegate that begins to work in the background, with its whole grant."""
    budgets = start.request.budgets or Budgets()
    return BackgroundDelegate(
        session=start.session,
        call_id=start.call.call_id,
        tool=start.call.tool,
        granted=Spent(
            **{name: limit for name in ("cost_usd", *COUNTED) if (limit := getattr(budgets, name)) is not None}
        ),
        steps=start.request.max_steps or 0,
    )


def mark_ended(state: TurnState, session: str, end: TurnResult | ErrorDetail) -> TurnState:
    """A background delegate has ended: the turn is charged what it spent, and gets back the rest of its grant."""
    background = tuple(
        _ended(delegate, end) if delegate.session == session else delegate for delegate in state.background
    )
    state = replace(state, background=background, short=False)
    if any(map(state.is_hooked, OF_DELEGATES)):
        ended = tuple(delegate.call_id for delegate in background if delegate.session == session)
        state = replace(state, hooks=replace(state.hooks, ended=(*state.hooks.ended, *ended)))
    return _charge(state, [end])


def _ended(delegate: BackgroundDelegate, end: TurnResult | ErrorDetail) -> BackgroundDelegate:
    if isinstance(end, TurnResult) and end.report is not None:
        error, lost = failure_of(delegate.tool, end), False
    else:
        code, message = ReasonCode.TOOL_DELEGATE_FAILED, _lost(delegate.tool, delegate.session, end)
        error, lost = ErrorDetail(code=code, title=delegate.tool, message=message), True
    if error is not None:
        error = replace(error, message=error.message[:KEPT_ERROR])
    return replace(delegate, ended=True, error=error, lost=lost)


def mark_cancelled(state: TurnState) -> TurnState:
    """The turn ends, and its background delegates with it: their ends change nothing any more."""
    background = (delegate if delegate.ended else replace(delegate, cancelled=True) for delegate in state.background)
    return replace(state, background=tuple(background))


def mark_read(state: TurnState, sessions: Sequence[str]) -> TurnState:
    """The model has waited for these delegates in this step, and reads what came of them."""
    background = (
        replace(delegate, awaited=state.step) if delegate.session in sessions and delegate.awaited is None else delegate
        for delegate in state.background
    )
    return replace(state, background=tuple(background))


def mark_unread(state: TurnState) -> TurnState:
    """The answer of this step was taken back: the model has not read what it waited for."""
    background = (
        replace(delegate, awaited=None) if delegate.awaited == state.step else delegate for delegate in state.background
    )
    return replace(state, background=tuple(background))


def await_delegates(state: TurnState, call: PlannedCall) -> AwaitDelegates:
    """Wait for the delegates that the call names, or for all whose results the model has not read."""
    assert isinstance(call.builtin, AwaitCall), "the call waits for delegates"  # noqa: S101 - narrows the type
    known = {delegate.session: delegate for delegate in state.background}
    unread = (delegate.session for delegate in state.background if delegate.awaited is None)
    named = dict.fromkeys(call.builtin.sessions or unread)
    unknown = [session for session in named if session not in known]
    if unknown:
        those = f"those of this turn are: {', '.join(known)}" if known else "this turn has started none there"
        message = f"no agent works in the background as {', '.join(unknown)}; {those}. Agents end with the turn that "
        message += "started them; start another one if its result is still needed"
    elif not named:
        message = "there is nothing to wait for: no agent works in the background whose result you have not read"
    else:
        return AwaitDelegates(sessions=tuple(named), call=call)
    refused = call.as_error(ReasonCode.TOOL_INVALID_INPUT, message[:2_000], decided=call.approval)
    return AwaitDelegates(sessions=(), call=call, refused=refused)


def await_one(state: TurnState) -> AwaitDelegates:
    """Wait until one background delegate has ended."""
    return AwaitDelegates(sessions=tuple(delegate.session for delegate in state.running))


def await_all(state: TurnState) -> AwaitDelegates:
    """End the background delegates with the turn."""
    return AwaitDelegates(sessions=tuple(delegate.session for delegate in state.running), ends=True)


def collect(state: TurnState, action: AwaitDelegates) -> CollectDelegates:
    """Have what came of delegates written as the result of the call that waited for them."""
    call, known = action.call, {delegate.session: delegate for delegate in state.background}
    assert call is not None, "a call waits"  # noqa: S101 - narrows the type
    return CollectDelegates(
        session=state.origin.session,
        store=state.origin.store,
        turn=state.origin.turn,
        step=state.step,
        call_id=call.call_id,
        tool=call.tool,
        definition=state.origin.definition,
        delegates=tuple(
            AwaitedDelegate(
                session=delegate.session,
                tool=delegate.tool,
                call_id=delegate.call_id,
                lost=delegate.error if delegate.lost else None,
            )
            for delegate in (known[session] for session in action.sessions)
        ),
        approval=call.approval,
        trace=state.origin.trace,
    )


def error_to_propagate(state: TurnState) -> ErrorDetail | None:
    """Under ``on_child_error: propagate``: the error of a delegate in the background that did not finish."""
    if state.policy.on_child_error != "propagate":
        return None
    failed = (delegate for delegate in state.background if delegate.error is not None and not delegate.cancelled)
    return next((delegate.error for delegate in failed), None)


def outcome_of(start: StartDelegate, ended: End) -> ToolOutcome:
    """The outcome of the call that a delegate carried out.

    ``recorded`` is true for a delegate whose turn was committed: the commit wrote the caller's result too.
    """
    call = start.call
    if ended is None:
        # The model's first result, as soon as a delegate works in the background.
        text: dict[str, JsonValue] = {
            "session": start.session,
            "status": "works in the background",
            "next": "go on with other work; call await_delegate with this session when you need the result",
        }
        return ToolOutcome(
            call_id=call.call_id,
            preview=json.dumps(text),
            recorded=False,
            decided=call.approval,
            delegate=start.session,
        )
    if isinstance(ended, ErrorDetail) or ended.report is None:
        cause = "" if isinstance(ended, ErrorDetail) else ended.reason_code or ""
        lost = _lost(call.tool, start.session, ended)[:2_000]
        return call.as_error(ReasonCode.TOOL_DELEGATE_FAILED, lost, cause=cause)
    error = failure_of(call.tool, ended)
    preview = ended.output[:DELEGATE_OUTPUT] if error is None else error.message
    report = ended.report
    return ToolOutcome(
        call_id=call.call_id, preview=preview, error=error, matched=report.matched, problem=report.problem
    )


def _lost(tool: str, session: str, ended: TurnResult | ErrorDetail) -> str:
    """Describe why a delegate has no result of its own."""
    if isinstance(ended, ErrorDetail):
        why = ended.message
    else:
        code = f", {ended.reason_code}" if ended.reason_code else ""
        why = f"could not begin{code}: {ended.error}"
    return f"{tool} {why} (session {session})"


def failure_of(tool: str, ended: TurnResult) -> ErrorDetail | None:
    """The error that the caller's model reads of a delegate that did not finish; None if it finished."""
    if ended.stop_reason is StopReason.FINISHED:
        return None
    why = f", {ended.reason_code}" if ended.reason_code else ""
    said = f": {ended.error}" if ended.error else ""
    message = f"{tool} ended with {ended.stop_reason}{why} after {ended.steps} steps (session {ended.session}){said}"
    cancelled = ended.stop_reason is StopReason.CANCELLED
    code = ReasonCode.TOOL_CANCELLED if cancelled else ReasonCode.TOOL_DELEGATE_FAILED
    return ErrorDetail(code=code, title=tool, message=message[:2_000], type=ended.reason_code or ended.stop_reason)


def tightest(own: Budgets, share: Budgets) -> Budgets:
    """The smaller of both limits in each dimension."""
    pairs = {name: (getattr(own, name), getattr(share, name)) for name in limits.CODES}
    smaller = {name: min((limit for limit in both if limit is not None), default=None) for name, both in pairs.items()}
    return own.model_copy(update=smaller)
