"""When hooks are called, and which: pure, and part of the workflow. What a reaction does stands in ``reactions``."""

from datetime import datetime
from typing import get_args

from perdure.contracts.errors import ErrorDetail
from perdure.contracts.generations import Generate, Generation
from perdure.contracts.hooks import (
    EVENTS_AT,
    OF_DELEGATES,
    AnyReaction,
    Boundary,
    HookDeclaration,
    HookRule,
    React,
    Reacted,
    RuleEvent,
)
from perdure.contracts.turns import CommitTurn, StopReason, TurnResult
from perdure.engine import after, budgets, reactions, stops
from perdure.engine.hook_state import HookState, WasRead
from perdure.engine.state import Ending, TurnState

_KNOWN = frozenset(get_args(RuleEvent))
_OF_TOOLS = frozenset({"tool_end", "tool_error"})
_FOLLOWING: dict[Boundary, Boundary] = {"start": "step", "generation": "step", "step": "stalled"}


def generated(state: TurnState, action: Generate, generation: Generation) -> TurnState:
    """The state after the model has answered, for hooks to look at."""
    if not state.policy.hooks:
        return state
    answered = generation.retry_seconds is None
    return state.with_hooks(
        boundary="generation",
        said=(),
        read=WasRead(
            parent=action.parent,
            call_ids=action.call_ids,
            said=(*action.said, *(message.prompt for message in action.steered)),
        ),
        calls=tuple((call.call_id, call.tool) for call in generation.calls),
        happened=(
            *(["generation_end"] if answered else []),
            *(["generation_error"] if generation.rejected is not None else []),
        ),
    )


def generation_failed(state: TurnState) -> TurnState:
    """The state after a model call has failed: for hooks to look at, if that is to end the turn."""
    fails = state.ending is not None and state.ending.stop_reason is StopReason.ERROR
    if not state.policy.hooks or not fails or state.guidance is not None:
        return state
    return state.with_hooks(boundary="error")


def interrupted(state: TurnState) -> TurnState:
    """The state of a turn that was stopped: no hook is called any more.

    An end that hooks might have taken back is none yet, so that the stop is the end. An error stays one.
    """
    if state.hooks.boundary is None:
        return state
    ending = state.ending
    undecided = ending is not None and ending.stop_reason in {StopReason.FINISHED, StopReason.STALLED}
    state = state.model_copy(update={"ending": None if undecided else ending})
    return state.with_hooks(boundary=None, calling=())


def is_due(state: TurnState, at: Boundary) -> bool:
    """Whether the turn is where hooks of this boundary are called."""
    if state.hooks.boundary != at:
        return False
    return at != "stalled" or (state.ending is not None and state.ending.stop_reason is StopReason.STALLED)


def chosen(state: TurnState, now: datetime) -> TurnState:
    """The state with the hooks written in Python that are to be called here, and what they will hear of."""
    state = state.with_hooks(told=(len(state.hooks.unheard), len(state.hooks.ended)))
    names = tuple(hook.name for hook in _matching(state, now) if isinstance(hook, HookDeclaration))
    return state.with_hooks(calling=names)


def reacted(state: TurnState, outcome: Reacted, now: datetime) -> TurnState:
    """The hooks at this boundary have been called: what comes first among their reactions and the rules' is done."""
    wanted = _in_order(state, outcome, now)
    if outcome.refused is not None and state.running and _no_more(_charged(state, outcome), outcome.refused) is None:
        return state.model_copy(update={"short": True})  # they are called again, and those that have ended are not
    state = _charged(state.with_hooks(calling=()), outcome)
    at = state.hooks.boundary
    assert at is not None, "hooks are called at a boundary"  # noqa: S101 - narrows the type
    if outcome.refused is not None:
        # A limit that was raised while the hooks ran comes too late for the one that was refused.
        error = _no_more(state, outcome.refused) or budgets.used_up(
            "behavior_calls", f"hook {outcome.refused} was not called"
        )
        ended = Ending(stop_reason=StopReason.BUDGET_EXHAUSTED, error=error)
        state = reactions.ended(state, ended, "a budget of the turn was used up before it ran")
    elif wanted:
        state = reactions.carried_out(state, at, *reactions.first(wanted))
    return _moved_on(state, at)


def _no_more(state: TurnState, hook: str) -> ErrorDetail | None:
    """The error of a turn that has no call of a hook left."""
    wanted = budgets.Wanted(tool=hook, uses=("behavior_calls",))
    _, _, ending = budgets.admitted(state.policy.budgets, state.spent, [wanted])
    return ending


def ending(state: TurnState, decided: Ending) -> TurnState:
    """The state of a turn whose end is decided: no hook is called any more but for those that hear of the end."""
    return state.model_copy(update={"ending": decided}).with_hooks(boundary=None)


