"""Every name that reaches a history, a query or a dashboard, written once.

Renaming anything here breaks running jobs or other people's dashboards: add, never change.
"""

from enum import StrEnum

AGENT_TURN = "AgentTurn"
"""The workflow type: one run is one turn of an agent (or a part of it, when a long turn rotates)."""

NOTIFY = "Notify"
"""The workflow type of one delivery of a webhook."""

KNOCK = "Knock"
"""The workflow type of a schedule's message to a session."""

SWEEP = "SweepRetention"
"""The workflow type of a sweep of what is old."""

NEXUS_DOOR = "nexus"
"""The door of a worker, for workflows of other namespaces."""

DOORS = ("a2a", "agui", "chat", "responses", NEXUS_DOOR)
"""The doors that ``PERDURE_DOORS`` may name; those of the gateway have the names of its modules."""

A2A_CAPABILITIES = ("streaming", "push", "extended-card")
"""Capabilities of A2A that ``PERDURE_A2A_CAPABILITIES`` may name."""

NEXUS_SERVICE = "perdure"
"""The Nexus service. Its operations are ``start``, and ``send``, ``cancel``, ``answer``, ``approve``, ``deny`` and
``submit_result`` as the updates of these names; their input has the session beside the update's own."""

SCHEDULE_MEMO = "perdure_schedule"
"""Memo of a schedule, with its tenant, and of what it starts, with what was asked for."""

DEFAULT_TASK_QUEUE = "perdure"
"""The task queue when ``PERDURE_TASK_QUEUE`` is not set."""

ENTRY_POINT_GROUP = "perdure.agents"
"""Installed packages offer modules with agents under this entry-point group."""


class Activity(StrEnum):
    """Our own activity types. A tool may not take one of these names."""

    OPEN_TURN = "open_turn"
    GENERATE = "generate"
    COMPACT = "compact"
    RUN_HOOKS = "run_hooks"
    ASK = "ask"
    COLLECT_DELEGATES = "collect_delegates"
    COMMIT_TURN = "commit_turn"
    CLOSE_AS_CANCELED = "close_as_canceled"
    FIND_PARENT = "find_parent"
    DELIVER_WEBHOOK = "deliver_webhook"
    SEND_SCHEDULED = "send_scheduled"
    SWEEP_RETENTION = "sweep_retention"


TURN_CANCELLED = "the turn was cancelled, and its workflow closes as Canceled"
"""Reason of a Temporal cancel that a turn has requested of its own workflow."""

RESULT_MEMO = "perdure_result"
"""Memo of a workflow that closes as Canceled: its result, which such a close cannot hold."""


class Signal(StrEnum):
    """Signals of ``AgentTurn``."""

    CANCEL = "cancel"


class Update(StrEnum):
    """Updates of ``AgentTurn``."""

    SEND = "send"
    ANSWER = "answer"
    APPROVE = "approve"
    DENY = "deny"
    SUBMIT_RESULT = "submit_result"
    EXTEND = "extend"
    CANCEL = "cancel"
    PAUSE = "pause"
    UNPAUSE = "unpause"


class Query(StrEnum):
    """Queries of ``AgentTurn``."""

    STATUS = "status"
    BUDGET = "budget"


class SearchAttribute(StrEnum):
    """Search attributes; keywords unless :data:`SEARCH_ATTRIBUTE_TYPES` says otherwise."""

    AGENT = "PerdureAgent"
    MODEL = "PerdureModel"
    STOP_REASON = "PerdureStopReason"
    REASON_CODE = "PerdureReasonCode"
    EXCEPTION = "PerdureException"
    TENANT = "PerdureTenant"
    STATE = "PerdureState"
    STEPS = "PerdureSteps"
    TOKENS = "PerdureTokens"
    COST_USD = "PerdureCostUsd"


SEARCH_ATTRIBUTE_TYPES: dict[SearchAttribute, str] = {
    attribute: {
        SearchAttribute.STEPS: "Int",
        SearchAttribute.TOKENS: "Int",
        SearchAttribute.COST_USD: "Double",
    }.get(attribute, "Keyword")
    for attribute in SearchAttribute
}
"""Temporal's type name of each search attribute, as ``--search-attribute NAME=TYPE`` takes it."""


class Metric(StrEnum):
    """Prometheus metrics of a worker, beside the Temporal SDK's own; docs/metrics.md has what each says."""

    BUILD_INFO = "perdure_build_info"
    TURNS_STARTED = "perdure_turns_started_total"
    TURNS_ENDED = "perdure_turns_ended_total"
    TURNS_REFUSED = "perdure_turns_refused_total"
    TURN_SECONDS = "perdure_turn_seconds"
    TURNS_RUNNING = "perdure_turns_running"
    TURNS_QUEUED = "perdure_turns_queued"
    TURNS_WAITING_FOR_SLOT = "perdure_turns_waiting_for_slot"
    OLDEST_TURN_SECONDS = "perdure_oldest_turn_seconds"
    OLDEST_QUEUED_SECONDS = "perdure_oldest_queued_seconds"
    TURNS_WITHOUT_VERSION = "perdure_turns_without_version"
    TURNS_FAILING = "perdure_turns_failing"
    ERRANDS_FAILED = "perdure_errands_failed"
    SWEEPS_MISSING = "perdure_sweeps_missing"
    STEPS = "perdure_steps_total"
    GENERATION_SECONDS = "perdure_generation_seconds"
    GENERATION_RETRIES = "perdure_generation_retries_total"
    GENERATION_FAILURES = "perdure_generation_failures_total"
    UNUSABLE_STREAMS = "perdure_unusable_streams_total"
    FALLBACKS = "perdure_fallbacks_total"
    COMPACTIONS = "perdure_compactions_total"
    CALLS_WAITING = "perdure_model_calls_waiting"
    CALLS_PER_SECOND = "perdure_model_calls_per_second"
    TOKENS = "perdure_tokens_total"
    COST_USD = "perdure_cost_usd_total"
    UNPRICED_CALLS = "perdure_unpriced_calls_total"
    BUDGET_WARNINGS = "perdure_budget_warnings_total"
    TOOL_CALLS = "perdure_tool_calls_total"
    TOOL_SECONDS = "perdure_tool_seconds"
    TOOLS_ABANDONED = "perdure_tools_abandoned_total"
    HOOK_CALLS = "perdure_hook_calls_total"
    DELEGATES = "perdure_delegates_total"
    MCP_SERVER_UP = "perdure_mcp_server_up"
    MCP_CALL_SECONDS = "perdure_mcp_call_seconds"
    MCP_RECONNECTS = "perdure_mcp_reconnects_total"
    RECOVERIES = "perdure_recoveries_total"
    CANCEL_SECONDS = "perdure_cancel_seconds"
    HISTORY_BYTES = "perdure_history_bytes"
    STORE_SECONDS = "perdure_store_seconds"
    STORE_REFUSALS = "perdure_store_refusals_total"
    STORE_BYTES = "perdure_store_bytes"
    CODEC_FAILURES = "perdure_codec_failures_total"
    INPUT_REQUESTS = "perdure_input_requests_total"
    WAITING_FOR_INPUT = "perdure_waiting_for_input"
    WAITING_SECONDS = "perdure_waiting_for_input_seconds"


class GatewayMetric(StrEnum):
    """Prometheus metrics of a gateway."""

    REQUESTS = "perdure_http_requests_total"
    SECONDS = "perdure_http_seconds"
    STREAMS = "perdure_http_streams"
    FILE_READS = "perdure_http_token_reads_total"
