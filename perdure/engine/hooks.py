"""Which hooks are called at a boundary of a turn, and what a reaction changes.

The functions stand in the order of a turn: an answer comes, the turn arrives at a boundary, hooks are called, one of
their reactions is chosen and applied, and the turn leaves the boundary.
"""

from collections.abc import Mapping
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
from perdure.engine.state import Ending, Request, TurnState

MAX_RETRIES_IN_ROW = 10
"""Retries in a row that hooks may ask for; the next one ends the turn with an error."""

GO_ON = "Go on."
"""The model's next message if a hook continues a turn that the model's text had ended, and gives no text of its own."""

_PRIORITY: dict[type[Reaction], int] = {Finish: 0, Fail: 1, Retry: 2, RetryWithFeedback: 2, Continue: 3}
"""The reaction with the lowest number counts."""

_SEEN = frozenset(get_args(RuleEvent))
"""Events that the engine can see itself; all others stand in the event log only."""

_OF_TOOLS = frozenset({"tool_end", "tool_error"})


@dataclass(frozen=True)
class Arrival:
    """A turn at a boundary.

    Attributes:
        events: The events that may have happened, each with its tools if it is one of tools. Of events in the log only,
            all that belong to the boundary: the activity finds out which of them have happened.
        decided: The decision events that hooks receive here.
        ended: Calls of background delegates whose ends hooks receive here.
    """

    at: Boundary
    events: Mapping[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    decided: tuple[Decided, ...] = ()
    ended: tuple[str, ...] = ()


def with_answer(state: TurnState, action: Generate, answer: Generation) -> TurnState:
    """The state with what hooks need of an answer: its tools, and the request to restore if they take it back."""
    known = replace(state.hooks, said=())
    if state.has_hooks:
        said = (*action.said, *(message.prompt for message in action.steered))
        request = Request(parent=action.parent, call_ids=action.call_ids, said=said)
        known = replace(known, request=request, tools={call.call_id: call.tool for call in answer.calls})
    return replace(state, hooks=known)


def arrive(state: TurnState, at: Boundary, answer: Generation | None = None) -> Arrival:
    """Come to a boundary; ``answer`` is the model's, at the boundary ``generation`` only.

    At ``step`` an event for rules has happened if ``_see`` finds it. At ``generation`` a failure that the model is told
    of does not count as ``generation_end``, nor a good answer as ``generation_error``. Everywhere else all events of
    ``EVENTS_AT`` have happened. What hooks receive at the next ``step`` they receive at the ``end`` if there is none.
    """
    known, events = state.hooks, EVENTS_AT[at]
    if at == "step":
        in_log = dict.fromkeys(events - _SEEN, frozenset[str]())
        return Arrival(at, {**in_log, **_see(state)}, known.unheard, known.ended)
    if at == "end":
        events = events.union((decided.event.type for decided in known.unheard), OF_DELEGATES if known.ended else ())
        return Arrival(at, dict.fromkeys(events, frozenset[str]()), known.unheard, known.ended)
    if answer is not None and answer.is_told_failure:
        events -= {"generation_end"}
    if answer is not None and answer.rejected is None:
        events -= {"generation_error"}
    return Arrival(at, dict.fromkeys(events, frozenset[str]()))


def _see(state: TurnState) -> dict[str, frozenset[str]]:
    """The events of a step that the engine sees."""
    none, tools = frozenset[str](), state.hooks.tools
    events: dict[str, frozenset[str]] = {"step_end": none}
    events.update((decided.event.type, none) for decided in state.hooks.unheard)
    failed = {outcome.call_id for outcome in state.calls.outcomes if outcome.error}
    errors = {tool for call_id, tool in tools.items() if call_id in failed}
    errors.update(tool for tool, succeeded in state.tally.ended if not succeeded)
    if tools:
        events["tool_end"] = frozenset(tools.values())
    if errors:
        events["tool_error"] = frozenset(errors)
    return events


def names_to_call(state: TurnState, arrival: Arrival, now: datetime) -> tuple[str, ...]:
    """The hooks written in Python that are to be called here."""
    return tuple(hook.name for hook in _matching(state, arrival, now) if isinstance(hook, HookDeclaration))


def _matching(state: TurnState, arrival: Arrival, now: datetime) -> list[HookRule | HookDeclaration]:
    """The hooks for what may have happened at this boundary, in the agent's order."""
    facts, applied = conditions.facts_of(state, now), state.hooks.applied
    return [
        hook
        for hook in state.policy.hooks
        if _is_for(hook, arrival.events)
        and (hook.when is None or conditions.holds(hook.when, facts, state.policy.conditions))
        and not (isinstance(hook, HookRule) and hook.times is not None and applied.get(hook.name, 0) >= hook.times)
    ]


def _is_for(hook: HookRule | HookDeclaration, events: Mapping[str, frozenset[str]]) -> bool:
    """Whether the hook is for one of the events."""
    for event in hook.events:
        if event in events and (event not in _OF_TOOLS or any(map(hook.is_about, events[event]))):
            return True
    return False


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


def _charge(state: TurnState, outcome: HookResults) -> TurnState:
    calls_made = state.spent.behavior_calls + outcome.calls
    return limits.charge(state, replace(state.spent, behavior_calls=calls_made))


def _no_more(state: TurnState, hook: str) -> ErrorDetail | None:
    """The error that ends the turn if its budget has no call of this hook left; None if it has."""
    wanted = limits.Wanted(tool=hook, uses=("behavior_calls",))
    _, _, ending = limits.admit(state.policy.budgets, state.spent, [wanted])
    return ending


def with_failure(state: TurnState, error: ErrorDetail) -> TurnState:
    """A hook has failed, and that ends the turn."""
    return _end(
        state, Ending(stop_reason=StopReason.ERROR, error=error), f"the hook {error.title} failed before it ran"
    )


def _end(state: TurnState, ending: Ending, why: str) -> TurnState:
    """The state with this ending; each call that has not run gets an error that says ``why``."""
    return replace(calls.withdraw(state, why), ending=ending)


def choose(
    state: TurnState, arrival: Arrival, outcome: HookResults, now: datetime
) -> tuple[TurnState, tuple[str, AnyReaction] | None]:
    """The state after the hooks at a boundary were called, and the reaction to apply, with the name of its hook.

    Finish counts before Fail, before a retry, before Continue; of one kind, the reaction of the agent's first hook.
    """
    wanted: list[tuple[str, AnyReaction]] = [
        *((hook.name, hook.reaction) for hook in _matching(state, arrival, now) if isinstance(hook, HookRule)),
        *((reaction.hook, reaction.reaction) for reaction in outcome.reactions),
    ]
    state = _charge(state, outcome)
    if outcome.refused is not None:
        # A limit that was raised while the hooks ran comes too late for the one that was refused.
        error = _no_more(state, outcome.refused) or limits.exhausted_error(
            "behavior_calls", f"hook {outcome.refused} was not called"
        )
        ending = Ending(stop_reason=StopReason.BUDGET_EXHAUSTED, error=error)
        return _end(state, ending, "a budget of the turn was used up before it ran"), None
    names = [hook.name for hook in state.policy.hooks]
    return state, min(wanted, key=lambda named: (_PRIORITY[type(named[1])], names.index(named[0])), default=None)


def takes_back(state: TurnState, at: Boundary, reaction: AnyReaction) -> bool:
    """Whether a reaction takes the last answer out of the conversation."""
    return isinstance(reaction, Retry) and state.hooks.request is not None and at not in {"start", "error"}


def apply_reaction(state: TurnState, at: Boundary, hook: str, reaction: AnyReaction) -> tuple[TurnState, bool]:
    """The state after a hook's reaction, and whether the step goes on."""
    state = state.with_decided(ReactStep(hook_name=hook, boundary=at, reaction=reaction))
    applied = {**state.hooks.applied, hook: state.hooks.applied.get(hook, 0) + 1}
    asks_again = isinstance(reaction, Retry | RetryWithFeedback) or (at == "error" and isinstance(reaction, Continue))
    retries = state.hooks.retries_in_row + asks_again
    state = replace(state, hooks=replace(state.hooks, applied=applied, retries_in_row=retries))
    if retries > MAX_RETRIES_IN_ROW:
        message = f"hook {hook}: {MAX_RETRIES_IN_ROW} retries in a row have not helped, no other one is made"
        state = _end(state, _failure(hook, message), f"hook {hook} has asked for too many retries; it did not run")
        return state, False
    if isinstance(reaction, Finish | Fail):
        named = f"{hook}: {reaction.reason}" if reaction.reason else hook
        if isinstance(reaction, Finish):
            ending = Ending(stop_reason=StopReason.FINISHED, stopped_by=named)
        else:
            ending = _failure(hook, f"hook {named}" if reaction.reason else f"hook {hook} has ended the turn")
        return _end(state, ending, f"hook {hook} has ended the turn; it did not run"), False
    if at == "error":
        # The model is asked again. This counts as a step, so that ``max_steps`` bounds it.
        known = state.hooks.said
        said = (reaction.texts or known) if isinstance(reaction, Retry) else (*known, *reaction.texts)
        return replace(state, step=state.step + 1, ending=None, hooks=replace(state.hooks, said=said)), False
    if takes_back(state, at, reaction):
        return _take_back(state, hook, reaction), False
    if isinstance(reaction, RetryWithFeedback):
        state = calls.withdraw(state, f"hook {hook} has asked for another answer; it did not run")
        return _go_on(state, reaction), False
    return _go_on(state, reaction), True


def _failure(hook: str, message: str) -> Ending:
    error = ErrorDetail(code=ReasonCode.RUNTIME_FAILED_BY_HOOK, title=hook, message=message[:2_000])
    return Ending(stop_reason=StopReason.ERROR, error=error)


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


def leave(state: TurnState, arrival: Arrival, *, goes_on: bool) -> TurnState:
    """The state without what hooks have heard at the boundary. What came while they ran is for the next step."""
    if arrival.at != "step":
        return state
    unheard, ended = state.hooks.unheard[len(arrival.decided) :], state.hooks.ended[len(arrival.ended) :]
    retries = 0 if goes_on else state.hooks.retries_in_row
    return replace(state, hooks=replace(state.hooks, unheard=unheard, ended=ended, retries_in_row=retries))


def at_the_end(state: TurnState, commit: CommitTurn, result: TurnResult, now: datetime) -> RunHooks | None:
    """The request to call the hooks of a committed turn's end, with events not heard before; None without such hooks.

    Their reactions change nothing, so rules are not among them, and no budget limits them.
    """
    arrival = arrive(state, "end")
    names = names_to_call(state, arrival, now)
    if not names:
        return None
    # The result has one step more than the state if a stop came with an answer.
    return replace(request_calls(state, arrival, names), step=result.steps, tip=commit.tip, left=None)
