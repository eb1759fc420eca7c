"""Which model goes on with a turn when the one at work has failed for good: the next in the agent's order, if it helps.

The choice holds for the rest of the turn. Retries, their time, and the compaction of a step begin anew with it.
"""

from perdure.contracts.agents import ModelPolicy
from perdure.contracts.errors import ErrorDetail
from perdure.contracts.hooks import ModelFallback
from perdure.contracts.retries import HELPED, UNKNOWN_MODEL
from perdure.engine.state import TurnState


def fallen_back(state: TurnState, error: ErrorDetail) -> TurnState | None:
    """The state with the next model at work; None if there is none, or it is not for this failure."""
    if not state.policy.fallbacks or not _helps(state.policy.fallbacks[0], error):
        return None
    policy = state.policy.fallen_back()
    event = ModelFallback(failed=state.policy.model, code=error.code, model=policy.model)
    changes: dict[str, object] = {
        "policy": policy,
        "fallback": state.fallback + 1,
        "failures_in_row": 0,
        "compacted_step": min(state.compacted_step, state.step),
    }
    return state.model_copy(update=changes).with_decided(event)


def _helps(model: ModelPolicy, error: ErrorDetail) -> bool:
    return error.code in HELPED or (error.code, error.type) == UNKNOWN_MODEL or error.code in model.also_on