def failed(state: TurnState, error: ErrorDetail) -> TurnState:
    """A hook has failed, and that ends the turn."""
    ending = Ending(stop_reason=StopReason.ERROR, error=error)
    state = reactions.ended(state, ending, f"the hook {error.title} failed before it ran")
    return state.with_hooks(boundary=None, calling=())


def at_the_end(state: TurnState, commit: CommitTurn, result: TurnResult, now: datetime) -> React | None:
    """The hooks to call with the end of a turn that was committed; None if there are none. They change nothing."""
    unheard, ended = state.hooks.unheard, state.hooks.ended
    left = {*(one.event.type for one in unheard), *(OF_DELEGATES if ended else ())}
    names = tuple(
        hook.name
        for hook in state.policy.hooks
        if isinstance(hook, HookDeclaration)  # a rule could change nothing any more
        and (EVENTS_AT["end"] | left).intersection(hook.events)
        and _holds(state, hook, after.facts(state, now))
    )
    if not names:
        return None
    return React(
        session=state.session,
        store=state.store,
        turn=state.turn,
        step=result.steps,  # one more than the workflow knows of, where a stop came with an answer
        tip=commit.tip,
        definition=state.definition,
        boundary="end",
        calling=names,
        spent=state.spent,
        decided=unheard,
        ended=ended,
    ).sparse()


def _matching(state: TurnState, now: datetime) -> list[HookRule | HookDeclaration]:
    """The hooks for what has happened at this boundary, in the agent's order."""
    at, facts = state.hooks.boundary, after.facts(state, now)
    assert at is not None, "hooks match at a boundary"  # noqa: S101 - narrows the type
    happened = _happened(state, at)
    return [
        hook
        for hook in state.policy.hooks
        if any(_is_for(hook, event, happened) for event in EVENTS_AT[at].intersection(hook.events))
        and _holds(state, hook, facts)
        and not _used_up(hook, state.hooks)
    ]


def _holds(state: TurnState, hook: HookRule | HookDeclaration, facts: stops.Facts) -> bool:
    return hook.when is None or stops.holds(hook.when, facts, state.policy.conditions)


def _used_up(hook: HookRule | HookDeclaration, known: HookState) -> bool:
    times = hook.times if isinstance(hook, HookRule) else None
    return times is not None and known.carried_out.get(hook.name, 0) >= times


def _is_for(hook: HookRule | HookDeclaration, event: str, happened: dict[str, frozenset[str]]) -> bool:
    """Whether the hook is for the event, which has happened; of some only the event log knows whether they have."""
    if event not in _KNOWN:
        return True
    return event in happened and (event not in _OF_TOOLS or any(map(hook.is_about, happened[event])))


def _happened(state: TurnState, at: Boundary) -> dict[str, frozenset[str]]:
    """The events that the workflow knows of, each with the tools it is about."""
    none = frozenset[str]()
    if at == "generation":
        return dict.fromkeys(state.hooks.happened, none)
    if at != "step":
        return dict.fromkeys(EVENTS_AT[at], none)
    tools = dict(state.hooks.calls)
    told = {tools[outcome.call_id] for outcome in state.failed if outcome.error and outcome.call_id in tools}
    errors = told.union(tool for tool, succeeded in state.tally.ended if not succeeded)
    return {
        "step_end": none,
        **dict.fromkeys((one.event.type for one in state.hooks.unheard[: state.hooks.told[0]]), none),
        **({"tool_end": frozenset(tools.values())} if tools else {}),
        **({"tool_error": frozenset(errors)} if errors else {}),
    }


def _in_order(state: TurnState, outcome: Reacted, now: datetime) -> list[tuple[str, AnyReaction]]:
    """What all hooks want, in the agent's order."""
    rules = {hook.name: hook.reaction for hook in _matching(state, now) if isinstance(hook, HookRule)}
    wanted: list[tuple[str, AnyReaction]] = []
    for hook in state.policy.hooks:
        if hook.name in rules:
            wanted.append((hook.name, rules[hook.name]))
        wanted += [(one.hook, one.reaction) for one in outcome.reactions if one.hook == hook.name]
    return wanted


def _charged(state: TurnState, outcome: Reacted) -> TurnState:
    spent = state.spent.model_copy(update={"behavior_calls": state.spent.behavior_calls + outcome.calls})
    return after.with_warnings(state.model_copy(update={"spent": spent}), state.spent)


def _moved_on(state: TurnState, at: Boundary) -> TurnState:
    """The state at the boundary after this one: a step that was taken back, and a turn that has ended, have none."""
    following = _FOLLOWING.get(at) if state.hooks.boundary is not None else None
    if at == "start" and not state.call_ids:  # else somebody's reply goes on with the calls of the turn before
        following = None
    if at == "step":
        decided, ended = state.hooks.told
        state = state.with_hooks(unheard=state.hooks.unheard[decided:], ended=state.hooks.ended[ended:], told=(0, 0))
    if following == "stalled":  # the step stands
        state = state.with_hooks(retries_in_row=0)
    return state.with_hooks(boundary=following)
