"""Which hooks are called at a boundary of a turn, and what a reaction changes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import get_args

from perdure.contracts.errors import ErrorDetail, ReasonCode
from perdure.contracts.generations import Generate, Generation
from perdure.contracts.hooks import (
    EVENTS_AT,
    OF_DELEGATES,
    AnyReaction,
    Boundary,
    Continue,
    Decided,
    Fail,
    Finish,
    HookDeclaration,
    HookResults,
    HookRule,
    Reaction,
    ReactStep,
    Retry,
    RetryWithFeedback,
    RuleEvent,
    RunHooks,
)
from perdure.contracts.turns import CommitTurn, StopReason, TurnResult
from perdure.contracts.values import replace
from perdure.engine import calls, conditions, delegates, limits
from perdure.engine.state import Ending, HookState, Request, TurnState

MAX_RETRIES_IN_ROW = 10
"""Retries in a row that hooks may ask for; the next one ends the turn with an error."""

GO_ON = "Go on."
"""The model's next message if a hook continues a turn that the model's text had ended, and gives no text of its own."""

_PRIORITY: dict[type[Reaction], int] = {Finish: 0, Fail: 1, Retry: 2, RetryWithFeedback: 2, Continue: 3}


Tools = frozenset[str]


@dataclass(frozen=True)
class Arrival:
    """A turn at a boundary.

    Attributes:
        happened: The events that the workflow knows of, each with the tools it is about.
        decided: The decision events that hooks receive here.
        ended: Calls of background delegates whose ends hooks receive here.
    """

    at: Boundary
    happened: Mapping[str, Tools] = field(default_factory=dict[str, Tools])
    decided: tuple[Decided, ...] = ()
    ended: tuple[str, ...] = ()


def first_reaction(wanted: Sequence[tuple[str, AnyReaction]]) -> tuple[str, AnyReaction]:
    """The reaction that counts: Finish before Fail before a retry before Continue; of one kind the first."""
    return min(wanted, key=lambda named: _PRIORITY[type(named[1])])


def apply_reaction(state: TurnState, at: Boundary, hook: str, reaction: AnyReaction) -> tuple[TurnState, bool]:
    """The state after a hook's reaction, and whether the step goes on."""
    state = state.with_decided(ReactStep(hook_name=hook, boundary=at, reaction=reaction))
    applied = {**state.hooks.applied, hook: state.hooks.applied.get(hook, 0) + 1}
    retries = state.hooks.retries_in_row + _asks_again(at, reaction)
    state = replace(state, hooks=replace(state.hooks, applied=applied, retries_in_row=retries))
    ending = _ending_by(hook, reaction, retries)
    if ending is not None:
        asked = "asked for too many retries" if retries > MAX_RETRIES_IN_ROW else "ended the turn"
        return end(state, ending, f"hook {hook} has {asked}; it did not run"), False
    if at == "error":
        return _ask_again(state, reaction), False
    if takes_back(state, at, reaction):
        return _take_back(state, hook, reaction), False
    if isinstance(reaction, RetryWithFeedback):
        state = calls.withdraw(state, f"hook {hook} has asked for another answer; it did not run")
        return _go_on(state, reaction), False
    return _go_on(state, reaction), True


def _asks_again(at: Boundary, reaction: AnyReaction) -> bool:
    return isinstance(reaction, Retry | RetryWithFeedback) or (at == "error" and isinstance(reaction, Continue))


def _ending_by(hook: str, reaction: AnyReaction, retries: int) -> Ending | None:
    """How a reaction ends the turn, if it does."""
    if retries > MAX_RETRIES_IN_ROW:
        message = f"hook {hook}: {MAX_RETRIES_IN_ROW} retries in a row have not helped, no other one is made"
        return _failure(hook, message)
    if isinstance(reaction, Finish):
        why = f"{hook}: {reaction.reason}" if reaction.reason else hook
        return Ending(stop_reason=StopReason.FINISHED, stopped_by=why)
    if isinstance(reaction, Fail):
        message = f"hook {hook}: {reaction.reason}" if reaction.reason else f"hook {hook} has ended the turn"
        return _failure(hook, message)
    return None


def end(state: TurnState, ending: Ending, why: str) -> TurnState:
    """The state with this ending; each call that has not run gets an error that says ``why``."""
    return replace(calls.withdraw(state, why), ending=ending)


def _failure(hook: str, message: str) -> Ending:
    error = ErrorDetail(code=ReasonCode.RUNTIME_FAILED_BY_HOOK, title=hook, message=message[:2_000])
    return Ending(stop_reason=StopReason.ERROR, error=error)


def takes_back(state: TurnState, at: Boundary, reaction: AnyReaction) -> bool:
    """Whether a reaction takes the last answer out of the conversation."""
    return isinstance(reaction, Retry) and state.hooks.request is not None and at not in {"start", "error"}


