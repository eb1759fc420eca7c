"""Logs, metrics and probes of a worker: one JSON line a record, one page of metrics with the Temporal SDK's."""

import asyncio
import errno
import json
import logging
import re
import socket
import sys
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from typing import cast

import uvicorn
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest
from pydantic_core import to_jsonable_python
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from temporalio import activity, workflow
from temporalio.exceptions import ApplicationError
from temporalio.runtime import (
    LogForwardingConfig,
    LoggingConfig,
    PrometheusConfig,
    Runtime,
    TelemetryConfig,
    TelemetryFilter,
)

from perdure import tracing
from perdure.activities.telling.metrics import Metrics
from perdure.activities.toolbox.runner import masked
from perdure.contracts.errors import DecryptionError, ErrorDetail, UnknownKeyError, code_of_kind
from perdure.contracts.values import JsonValue
from perdure.local_ports import HOST, find_free_port
from perdure.log_levels import quiet_libraries
from perdure.security.keyring import KEY_ID_FORM
from perdure.security.redaction import mask_arguments, redact_text
from perdure.worker.repeats import CORE, Repeats

SDK_PAGE_SECONDS = 5.0
"""Longest time for the SDK's own metrics page."""

LONGEST_FIELD = 1_000
"""Characters of a value that the SDK's core tells beside a message."""

_FORWARDING = LogForwardingConfig(
    logger=logging.getLogger(CORE),
    append_target_to_name=False,
    prepend_target_on_message=False,
    append_log_fields_to_message=False,
)

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """One JSON object a line; secrets are cut out of messages and tracebacks."""

    def __init__(self, secrets: frozenset[str]) -> None:
        super().__init__()
        self._secrets = secrets

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line; one that a tool's body writes is without its masked arguments too."""
        secrets = self._secrets | masked.get()
        line: dict[str, object] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redact_text(record.getMessage(), secrets),
            **_place(),
            **tracing.current(),
        }
        extra = {name: value for name, value in vars(record).items() if name not in _STANDARD and name not in line}
        plain = {name: _to_json(value) for name, value in extra.items()}
        for name, value in mask_arguments(plain).items():
            line[name] = _redact(value, secrets)
        if record.exc_info:
            line["exception"] = redact_text(self.formatException(record.exc_info), secrets)
        line["message"] = _ADDRESS.sub("", str(line["message"]))
        return json.dumps(line, ensure_ascii=False)


def _place() -> dict[str, object]:
    """The session and the activity, such as a tool's name, whose code writes a line; nothing outside of activities."""
    if not activity.in_activity():
        return {}
    info = activity.info()
    return {"workflow": info.workflow_id, "activity": info.activity_type}


_ADDRESS = re.compile(r" (?:object )?at 0x[0-9a-f]+")
"""Address that Python writes of an object without a text of its own: it differs in each process and tells nothing."""


def _to_json(value: object) -> JsonValue:
    """A value as JSON: no reader of a log can parse how Python writes it."""
    try:
        return cast("JsonValue", to_jsonable_python(value, timedelta_mode="float", fallback=_name_of))
    except ValueError:  # it contains itself
        return type(value).__name__


def _name_of(value: object) -> str:
    return f"{type(value).__name__}: {value}" if isinstance(value, BaseException) else type(value).__name__


def _redact(value: JsonValue, secrets: frozenset[str]) -> JsonValue:
    if isinstance(value, str):
        return redact_text(value, secrets)
    if isinstance(value, list):
        return [_redact(part, secrets) for part in value]
    return {name: _redact(part, secrets) for name, part in value.items()} if isinstance(value, dict) else value


def shorten(record: logging.LogRecord) -> bool:
    """Name the reason of a failure, and say one of ours in its one sentence; the traceback of a surprise is kept."""
    error = record.exc_info[1] if record.exc_info else None
    kind = error.type if isinstance(error, ApplicationError) else type(error).__name__ if error is not None else None
    if kind:
        record.reason_code = code_of_kind(kind)
    details = error.details if isinstance(error, ApplicationError) else ()
    second = next((detail.exception for detail in details if isinstance(detail, ErrorDetail)), None)
    if second is not None:
        record.exception_code = second
    if isinstance(error, ApplicationError) and error.type:
        record.exc_info, record.args = None, ()
        record.msg = error.message if error.message.startswith(error.type) else f"{error.type}: {error.message}"
    return True


def unfold(record: logging.LogRecord) -> bool:
    """Say what the SDK's core tells beside its message as JSON."""
    told = vars(record).pop("temporal_log", None)
    if told is not None:
        record.target = told.target
        record.fields = {name: str(value)[:LONGEST_FIELD] for name, value in told.fields.items()}
    return True


