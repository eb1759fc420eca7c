"""The loop of a turn without its waiting: what comes next, what an answer changes, and how the turn ends.

The workflow goes by it, and so do the tests that play turns without a server.
"""

from datetime import datetime

from perdure.contracts.generations import Generate, Generation
from perdure.contracts.turns import CommitTurn, StopReason
from perdure.engine import after, delegates, hooks, people, step
from perdure.engine.state import Ending, Mailbox, TurnState


def following(
    state: TurnState, mail: Mailbox, now: datetime, *, stopped: bool
) -> tuple[TurnState, Mailbox, step.Action]:
    """The next action, with the state and the mailbox as they are then; a turn that was stopped starts nothing more."""
    if stopped:
        state = hooks.interrupted(state)
    if stopped and state.ending is None:
        stop = after.cancel if mail.cancel is not None else after.deadline
        state = stop(state, mail)
    before = state
    state, mail = people.hear(state, mail, now)
    telling = people.tell_decided(before, state)
    if telling is not None:
        return state, mail, telling
    state = hooks.settle(after.step_ended(state, mail, now), mail, now)
    action = step.next_action(state, mail)
    if not isinstance(action, CommitTurn) or not state.running:
        return state, mail, action
    # Decided before they are told to end: a reply, another limit or a stop that comes while they do is too late.
    ending = Ending(stop_reason=action.stop_reason, error=action.error, stopped_by=action.stopped_by)
    state = state.model_copy(update={"ending": ending}).with_hooks(boundary=None)
    return state, mail, delegates.at_the_end(state)


def answered(state: TurnState, mail: Mailbox, action: Generate, generation: Generation) -> tuple[TurnState, Mailbox]:
    """The model has answered what the action asked: decisions and messages that went with it are on their way."""
    written = after.generation(state.with_written(len(action.decided)), generation)
    return hooks.generated(written, action, generation), mail.read(len(action.steered))


def committing(state: TurnState, mail: Mailbox, action: CommitTurn) -> tuple[TurnState, Mailbox]:
    """The turn is about to be recorded as ended: from here on a message is for the next one."""
    # Also when a limit ends this one, of which the state does not know yet.
    ending = Ending(stop_reason=action.stop_reason, error=action.error)
    mail = mail.read(len(action.steered))
    if action.stop_reason is StopReason.WAITING_FOR_INPUT:
        mail = mail.with_all_queued()
    return state.model_copy(update={"ending": ending}), mail
