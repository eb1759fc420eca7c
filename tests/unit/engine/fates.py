"""What a script has models, tools and delegates come to; each within what it was given."""

from decimal import Decimal

from perdure.contracts.agents import TurnPolicy
from perdure.contracts.budgets import Paid, Spent, Usage
from perdure.contracts.conditions import text_conditions
from perdure.contracts.errors import ErrorDetail
from perdure.contracts.generations import CUT_OFF, Compact, Compacted, Generate, Generation
from perdure.contracts.tools import DelegateReport, ToolOutcome
from perdure.contracts.turns import StopReason, TurnResult
from perdure.engine import calls as engine_calls
from perdure.engine import limits
from perdure.engine.calls import CallTools
from perdure.engine.delegates import StartDelegate
from perdure.engine.generation import Failed
from tests.unit.engine.scripts import Script, calls

ANSWERS = (
    *("text", *["calls"] * 80, *["text"] * 6, "told", "told", *["wrong"] * 6),
    *("empty", "llm.rate_limited", "llm.rate_limited", "llm.request_error", "overflow"),
)
"""What a model comes to: calls, a text, a failure of which it is told, a text outside the schema, or a failure."""


def answer(script: Script, action: Generate, policy: TurnPolicy, begun: tuple[str, ...]) -> Generation | Failed:
    """An answer or a failure, which costs at most what is left; ``begun`` are the sessions that a model may name."""
    kind = script.of(*ANSWERS)
    kind = "text" if action.text_only and kind == "calls" else kind
    paid = _paid(script, action.cost_left)
    left = None if action.cost_left is None else action.cost_left - paid.cost_usd
    codes = {"empty": "llm.empty_response", "overflow": "llm.context_overflow"}
    if kind in codes or kind.startswith("llm."):
        return Failed(ErrorDetail(code=codes.get(kind, kind), title="generation", message="no"), paid)
    if kind == "told":
        told = {"finish_reason": "error", "retry_seconds": 1.0, "cost_usd": Decimal(0)}
        return Generation(tip=f"t{action.step}", failed=paid, **told)  # type: ignore[arg-type]
    cost: Decimal | None = script.of(Decimal("0.05"), None, Decimal("0.3"), Decimal(0))
    cut = cost is not None and left is not None and cost > left
    if cut and script.of(True, False):
        return Failed(limits.exhausted_error("cost_usd", "the next call could cost more"), paid)
    conditions = text_conditions(policy.conditions)
    is_wrong = kind == "wrong" and action.text_only is False
    wrong = ErrorDetail(code="llm.schema_violation", title="generation", message="no JSON")
    return Generation(
        tip=f"t{action.step}",
        preview=script.of("text", "") if kind == "calls" else "text",
        calls=calls(script, action.step, 4, begun) if kind == "calls" else (),
        finish_reason=CUT_OFF if cut else "",
        usage=Usage(input_tokens=script.of(10, 0, 120), output_tokens=script.of(0, 3)),
        cost_usd=left if cut else cost,
        rejected=wrong if is_wrong and not cut else None,
        matched=script.some(range(len(conditions))),
        failed=paid,
    )


def _paid(script: Script, left: Decimal | None) -> Paid:
    """What tries of a call have cost that failed."""
    cost = script.often(Decimal(0), Decimal("0.02"), Decimal("0.2"))
    return Paid(usage=Usage(input_tokens=3), cost_usd=cost if left is None else min(cost, left)) if cost else Paid()


def summary(script: Script, action: Compact) -> Compacted | Failed:
    """A summary, nothing to summarise, or a failure."""
    paid = _paid(script, action.cost_left)
    cost: Decimal | None = script.of(Decimal("0.01"), None)
    too_much = action.cost_left is not None and (cost or 0) > action.cost_left - paid.cost_usd
    outcome: Compacted | Failed = Compacted(
        tip=f"c{action.step}/{action.fallback}",
        summarised=4,
        usage=Usage(input_tokens=7),
        cost_usd=cost,
        failed=paid,
    )
    kind = "budget" if too_much else script.of("written", "written", "nothing", "failed")
    if kind == "nothing":
        outcome = Compacted(tip=action.parent, reason="too short", failed=paid)
    elif kind != "written":
        error = ErrorDetail(code="llm.rate_limited", title="generation", message="no")
        outcome = Failed(limits.exhausted_error("cost_usd", "too much") if too_much else error, paid)
    return outcome


def results(script: Script, action: CallTools, policy: TurnPolicy) -> tuple[list[ToolOutcome], ErrorDetail | None]:
    """What the tools come to, and the failure that ends the turn, if one does."""
    outcomes: list[ToolOutcome] = []
    aborted: ErrorDetail | None = None
    conditions = text_conditions(policy.conditions)
    for call in action.calls:
        fate = script.of(*["ok"] * 60, *["caught"] * 6, "lost", "abort", "stop")
        error = ErrorDetail(code="tool.execution_error", title="work", message=fate)
        matched = script.some(range(len(conditions)))
        outcome = ToolOutcome(call_id=call.call_id, preview=fate, matched=matched)
        if fate in {"lost", "abort"}:
            outcome, aborted = engine_calls.failed_outcome(call.call_id, error), error if fate == "abort" else aborted
        elif fate == "caught":
            outcome = outcome.model_copy(update={"error": error})
        elif fate == "stop":
            outcome = outcome.model_copy(update={"stop": "enough"})
        outcomes.append(outcome)
    return outcomes, aborted


def collected(script: Script, call_id: str) -> ToolOutcome:
    """What the model reads of delegates that it has waited for, or why that could not be written."""
    error = ErrorDetail(code="tool.delegate_failed", title="await_delegate", message="no")
    fate = script.often("helped", "none finished", "unwritten")
    if fate == "unwritten":
        return engine_calls.failed_outcome(call_id, error)
    return ToolOutcome(call_id=call_id, preview=fate, error=None if fate == "helped" else error)


def delegate(script: Script, start: StartDelegate) -> TurnResult | ErrorDetail:
    """A delegate's turn, which uses up to all of its share."""
    kind = script.of("finished", "finished", "error", "cancelled", "lost", "refused")
    if kind == "lost":
        return ErrorDetail(code="tool.delegate_failed", title="delegate", message="was terminated")
    share, most = start.request.budgets, start.request.max_steps or 1
    assert share is not None

    def some(limit: int | None) -> int:
        return min(script.of(0, 1, 2, 9), 3 if limit is None else limit)

    steps, cost = min(some(share.llm_calls), most), script.of(Decimal(0), Decimal("0.1"), None)
    events = steps if share.events is None else min(steps, share.events)
    spent = Spent(
        usage=Usage(input_tokens=5 * steps),
        cost_usd=(share.cost_usd or Decimal(2)) if cost is None else min(cost, share.cost_usd or cost),
        llm_calls=min(steps, events),
        events=events,
        tool_calls=some(share.tool_calls),
        behavior_calls=some(share.behavior_calls),
        patches=some(share.patches),
        delegated_steps=min(script.of(0, 1), most - steps),
    )
    result = TurnResult(session=start.session, turn=None, agent="h", stop_reason=StopReason.ERROR, error="no")
    if kind == "refused":
        return result
    report = DelegateReport(spent=spent)
    changes = {"turn": 1, "stop_reason": StopReason(kind), "steps": steps, "report": report}
    return result.model_copy(update=changes)
