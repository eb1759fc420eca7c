"""What holds of every turn, whatever its model, its tools, its hooks and people do: one function for each promise."""

from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal
from itertools import pairwise

from perdure.contracts.budgets import Spent
from perdure.contracts.generations import Compact, Generate, Generation
from perdure.contracts.hooks import (
    AnyReaction,
    Boundary,
    BudgetWarning,
    HookResults,
    HookRule,
    ModelFallback,
    ReactStep,
    RunHooks,
    StopConditionMet,
)
from perdure.contracts.input_requests import AskPeople
from perdure.contracts.tools import PlannedCall, ToolOutcome
from perdure.contracts.turns import CommitTurn, StopReason
from perdure.engine import conditions
from perdure.engine.calls import CallTools
from perdure.engine.delegates import AwaitDelegates, CallDelegates
from perdure.engine.generation import Failed
from perdure.engine.limits import CODES
from tests.unit.engine.asked import asked_next
from tests.unit.engine.scripts import DELEGATES, FUNCTIONS, WAITING
from tests.unit.engine.simulation import HOOK_FAILED, Moment, Played

COUNTED = ("llm_calls", "tool_calls", "behavior_calls", "events", "patches")
EPSILON = Decimal("1e-20")
"""What the rounding of equal shares of dollars may come to."""

_ORDER = ("finish", "fail", "retry", "continue")
_ALWAYS: dict[Boundary, str] = {"start": "agent_start", "step": "step_end", "stalled": "agent_stalled"}
"""What happens at each of these boundaries, without fail."""


def answers(played: Played) -> list[tuple[Moment, Generate, Generation]]:
    """The generations that the turn has heard of."""
    return [
        (moment, moment.action, moment.came)
        for moment in played.moments
        if isinstance(moment.action, Generate) and isinstance(moment.came, Generation)
    ]


def planned(played: Played) -> dict[str, PlannedCall]:
    """All calls of the turn, and those it began with."""
    asked = {call.call_id: call for call in played.begun.calls.asking}
    return asked | {call.call_id: call for _, _, answer in answers(played) for call in answer.calls}


def ran(played: Played) -> Iterator[tuple[Moment, str]]:
    """Every call that a tool or a delegate was given, or that has waited for delegates."""
    for moment in played.moments:
        if isinstance(moment.action, CallTools):
            yield from ((moment, call.call_id) for call in moment.action.calls)
        if isinstance(moment.action, CallDelegates):
            yield from ((moment, start.call.call_id) for start in moment.action.starts)
        if isinstance(moment.action, AwaitDelegates) and moment.action.call is not None:
            yield moment, moment.action.call.call_id


def outcomes(played: Played, until: Moment) -> dict[str, ToolOutcome]:
    """The results that are known by then, whoever gave them."""
    known = dict(played.recorded)
    for moment in played.moments:
        known |= {one.call_id: one for one in moment.state.calls.outcomes}
        if moment is until:
            break
    for call in planned(played).values():
        if call.rejected is not None:
            known[call.call_id] = ToolOutcome(call_id=call.call_id, error=call.rejected)
    return known


def every_call_has_exactly_one_result_before_the_next_answer(played: Played) -> None:
    """S-39 S-54 S-65: providers refuse a conversation with a call that has no result, or two."""
    results = Counter(dict.fromkeys(played.recorded, 1))
    results.update(call.call_id for call in planned(played).values() if call.rejected is not None)
    for _, action, _ in answers(played):
        results.update(one.call_id for one in action.failed)
        assert [results[call_id] for call_id in action.call_ids] == [1] * len(action.call_ids)
    commit = played.commit
    results.update(one.call_id for one in commit.failed)
    left = {call_id for call_id in planned(played) if not results[call_id]}
    assert left <= set(commit.call_ids), "the commit gives a result only to calls of the last answer"
    if not played.stopped:
        assert left == {one.request_id for one in commit.requests}
    assert max(results.values(), default=1) == 1


def every_answer_reads_the_results_of_the_one_before_it(played: Played) -> None:
    """S-36 S-54: also where a hook has taken an answer back, and behind a compaction."""
    chain: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {}
    same: dict[str, str] = {}
    for moment in played.moments:
        action, came = moment.action, moment.came
        if isinstance(action, Compact):
            same[moment.later.tip] = same.get(action.parent, action.parent)
        elif isinstance(action, Generate) and isinstance(came, Generation):
            parent = same.get(action.parent, action.parent)
            chain[came.tip] = (parent, action.call_ids, tuple(call.call_id for call in came.calls))
    tip, read = same.get(played.commit.tip, played.commit.tip), played.commit.call_ids
    while tip in chain:
        parent, results, calls = chain[tip]
        assert read == calls
        tip, read = parent, results
    assert (tip, read) == (played.begun.tip, played.begun.calls.ids)