def _ask_again(state: TurnState, reaction: AnyReaction) -> TurnState:
    """Ask the model again after its call has failed. This counts as a step, so that ``max_steps`` bounds it."""
    known = state.hooks.said
    said = (reaction.texts or known) if isinstance(reaction, Retry) else (*known, *reaction.texts)
    return replace(state, step=state.step + 1, ending=None, hooks=replace(state.hooks, said=said))


def _take_back(state: TurnState, hook: str, reaction: AnyReaction) -> TurnState:
    """Go on from before the step. Effects of its calls remain, and their ledger rows too."""
    request = state.hooks.request
    assert request is not None, "an answer was given"  # noqa: S101 - narrows the type
    state = calls.withdraw(state, f"hook {hook} has taken the answer back; it did not run")
    return replace(
        delegates.mark_unread(state),
        tip=request.parent,
        calls=replace(state.calls, ids=request.call_ids),
        completing=False,
        ending=None,
        hooks=replace(state.hooks, said=reaction.texts or request.said),
    )


def _go_on(state: TurnState, reaction: AnyReaction) -> TurnState:
    said = (*state.hooks.said, *reaction.texts)
    if not said and state.ending is not None and not state.calls.ids:
        said = (GO_ON,)
    completing = state.completing and not reaction.texts
    return replace(state, ending=None, completing=completing, hooks=replace(state.hooks, said=said))


_KNOWN = frozenset(get_args(RuleEvent))
"""Events that the engine can see itself; all others stand in the event log only."""

_OF_TOOLS = frozenset({"tool_end", "tool_error"})


def with_answer(state: TurnState, action: Generate, answer: Generation) -> TurnState:
    """The state with what hooks need of an answer: its tools, and the request to restore if they take it back."""
    request = Request(
        parent=action.parent,
        call_ids=action.call_ids,
        said=(*action.said, *(message.prompt for message in action.steered)),
    )
    tools = {call.call_id: call.tool for call in answer.calls}
    known = replace(state.hooks, said=())
    return replace(state, hooks=replace(known, request=request, tools=tools) if state.has_hooks else known)


def arrive(state: TurnState, at: Boundary, answer: Generation | None = None) -> Arrival:
    """Come to a boundary; ``answer`` is the model's, at the boundary ``generation`` only.

    At ``generation`` and ``step`` each event is looked for; at any other boundary all of its events have happened.
    """
    none = Tools()
    if at == "generation" and answer is not None:
        ended = ["generation_end"] if not answer.is_told_failure else []
        rejected = ["generation_error"] if answer.rejected is not None else []
        return Arrival(at, dict.fromkeys((*ended, *rejected), none))
    if at != "step":
        return Arrival(at, dict.fromkeys(EVENTS_AT[at], none))
    known, tools = state.hooks, state.hooks.tools
    failed = {outcome.call_id for outcome in state.calls.outcomes if outcome.error}
    errors = {tool for call_id, tool in tools.items() if call_id in failed}
    errors.update(tool for tool, succeeded in state.tally.ended if not succeeded)
    happened: dict[str, Tools] = {
        "step_end": none,
        **dict.fromkeys((decided.event.type for decided in known.unheard), none),
        **({"tool_end": Tools(tools.values())} if tools else {}),
        **({"tool_error": Tools(errors)} if errors else {}),
    }
    return Arrival(at, happened, known.unheard, known.ended)


def names_to_call(state: TurnState, arrival: Arrival, now: datetime) -> tuple[str, ...]:
    """The hooks written in Python that are to be called here."""
    return tuple(hook.name for hook in _matching(state, arrival, now) if isinstance(hook, HookDeclaration))


def request_calls(state: TurnState, arrival: Arrival, names: tuple[str, ...]) -> RunHooks:
    """The request to call hooks at a boundary."""
    limit = state.policy.budgets.behavior_calls
    at = arrival.at
    return RunHooks(
        session=state.origin.session,
        store=state.origin.store,
        trace=state.origin.trace,
        turn=state.origin.turn,
        step=state.step + (at == "error"),  # the step that was not made
        tip=state.tip,
        definition=state.origin.definition,
        boundary=at,
        calling=names,
        spent=state.spent,
        left=None if limit is None else max(0, limit - state.taken.behavior_calls),
        failed=state.calls.outcomes if at == "step" else (),
        decided=arrival.decided,
        ended=arrival.ended,
    )


def is_short(state: TurnState, outcome: HookResults) -> bool:
    """Whether a hook could only be called with what running delegates may still spend."""
    if outcome.refused is None or not state.running:
        return False
    return _no_more(_charge(state, outcome), outcome.refused) is None


