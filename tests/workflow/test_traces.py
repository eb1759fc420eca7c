"""Spans in a collector of OTLP: one job is one trace, whatever carries it out, and tracing harms no job."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import httpx
import pytest

from perdure import Agent, RetryPolicy, ask_user
from perdure.activities.telling.traces import Traces
from perdure.contracts.traces import SCHEMA
from perdure.contracts.values import JsonValue
from perdure.local_ports import find_free_port
from perdure.testing import Script, ScriptedProvider, call, faults, say
from perdure.tracing import Tracing
from tests.collector import Collector, Span
from tests.forked import forked
from tests.gateway import gateway
from tests.house import WAIT_SECONDS, House, eventually
from tests.workflow.delegating import DONE, asks, in_order, played
from tests.workflow.killing import has_lines, lines_of
from tests.workflow.test_gateway_process import answers

pytestmark = pytest.mark.deep

AGENTS = "tests.workflow.agents_that_trace"
TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{CALLER}-01"
AGENT = Agent(name="plain", model="openai/scripted", tools=[ask_user])
SECRET = "a phrase that stays in the transcript"


@pytest.fixture
def collector(house: House) -> Iterator[Collector]:
    """A collector to which workers that start from now on export."""
    with Collector().running() as running:
        house.environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", running.url)
        yield running


def children_of(spans: list[Span], parent: Span) -> list[str]:
    """The names of the spans below one, in order of their beginnings."""
    return [span.name for span in sorted(spans, key=lambda span: span.began) if span.parent == parent.id]


def assert_it_hangs_together(spans: list[Span]) -> None:
    """Each span has its parent, and lies within it; none came twice."""
    known = {span.id: span for span in spans}
    assert len(known) == len(spans)
    for span in spans:
        assert span.ended >= span.began > 0, span
        if span.parent != CALLER and span.parent:
            assert span.parent in known, span
            above = known[span.parent]
            slack = 50_000_000  # the clocks of two processes, and a beginning that a store has rounded
            assert above.began - slack <= span.began <= span.ended <= above.ended + slack, (span, above)


async def test_a_job_with_a_delegate_and_an_mcp_call_is_one_trace_below_its_caller(
    house: House, collector: Collector
) -> None:
    journal = house.folder / "journal"
    house.environment.setenv("MCP_JOURNAL", str(journal))
    house.environment.setenv("PEER_KEY", "sk-0123456789abcdef")
    uses: list[tuple[str, JsonValue]] = [("peer__echo", {"text": SECRET}), ("note_down", {"text": SECRET})]
    flaky = say("first").after(faults.status(503))
    answers = played(
        tester=in_order(call(*uses), asks(f"help with {SECRET}"), DONE),
        helper=in_order(call(("peer__echo", {"text": SECRET})), flaky),
    )
    async with ScriptedProvider(answers) as provider, gateway(house) as door:
        house.use(provider)
        worker = house.spawn_worker(AGENTS)
        await worker.polling()
        body = {"agent": "tester", "prompt": SECRET, "session": house.session}
        started = await door.http.post("/v1/sessions", json=body, headers={"traceparent": TRACEPARENT})
        assert started.status_code == 202, started.text
        result = await (await house.client.attach(house.session, 1)).result()
        assert result.stop_reason == "finished", result
        assert await worker.stop() == 0
        shown = (await door.http.get(f"/v1/sessions/{house.session}/turns/1")).json()
    spans = [span for span in collector.spans if "tools/call" in span.name or not span.name.startswith("MCP")]
    assert {span.trace for span in collector.spans} == {TRACE} == {shown["trace_id"]}
    assert {span.service for span in spans} == {"perdure-worker"}
    assert_it_hangs_together(collector.spans)
    (turn,) = collector.named("invoke_agent tester")
    assert (turn.parent, turn.kind, turn.is_error) == (CALLER, "internal", False)
    assert turn.attributes["gen_ai.conversation.id"] == house.session
    assert (turn.attributes["perdure.stop_reason"], turn.attributes["perdure.steps"]) == ("finished", 3)
    assert turn.attributes["gen_ai.usage.input_tokens"] == result.usage.input_tokens
    assert [name for name in children_of(spans, turn) if name.startswith("chat")] == ["chat scripted"] * 3
    (delegated,) = collector.named("execute_tool helper")
    (child,) = collector.named("invoke_agent helper")
    assert (delegated.parent, child.parent) == (turn.id, delegated.id)
    tools = collector.named("execute_tool peer__echo")
    assert {span.parent for span in tools} == {turn.id, child.id}
    assert {span.attributes["gen_ai.tool.type"] for span in tools} == {"extension"}
    sent = [span for span in spans if span.scope == "mcp-python-sdk"]
    assert {(span.parent, span.kind) for span in sent} == {(tool.id, "client") for tool in tools}
    heard = [line.split()[1].split("-") for line in journal.read_text().splitlines() if line.startswith("traceparent")]
    assert {(trace, span) for _, trace, span, _ in heard} == {(TRACE, span.id) for span in sent}
    failed, answered = sorted(
        (
            span
            for span in spans
            if span.name.startswith("chat") and span.parent == child.id and span.attributes["perdure.step"] == 2
        ),
        key=lambda span: span.began,
    )
    assert (failed.is_error, failed.attributes["error.type"]) == (True, "llm.network_error")
    assert (answered.kind, answered.attributes["gen_ai.response.finish_reasons"]) == ("client", ["stop"])
    assert answered.attributes["server.address"] == "127.0.0.1"
    assert (answered.attributes["gen_ai.response.model"], answered.attributes["gen_ai.response.id"] != "") == (
        "scripted",
        True,
    )
    assert {span.attributes["gen_ai.tool.description"] for span in tools} == {"does echo"}
    assert {span.schema for span in spans if span.scope == "perdure"} == {SCHEMA}
    assert not [body for body in collector.bodies if SECRET.encode() in body]
    lines = [json.loads(line) for line in worker.log.read_text().splitlines() if line.startswith("{")]
    (noted,) = [line for line in lines if line["logger"] == "notes"]
    (note,) = collector.named("execute_tool note_down")
    assert (noted["trace_id"], noted["span_id"]) == (TRACE, note.id)


async def test_a_gateway_has_a_span_of_each_request_that_acts_and_the_turn_hangs_below_it(
    house: House, collector: Collector
) -> None:
    tracing = Tracing("perdure-gateway", str, as_global=False)
    async with (
        ScriptedProvider(Script(replies=(say("one"),))) as provider,
        house.worker(AGENT, traces=Traces(tracing)),
        gateway(house, tracing=tracing) as door,
    ):
        house.use(provider)
        body = {"agent": "plain", "prompt": "go", "session": house.session}
        headers = {"traceparent": TRACEPARENT}
        started = await door.http.post("/v1/sessions", json=body, headers=headers)
        assert (await (await house.client.attach(house.session, 1)).result()).stop_reason == "finished"
        read = await door.http.get(f"/v1/sessions/{house.session}", headers=headers)
        await asyncio.to_thread(tracing.close)
    (request,) = [span for span in collector.spans if span.kind == "server"]
    (turn,) = collector.named("invoke_agent")
    assert (request.name, request.parent, request.trace) == ("POST /v1/sessions", CALLER, TRACE)
    assert (request.attributes["http.route"], request.attributes["http.response.status_code"]) == ("/v1/sessions", 202)
    assert (turn.parent, turn.trace) == (request.id, TRACE)
    assert started.headers["traceresponse"] == f"00-{TRACE}-{request.id}-01"
    assert "traceresponse" not in read.headers


async def test_a_gateway_of_its_own_process_sends_its_spans_and_hands_the_callers_trace_to_the_turn(
    house: House, collector: Collector
) -> None:
    url = f"http://127.0.0.1:{(port := find_free_port())}"
    log = house.folder / "gateway.log"
    process = forked("perdure.cli", ("gateway", "--address", f"127.0.0.1:{port}"), dict(os.environ), log)
    house.processes.append(process)
    tracing = Tracing("perdure-worker", str, as_global=False)
    async with (
        ScriptedProvider(Script(replies=(say("one"),))) as provider,
        house.worker(AGENT, traces=Traces(tracing)),
        httpx.AsyncClient(base_url=url, timeout=60) as http,
    ):
        house.use(provider)
        await eventually(lambda: answers(http))
        body = {"agent": "plain", "prompt": "go", "session": house.session}
        started = await http.post("/v1/sessions", json=body, headers={"traceparent": TRACEPARENT})
        assert started.status_code == 202, log.read_text()
        assert (await (await house.client.attach(house.session, 1)).result()).stop_reason == "finished"
        await asyncio.to_thread(tracing.close)
    process.send_signal(signal.SIGTERM)  # which sends what is left
    assert await asyncio.to_thread(process.wait, WAIT_SECONDS) == 0, log.read_text()
    (request,) = [span for span in collector.spans if span.kind == "server"]
    (turn,) = collector.named("invoke_agent")
    assert (request.service, turn.service) == ("perdure-gateway", "perdure-worker")
    assert (request.name, request.parent, request.trace) == ("POST /v1/sessions", CALLER, TRACE)
    assert (turn.parent, turn.trace) == (request.id, TRACE)
    assert started.headers["traceresponse"] == f"00-{TRACE}-{request.id}-01"


async def test_a_model_call_that_waited_for_a_limited_key_has_a_span_of_the_wait(
    house: House, collector: Collector
) -> None:
    tracing = Tracing("perdure-worker", str, as_global=False)
    patient = Agent(name="plain", model="openai/scripted", retry=RetryPolicy(max_retries=3, jitter=timedelta(0)))
    refused = say("one").after(faults.rate_limited(headers={"retry-after": "2"}))
    async with (
        ScriptedProvider(Script(replies=(refused, say("two")))) as provider,
        house.worker(patient, traces=Traces(tracing)),
    ):
        house.use(provider)
        await house.client.start("plain", "go", session=house.session)
        await house.wait_for_event("generation_retry")
        turn = await house.client.start("plain", "go", traceparent=TRACEPARENT)
        assert (await turn.result()).stop_reason == "finished"
        await (await house.client.attach(house.session, 1)).result()
        await asyncio.to_thread(tracing.close)
    spans = [span for span in collector.spans if span.trace == TRACE]
    assert_it_hangs_together(spans)
    (told,) = [span for span in spans if span.name == "invoke_agent plain"]
    (wait,) = [span for span in spans if span.name.startswith("wait_for_limit")]
    assert (wait.name, wait.parent, wait.trace, wait.kind) == ("wait_for_limit openai", told.id, TRACE, "internal")
    assert wait.seconds > 0.1
    assert wait.attributes["perdure.calls_ahead"] >= 0


async def test_a_call_that_a_stopping_worker_hands_over_has_a_span_of_the_attempt_below_the_calls(
    house: House, collector: Collector
) -> None:
    lines = lines_of(house)
    uses = call(("note_down", {"text": "x"}))
    async with ScriptedProvider(Script(replies=(uses, say("done")))) as provider:
        house.use(provider)
        first = house.spawn_worker(AGENTS, HOLD="1", PERDURE_SHUTDOWN_GRACE="0.2")
        await first.polling()
        turn = await house.client.start("tester", "go", session=house.session, traceparent=TRACEPARENT)
        await has_lines(lines, 1)
        second = house.spawn_worker(AGENTS)
        await second.polling()
        assert await first.stop() == 0
        async with asyncio.timeout(WAIT_SECONDS):
            assert (await turn.result()).stop_reason == "finished"
        assert await second.stop() == 0
    assert_it_hangs_together(collector.spans)
    (tool,) = collector.named("execute_tool note_down")
    (attempt,) = collector.named("attempt")
    assert (attempt.parent, attempt.kind, attempt.is_error) == (tool.id, "internal", True)
    assert attempt.attributes["error.type"] == "runtime.worker_shutdown"
    assert attempt.attributes["perdure.attempt"] == 1


async def test_a_wait_for_a_person_is_a_span(house: House, collector: Collector) -> None:
    tracing = Tracing("perdure-worker", str, as_global=False)
    asking = call(("ask_user", {"question": "which?"}))
    async with (
        ScriptedProvider(Script(replies=(asking, say("one")))) as provider,
        house.worker(AGENT, traces=Traces(tracing)),
    ):
        house.use(provider)
        turn = await house.client.start("plain", "go", session=house.session)
        (asked,) = await house.wait_for_event("user_input_required")
        await house.client.answer(house.session, asked["request_id"], "this one", by="ann")
        await turn.result()
        await asyncio.to_thread(tracing.close)
    (wait,) = collector.named("ask ask_user")
    (told,) = collector.named("invoke_agent")
    assert (wait.parent, wait.attributes["perdure.decision"]) == (told.id, "answered")
    assert told.began < wait.began < wait.ended < told.ended


async def test_what_a_server_says_and_what_is_secret_stays_out_of_spans(house: House, collector: Collector) -> None:
    tracing = Tracing("perdure-worker", lambda text: text.replace("sk-0123456789", "***"), as_global=False)
    provider: Any = tracing._provider
    with pytest.raises(RuntimeError), provider.get_tracer("mcp-python-sdk").start_as_current_span("MCP send x"):
        raise RuntimeError(SECRET)
    with (
        pytest.raises(RuntimeError),
        provider.get_tracer("a tool's").start_as_current_span("sk-0123456789", attributes={"key": ["sk-0123456789"]}),
    ):
        raise RuntimeError("sk-0123456789")
    tracing.close()
    sent = b"".join(collector.bodies)
    assert len(collector.spans) == 2
    assert b"sk-0123456789" not in sent
    assert SECRET.encode() not in sent


async def test_a_worker_that_is_killed_in_a_tool_leaves_one_span_of_it(house: House, collector: Collector) -> None:
    lines = lines_of(house)
    uses = call(("note_down", {"text": "x"}))
    async with ScriptedProvider(Script(replies=(uses, say("done")))) as provider:
        house.use(provider)
        first = house.spawn_worker(AGENTS, HOLD="1")
        await first.polling()
        turn = await house.client.start("tester", "go", session=house.session, traceparent=TRACEPARENT)
        await has_lines(lines, 1)
        await collector.wait_for("chat")
        first.kill()
        second = house.spawn_worker(AGENTS)
        await second.polling()
        async with asyncio.timeout(WAIT_SECONDS):
            assert (await turn.result()).stop_reason == "finished"
        assert await second.stop() == 0
    assert_it_hangs_together(collector.spans)
    (tool,) = collector.named("execute_tool note_down")
    assert [name for name, _ in tool.events] == ["attempt_lost"]
    assert tool.seconds > 1  # from the attempt that was lost
    assert sorted(span.name for span in collector.spans if not span.name.startswith("MCP")) == [
        "chat scripted",
        "chat scripted",
        "execute_tool note_down",
        "invoke_agent tester",
    ]


async def test_turns_without_a_caller_have_traces_of_their_own_and_a_link_to_the_one_before(
    house: House, collector: Collector
) -> None:
    async with ScriptedProvider(Script(replies=(say("one"), say("two")))) as provider:
        house.use(provider)
        worker = house.spawn_worker(AGENTS)
        await worker.polling()
        await (await house.client.start("tester", "go", session=house.session)).result()
        await (await house.client.send(house.session, "again")).result()
        await worker.stop()
    first, second = sorted(collector.named("invoke_agent"), key=lambda span: span.began)
    assert (first.parent, second.parent, first.links, second.links) == ("", "", (), (first.id,))
    assert first.trace != second.trace
    assert await house.store.traces(house.session, [1, 2]) == {1: first.trace, 2: second.trace}


async def test_an_unsampled_caller_has_no_span(house: House, collector: Collector) -> None:
    async with ScriptedProvider(Script(replies=(say("one"), say("two")))) as provider:
        house.use(provider)
        worker = house.spawn_worker(AGENTS)
        await worker.polling()
        unsampled = f"{TRACEPARENT[:-2]}00"
        await (await house.client.start("tester", "go", session=house.session, traceparent=unsampled)).result()
        await (await house.client.send(house.session, "again")).result()
        await worker.stop()
    assert [span.attributes["perdure.turn"] for span in collector.named("invoke_agent")] == [2]


async def test_a_collector_that_is_away_costs_no_job_and_one_line(house: House) -> None:
    house.environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    house.environment.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    uses = call(("note_down", {"text": "x"}))
    async with ScriptedProvider(Script(replies=(uses, say("done")))) as provider:
        house.use(provider)
        worker = house.spawn_worker(AGENTS)
        await worker.polling()
        result = await (await house.client.start("tester", "go", session=house.session)).result()
        assert result.stop_reason == "finished"

        async def said() -> bool:
            return "spans cannot be exported" in worker.log.read_text()

        await eventually(said)
        await (await house.client.send(house.session, "again")).result()
        assert await worker.stop() == 0
    assert worker.log.read_text().count("spans cannot be exported") == 1
    assert "opentelemetry" not in worker.log.read_text()


async def test_a_worker_that_drains_does_not_wait_for_a_collector_that_hangs(house: House) -> None:
    house.environment.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "600")
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, and answers nothing
        house.environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        async with ScriptedProvider(Script(replies=(say("done"),))) as provider:
            house.use(provider)
            worker = house.spawn_worker(AGENTS)
            await worker.polling()
            result = await (await house.client.start("tester", "go", session=house.session)).result()
            assert result.stop_reason == "finished"
            assert await worker.stop() == 0
    assert worker.log.read_text().count("the last spans could not be exported within 3 s") == 1


async def test_a_turn_that_is_refused_has_a_span_with_the_reason(house: House, collector: Collector) -> None:
    tracing = Tracing("perdure-worker", str, as_global=False)
    async with house.worker(AGENT, traces=Traces(tracing)):
        result = await house.run("nobody", traceparent=TRACEPARENT)
        await asyncio.to_thread(tracing.close)
    (refused,) = collector.spans
    assert (refused.name, refused.parent, refused.is_error) == ("invoke_agent nobody", CALLER, True)
    assert refused.attributes["error.type"] == result["reason_code"]


async def test_a_traceparent_that_is_none_is_refused_in_one_line(house: House) -> None:
    with pytest.raises(Exception, match="traceparent: is no W3C trace context; write 00-"):
        await house.client.start("tester", "go", session=house.session, traceparent="nonsense")


def test_without_an_endpoint_nothing_of_the_sdk_is_imported() -> None:
    code = (
        "import sys, perdure.worker.app, perdure.gateway.app; from perdure.tracing import Tracing\n"
        "assert Tracing.started('x', str) is None\n"
        "print([name for name in sys.modules if name.startswith(('opentelemetry.sdk', 'opentelemetry.exporter'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
