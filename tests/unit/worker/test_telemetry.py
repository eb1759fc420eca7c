"""Logs are JSON without secrets; metrics are one page of ours and the SDK's."""

import json
import logging
import socket
import urllib.error
import urllib.request
from asyncio import to_thread

import pytest
from prometheus_client.parser import text_string_to_metric_families
from temporalio.exceptions import ApplicationError

from activities.metrics import Metrics
from perdure.contracts.names import Metric
from worker.health import AddressError, Health, bind, serving
from worker.telemetry import JsonFormatter, SdkMetrics, brief, metrics_page, registry


def record(message: str, error: BaseException | None = None) -> logging.LogRecord:
    exc_info = (type(error), error, error.__traceback__) if error else None
    return logging.LogRecord("temporalio.activity", logging.WARNING, "x.py", 1, message, (), exc_info)


def test_a_log_line_is_json_and_holds_no_secret() -> None:
    """S-52: neither the value of a known variable nor the shape of a key reaches the log, also not in a traceback."""
    formatter = JsonFormatter(frozenset({"hunter2-hunter2"}))
    line = json.loads(formatter.format(record("with hunter2-hunter2", ValueError("sk-abcd1234efgh5678"))))
    assert line["message"] == "with ***"
    assert "sk-abc" not in line["exception"]


def test_a_failure_that_has_a_reason_code_is_one_sentence_without_a_traceback() -> None:
    known = record("Completing activity as failed", ApplicationError("it broke", type="llm.timeout"))
    brief(known)
    line = json.loads(JsonFormatter(frozenset()).format(known))
    assert "exception" not in line
    assert line["message"] == "llm.timeout: it broke"

    unknown = record("Completing activity as failed", KeyError("surprise"))
    brief(unknown)
    assert "surprise" in json.loads(JsonFormatter(frozenset()).format(unknown))["exception"]


async def fetch(url: str) -> tuple[int, str]:
    def get() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(url, timeout=5) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    return await to_thread(get)


async def test_probes_tell_alive_from_ready_and_metrics_parse_as_one_page() -> None:
    own, sdk, health = registry(), SdkMetrics(), Health()
    Metrics(own)
    listener = bind("127.0.0.1:0")
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    async with serving(listener, health, lambda: metrics_page(own, sdk)):
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
        with pytest.raises(AddressError, match="PERDURE_METRICS_ADDRESS"):
            bind(f"127.0.0.1:{port}")