def choose(
    state: TurnState, arrival: Arrival, outcome: HookResults, now: datetime
) -> tuple[TurnState, tuple[str, AnyReaction] | None]:
    """The state after the hooks at a boundary were called, and the reaction to apply, with the name of its hook."""
    wanted = _in_order(state, arrival, outcome, now)
    state = _charge(state, outcome)
    if outcome.refused is not None:
        # A limit that was raised while the hooks ran comes too late for the one that was refused.
        error = _no_more(state, outcome.refused) or limits.exhausted_error(
            "behavior_calls", f"hook {outcome.refused} was not called"
        )
        ending = Ending(stop_reason=StopReason.BUDGET_EXHAUSTED, error=error)
        return end(state, ending, "a budget of the turn was used up before it ran"), None
    return state, first_reaction(wanted) if wanted else None


def leave(state: TurnState, arrival: Arrival, *, goes_on: bool) -> TurnState:
    """The state without what hooks have heard at the boundary. What came while they ran is for the next step."""
    if arrival.at != "step":
        return state
    unheard, ended = state.hooks.unheard[len(arrival.decided) :], state.hooks.ended[len(arrival.ended) :]
    retries = 0 if goes_on else state.hooks.retries_in_row
    return replace(state, hooks=replace(state.hooks, unheard=unheard, ended=ended, retries_in_row=retries))


def _no_more(state: TurnState, hook: str) -> ErrorDetail | None:
    """The error that ends the turn if its budget has no call of this hook left; None if it has."""
    wanted = limits.Wanted(tool=hook, uses=("behavior_calls",))
    _, _, ending = limits.admit(state.policy.budgets, state.spent, [wanted])
    return ending


def with_failure(state: TurnState, error: ErrorDetail) -> TurnState:
    """A hook has failed, and that ends the turn."""
    return end(state, Ending(stop_reason=StopReason.ERROR, error=error), f"the hook {error.title} failed before it ran")


def at_the_end(state: TurnState, commit: CommitTurn, result: TurnResult, now: datetime) -> RunHooks | None:
    """The request to call the hooks of a committed turn's end, with events not heard before; None without such hooks.

    Their reactions change nothing.
    """
    unheard, ended = state.hooks.unheard, state.hooks.ended
    left = {*(decided.event.type for decided in unheard), *(OF_DELEGATES if ended else ())}
    names = tuple(
        hook.name
        for hook in state.policy.hooks
        if isinstance(hook, HookDeclaration)  # a rule could change nothing any more
        and (EVENTS_AT["end"] | left).intersection(hook.events)
        and _holds(state, hook, conditions.facts_of(state, now))
    )
    if not names:
        return None
    return RunHooks(
        session=state.origin.session,
        store=state.origin.store,
        trace=state.origin.trace,
        turn=state.origin.turn,
        step=result.steps,  # one more than the workflow knows of, where a stop came with an answer
        tip=commit.tip,
        definition=state.origin.definition,
        boundary="end",
        calling=names,
        spent=state.spent,
        decided=unheard,
        ended=ended,
    )


def _matching(state: TurnState, arrival: Arrival, now: datetime) -> list[HookRule | HookDeclaration]:
    """The hooks for what has happened at this boundary, in the agent's order."""
    facts = conditions.facts_of(state, now)
    return [
        hook
        for hook in state.policy.hooks
        if any(_is_for(hook, event, arrival.happened) for event in EVENTS_AT[arrival.at].intersection(hook.events))
        and _holds(state, hook, facts)
        and not _used_up(hook, state.hooks)
    ]


def _holds(state: TurnState, hook: HookRule | HookDeclaration, facts: conditions.Facts) -> bool:
    return hook.when is None or conditions.holds(hook.when, facts, state.policy.conditions)


def _used_up(hook: HookRule | HookDeclaration, known: HookState) -> bool:
    times = hook.times if isinstance(hook, HookRule) else None
    return times is not None and known.applied.get(hook.name, 0) >= times


def _is_for(hook: HookRule | HookDeclaration, event: str, happened: Mapping[str, Tools]) -> bool:
    """Whether the hook is for the event, and the event may have happened."""
    if event not in _KNOWN:  # the activity looks into the event log
        return True
    return event in happened and (event not in _OF_TOOLS or any(map(hook.is_about, happened[event])))


def _in_order(state: TurnState, arrival: Arrival, outcome: HookResults, now: datetime) -> list[tuple[str, AnyReaction]]:
    """The reactions of all hooks, in the agent's order."""
    rules = {hook.name: hook.reaction for hook in _matching(state, arrival, now) if isinstance(hook, HookRule)}
    wanted: list[tuple[str, AnyReaction]] = []
    for hook in state.policy.hooks:
        if hook.name in rules:
            wanted.append((hook.name, rules[hook.name]))
        wanted += [(reaction.hook, reaction.reaction) for reaction in outcome.reactions if reaction.hook == hook.name]
    return wanted


def _charge(state: TurnState, outcome: HookResults) -> TurnState:
    calls_made = state.spent.behavior_calls + outcome.calls
    return limits.charge(state, replace(state.spent, behavior_calls=calls_made))