def configure_logging(level: str, secrets: frozenset[str]) -> None:
    """Send every log record to stderr as JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(secrets))
    handler.addFilter(Repeats())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.getLogger("temporalio.activity").addFilter(shorten)
    logging.getLogger(CORE).addFilter(unfold)
    # They stand beside the message, as JSON; in it they would be what Python makes of a dictionary.
    activity.logger.activity_info_on_message = False
    workflow.logger.workflow_info_on_message = False
    logging.captureWarnings(True)
    quiet_libraries()


def registry() -> CollectorRegistry:
    """A registry with the process's own figures; a worker has exactly one."""
    made = CollectorRegistry()
    ProcessCollector(registry=made)
    PlatformCollector(registry=made)
    GCCollector(registry=made)
    return made


class SdkMetrics:
    """The Temporal SDK's metrics: it serves them itself, on a loopback port that our page reads."""

    def __init__(self) -> None:
        self._address = f"{HOST}:{find_free_port()}"
        self.runtime = Runtime(
            telemetry=TelemetryConfig(
                logging=LoggingConfig(
                    filter=TelemetryFilter(core_level="WARN", other_level="ERROR"), forwarding=_FORWARDING
                ),
                metrics=PrometheusConfig(
                    bind_address=self._address, durations_as_seconds=True, counters_total_suffix=True, unit_suffix=True
                ),
            )
        )

    def page(self) -> bytes:
        """The SDK's page, in Prometheus' text format."""
        with urllib.request.urlopen(f"http://{self._address}/metrics", timeout=SDK_PAGE_SECONDS) as reply:
            return bytes(reply.read())


def metrics_page(own: CollectorRegistry, sdk: SdkMetrics) -> bytes:
    """Our metrics and the SDK's on one page."""
    return generate_latest(own) + sdk.page()


class AddressError(Exception):
    """The address of the metrics page cannot be used; the message names the way out."""


def bind(address: str) -> socket.socket:
    """A listening socket for ``HOST:PORT``, taken before anything else starts."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise AddressError(f"PERDURE_METRICS_ADDRESS={address!r} is no HOST:PORT, for example 127.0.0.1:9464")
    taken = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        taken.bind((host.strip("[]"), int(port)))
    except (OSError, OverflowError) as error:
        taken.close()
        cause = "something else uses its port" if getattr(error, "errno", None) == errno.EADDRINUSE else str(error)
        advice = "choose another with --metrics-port, --metrics-address or PERDURE_METRICS_ADDRESS"
        msg = f"the metrics address {address} cannot be used: {cause}; {advice}"
        raise AddressError(msg) from error
    return taken


class _Server(uvicorn.Server):
    """A server that leaves signals alone: they are the worker's business."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


class Health:
    """Whether this worker is alive and ready; set by the application, read by the probes."""

    def __init__(self) -> None:
        self.ready = False
        self.reason = "starting"
        self.notes: Callable[[], list[str]] = list
        """Notes for an operator; they do not make the worker unready."""


MOST_LACKING = 20
"""Keys that content is encrypted with and a worker lacks, of which it tells by name."""


class LackingKeys:
    """The keys that content here is encrypted with and this worker does not have, counted and told once each."""

    def __init__(self) -> None:
        self._told: dict[str, str] = {}

    def note(self, error: UnknownKeyError | DecryptionError, metrics: Metrics) -> None:
        """Count a payload that could not be decrypted."""
        key_id = error.key_id if KEY_ID_FORM.fullmatch(error.key_id) else "other"
        metrics.codec_failures.labels(key_id).inc()
        if key_id not in self._told and len(self._told) < MOST_LACKING:
            self._told[key_id] = str(error)
            logging.getLogger("perdure.worker").error("content cannot be decrypted: %s", error)

    def troubles(self) -> list[str]:
        """A line for each."""
        return list(self._told.values())


@asynccontextmanager
async def serve_pages(listener: socket.socket, health: Health, page: Callable[[], bytes]) -> AsyncIterator[None]:
    """Serve the three pages on the socket until the block ends."""

    async def metrics(_: Request) -> Response:
        body = await asyncio.to_thread(page)
        return Response(body, media_type="text/plain; version=0.0.4")

    async def alive(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def ready(_: Request) -> Response:
        lines = ["ready" if health.ready else health.reason, *health.notes()]
        return PlainTextResponse("".join(f"{line}\n" for line in lines), 200 if health.ready else 503)

    app = Starlette(routes=[Route("/metrics", metrics), Route("/healthz", alive), Route("/readyz", ready)])
    config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off", timeout_graceful_shutdown=1)
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        while not (server.started or task.done()):  # noqa: ASYNC110 - uvicorn tells its start by a plain attribute
            await asyncio.sleep(0.01)
        yield
    finally:
        server.should_exit = True
        await task
