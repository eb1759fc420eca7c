"""What makes each metric of docs/metrics.md move: in the fleet of ``test_alerts.py``, or in which test."""

from collections.abc import Mapping

from perdure.contracts.names import GatewayMetric, Metric

MOVES: Mapping[str, str] = {
    **dict.fromkeys((Metric.BUILD_INFO, Metric.STORE_SECONDS, Metric.STORE_BYTES), "a worker that runs"),
    **dict.fromkeys((Metric.TURNS_STARTED, Metric.TURNS_ENDED, Metric.TURN_SECONDS, Metric.STEPS), "a turn"),
    **dict.fromkeys((Metric.GENERATION_SECONDS, Metric.TOKENS, Metric.COST_USD, Metric.HISTORY_BYTES), "a turn"),
    **dict.fromkeys((Metric.TOOL_CALLS, Metric.TOOL_SECONDS, Metric.HOOK_CALLS), "a tool with a hook at its end"),
    **dict.fromkeys((Metric.TURNS_RUNNING, Metric.OLDEST_TURN_SECONDS), "a storm"),
    **dict.fromkeys((Metric.TURNS_QUEUED, Metric.OLDEST_QUEUED_SECONDS), "a turn whose MCP server hangs"),
    **dict.fromkeys((Metric.INPUT_REQUESTS, Metric.WAITING_FOR_INPUT, Metric.WAITING_SECONDS), "a question"),
    Metric.TURNS_REFUSED: "a request of an agent that there is not",
    Metric.TURNS_WAITING_FOR_SLOT: "a second turn of an agent that may have one",
    Metric.GENERATION_RETRIES: "a provider that answers 500",
    Metric.GENERATION_FAILURES: "a used-up account",
    Metric.FALLBACKS: "a model that is away, with another in its place",
    Metric.COMPACTIONS: "a summary that is asked for",
    Metric.CALLS_PER_SECOND: "a provider that answers 429",
    Metric.UNPRICED_CALLS: "a model without a price",
    Metric.BUDGET_WARNINGS: "half of a budget of calls",
    Metric.TOOLS_ABANDONED: "a tool that hears nothing",
    Metric.DELEGATES: "a delegate",
    Metric.MCP_SERVER_UP: "an MCP server that answers, and one that ends",
    Metric.MCP_CALL_SECONDS: "a tool of an MCP server",
    Metric.RECOVERIES: "a killed worker",
    Metric.CANCEL_SECONDS: "a cancel",
    **dict.fromkeys((GatewayMetric.REQUESTS, GatewayMetric.SECONDS), "a request"),
}
"""What makes each metric move in this fleet."""

MOVED_ELSEWHERE: Mapping[str, tuple[str, str]] = {
    Metric.TURNS_FAILING: ("tests/wild/test_failing_turns.py", ".failing == 1"),
    Metric.TURNS_WITHOUT_VERSION: ("tests/workflow/test_waits.py", ".without_version == turns"),
    Metric.ERRANDS_FAILED: ("tests/wild/test_lost_errands.py", "figures.failed_errands =="),
    Metric.SWEEPS_MISSING: ("tests/wild/test_lost_errands.py", "figures.sweeps_missing =="),
    Metric.CALLS_WAITING: ("tests/workflow/test_pace.py", '"perdure_model_calls_waiting") == 1'),
    Metric.STORE_REFUSALS: ("tests/faults/test_store_refusals.py", '"perdure_store_refusals_total"'),
    Metric.CODEC_FAILURES: ("tests/workflow/test_gateway_codec.py", "perdure_codec_failures_total{"),
    GatewayMetric.STREAMS: ("tests/wild/test_revoked_tokens.py", "perdure_http_streams"),
    Metric.MCP_RECONNECTS: ("tests/workflow/test_metrics_of_breaks.py", '"perdure_mcp_reconnects_total"'),
    Metric.UNUSABLE_STREAMS: ("tests/workflow/test_metrics_of_breaks.py", '"perdure_unusable_streams_total"'),
    GatewayMetric.FILE_READS: ("tests/wild/test_revoked_tokens.py", "perdure_http_token_reads_total"),
}
"""Where the others move: a test, and its words that say so."""
