"""Counts the events of the event log: each once, when it is committed, in the process that wrote it.

An event has a key, so a replay, a retry that finds what is stored, and a second attempt neither write nor count it.
The sums over all workers are those of the log, less what a killed worker counted after its last scrape.
"""

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Literal

from perdure.activities.telling.metrics import OTHER, Metrics
from perdure.contracts.budgets import Paid, Usage
from perdure.contracts.errors import REASONS, ErrorDetail, ReasonCode
from perdure.contracts.events import (
    AgentEnd,
    AgentStart,
    CompactionEvent,
    DelegateEnd,
    Event,
    GenerationEnd,
    GenerationError,
    GenerationRetry,
    HookEnd,
    ToolEnd,
    ToolError,
    ToolRecovery,
    UserInputReceived,
    UserInputRequired,
)
from perdure.contracts.hooks import BudgetWarning, ModelFallback
from perdure.store.records import Written

UNKNOWN = "(unknown)"
"""Label of tools that models make up, and of a model that the event does not name. No tool can have this name."""

Purpose = Literal["generation", "compaction", "failed", "lost"]
"""Purpose of paid tokens and dollars: an answer, a summary, a failed try, or an answer that no turn has."""

Count = Callable[[Written, Any], None]
"""Counts one line of the log, given the line and its event."""


