"""Delegates of a turn: which calls are theirs, what each may use, what their ends change; the types of sub-agents."""

import json
from collections.abc import Sequence
from typing import get_args

from perdure.contracts.agents import AgentDefinition, TurnPolicy
from perdure.contracts.budgets import Budgets, Spent
from perdure.contracts.errors import REASONS, ErrorDetail, ReasonCode
from perdure.contracts.tools import (
    DELEGATE_OUTPUT,
    DELEGATED,
    AgentType,
    AwaitedDelegate,
    CollectDelegates,
    Delegated,
    DelegateSettings,
    PlannedCall,
    ToolDeclaration,
    ToolOutcome,
    delegate_session,
)
from perdure.contracts.tools import AwaitDelegates as AwaitCall
from perdure.contracts.turns import Continuation, StopReason, TurnResult
from perdure.contracts.values import JsonValue, Value, json_object
from perdure.engine import limits
from perdure.engine.limits import Wanted
from perdure.engine.state import BackgroundDelegate, TurnState

End = TurnResult | ErrorDetail | None
"""What a delegate has come to: its result, or why it has none; None while it works in the background."""

KEPT_ERROR = 500
"""Longest message of a failed delegate that the turn's state keeps, in characters."""


class StartDelegate(Value):
    """A turn of a delegate that is to begin: in this session, with this request."""

    session: str
    call: PlannedCall
    request: Continuation


class CallDelegates(Value):
    """Have these calls carried out by delegates, in parallel; for the refused ones nothing is left."""

    starts: tuple[StartDelegate, ...] = ()
    refused: tuple[ToolOutcome, ...] = ()


class AwaitDelegates(Value):
    """Wait for delegates in the background.

    Attributes:
        sessions: Which of them.
        call: The model's call whose result is theirs; None if the turn waits for its own sake, until one has ended.
        ends: Whether the turn ends, and they with it: they are cancelled first, and all are waited for.
        refused: Why nothing is waited for, if that is so.
    """

    sessions: tuple[str, ...]
    call: PlannedCall | None = None
    ends: bool = False
    refused: ToolOutcome | None = None


def planned(tool: ToolDeclaration, call: PlannedCall, raw: str) -> PlannedCall:
    """The call, with whether it is to work in the background; for activities, which have the raw arguments."""
    if tool.delegate is None or not tool.delegate.background or call.rejected is not None:
        return call
    try:
        asked = json_object(raw or "{}").get("run_in_background")
    except ValueError:  # the delegate says so when it reads them
        return call
    return call.model_copy(update={"background": True}) if asked in (True, "true") else call


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
    """The pending calls that are next, and those after them: delegates wait until the tools have their results.

    What waits for delegates comes last, one call after the other.
    """
    waiting = tuple(call for call in state.pending if call.builtin is not None)
    working = tuple(call for call in state.pending if call.builtin is None)
    tools = tuple(call for call in working if settings_of(state.policy, call) is None)
    others = tuple(call for call in working if settings_of(state.policy, call) is not None)
    if tools:
        return tools, (*others, *waiting)
    return (others, waiting) if others else (waiting[:1], waiting[1:])


def withdrawn(calls: Sequence[PlannedCall]) -> tuple[ToolOutcome, ...]:
    """The outcomes of delegates that are not started any more, as the turn ends."""
    said = "Operation aborted: the turn ended before {} began; it did not run"
    return tuple(_error(call, ReasonCode.TOOL_CANCELLED, said.format(call.tool)) for call in calls)


def call_delegates(state: TurnState, calls: Sequence[PlannedCall]) -> CallDelegates:
    """As many of the calls as can each have a share of what is left with which a model can be asked."""
    left = state.policy.max_steps - state.step - state.taken.delegated_steps
    count, why = len(calls), None
    while count and (refusal := _refusal(state, calls[:count], left)) is not None:
        count, why = count - 1, refusal
    return CallDelegates(
        starts=tuple(_start(state, call, _parts(calls[:count]), left) for call in calls[:count]),
        refused=tuple(_error(call, why.code, why.message) for call in calls[count:] if why is not None),
    )


def _parts(calls: Sequence[PlannedCall]) -> int:
    """Into how many equal parts what is left is divided: the caller needs one too if it goes on meanwhile."""
    return len(calls) + any(call.background for call in calls)


def _refusal(state: TurnState, calls: Sequence[PlannedCall], left: int) -> ErrorDetail | None:
    """Why the last of the calls cannot be carried out beside the others.

    What a delegate's first call may cost is reckoned, so that many shares are not all too small for one: a single
    delegate starts all the same, and finds out.
    """
    budgets, count = state.policy.budgets, _parts(calls)
    error = _too_little(budgets, state.taken, left, count)
    each = limits.share(budgets, state.taken, count).cost_usd
    if error is not None or each is None or len(calls) == 1:
        return error
    tools = [state.policy.tools.get(call.tool) for call in calls]
    if all(tool is None or tool.first_call_usd is None or tool.first_call_usd <= each for tool in tools):
        return None
    message = "too little money is left for so many delegates at once; this one did not start: ask for it again"
    return ErrorDetail(code=ReasonCode.TOOL_DELEGATE_FAILED, title="agent", message=message)


