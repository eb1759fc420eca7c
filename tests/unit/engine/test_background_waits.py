"""A caller beside its delegates in the background: what it may not do yet waits for them, and nothing else ends it."""

from dataclasses import replace
from decimal import Decimal

from perdure.contracts.budgets import Budgets, ExtendRequest, Spent
from perdure.contracts.errors import ErrorDetail
from perdure.contracts.generations import Compact, Generate
from perdure.contracts.hooks import HookDeclaration, HookResults, Retry, RunHooks
from perdure.contracts.tools import ToolOutcome
from perdure.contracts.turns import CommitTurn
from perdure.engine import calls, delegates, hooks
from perdure.engine.delegates import AwaitDelegates
from perdure.engine.limits import extend, waits_for_grants
from perdure.engine.state import Request, TurnState
from perdure.engine.turn import Story
from perdure.engine.world import Action
from tests.unit.engine.asked import Asked, Silent, next_action, run_now
from tests.unit.engine.opening import NOW, compacted, failed, ran
from tests.unit.engine.test_background import MAIL, answered, begun, beside, end_of, following, look, opened, wait

POOR = ErrorDetail(code="budget.cost_exhausted", title="generation", message="too little is left")
FULL = ErrorDetail(code="llm.context_overflow", title="generation", message="too long")


def ended(state: TurnState) -> TurnState:
    """The state after its only delegate has ended without using anything."""
    (one,) = state.running
    return delegates.mark_ended(state, one.session, end_of(one.session, Spent(), 1))


WATCH = HookDeclaration(name="watch", reference="m:watch", on=("step_end",))


class Refuses(Silent):
    """A world whose hooks find that too little is left for the second call, the first time."""

    def __init__(self) -> None:
        super().__init__(MAIL, NOW, stopped=False)
        self.asked: list[RunHooks] = []
        self.waited: list[AwaitDelegates] = []

    async def run_hooks(self, action: RunHooks) -> HookResults:
        self.asked.append(action)
        return HookResults(calls=1, refused="watch") if len(self.asked) == 1 else HookResults(calls=2)

    async def await_delegates(self, action: AwaitDelegates) -> None:
        self.waited.append(action)
        self.story.state = ended(self.story.state)

    def play(self, state: TurnState) -> Action | CommitTurn:
        self.story = Story(state, self, "calls")
        try:
            return run_now(self.story)
        except Asked as asked:
            return asked.action


def test_a_hook_beyond_what_is_left_beside_grants_waits_for_one_to_end() -> None:
    """S-64 S-70: it ends no turn that has not spent its budget; a call that was made counts once."""
    state = begun(answered(opened(hooks=[WATCH], budgets=Budgets(behavior_calls=3)), beside))
    world = Refuses()
    assert isinstance(world.play(state), Generate)
    (waited,) = world.waited
    assert not waited.ends
    assert [asked.left for asked in world.asked] == [1, 2]
    assert world.story.state.spent.behavior_calls == 3


def test_a_hook_beyond_what_is_left_without_grants_ends_the_turn() -> None:
    """S-70: as in a turn that has no delegates."""
    state = ended(begun(answered(opened(hooks=[WATCH], budgets=Budgets(behavior_calls=1)), beside)))
    action = Refuses().play(state)
    assert isinstance(action, CommitTurn)
    assert action.stop_reason == "budget_exhausted"


def test_a_summary_that_is_not_affordable_beside_grants_waits_for_one_to_end() -> None:
    """S-64 S-70: where the conversation is too long, it is written when the share is there again."""
    state = begun(answered(opened(budgets=Budgets(cost_usd=Decimal(1)), compaction={}), beside))
    state = failed(state, FULL)
    assert isinstance(following(state)[1], Compact)
    state, action = following(compacted(state, POOR))
    assert isinstance(action, AwaitDelegates)
    assert not action.ends
    assert isinstance(following(ended(state))[1], Compact)


def test_a_caller_that_is_given_more_no_longer_waits_for_what_comes_back() -> None:
    """S-64 S-70: for model calls, and for a model call that was not affordable."""
    state = begun(answered(opened(budgets=Budgets(llm_calls=3)), beside))
    state = answered(state, look)
    state = ran(state, ToolOutcome(call_id="2/0"))
    assert waits_for_grants(state)
    assert not waits_for_grants(extend(state, ExtendRequest(llm_calls=9), NOW))
    poor = failed(begun(answered(opened(budgets=Budgets(cost_usd=Decimal(1))), beside)), POOR)
    assert waits_for_grants(poor)
    given = extend(poor, ExtendRequest(cost_usd=Decimal(9)), NOW)
    assert not waits_for_grants(given)
    assert isinstance(following(given)[1], Generate)


def test_an_answer_that_is_taken_back_has_read_no_results() -> None:
    """S-64: when it waits once more for all, it waits for the same ones."""
    state = ended(begun(answered(opened(), beside)))
    state = answered(state, wait())
    action = next_action(state, MAIL)
    assert isinstance(action, AwaitDelegates)
    state = calls.with_awaited(state, action, ToolOutcome(call_id="2/0", preview="helped"))
    state = replace(state, hooks=replace(state.hooks, request=Request(parent="t1")))
    state, goes_on = hooks.apply_reaction(state, "step", "watch", Retry())
    assert not goes_on
    again = next_action(answered(state, wait()), MAIL)
    assert isinstance(again, AwaitDelegates)
    assert (again.sessions, again.refused) == (action.sessions, None)
