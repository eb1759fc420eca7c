"""Logs are JSON without secrets; metrics are one page of ours and the SDK's."""

import dataclasses
import json
import logging
import socket
import urllib.error
import urllib.request
from asyncio import create_task, to_thread, wrap_future
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from perdure import Tool, tool
from perdure.activities.telling.metrics import Metrics
from perdure.activities.telling.store_gauges import Figures, McpCollector, Queued, StoreCollector
from perdure.activities.toolbox.runner import CallContext, masked
from perdure.contracts.errors import ErrorDetail
from perdure.contracts.names import Metric
from perdure.lanes.bodies import Bodies
from perdure.store import StoreUnavailableError
from perdure.store.records import OpenTurns
from perdure.worker.telemetry import (
    AddressError,
    Health,
    JsonFormatter,
    SdkMetrics,
    bind,
    metrics_page,
    registry,
    serve_pages,
    shorten,
)


def record(message: str, error: BaseException | None = None) -> logging.LogRecord:
    exc_info = (type(error), error, error.__traceback__) if error else None
    return logging.LogRecord("temporalio.activity", logging.WARNING, "x.py", 1, message, (), exc_info)


def test_a_log_line_is_json_and_holds_no_secret() -> None:
    """S-52: neither the value of a known variable nor the shape of a key reaches the log, also not in a traceback."""
    formatter = JsonFormatter(frozenset({"hunter2-hunter2"}))
    line = json.loads(formatter.format(record("with hunter2-hunter2", ValueError("sk-abcd1234efgh5678"))))
    assert line["message"] == "with ***"
    assert "sk-abc" not in line["exception"]


def test_what_comes_beside_the_message_holds_no_secret_either() -> None:
    """S-52: told by its name, as in arguments, or by its value."""
    line = record("hello")
    extra = {"api_key": "abc", "url": "https://me:pa55word@host", "calls": [{"token": "hunter2-hunter2"}], "count": 3}
    vars(line).update(extra)
    told = json.loads(JsonFormatter(frozenset({"hunter2-hunter2"})).format(line))
    assert (told["api_key"], told["url"], told["count"]) == ("***", "https://me:***@host", 3)
    assert "hunter2" not in told["calls"]


def test_a_line_that_a_tool_writes_names_the_session_and_the_tool() -> None:
    """Of whichever logger; a line of the worker itself names none."""
    environment = ActivityEnvironment()
    environment.info = dataclasses.replace(environment.info, workflow_id="job-1", activity_type="look")
    line = json.loads(environment.run(JsonFormatter(frozenset()).format, record("hello")))
    assert (line["workflow"], line["activity"]) == ("job-1", "look")
    assert not {"workflow", "activity"} & json.loads(JsonFormatter(frozenset()).format(record("hello"))).keys()


async def test_what_a_tool_logs_is_without_the_arguments_that_are_masked() -> None:
    """S-52: sync or async, in the very call; not in another one."""
    formatter, bodies = JsonFormatter(frozenset()), Bodies(1)
    context = CallContext(session="job", turn=1, call_id="c1", idempotency_key="job/1/c1")

    @tool
    def blocking(password: str) -> str:
        return formatter.format(record(f"with {password}"))

    @tool
    async def quick(password: str) -> str:
        return formatter.format(record(f"with {password}"))

    async def called(body: Tool[..., Any], hidden: frozenset[str]) -> str:
        masked.set(hidden)
        return str(await wrap_future(bodies.start(body, {"password": "s3cret"}, context).future))

    try:
        bodies_of_both: tuple[Tool[..., Any], ...] = (blocking, quick)
        for body in bodies_of_both:
            assert '"with ***"' in await create_task(called(body, frozenset({"s3cret"})))
            assert '"with s3cret"' in await create_task(called(body, frozenset()))
    finally:
        bodies.close()


def test_a_failure_that_has_a_reason_code_is_one_sentence_without_a_traceback() -> None:
    """S-69: a surprise is called by its class, and keeps its traceback."""
    known = record("Completing activity as failed", ApplicationError("it broke", type="llm.timeout"))
    shorten(known)
    line = json.loads(JsonFormatter(frozenset()).format(known))
    assert "exception" not in line
    assert (line["message"], line["reason_code"]) == ("llm.timeout: it broke", "llm.timeout")

    detail = ErrorDetail(code="tool.execution_error", title="pay", message="no", exception="exception.KeyError")
    of_a_tool = record("Completing activity as failed", ApplicationError("no", detail, type=detail.code))
    shorten(of_a_tool)
    line = json.loads(JsonFormatter(frozenset()).format(of_a_tool))
    assert (line["reason_code"], line["exception_code"]) == ("tool.execution_error", "exception.KeyError")

    unknown = record("Completing activity as failed", KeyError("surprise"))
    shorten(unknown)
    line = json.loads(JsonFormatter(frozenset()).format(unknown))
    assert "surprise" in line["exception"]
    assert line["reason_code"] == "exception.KeyError"


async def fetch(url: str) -> tuple[int, str]:
    def get() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(url, timeout=60) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    return await to_thread(get)


async def quiet() -> Figures:
    """Nothing runs, and visibility was not asked."""
    return Figures(OpenTurns(), None, {"file": 4096})


async def test_while_the_store_is_away_the_page_is_there_without_what_only_the_store_knows() -> None:
    """Absent and not zero: an alert must not go out for that."""

    async def away() -> Figures:
        raise StoreUnavailableError("the store is away")

    own = registry()
    Metrics(own)
    own.register(collector := StoreCollector(quiet))
    page = (await to_thread(generate_latest, own)).decode()
    for name in (Metric.WAITING_FOR_INPUT, Metric.TURNS_RUNNING, Metric.OLDEST_TURN_SECONDS):
        assert f"\n{name} 0.0\n" in page
    assert f'{Metric.STORE_BYTES}{{table="file"}} 4096.0' in page
    assert Metric.TURNS_QUEUED not in page
    own.unregister(collector)
    own.register(StoreCollector(away))
    page = (await to_thread(generate_latest, own)).decode()
    assert Metric.STEPS.removesuffix("_total") in page
    for name in (Metric.WAITING_FOR_INPUT, Metric.TURNS_RUNNING, Metric.OLDEST_TURN_SECONDS, Metric.STORE_BYTES):
        assert name not in page


async def busy() -> Figures:
    """Everything there is to say."""
    return Figures(OpenTurns(), Queued(), {"file": 4096}, {"clerk": 1}, 0, 1, {"sweep": 1}, 2.5)


async def test_probes_tell_alive_from_ready_and_metrics_parse_as_one_page() -> None:
    own, sdk, health = registry(), SdkMetrics(), Health()
    Metrics(own)
    own.register(StoreCollector(busy))
    own.register(McpCollector(lambda: [("files", True), ("search", False), ("files", True)]))
    listener = bind("127.0.0.1:0")
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    async with serve_pages(listener, health, lambda: metrics_page(own, sdk)):
        assert await fetch(f"{url}/healthz") == (200, "ok\n")
        assert await fetch(f"{url}/readyz") == (503, "starting\n")
        health.ready = True
        assert await fetch(f"{url}/readyz") == (200, "ready\n")
        _, page = await fetch(f"{url}/metrics")
    names = {family.name for family in text_string_to_metric_families(page)}
    assert {name.removesuffix("_total") for name in Metric} <= names


def test_a_port_in_use_is_refused_with_the_variable_that_changes_it() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = "something else uses its port; choose another with --metrics-port, .*PERDURE_METRICS_ADDRESS"
        with pytest.raises(AddressError, match=said):
            bind(f"127.0.0.1:{port}")
