"""What holds of delegates in the background, and of the calls that wait for them; as for ``invariants``."""

from collections.abc import Callable, Iterator

from perdure.contracts.errors import ErrorDetail
from perdure.contracts.generations import Compact, Compacted, Generate, Generation
from perdure.contracts.tools import AwaitCall, ToolOutcome
from perdure.contracts.turns import StopReason, TurnResult
from perdure.engine.delegates import AwaitDelegates, CallDelegates
from tests.unit.engine.simulation import Moment, Played


def started(moment: Moment) -> list[str]:
    """The delegates that work in the background since this moment."""
    if not isinstance(moment.action, CallDelegates):
        return []
    return [start.session for start in moment.action.starts if start.call.background]


def each_delegate_in_the_background_ends_once_and_before_the_commit(played: Played) -> None:
    """S-57 S-64: also one that was being started when the turn was stopped."""
    begun = [session for moment in played.moments for session in started(moment)]
    heard = [session for moment in played.moments for ends in moment.heard for session, _ in ends]
    assert len(set(begun)) == len(begun)
    assert sorted(heard) == sorted(begun)
    assert played.moments[-1].state.running == ()


def _moments(played: Played) -> Iterator[tuple[Moment, list[str], dict[str, TurnResult | ErrorDetail], set[str]]]:
    """Each moment with the delegates that had begun, those that had ended, and those whose ends the model can read."""
    begun, ended, parents = list[str](), dict[str, TurnResult | ErrorDetail](), dict[str, str]()
    told: list[tuple[str, str]] = []
    for moment in played.moments:
        ended |= dict(moment.heard[0])
        line = {moment.state.tip, *_above(moment.state.tip, parents)}
        yield moment, begun, ended, {session for tip, session in told if tip in line}
        ended |= dict(moment.heard[1])
        begun += started(moment)
        action, came = moment.action, moment.came
        if (
            isinstance(action, Generate | Compact)
            and isinstance(came, Generation | Compacted)
            and came.tip != action.parent
        ):
            parents[came.tip] = action.parent
        if isinstance(action, AwaitDelegates) and isinstance(came, ToolOutcome):
            told += [(moment.state.tip, session) for session in action.sessions]


def _above(tip: str, parents: dict[str, str]) -> Iterator[str]:
    """What was said before, without the answers that hooks have taken back."""
    while tip in parents:
        tip = parents[tip]
        yield tip


def a_call_waits_for_those_it_names_or_for_all_that_are_not_read(played: Played) -> None:
    """S-64: until the last of them has ended; what this turn has not started is refused, and nothing is waited for."""
    for moment, begun, ended, read in _moments(played):
        action = moment.action
        if not isinstance(action, AwaitDelegates) or action.call is None:
            continue
        assert isinstance(action.call.builtin, AwaitCall)
        named = list(dict.fromkeys(action.call.builtin.sessions)) or [one for one in begun if one not in read]
        fits = bool(named) and set(named) <= set(begun)
        assert list(action.sessions) == (named if fits else [])
        assert (action.refused is None) == fits
        if isinstance(moment.came, ToolOutcome):
            assert set(action.sessions) <= ended.keys() | dict(moment.heard[1]).keys()
            assert (moment.came == action.refused) is not fits


def a_caller_waits_for_its_own_sake_only_while_delegates_work(played: Played) -> None:
    """S-64 S-70: until one has ended; at its end for all."""
    for (moment, begun, ended, _), following in zip(_moments(played), played.moments[1:], strict=False):
        action = moment.action
        if isinstance(action, AwaitDelegates) and action.call is None:
            working = [one for one in begun if one not in ended]
            assert list(action.sessions) == working != []
            came = [session for session, _ in moment.heard[1]]
            assert came == working if action.ends else (came or following.stopped)


def a_failure_in_the_background_ends_the_turn_where_it_is_to(played: Played) -> None:
    """S-63 S-64: before the next model call; that its end is what ends a delegate is no failure."""
    if played.begun.policy.on_child_error != "propagate":
        return
    for moment, _, ended, _ in _moments(played):
        if all(map(_has_finished, ended.values())):
            continue
        assert not isinstance(moment.action, Generate | Compact)
        if moment.ends:
            assert played.commit.stop_reason is not StopReason.MAX_STEPS_REACHED
            break


def _has_finished(ended: TurnResult | ErrorDetail) -> bool:
    return isinstance(ended, TurnResult) and ended.report is not None and ended.stop_reason is StopReason.FINISHED


INVARIANTS: tuple[Callable[[Played], None], ...] = (
    each_delegate_in_the_background_ends_once_and_before_the_commit,
    a_call_waits_for_those_it_names_or_for_all_that_are_not_read,
    a_caller_waits_for_its_own_sake_only_while_delegates_work,
    a_failure_in_the_background_ends_the_turn_where_it_is_to,
)
