"""What an operator sees of a turn in the Temporal UI: search attributes, summaries, current details.

An upsert costs an event, so it happens at the start and at the end of a turn only; current details cost none.
"""

from typing import Any

from temporalio import workflow
from temporalio.common import SearchAttributeKey, SearchAttributeUpdate

from perdure.contracts.generations import Generate
from perdure.contracts.names import SearchAttribute
from perdure.contracts.turns import RunState, TurnResult
from perdure.engine import step as engine
from perdure.engine.state import TurnState
from workflows.inbox import Inbox

SUMMARY_CHARACTERS = 120
"""Longest summary of an activity: it is shown in one row."""

AGENT = SearchAttributeKey.for_keyword(SearchAttribute.AGENT)
MODEL = SearchAttributeKey.for_keyword(SearchAttribute.MODEL)
STOP_REASON = SearchAttributeKey.for_keyword(SearchAttribute.STOP_REASON)
REASON_CODE = SearchAttributeKey.for_keyword(SearchAttribute.REASON_CODE)
TENANT = SearchAttributeKey.for_keyword(SearchAttribute.TENANT)
STATE = SearchAttributeKey.for_keyword(SearchAttribute.STATE)
STEPS = SearchAttributeKey.for_int(SearchAttribute.STEPS)
TOKENS = SearchAttributeKey.for_int(SearchAttribute.TOKENS)
COST_USD = SearchAttributeKey.for_float(SearchAttribute.COST_USD)


def started(state: TurnState) -> None:
    """A turn begins; what the turn before left behind is unset."""
    if not state.search_attributes:
        return
    known = workflow.info().typed_search_attributes
    updates: list[SearchAttributeUpdate[Any]] = [
        AGENT.value_set(state.policy.agent),
        MODEL.value_set(state.policy.model),
        STATE.value_set(RunState.RUNNING),
    ]
    if state.tenant:
        updates.append(TENANT.value_set(state.tenant))
    updates.extend(key.value_unset() for key in (STOP_REASON, REASON_CODE) if known.get(key) is not None)
    if known.get(COST_USD) is not None:
        updates.append(COST_USD.value_unset())
    workflow.upsert_search_attributes(updates)


def ended(state: TurnState, result: TurnResult) -> None:
    """The turn has ended; its result becomes searchable."""
    workflow.set_current_details(_details(state, f"ended: **{result.stop_reason}**", result.error))
    if not state.search_attributes:
        return
    updates: list[SearchAttributeUpdate[Any]] = [
        STATE.value_set(RunState.ENDED),
        STOP_REASON.value_set(result.stop_reason),
        STEPS.value_set(result.steps),
        TOKENS.value_set(result.usage.total_tokens),
    ]
    # A sum of unknown prices is no cost of zero.
    if result.cost_usd or not result.unpriced_calls:
        updates.append(COST_USD.value_set(float(result.cost_usd)))
    if result.reason_code:
        updates.append(REASON_CODE.value_set(result.reason_code))
    workflow.upsert_search_attributes(updates)


def generation_summary(state: TurnState, action: Generate) -> str:
    """The summary of a ``generate`` activity."""
    return f"step {action.step} · {state.policy.model}"[:SUMMARY_CHARACTERS]


def now_doing(inbox: Inbox, action: engine.Action) -> None:
    """Say what the turn does now, in the status query and in the current details."""
    state = inbox.state
    if state is None:
        return
    if isinstance(action, engine.CallTools):
        inbox.activity = "tools: " + ", ".join(planned.tool for planned in state.pending)
    elif isinstance(action, Generate):
        inbox.activity = f"generate, step {action.step}"
    workflow.set_current_details(_details(state, inbox.activity, None))


def _details(state: TurnState, doing: str, error: str | None) -> str:
    """Markdown for the workflow's page."""
    policy, spent = state.policy, state.spent
    rows = [
        f"**{policy.agent}** · turn {state.turn} · {policy.model}",
        "",
        f"- now: {doing}",
        f"- steps: {state.step} of {policy.max_steps}",
        f"- tokens: {spent.usage.total_tokens:,} · cost: ${spent.cost_usd:.4f}"
        + (f" ({spent.unpriced_calls} calls of unknown price)" if spent.unpriced_calls else ""),
    ]
    if error:
        rows.append(f"- error: {error}")
    return "\n".join(rows)