class LogCounters:
    """Counters of one worker over the events that it writes."""

    def __init__(self, metrics: Metrics, *, replays: bool = False) -> None:
        """Count in these metrics; with ``replays`` only turns, as such a worker pays for nothing and runs no tool."""
        self._metrics = metrics
        self._counted: Mapping[type[Event], Count] = self._of_turns() | ({} if replays else self._of_work())

    def _of_turns(self) -> dict[type[Event], Count]:
        return {
            AgentStart: self._turn_started,
            AgentEnd: self._turn_ended,
            GenerationEnd: self._step,
            UserInputRequired: self._asked,
            UserInputReceived: self._decided,
            BudgetWarning: self._budget_warning,
            DelegateEnd: self._delegate,
            HookEnd: self._hook,
        }

    def _of_work(self) -> dict[type[Event], Count]:
        return {
            GenerationEnd: self._generation,
            GenerationRetry: self._retry,
            GenerationError: self._failure,
            CompactionEvent: self._compaction,
            ModelFallback: self._fallback,
            ToolEnd: self._tool_end,
            ToolError: self._tool_error,
            ToolRecovery: self._recovery,
        }

    def count(self, written: Sequence[Written]) -> None:
        """Count events that were just committed to the log."""
        for line in written:
            count = self._counted.get(type(line.event))
            if count is not None:
                count(line, line.event)

    def _turn_started(self, line: Written, _: AgentStart) -> None:
        metrics = self._metrics
        metrics.turns_started.labels(metrics.agent(line.agent), metrics.tenant(line.tenant)).inc()

    def _turn_ended(self, line: Written, event: AgentEnd) -> None:
        metrics = self._metrics
        labels = (metrics.agent(line.agent), event.stop_reason, event.reason_code or "", metrics.tenant(line.tenant))
        metrics.turns_ended.labels(*labels).inc()

    def _step(self, line: Written, _: GenerationEnd) -> None:
        self._metrics.steps.labels(self._metrics.agent(line.agent)).inc()

    def _generation(self, line: Written, event: GenerationEnd) -> None:
        self._step(line, event)
        if not event.recorded:  # a recorded answer cost nothing
            self._paid(line, event.model, "generation", event.usage, event.cost_usd)

    def _retry(self, line: Written, event: GenerationRetry) -> None:
        model = self._model(event.model)
        self._metrics.generation_retries.labels(model, event.code).inc()
        self._paid(line, event.model, "failed", event.usage, event.cost_usd)

    def _failure(self, line: Written, event: GenerationError) -> None:
        if event.error.code == ReasonCode.RUNTIME_ABORTED:  # a cancel or the time budget, no failure of the model
            return
        self._metrics.generation_failures.labels(self._model(event.model), event.error.code).inc()
        self._paid(line, event.model, "failed", event.usage, event.cost_usd)

    def _compaction(self, line: Written, event: CompactionEvent) -> None:
        if event.compaction_status == "started":
            return
        agent = self._metrics.agent(line.agent)
        self._metrics.compactions.labels(agent, event.compaction_status).inc()
        if event.compaction_status == "completed":
            self._paid(line, event.model, "compaction", event.usage, event.cost_usd)
        elif event.compaction_status == "failed":
            self._paid(line, event.model, "failed", event.usage, event.cost_usd or Decimal(0))

    def _fallback(self, _: Written, event: ModelFallback) -> None:
        self._metrics.fallbacks.labels(self._model(event.failed), self._model(event.model)).inc()

    def _tool_end(self, _: Written, event: ToolEnd) -> None:
        if not event.recorded:
            self._tool(event.tool, event.error)

    def _tool_error(self, _: Written, event: ToolError) -> None:
        self._tool(event.tool, event.error)

    def _tool(self, tool: str, error: ErrorDetail | None) -> None:
        if error is None:
            self._metrics.tool_calls.labels(tool, "ok").inc()
            return
        name = UNKNOWN if error.code == ReasonCode.TOOL_UNKNOWN else tool
        self._metrics.tool_calls.labels(name, error.code if error.code in REASONS else OTHER).inc()

    def _recovery(self, _: Written, event: ToolRecovery) -> None:
        if not event.stopped:  # a drain cut the call off, and no worker was lost
            self._metrics.note_recovery("tool")

    def _asked(self, _: Written, event: UserInputRequired) -> None:
        self._metrics.input_requests.labels(event.needs, "asked").inc()

    def _decided(self, _: Written, event: UserInputReceived) -> None:
        decision = event.decision
        need = {"answered": "answer", "returned": "result", "failed": "result"}.get(decision, "approval")
        self._metrics.input_requests.labels(need, "standing" if event.standing else decision).inc()

    def _budget_warning(self, _: Written, event: BudgetWarning) -> None:
        self._metrics.budget_warnings.labels(event.dimension).inc()

    def _delegate(self, _: Written, event: DelegateEnd) -> None:
        self._metrics.delegates.labels(self._metrics.agent(event.agent), event.stop_reason).inc()

    def _hook(self, line: Written, event: HookEnd) -> None:
        outcome = "error" if event.error else "none" if event.reaction is None else event.reaction.type
        self._metrics.hook_calls.labels(self._metrics.agent(line.agent), event.hook, outcome).inc()

    def _model(self, name: str) -> str:
        return self._metrics.model(name or UNKNOWN)

    def _paid(self, line: Written, model: str, purpose: Purpose, usage: Usage, cost_usd: Decimal | None) -> None:
        paid = Paid(usage=usage, cost_usd=cost_usd or Decimal(0))
        count_paid(self._metrics, model, purpose, paid, agent=line.agent, tenant=line.tenant)
        if cost_usd is None:
            self._metrics.unpriced_calls.labels(self._model(model)).inc()


def count_paid(metrics: Metrics, model: str, purpose: Purpose, paid: Paid, *, agent: str, tenant: str) -> None:
    """Count the tokens and dollars of a call, if there are any."""
    usage = paid.usage
    if usage.total_tokens == 0 and not paid.cost_usd:
        return
    model, agent, tenant = metrics.model(model or UNKNOWN), metrics.agent(agent), metrics.tenant(tenant)
    for kind, tokens in (
        ("input", usage.input_tokens),
        ("output", usage.output_tokens),
        ("cached", usage.cached_tokens),
    ):
        metrics.tokens.labels(model, kind, purpose, agent, tenant).inc(tokens)
    metrics.cost_usd.labels(model, purpose, agent, tenant).inc(float(paid.cost_usd))
