"""Trace contexts and ids as values, and which variables turn tracing on: nothing here exports a span."""

from datetime import UTC, datetime

import pytest

from perdure.contracts.generations import Generate
from perdure.contracts.sends import QueuedMessage, SendRequest
from perdure.contracts.traces import (
    flags_of,
    read_traceparent,
    span_below,
    span_id_of,
    tool_span_of,
    trace_id_of,
    trace_turn,
    with_flags,
)
from perdure.contracts.turns import TurnRequest
from perdure.engine.messages import request_of
from perdure.tracing import TracingError, is_on

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CALLER = f"00-{TRACE}-{SPAN}-01"
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("header", "read"),
    [
        (CALLER, CALLER),
        (f" {CALLER} ", CALLER),
        (f"cc-{TRACE}-{SPAN}-01-more", CALLER),
        (f"00-{TRACE}-{SPAN}-01-more", None),
        (f"ff-{TRACE}-{SPAN}-01", None),
        (f"00-{'0' * 32}-{SPAN}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (CALLER.upper(), None),
        ("", None),
    ],
)
def test_a_header_is_read_as_w3c_asks(header: str, read: str | None) -> None:
    assert read_traceparent(header) == read


def test_the_same_turn_has_the_same_ids_and_any_other_has_others() -> None:
    def ids(*identity: str, caller: str = "") -> str:
        return trace_turn(caller, *identity, began_at=NOW).span

    assert ids("store", "s", "r") == ids("store", "s", "r")
    made = [
        ids("store", "s", "r"),
        ids("store", "s", "r2"),
        ids("other", "s", "r"),
        ids("store", "s", "r", caller=CALLER),
    ]
    assert len({trace_id_of(one) for one in made}) == len({span_id_of(one) for one in made}) == 4
    below = trace_turn(CALLER, "store", "s", "r", began_at=NOW)
    assert (below.trace_id, below.parent) == (TRACE, SPAN)


def test_spans_below_a_turn_are_in_its_trace_and_keep_its_flags() -> None:
    turn = trace_turn(with_flags(CALLER, sampled=False), "store", "s", "r", began_at=NOW).span
    chat = span_below(turn, "chat", "1")
    assert (trace_id_of(chat), flags_of(chat)) == (TRACE, 0)
    assert tool_span_of(turn, "c1") == tool_span_of(turn, "c1") != tool_span_of(turn, "c2")
    assert tool_span_of(with_flags(turn, sampled=True), "c1")[:52] == tool_span_of(turn, "c1")[:52]
    assert tool_span_of("", "c1") == ""


def test_a_request_without_a_caller_is_written_as_it_was_before_traces() -> None:
    """A step's id is made of the messages that its call reads: were it another one, the call would be paid twice."""
    assert "traceparent" not in TurnRequest(agent="a", prompt="go").model_dump_json()
    request = Generate(session="s", turn=1, step=1, parent="p", definition="d", steered=(SendRequest(prompt="x"),))
    assert "trace" not in SendRequest(prompt="x").model_dump_json()
    assert request.step_id() == request.model_copy(update={"trace": CALLER}).step_id()
    assert request.step_id() == "3cd5ad446d3db26997a84cce28381048"


def test_a_message_that_waited_begins_its_turn_in_its_senders_trace() -> None:
    assert request_of(QueuedMessage(prompt="x", traceparent=CALLER)).traceparent == CALLER


@pytest.mark.parametrize(
    ("variables", "on"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://c/v1/traces"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_SDK_DISABLED": "true"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_TRACES_EXPORTER": "none"}, False),
    ],
)
def test_an_endpoint_turns_tracing_on(variables: dict[str, str], *, on: bool) -> None:
    assert is_on(variables) is on


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "OTEL_EXPORTER_OTLP_PROTOCOL=grpc: perdure exports spans over http"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/json: "),
        ("OTEL_TRACES_EXPORTER", "console", "OTEL_TRACES_EXPORTER=console: perdure exports spans as otlp only"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318", "OTEL_EXPORTER_OTLP_ENDPOINT='collector:4318' is no address"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_fix(variable: str, value: str, said: str) -> None:
    with pytest.raises(TracingError, match=said):
        is_on({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", variable: value})