def no_call_runs_twice_and_none_that_nobody_approved(played: Played) -> None:
    """S-18 S-60: and no question runs at all."""
    calls = planned(played)
    ids = [call_id for _, call_id in ran(played)]
    assert len(ids) == len(set(ids))
    for moment, call_id in ran(played):
        assert call_id in moment.state.calls.ids
        call = calls[call_id]
        assert call.rejected is None
        assert call.needs != "answer"
        if call.needs == "approval":
            settled = {one.receipt.request_id: one.receipt.decision for one in moment.mail.settled}
            assert settled[call_id] == "approved"


def tools_come_before_delegates_and_delegates_before_people(played: Played) -> None:
    """S-62 S-65: all delegates of an answer at the same time, and behind them what waits for delegates."""
    calls, done = planned(played), set[str]()
    for moment in played.moments:
        action = moment.action
        mine = [calls[call_id] for call_id in moment.state.calls.ids]
        free = [call for call in mine if call.rejected is None and call.needs is None and call.builtin is None]
        waiting = {call.call_id for call in mine if call.tool in WAITING and call.needs is None}
        done |= {one.call_id for one in moment.state.calls.outcomes}
        if isinstance(action, CallDelegates):
            assert {call.call_id for call in free if call.tool not in DELEGATES} <= done
            done |= {start.call.call_id for start in action.starts} | {one.call_id for one in action.refused}
        if isinstance(action, CallTools):
            done |= {call.call_id for call in action.calls}
        waits = isinstance(action, AwaitDelegates) and action.call is not None
        if waits or isinstance(action, CallDelegates | AskPeople):
            assert {call.call_id for call in free} <= done
        if isinstance(action, AwaitDelegates) and action.call is not None:
            done.add(action.call.call_id)
        if isinstance(action, AskPeople):
            assert waiting <= done


def nothing_begins_after_the_end(played: Played) -> None:
    """S-32 S-57: the commit is the last action, and stays what it is; delegates end before it and nothing else does."""
    *before, last = played.moments
    for moment in before:
        assert not isinstance(moment.action, CommitTurn)
        assert moment.ends or not moment.stopped
        assert moment.ends or moment.state.ending is None or isinstance(moment.action, RunHooks)
    ending = [place for place, moment in enumerate(played.moments) if moment.ends]
    assert ending[0] >= len(before) - 1, "nothing comes between the ends of delegates and the commit"
    _, _, again = asked_next(last.later, played.mail, last.now, stopped=last.stopped, place="model")
    assert isinstance(again, CommitTurn)
    assert (again.stop_reason, again.error) == (played.commit.stop_reason, played.commit.error)


def the_stop_record_names_its_cause(played: Played) -> None:
    """S-32 S-33 S-70: the raw dimension or the condition, once; a turn stalls only where it could have finished."""
    commit, policy = played.commit, played.moments[-1].state.policy
    reason, error = commit.stop_reason, commit.error
    assert (error is not None) == (reason in {StopReason.ERROR, StopReason.CANCELLED, StopReason.BUDGET_EXHAUSTED})
    assert (reason is StopReason.CANCELLED) <= (played.mail.cancel is not None)
    assert (reason is StopReason.STALLED) <= bool(policy.finish_tool is not None or policy.stop_conditions)
    assert (reason is StopReason.WAITING_FOR_INPUT) == bool(commit.requests)
    assert commit.stopped_by is None or reason is StopReason.FINISHED
    if error is not None:
        dimensions = {str(code): name for name, code in CODES.items()}
        assert (error.code in dimensions) == (reason is StopReason.BUDGET_EXHAUSTED)
        assert error.code not in dimensions or getattr(policy.budgets, dimensions[error.code]) is not None
    met = [one.event.condition for one in played.decided.values() if isinstance(one.event, StopConditionMet)]
    by_condition = commit.stopped_by in {conditions.title_of(one) for one in policy.stop_conditions}
    assert met == ([commit.stopped_by] if by_condition else [])


def _taken(moment: Moment) -> Spent:
    """What is spent, and what delegates in the background may still spend."""
    return moment.state.spent.with_delegate(moment.state.granted, 0)


