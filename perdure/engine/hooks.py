"""When hooks are called, which of them, and what a reaction changes in a turn. Pure, and part of the workflow."""

from collections.abc import Sequence
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
    Fail,
    Finish,
    HookDeclaration,
    HookRule,
    React,
    Reacted,
    Reaction,
    ReactStep,
    Retry,
    RetryWithFeedback,
    RuleEvent,
)
from perdure.contracts.tools import PlannedCall
from perdure.contracts.turns import CommitTurn, StopReason, TurnResult
from perdure.engine import after, calls, conditions, delegates, limits
from perdure.engine.state import Ending, HookState, TurnState, WasRead

MAX_RETRIES_IN_ROW = 10
"""With so many retries in a row hooks get no other one: the turn ends."""

GO_ON = "Go on."
"""What the model is told if a hook has the turn go on behind a text, and says nothing: a model answers somebody."""

_PRIORITY: dict[type[Reaction], int] = {Finish: 0, Fail: 1, Retry: 2, RetryWithFeedback: 2, Continue: 3}


def first_reaction(wanted: Sequence[tuple[str, AnyReaction]]) -> tuple[str, AnyReaction]:
    """The one that counts: Finish before Fail before a retry before Continue, and of one kind the first."""
    return min(wanted, key=lambda one: _PRIORITY[type(one[1])])


def carry_out(state: TurnState, at: Boundary, hook: str, reaction: AnyReaction) -> TurnState:
    """The state after a hook has had its way; ``boundary`` is None where the step goes no further."""
    state = state.with_decided(ReactStep(hook_name=hook, boundary=at, reaction=reaction))
    count = {**state.hooks.carried_out, hook: state.hooks.carried_out.get(hook, 0) + 1}
    retries = _retries(state, at, reaction)
    state = state.with_hooks(carried_out=count, retries_in_row=retries)
    if retries > MAX_RETRIES_IN_ROW:
        message = f"hook {hook}: {MAX_RETRIES_IN_ROW} retries in a row have not helped, no other one is made"
        return end(state, _failure(hook, message), f"hook {hook} has asked for too many retries; it did not run")
    if isinstance(reaction, Finish):
        why = f"{hook}: {reaction.reason}" if reaction.reason else hook
        ending = Ending(stop_reason=StopReason.FINISHED, stopped_by=why)
        return end(state, ending, f"hook {hook} has ended the turn; it did not run")
    if isinstance(reaction, Fail):
        message = f"hook {hook}: {reaction.reason}" if reaction.reason else f"hook {hook} has ended the turn"
        return end(state, _failure(hook, message), f"hook {hook} has ended the turn; it did not run")
    if at == "error":
        return _asked_again(state, reaction)
    read = state.hooks.read
    if isinstance(reaction, Retry) and read is not None and at != "start":
        return _taken_back(state, hook, reaction, read)
    if isinstance(reaction, RetryWithFeedback):
        state = _withdrawn(state, f"hook {hook} has asked for another answer; it did not run").with_hooks(boundary=None)
    return _going_on(state, reaction)


def end(state: TurnState, ending: Ending, why: str) -> TurnState:
    """The state of a turn that ends so; calls that have not run do not."""
    return _withdrawn(state, why).model_copy(update={"ending": ending}).with_hooks(boundary=None)


def _failure(hook: str, message: str) -> Ending:
    error = ErrorDetail(code=ReasonCode.RUNTIME_FAILED_BY_HOOK, title=hook, message=message[:2_000])
    return Ending(stop_reason=StopReason.ERROR, error=error)


def _retries(state: TurnState, at: Boundary, reaction: AnyReaction) -> int:
    """How many retries in a row hooks have asked for, with this reaction."""
    again = isinstance(reaction, Retry | RetryWithFeedback) or (at == "error" and isinstance(reaction, Continue))
    return state.hooks.retries_in_row + 1 if again else state.hooks.retries_in_row