def _too_little(budgets: Budgets, spent: Spent, left: int, count: int) -> ErrorDetail | None:
    """Why so many delegates at once would not each have enough for one generation."""
    if left < count:
        message = (
            f"{max(0, left)} of the turn's steps are left, which is too little for this delegate; it did not start"
        )
        return ErrorDetail(code=ReasonCode.TOOL_DELEGATE_FAILED, title="agent", message=message)
    if budgets.depth == 0:  # the limit was lowered since the call was admitted
        return limits.used_up("depth", "0 of 0 levels of delegates")
    forbidden = limits.forbids_generation(limits.share(budgets, spent, count), Spent())
    if forbidden is None:
        return None
    text = REASONS[ReasonCode(forbidden.code)].cause
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
        background=call.background,
    )
    request = Continuation(
        agent=settings.agent or state.policy.agent,
        prompt=f"the query of call {call.call_id} of session {state.session}",
        request_id=f"{DELEGATED}{call.call_id}",
        max_steps=left // count,
        budgets=limits.share(state.policy.budgets, state.taken, count).sparse(),
        tenant=state.tenant,
        delegated=delegated.sparse(),
        store=state.store,
    )
    return StartDelegate(
        session=delegate_session(root, call.tool, state.session, call.call_id), call=call, request=request.sparse()
    )


def begun(start: StartDelegate) -> BackgroundDelegate:
    """A delegate that works in the background, with all that it was granted."""
    budgets = start.request.budgets or Budgets()
    counts = ("cost_usd", "llm_calls", "tool_calls", "behavior_calls", "events", "patches")
    return BackgroundDelegate(
        session=start.session,
        call_id=start.call.call_id,
        tool=start.call.tool,
        granted=Spent(**{name: limit for name in counts if (limit := getattr(budgets, name)) is not None}),
        steps=start.request.max_steps or 0,
    )


def told(known: BackgroundDelegate, ended: TurnResult | ErrorDetail) -> BackgroundDelegate:
    """The delegate after its end."""
    if isinstance(ended, TurnResult) and ended.report is not None:
        error, lost = failure_of(known.tool, ended), False
    else:
        code, message = ReasonCode.TOOL_DELEGATE_FAILED, _lost(known.tool, known.session, ended)
        error, lost = ErrorDetail(code=code, title=known.tool, message=message), True
    if error is not None:
        error = error.model_copy(update={"message": error.message[:KEPT_ERROR]})
    return known.model_copy(update={"ended": True, "error": error, "lost": lost})


def await_delegates(state: TurnState, call: PlannedCall) -> AwaitDelegates:
    """Wait for those that the call names, or for all whose results the model has not read."""
    assert isinstance(call.builtin, AwaitCall), "the call waits for delegates"  # noqa: S101 - narrows the type
    known = {one.session: one for one in state.background}
    named = dict.fromkeys(call.builtin.sessions or (one.session for one in state.background if one.awaited is None))
    unknown = [session for session in named if session not in known]
    if unknown:
        those = f"those of this turn are: {', '.join(known)}" if known else "this turn has started none there"
        message = f"no agent works in the background as {', '.join(unknown)}; {those}. Agents end with the turn that "
        message += "started them; start another one if its result is still needed"
    elif not named:
        message = "there is nothing to wait for: no agent works in the background whose result you have not read"
    else:
        return AwaitDelegates(sessions=tuple(named), call=call)
    refused = _error(call, ReasonCode.TOOL_INVALID_INPUT, message)
    return AwaitDelegates(sessions=(), call=call, refused=refused.model_copy(update={"decided": call.approval}))


def at_the_end(state: TurnState) -> AwaitDelegates:
    """What comes before the commit of a turn while delegates work in the background."""
    return AwaitDelegates(sessions=tuple(one.session for one in state.running), ends=True)


def waiting_call(action: AwaitDelegates) -> PlannedCall:
    """The call that waits."""
    assert action.call is not None, "the turn waits for its own sake"  # noqa: S101 - narrows the type
    return action.call


def collecting(state: TurnState, action: AwaitDelegates) -> CollectDelegates:
    """Have what came of delegates written as the result of the call."""
    call, known = waiting_call(action), {one.session: one for one in state.background}
    return CollectDelegates(
        session=state.session,
        store=state.store,
        turn=state.turn,
        step=state.step,
        call_id=call.call_id,
        tool=call.tool,
        definition=state.definition,
        delegates=tuple(
            AwaitedDelegate(
                session=one.session, tool=one.tool, call_id=one.call_id, lost=one.error if one.lost else None
            )
            for one in (known[session] for session in action.sessions)
        ),
        approval=call.approval,
    ).sparse()


def propagated(state: TurnState) -> ErrorDetail | None:
    """Under ``on_child_error: propagate``: the error of a delegate in the background that did not finish."""
    if state.policy.on_child_error != "propagate":
        return None
    return next((one.error for one in state.background if one.error is not None and not one.cancelled), None)