def no_limit_is_passed(played: Played) -> None:
    """S-38 S-62 S-70: whatever begins still has a unit of each limit, and delegates get no more than is left."""
    for moment in played.moments:
        limits, spent = moment.state.policy.budgets, _taken(moment)
        steps = moment.state.policy.max_steps - moment.state.step - spent.delegated_steps
        if isinstance(moment.action, Generate | Compact):
            assert limits.llm_calls is None or spent.llm_calls < limits.llm_calls
            assert limits.events is None or spent.events < limits.events
            assert limits.cost_usd is None or spent.cost_usd < limits.cost_usd
            assert moment.action.cost_left == (None if limits.cost_usd is None else limits.cost_usd - spent.cost_usd)
            assert steps > 0
        if isinstance(moment.action, RunHooks) and limits.behavior_calls is not None:
            assert moment.action.left == max(0, limits.behavior_calls - spent.behavior_calls)
        if isinstance(moment.action, CallDelegates):
            _shares_fit(moment, moment.action, steps)
    if not played.extended and not played.begun.origin.earlier.llm_calls:
        _sums_fit(played)


def _shares_fit(moment: Moment, action: CallDelegates, steps: int) -> None:
    limits, spent = moment.state.policy.budgets, _taken(moment)
    shares = [start.request for start in action.starts]
    assert all(one.max_steps for one in shares)
    assert sum(one.max_steps or 0 for one in shares) <= max(0, steps)
    for name in (*COUNTED, "cost_usd"):
        limit = getattr(limits, name)
        parts = [getattr(one.budgets, name) for one in shares]
        if limit is not None and parts:
            assert sum(parts) <= max(0, limit - getattr(spent, name)) + EPSILON
    depths = [one.budgets.depth for one in shares if one.budgets is not None]
    assert limits.depth is None or depths == [limits.depth - 1] * len(shares)


def _sums_fit(played: Played) -> None:
    """N allows exactly N: never more in the end, and a budget that ended the turn is used up to the last unit."""
    state, commit = played.moments[-1].state, played.commit
    limits, withdrawn = state.policy.budgets, any(_is_withdrawn(one) for _, one in _failed(played))
    for moment in played.moments:
        taken = _taken(moment)
        assert moment.state.step + taken.delegated_steps <= state.policy.max_steps
        for name in (*COUNTED, "cost_usd"):
            limit = getattr(limits, name)
            assert limit is None or getattr(taken, name) <= limit + EPSILON
    for name in (*COUNTED, "cost_usd"):
        limit = getattr(limits, name)
        if name in COUNTED and commit.error is not None and commit.error.code == CODES[name] and not withdrawn:
            assert getattr(state.spent, name) == limit
    used = state.step + state.spent.delegated_steps
    assert used <= state.policy.max_steps
    assert commit.stop_reason is not StopReason.MAX_STEPS_REACHED or used == state.policy.max_steps


def _failed(played: Played) -> Iterator[tuple[Moment, ToolOutcome]]:
    """The results that the workflow alone knows, each once."""
    known: set[str] = set()
    for moment in played.moments:
        new = [one for one in moment.state.calls.outcomes if one.call_id not in known]
        known |= {one.call_id for one in new}
        yield from ((moment, one) for one in new)


def _is_withdrawn(outcome: ToolOutcome) -> bool:
    """Whether hooks have kept the call from running."""
    return outcome.error is not None and outcome.error.code == "tool.denied" and outcome.decided is None


def every_share_of_a_budget_that_is_passed_is_warned_of(played: Played) -> None:
    """S-70: whoever has paid."""
    warned = {
        (one.event.dimension, one.event.share)
        for one in played.decided.values()
        if isinstance(one.event, BudgetWarning)
    }
    limits = played.begun.policy.budgets
    for name in (*COUNTED, "cost_usd") if not played.extended else ():
        limit = getattr(limits, name)
        for before, later in pairwise(played.moments):
            was, now = getattr(before.state.spent, name), getattr(later.state.spent, name)
            passed = [share for share in limits.warn_at if limit is not None and was < share * limit <= now]
            assert {(name, share) for share in passed} <= warned


def every_decision_is_written_once_and_in_order(played: Played) -> None:
    """S-46: also of generations that never began, and of turns that are stopped."""
    assert [one.key for one in played.log] == list(played.decided)
    assert played.log == list(played.decided.values())
    assert [one.step for one in played.log] == sorted(one.step for one in played.log)
    heard = [one.key for _, action, _ in answers(played) for one in action.decided]
    assert len(heard) == len(set(heard)), "what an answered generation has written is not carried on"