def _asked_again(state: TurnState, reaction: AnyReaction) -> TurnState:
    """The model is asked again after its call has failed. That is another step, so that its limit bounds it."""
    known = state.hooks.said
    said = (reaction.texts or known) if isinstance(reaction, Retry) else (*known, *reaction.texts)
    return state.model_copy(update={"step": state.step + 1, "ending": None}).with_hooks(said=said, boundary=None)


def _taken_back(state: TurnState, hook: str, reaction: Retry, read: WasRead) -> TurnState:
    """The conversation goes on from before the step; what its calls have done stays done, and in the ledger."""
    state = _withdrawn(state, f"hook {hook} has taken the answer back; it did not run")
    unread = tuple(
        one.model_copy(update={"awaited": None}) if one.awaited == state.step else one for one in state.background
    )
    state = state.model_copy(
        update={
            "tip": read.parent,
            "call_ids": read.call_ids,
            "judged_step": state.step,
            "completing": False,
            "ending": None,
            "background": unread,
        }
    )
    return state.with_hooks(said=reaction.messages or read.said, boundary=None)


def _going_on(state: TurnState, reaction: AnyReaction) -> TurnState:
    said = (*state.hooks.said, *reaction.texts)
    if not said and state.ending is not None and not state.call_ids:
        said = (GO_ON,)
    completing = state.completing and not reaction.texts
    return state.model_copy(update={"ending": None, "completing": completing}).with_hooks(said=said)


def _withdrawn(state: TurnState, why: str) -> TurnState:
    """The state with an error for each call that has not run; they use up no budget.

    Calls that stood open when the turn began were paid for by the one before.
    """
    unrun: tuple[PlannedCall, ...] = (*state.pending, *state.asking, *state.builtins)
    spent = state.spent
    for call in unrun if state.step else ():
        uses = (calls.wanted(call) or delegates.wanted(state.policy, call)).uses
        spent = spent.model_copy(update={str(name): getattr(spent, name) - 1 for name in uses})
    outcomes = tuple(
        after.not_run(
            call.call_id, ErrorDetail(code=ReasonCode.TOOL_DENIED, title=call.tool, message=f"{call.tool}: {why}")
        )
        for call in unrun
    )
    return state.model_copy(
        update={
            "pending": (),
            "asking": (),
            "builtins": (),
            "unknown_tool": None,
            "spent": spent,
            "failed": (*state.failed, *outcomes),
        }
    )


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
        error = _no_more(state, outcome.refused) or limits.used_up(
            "behavior_calls", f"hook {outcome.refused} was not called"
        )
        ended = Ending(stop_reason=StopReason.BUDGET_EXHAUSTED, error=error)
        state = end(state, ended, "a budget of the turn was used up before it ran")
    elif wanted:
        state = carry_out(state, at, *first_reaction(wanted))
    return _moved_on(state, at)


def _no_more(state: TurnState, hook: str) -> ErrorDetail | None:
    """The error of a turn that has no call of a hook left."""
    wanted = limits.Wanted(tool=hook, uses=("behavior_calls",))
    _, _, ending = limits.admitted(state.policy.budgets, state.spent, [wanted])
    return ending


def ending(state: TurnState, decided: Ending) -> TurnState:
    """The state of a turn whose end is decided: no hook is called any more but for those that hear of the end."""
    return state.model_copy(update={"ending": decided}).with_hooks(boundary=None)


def failed(state: TurnState, error: ErrorDetail) -> TurnState:
    """A hook has failed, and that ends the turn."""
    ending = Ending(stop_reason=StopReason.ERROR, error=error)
    state = end(state, ending, f"the hook {error.title} failed before it ran")
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


def _holds(state: TurnState, hook: HookRule | HookDeclaration, facts: conditions.Facts) -> bool:
    return hook.when is None or conditions.holds(hook.when, facts, state.policy.conditions)


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
