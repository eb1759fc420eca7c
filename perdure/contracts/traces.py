"""Traces: the W3C trace context of a turn, the ids of its spans, and the names that spans carry.

Ids are hashes of what a span stands for, so that the same thing told twice is the same span. The names are those of
OpenTelemetry's GenAI conventions as of 2026, which are in development: they are written here and nowhere else.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, Field

from perdure.contracts.values import Value

SAMPLED = 1
"""The flag of a trace context that says that somebody keeps the trace."""

_TRACEPARENT = re.compile(
    r"(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})(?P<rest>-.*)?"
)


def read_traceparent(text: str) -> str | None:
    """The trace context of a ``traceparent`` header as version 00 writes it; None if it is none.

    A later version is read by what it has in common with this one, as W3C asks.
    """
    found = _TRACEPARENT.fullmatch(text.strip())
    if found is None or found["version"] == "ff" or (found["version"] == "00" and found["rest"]):
        return None
    if not int(found["trace"], 16) or not int(found["span"], 16):
        return None
    return f"00-{found['trace']}-{found['span']}-{found['flags']}"


def _check(text: str) -> str:
    read = read_traceparent(text) if text else ""
    if read is None:
        msg = "is no W3C trace context; write 00-<32 hexadecimal digits>-<16 hexadecimal digits>-01, or leave it out"
        raise ValueError(msg)
    return read


def _is_empty(text: object) -> bool:
    return not text


Traceparent = Annotated[str, Field(max_length=200, exclude_if=_is_empty), AfterValidator(_check)]
"""A caller's W3C trace context, under which a turn's spans hang; empty without one, and then it leaves no trace."""


class TurnTrace(Value):
    """Place of a turn in its trace. It is frozen when the turn opens.

    Attributes:
        span: The trace context of the turn's own span, which its other spans hang under.
        began_at: When Temporal began with the turn: its time until a worker opens it is part of the span.
        parent: The id of the span that the turn hangs under; empty if the turn is the root of its trace.
        previous: The trace context of the session's turn before, if that was traced; a link leads there.
    """

    span: str
    began_at: datetime
    parent: str = ""
    previous: str = ""

    @property
    def trace_id(self) -> str:
        """The id of the trace: 32 hexadecimal digits."""
        return trace_id_of(self.span)


def trace_turn(caller: str, *identity: str, began_at: datetime, previous: str = "") -> TurnTrace:
    """The trace of a turn: its caller's, or one of its own.

    Args:
        caller: The caller's trace context, if there is one.
        identity: What names the turn and no other: store, session, request.
        began_at: As in :class:`TurnTrace`.
        previous: The trace context of the turn before.
    """
    trace, flags = (trace_id_of(caller), flags_of(caller)) if caller else (_digest("trace", identity)[:32], SAMPLED)
    span = _digest("turn", (trace, *identity))[:16]
    context = f"00-{trace}-{span}-{flags:02x}"
    return TurnTrace(span=context, began_at=began_at, parent=span_id_of(caller), previous=previous)


def span_below(traceparent: str, *what: str) -> str:
    """The trace context of a span below a turn's: of this kind, and of this thing."""
    return f"00-{trace_id_of(traceparent)}-{_digest(traceparent[:52], what)[:16]}-{traceparent[-2:]}"


def tool_span_of(traceparent: str, call_id: str) -> str:
    """The trace context of the span of a tool call: one for the call, however many attempts it takes."""
    return span_below(traceparent, Operation.EXECUTE_TOOL, call_id) if traceparent else ""


def trace_id_of(traceparent: str) -> str:
    """The id of the trace; empty without one."""
    return traceparent[3:35]


def span_id_of(traceparent: str) -> str:
    """The id of the span; empty without one."""
    return traceparent[36:52]


def flags_of(traceparent: str) -> int:
    """The flags; 0 without a trace context."""
    return int(traceparent[53:55] or "0", 16)


def with_flags(traceparent: str, *, sampled: bool) -> str:
    """The same context, with the decision whether the trace is kept."""
    flags = flags_of(traceparent) | SAMPLED if sampled else flags_of(traceparent) & ~SAMPLED
    return f"{traceparent[:53]}{flags:02x}"


def _digest(kind: str, parts: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps([kind, *parts]).encode()).hexdigest()


class Operation(StrEnum):
    """``gen_ai.operation.name``, with which the names of spans begin."""

    INVOKE_AGENT = "invoke_agent"
    CHAT = "chat"
    EXECUTE_TOOL = "execute_tool"


class OurSpan(StrEnum):
    """Names of spans that the conventions do not know."""

    ASK = "ask"
    """A wait for a person, from the question to the reply."""
    WAIT_FOR_LIMIT = "wait_for_limit"
    """A model call's wait for its turn at a key that the provider limits."""
    ATTEMPT_LOST = "attempt_lost"
    """An event of a tool's span: a worker was lost while it ran the body."""
    ATTEMPT = "attempt"
    """An attempt at a tool call that was handed over to another worker."""


SCHEMA = "https://opentelemetry.io/schemas/1.44.0"
"""The schema whose names these are."""


class SpanAttribute(StrEnum):
    """Attributes of spans: GenAI's and OpenTelemetry's own, then ours."""

    OPERATION = "gen_ai.operation.name"
    PROVIDER = "gen_ai.provider.name"
    AGENT = "gen_ai.agent.name"
    AGENT_VERSION = "gen_ai.agent.version"
    CONVERSATION = "gen_ai.conversation.id"
    REQUEST_MODEL = "gen_ai.request.model"
    REQUEST_STREAM = "gen_ai.request.stream"
    RESPONSE_ID = "gen_ai.response.id"
    RESPONSE_MODEL = "gen_ai.response.model"
    FINISH_REASONS = "gen_ai.response.finish_reasons"
    INPUT_TOKENS = "gen_ai.usage.input_tokens"
    OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
    CACHE_READ_TOKENS = "gen_ai.usage.cache_read.input_tokens"
    TOOL = "gen_ai.tool.name"
    TOOL_DESCRIPTION = "gen_ai.tool.description"
    TOOL_TYPE = "gen_ai.tool.type"
    CALL_ID = "gen_ai.tool.call.id"
    SERVER_ADDRESS = "server.address"
    ERROR_TYPE = "error.type"
    HTTP_METHOD = "http.request.method"
    HTTP_ROUTE = "http.route"
    HTTP_STATUS = "http.response.status_code"
    TURN = "perdure.turn"
    STEP = "perdure.step"
    STEPS = "perdure.steps"
    STOP_REASON = "perdure.stop_reason"
    TENANT = "perdure.tenant"
    COST_USD = "perdure.cost_usd"
    USAGE_ESTIMATED = "perdure.usage_estimated"
    ATTEMPT = "perdure.attempt"
    COMPACTION = "perdure.compaction"
    RECORDED = "perdure.recorded"
    SERVER = "perdure.mcp.server"
    DELEGATE = "perdure.delegate"
    BACKGROUND = "perdure.background"
    DECISION = "perdure.decision"
    RECOVERY = "perdure.recovery"
    CALLS_AHEAD = "perdure.calls_ahead"


PROVIDERS = {
    "azure": "azure.ai.openai",
    "azure_ai": "azure.ai.inference",
    "bedrock": "aws.bedrock",
    "cohere": "cohere",
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
    "vertex_ai": "gcp.vertex_ai",
    "watsonx": "ibm.watsonx.ai",
    "xai": "x_ai",
}
"""``gen_ai.provider.name`` of litellm's providers, where the two differ; any other keeps its name."""