def of_all_reactions_the_first_in_priority_counts(played: Played) -> None:
    """S-36: Finish before Fail before a retry before Continue; of one kind the first in the agent's order."""
    for moment in played.moments:
        if not isinstance(moment.came, HookResults) or moment.came.refused is not None or not moment.came.reactions:
            continue
        known = {one.key for one in moment.state.decided}
        steps = [one.event for one in moment.later.decided if one.key not in known]
        (won,) = [one for one in steps if isinstance(one, ReactStep)]
        wanted = [_rank(played, one.hook, one.reaction) for one in moment.came.reactions]
        assert _rank(played, won.hook_name, won.reaction) <= min(wanted)
        assert won.hook_name not in FUNCTIONS or (won.hook_name, won.reaction) in [
            (one.hook, one.reaction) for one in moment.came.reactions
        ]
    rules = [hook for hook in played.begun.policy.hooks if isinstance(hook, HookRule)]
    for won in [one.event for one in played.decided.values() if isinstance(one.event, ReactStep)]:
        ranks = [_rank(played, rule.name, rule.reaction) for rule in rules if _is_sure(rule, won)]
        assert _rank(played, won.hook_name, won.reaction) <= min(ranks, default=(9, 9))


def _is_sure(hook: HookRule, won: ReactStep) -> bool:
    """Whether the rule's reaction was wanted at this boundary without fail."""
    limited = hook.tool is not None or hook.when is not None or hook.times is not None
    return not limited and _ALWAYS.get(won.boundary) in hook.events


def _rank(played: Played, hook: str, reaction: AnyReaction) -> tuple[int, int]:
    kind = "retry" if reaction.type.startswith("retry") else reaction.type
    return _ORDER.index(kind), [one.name for one in played.begun.policy.hooks].index(hook)


def a_hook_that_fails_ends_the_turn(played: Played) -> None:
    """S-37."""
    if any(isinstance(one.action, RunHooks) and isinstance(one.came, Failed) for one in played.moments):
        assert (played.commit.stop_reason, played.commit.error) == (StopReason.ERROR, HOOK_FAILED)


def calls_in_answers_keep_to_max_tool_turns(played: Played) -> None:
    """S-71."""
    most, used = played.begun.policy.max_tool_turns, sum(bool(answer.calls) for _, _, answer in answers(played))
    assert most is None or used <= most
    if played.commit.error is not None and played.commit.error.code == "tool.max_turns_exhausted":
        assert used == most


def the_work_is_not_done_while_todos_are_open(played: Played) -> None:
    """S-39."""
    calls = planned(played)
    for moment, outcome in _failed(played):
        call = calls[outcome.call_id]
        if call.tool == "attempt_completion" and outcome.error is None and outcome.preview == "finished":
            assert all(todo.completed for todo in moment.state.todos)


def answers_outside_the_schema_are_corrected_so_often_and_no_more(played: Played) -> None:
    """S-72: then the turn ends with what was wrong."""
    wrong = [answer for _, _, answer in answers(played) if answer.rejected is not None]
    assert len(wrong) <= played.begun.policy.output_corrections + 1 or played.begun.policy.hooks


def every_message_is_read_once(played: Played) -> None:
    """S-59: by a generation of this turn, or by the next turn."""
    read = [message.request_id for _, action, _ in answers(played) for message in action.steered]
    left = [message.request_id for message in (*played.commit.steered, *played.mail.queued)]
    assert [*read, *(one for one in left if one in played.sent)] == played.sent


def models_are_fallen_back_on_in_order(played: Played) -> None:
    """S-32: each once."""
    models = [played.begun.policy.model, *(one.model for one in played.begun.policy.fallbacks)]
    fallen = [one.event for one in played.decided.values() if isinstance(one.event, ModelFallback)]
    assert [(one.failed, one.model) for one in fallen] == list(pairwise(models))[: len(fallen)]
    for moment in played.moments:
        if isinstance(moment.action, Generate | Compact):
            assert models[moment.action.fallback] == moment.state.policy.model


def a_rotation_changes_nothing(played: Played) -> None:
    """S-46 S-80: what another run is given is all that a turn knows."""
    for before, later in played.rotations:
        assert before == later


INVARIANTS: tuple[Callable[[Played], None], ...] = (
    every_call_has_exactly_one_result_before_the_next_answer,
    every_answer_reads_the_results_of_the_one_before_it,
    no_call_runs_twice_and_none_that_nobody_approved,
    tools_come_before_delegates_and_delegates_before_people,
    nothing_begins_after_the_end,
    the_stop_record_names_its_cause,
    no_limit_is_passed,
    every_share_of_a_budget_that_is_passed_is_warned_of,
    every_decision_is_written_once_and_in_order,
    of_all_reactions_the_first_in_priority_counts,
    a_hook_that_fails_ends_the_turn,
    calls_in_answers_keep_to_max_tool_turns,
    the_work_is_not_done_while_todos_are_open,
    answers_outside_the_schema_are_corrected_so_often_and_no_more,
    every_message_is_read_once,
    models_are_fallen_back_on_in_order,
    a_rotation_changes_nothing,
)
