"""What a hook's reaction changes in a turn. Pure, and part of the workflow."""

from collections.abc import Sequence

from perdure.contracts.errors import ErrorDetail, ReasonCode
from perdure.contracts.hooks import (
    AnyReaction,
    Boundary,
    Continue,
    Fail,
    Finish,
    Reaction,
    ReactStep,
    Retry,
    RetryWithFeedback,
)
from perdure.contracts.tools import PlannedCall
from perdure.contracts.turns import StopReason
from perdure.engine import after, builtins, delegates
from perdure.engine.hook_state import WasRead
from perdure.engine.state import Ending, TurnState

MAX_RETRIES_IN_ROW = 10
"""With so many retries in a row hooks get no other one: the turn ends."""

GO_ON = "Go on."
"""What the model is told if a hook has the turn go on behind a text, and says nothing: a model answers somebody."""

_PRIORITY: dict[type[Reaction], int] = {Finish: 0, Fail: 1, Retry: 2, RetryWithFeedback: 2, Continue: 3}


def first(wanted: Sequence[tuple[str, AnyReaction]]) -> tuple[str, AnyReaction]:
    """The one that counts: Finish before Fail before a retry before Continue, and of one kind the first."""
    return min(wanted, key=lambda one: _PRIORITY[type(one[1])])


def carried_out(state: TurnState, at: Boundary, hook: str, reaction: AnyReaction) -> TurnState:
    """The state after a hook has had its way; ``boundary`` is None where the step goes no further."""
    state = state.with_decided(ReactStep(hook_name=hook, boundary=at, reaction=reaction))
    count = {**state.hooks.carried_out, hook: state.hooks.carried_out.get(hook, 0) + 1}
    retries = _retries(state, at, reaction)
    state = state.with_hooks(carried_out=count, retries_in_row=retries)
    if retries > MAX_RETRIES_IN_ROW:
        message = f"hook {hook}: {MAX_RETRIES_IN_ROW} retries in a row have not helped, no other one is made"
        return ended(state, _failure(hook, message), f"hook {hook} has asked for too many retries; it did not run")
    if isinstance(reaction, Finish):
        why = f"{hook}: {reaction.reason}" if reaction.reason else hook
        ending = Ending(stop_reason=StopReason.FINISHED, stopped_by=why)
        return ended(state, ending, f"hook {hook} has ended the turn; it did not run")
    if isinstance(reaction, Fail):
        message = f"hook {hook}: {reaction.reason}" if reaction.reason else f"hook {hook} has ended the turn"
        return ended(state, _failure(hook, message), f"hook {hook} has ended the turn; it did not run")
    if at == "error":
        return _asked_again(state, reaction)
    read = state.hooks.read
    if isinstance(reaction, Retry) and read is not None and at != "start":
        return _taken_back(state, hook, reaction, read)
    if isinstance(reaction, RetryWithFeedback):
        state = _withdrawn(state, f"hook {hook} has asked for another answer; it did not run").with_hooks(boundary=None)
    return _going_on(state, reaction)


def ended(state: TurnState, ending: Ending, why: str) -> TurnState:
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
    calls: tuple[PlannedCall, ...] = (*state.pending, *state.asking, *state.builtins)
    spent = state.spent
    for call in calls if state.step else ():
        uses = (builtins.wanted(call) or delegates.wanted(state.policy, call)).uses
        spent = spent.model_copy(update={str(name): getattr(spent, name) - 1 for name in uses})
    outcomes = tuple(
        after.not_run(
            call.call_id, ErrorDetail(code=ReasonCode.TOOL_DENIED, title=call.tool, message=f"{call.tool}: {why}")
        )
        for call in calls
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