def outcome_of(start: StartDelegate, ended: End) -> ToolOutcome:
    """What a delegate's end is for its caller. A turn that was committed has recorded its result there itself."""
    call = start.call
    if ended is None:
        return _working(start)
    if isinstance(ended, ErrorDetail) or ended.report is None:
        cause = "" if isinstance(ended, ErrorDetail) else ended.reason_code or ""
        return _error(call, ReasonCode.TOOL_DELEGATE_FAILED, _lost(call.tool, start.session, ended), type_=cause)
    error = failure_of(call.tool, ended)
    preview = ended.output[:DELEGATE_OUTPUT] if error is None else error.message
    report = ended.report
    return ToolOutcome(
        call_id=call.call_id, preview=preview, error=error, matched=report.matched, problem=report.problem
    ).sparse()


def _lost(tool: str, session: str, ended: TurnResult | ErrorDetail) -> str:
    """Why a delegate has no result of its own."""
    why = ended.message if isinstance(ended, ErrorDetail) else f"could not begin: {ended.error}"
    return f"{tool} {why} (session {session})"


def _working(start: StartDelegate) -> ToolOutcome:
    """The first result of a call that is worked on in the background."""
    call = start.call
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
    ).sparse()


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


def charged(spent: Spent, ended: Sequence[End]) -> Spent:
    """What the caller has spent with its delegates, whatever their ends were."""
    for one in ended:
        if isinstance(one, TurnResult) and one.report is not None:
            spent = spent.with_delegate(one.report.spent, one.steps)
    return spent


def within(own: Budgets, share: Budgets) -> Budgets:
    """The smaller of both limits in each dimension."""
    pairs = {name: (getattr(own, name), getattr(share, name)) for name in limits.CODES}
    smaller = {name: min((one for one in both if one is not None), default=None) for name, both in pairs.items()}
    return own.model_copy(update=smaller)


def _error(call: PlannedCall, code: str, message: str, *, type_: str = "") -> ToolOutcome:
    error = ErrorDetail(code=code, title=call.tool, message=message[:2_000], type=type_)
    return ToolOutcome(call_id=call.call_id, preview=error.message, error=error, recorded=False).sparse()


class SubAgent(Value):
    """A type of sub-agents: what it is told, and how many steps it may use at most."""

    instructions: str
    max_steps: int


SUB_AGENTS: dict[str, SubAgent] = {
    "explore": SubAgent(
        instructions="""\
You explore: find out what the task asks for and report it. Look in several places, follow what you find, and change
nothing. Answer with what you found and where, in a form that somebody who saw none of it can use.""",
        max_steps=20,
    ),
    "plan": SubAgent(
        instructions="""\
You plan: work out how the task can be done and change nothing. Look at what is there first. Answer with numbered steps,
each small enough to be checked, what each depends on, and what may go wrong.""",
        max_steps=15,
    ),
    "test": SubAgent(
        instructions="""\
You test: find out whether what the task names works. Run what there is to run, try the edges, and take nothing for
granted. Answer with what you ran, what passed, and for each failure how to see it again.""",
        max_steps=25,
    ),
    "review": SubAgent(
        instructions="""\
You review: read what the task names with care and change nothing. Answer with what is wrong or risky, the worst first,
each with its place and a reason, and say so plainly if there is nothing.""",
        max_steps=15,
    ),
    "general": SubAgent(
        instructions="""\
You carry out one task on behalf of another agent. You know only what the task says. Do all of it, then answer with the
result and with what the other agent has to know.""",
        max_steps=30,
    ),
}
"""What each type is told, and its cap."""


_ITS_OWN = (
    *("stop_conditions", "finish_tool", "completion", "max_tool_turns"),
    *("output_schema", "output_corrections", "interactive"),
)
"""How the caller's work ends and is asked about: a sub-agent's is another. Hooks stay, as approvals do: they guard."""


def spawned_agent(caller: AgentDefinition, arguments: dict[str, JsonValue]) -> AgentDefinition:
    """The caller as a sub-agent: with other instructions and a cap, and ended by text; it cannot spawn.

    Raises:
        ValueError: There is no such type.
    """
    kind, custom = str(arguments.get("agent_type") or "general"), str(arguments.get("custom_instructions") or "")
    if kind not in SUB_AGENTS:
        msg = f"there is no agent_type {kind!r}; the types are {', '.join(get_args(AgentType))}"
        raise ValueError(msg)
    one = SUB_AGENTS[kind]
    fresh = AgentDefinition(name=caller.name, model=caller.model)
    tools = tuple(tool for tool in caller.tools if tool.delegate is None or not tool.delegate.spawns)
    if not any(tool.delegate is not None and tool.delegate.background for tool in tools):  # nothing to wait for
        tools = tuple(tool for tool in tools if tool.builtin != "await_delegate")
    return caller.model_copy(
        update={
            "instructions": f"{one.instructions}\n\n{custom}".strip(),
            "max_steps": one.max_steps,
            "tools": tools,
            **{name: getattr(fresh, name) for name in _ITS_OWN if name in AgentDefinition.model_fields},
        }
    )
