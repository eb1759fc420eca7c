"""OpenTelemetry in a process: the exporter, spans with given ids, and trace ids for log lines.

Tracing is on if the standard variables name an OTLP endpoint. Only then the SDK is imported, which takes a quarter of a
second. The exporter runs on a thread of its own behind a bounded queue, so a slow or absent collector costs spans, but
never delays a job.
"""

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, cast
from urllib.parse import urlsplit

from perdure.contracts.traces import SCHEMA, SpanAttribute, flags_of, span_id_of, trace_id_of
from perdure.settings import SettingsError

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import Span

Kind = Literal["internal", "client", "server"]

Attributes = Mapping[str, str | bool | int | float | Sequence[str]]


@dataclass(frozen=True)
class NewSpan:
    """A span that is to begin.

    Attributes:
        name: Its name.
        attributes: Its attributes.
        traceparent: The ids of the span; new ones if empty.
        parent: The ids of the span above it; none if empty.
        kind: Whose work the span is.
        started_at: When the work began; now if None.
        links: The ids of spans that belong to it.
    """

    name: str
    attributes: Attributes
    traceparent: str = ""
    parent: str = ""
    kind: Kind = "internal"
    started_at: datetime | None = None
    links: Sequence[str] = ()


ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
"""Either of them turns tracing on."""

CAPTURE_CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
"""The variable that asks for prompts, arguments and results in spans, which perdure never puts there."""

EXPORT_MILLISECONDS = 1_000
"""Time between two exports, unless OTEL_BSP_SCHEDULE_DELAY names another. A killed worker loses the spans since."""

FLUSH_SECONDS = 3.0
"""Longest wait of an ending process for its last export."""

_CHATTY = ("opentelemetry.sdk", "opentelemetry.exporter")

_MCP_SCOPE = "mcp-python-sdk"
"""The scope of the MCP SDK's spans. They hold servers' error messages, which may be content."""

logger = logging.getLogger("perdure.tracing")


class TracingError(SettingsError):
    """A variable of OpenTelemetry has a value that cannot be used; the message names it and the fix."""


def is_on(environment: Mapping[str, str]) -> bool:
    """Whether the variables ask for spans.

    Raises:
        TracingError: They ask for something that perdure does not have.
    """
    name = next((name for name in ENDPOINTS if environment.get(name)), None)
    exporter = environment.get("OTEL_TRACES_EXPORTER", "otlp").strip().lower() or "otlp"
    if name is None or exporter == "none" or environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if exporter != "otlp":
        msg = f"OTEL_TRACES_EXPORTER={exporter}: perdure exports spans as otlp only; write otlp, or none for no spans"
        raise TracingError(msg)
    variable = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
    variable = variable if environment.get(variable) else "OTEL_EXPORTER_OTLP_PROTOCOL"
    protocol = environment.get(variable) or "http/protobuf"
    if protocol != "http/protobuf":
        msg = f"{variable}={protocol}: perdure exports spans over http/protobuf only; name an endpoint of it, port 4318"
        raise TracingError(msg)
    address = urlsplit(environment[name])
    if address.scheme not in {"http", "https"} or not address.hostname:
        msg = f"{name}={environment[name]!r} is no address; write for example http://collector:4318"
        raise TracingError(msg)
    if find_spec("opentelemetry.exporter.otlp.proto.http") is None:
        msg = f"{name} asks for spans, and the exporter is not installed; pip install 'perdure[tracing]', or unset it"
        raise TracingError(msg)
    return True


_given_ids: ContextVar[tuple[int, int] | None] = ContextVar("perdure_span_ids", default=None)
"""The ids of the span that is being made."""

_asked_by: ContextVar[str] = ContextVar("perdure_traceparent", default="")
"""The trace context of the request that this process works for, if OpenTelemetry has no current span for it."""


class OpenSpan:
    """A span that has begun. It ends with its block, unless it is dropped: then it is never exported."""

    def __init__(self, span: "Span | None" = None) -> None:
        self._span = span
        self._dropped = False

    def note(self, attributes: Attributes) -> None:
        """Add attributes."""
        if self._span is not None:
            self._span.set_attributes(dict(attributes))

    def rename(self, name: str) -> None:
        """Change the span's name, if the right one becomes known late."""
        if self._span is not None:
            self._span.update_name(name)

    def fail(self, code: str, *, is_error: bool = True) -> None:
        """Note the reason code of a failure, without its message, which may hold content."""
        if self._span is not None:
            _fail(self._span, code, is_error=is_error)

    def event(self, name: str, attributes: Attributes) -> None:
        """Add an event at the current time."""
        if self._span is not None:
            self._span.add_event(name, dict(attributes))

    def drop(self) -> None:
        """Never end the span here: another attempt goes on with it."""
        self._dropped = True

    def end(self) -> None:
        """End the span now, unless it has ended."""
        if self._span is not None and not self._dropped:
            self._span.end()
        self._dropped = True


class Tracing:
    """The spans of one process."""

    def __init__(self, service: str, clean: Callable[[str], str], *, as_global: bool = True) -> None:
        """Begin to export, as the standard variables configure it.

        Args:
            service: ``service.name``, unless OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES name another.
            clean: Masks secrets in a text.
            as_global: Whether spans of other libraries, such as the MCP SDK's, are exported too.
        """
        from opentelemetry import trace  # noqa: PLC0415 - only where spans are asked for
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

        for chatty in _CHATTY:  # they log each batch that fails; perdure's exporter logs it once
            logging.getLogger(chatty).setLevel(logging.CRITICAL)
        resource = Resource.create()
        if str(resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
            resource = resource.merge(Resource({SERVICE_NAME: service}))
        self._inner = OTLPSpanExporter()
        self._provider = TracerProvider(resource=resource, id_generator=_make_ids(), shutdown_on_exit=False)
        delay = None if os.environ.get("OTEL_BSP_SCHEDULE_DELAY") else EXPORT_MILLISECONDS
        exporter = _make_exporter(self._inner, clean)
        self._provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=delay))
        self._tracer = self._provider.get_tracer("perdure", version("perdure"), schema_url=SCHEMA)
        if as_global and isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
            trace.set_tracer_provider(self._provider)

    @classmethod
    def started(cls, service: str, clean: Callable[[str], str]) -> "Tracing | None":
        """Start tracing in this process if the variables ask for it; otherwise None.

        Raises:
            TracingError: A variable has a value that cannot be used.
        """
        if not is_on(os.environ):
            return None
        if os.environ.get(CAPTURE_CONTENT, "").strip().lower() not in {"", "false", "no_content"}:
            logger.warning("%s has no effect: spans never hold content; the transcript does", CAPTURE_CONTENT)
        try:
            return cls(service, clean)
        except ValueError as error:
            raise TracingError(f"a variable OTEL_… cannot be used: {error}") from error

    def keeps(self, traceparent: str, parent: str, name: str) -> bool:
        """Whether the sampler keeps the trace of a turn."""
        trace = int(trace_id_of(traceparent), 16)
        found = self._provider.sampler.should_sample(_remote(parent) if parent else _root(), trace, name)
        return bool(found.decision.is_sampled())  # type: ignore[no-untyped-call]

    @contextmanager
    def within(self, traceparent: str) -> Iterator[None]:
        """Make a remote span current in this block, for log lines and for spans of other libraries."""
        from opentelemetry import context  # noqa: PLC0415 - loaded by now

        token = context.attach(_remote(traceparent))
        try:
            yield
        finally:
            context.detach(token)

    def begin(self, new: NewSpan) -> "Span":
        """Begin a span."""
        from opentelemetry.trace import Link, SpanKind  # noqa: PLC0415 - loaded by now

        own = new.traceparent
        token = _given_ids.set((int(trace_id_of(own), 16), int(span_id_of(own), 16)) if own else None)
        try:
            return self._tracer.start_span(
                new.name,
                context=_remote(new.parent) if new.parent else _root(),
                kind=SpanKind[new.kind.upper()],
                attributes=dict(new.attributes),
                start_time=_nanoseconds(new.started_at),
                links=[Link(_context_of(link)) for link in new.links],
            )
        finally:
            _given_ids.reset(token)

    @contextmanager
    def hold(self, span: "Span") -> Iterator[OpenSpan]:
        """Make the span current in this block, and end it with the block."""
        from opentelemetry import context  # noqa: PLC0415 - loaded by now
        from opentelemetry.trace import set_span_in_context  # noqa: PLC0415

        token, opened = context.attach(set_span_in_context(span)), OpenSpan(span)
        try:
            yield opened
        finally:
            context.detach(token)
            opened.end()

    def make_current(self, span: "Span") -> None:
        """Make the span current until the enclosing block of :meth:`within` ends."""
        from opentelemetry import context  # noqa: PLC0415 - loaded by now
        from opentelemetry.trace import set_span_in_context  # noqa: PLC0415

        context.attach(set_span_in_context(span))

    def tell(self, span: "Span", ended_at: datetime, error: str = "", *, is_error: bool = True) -> None:
        """End a span at a time in the past."""
        if error:
            _fail(span, error, is_error=is_error)
        span.end(_nanoseconds(ended_at))

    def flush(self) -> None:
        """Export the spans that have ended; for tests."""
        self._provider.force_flush()

    def close(self, seconds: float = FLUSH_SECONDS) -> None:
        """Export the spans that have ended, and stop; wait at most ``seconds``."""
        ending = threading.Thread(target=self._provider.shutdown, name="perdure-spans-end", daemon=True)
        ending.start()
        ending.join(seconds)
        if ending.is_alive():
            self._inner.shutdown()  # type: ignore[no-untyped-call]
            logger.warning("the last spans could not be exported within %g s", seconds)


def current_span() -> str:
    """The ``traceparent`` of the current span; empty without one."""
    api: Any = sys.modules.get("opentelemetry.trace")
    if api is None:
        return ""
    told = api.get_current_span().get_span_context()
    return f"00-{told.trace_id:032x}-{told.span_id:016x}-{told.trace_flags:02x}" if told.is_valid else ""


def current() -> dict[str, str]:
    """Ids of the span that is current, for a log line; empty without one."""
    traceparent = current_span()
    if not traceparent:
        return {}
    return {"trace_id": trace_id_of(traceparent), "span_id": span_id_of(traceparent)}


def caller() -> str:
    """The ``traceparent`` for a turn that is started here: the current span's, or that of :func:`asked_by`."""
    return current_span() or _asked_by.get()


@contextmanager
def asked_by(traceparent: str) -> Iterator[None]:
    """Have turns that are started in this block belong to the trace of a request."""
    token = _asked_by.set(traceparent)
    try:
        yield
    finally:
        _asked_by.reset(token)


def _fail(span: "Span", code: str, *, is_error: bool) -> None:
    from opentelemetry.trace import StatusCode  # noqa: PLC0415 - loaded by now

    span.set_attribute(SpanAttribute.ERROR_TYPE, code)
    if is_error:
        span.set_status(StatusCode.ERROR)


def _nanoseconds(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp() * 1_000_000) * 1_000


def _context_of(traceparent: str) -> Any:  # noqa: ANN401 - the API's, which may not be loaded
    from opentelemetry.trace import SpanContext, TraceFlags  # noqa: PLC0415 - loaded by now

    trace, span = int(trace_id_of(traceparent), 16), int(span_id_of(traceparent), 16)
    return SpanContext(trace, span, is_remote=True, trace_flags=TraceFlags(flags_of(traceparent)))


def _remote(traceparent: str) -> "Context":
    from opentelemetry.trace import NonRecordingSpan, set_span_in_context  # noqa: PLC0415 - loaded by now

    return set_span_in_context(NonRecordingSpan(_context_of(traceparent)))


def _root() -> "Context":
    from opentelemetry.context import Context  # noqa: PLC0415 - loaded by now

    return Context()


def _make_ids() -> Any:  # noqa: ANN401 - a class of the SDK's, which may not be loaded
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator  # noqa: PLC0415 - loaded by now

    class Ids(RandomIdGenerator):
        """Given ids, or else random ones."""

        def generate_trace_id(self) -> int:
            given = _given_ids.get()
            return given[0] if given else super().generate_trace_id()

        def generate_span_id(self) -> int:
            given = _given_ids.get()
            return given[1] if given else super().generate_span_id()

    return Ids()


def _make_exporter(inner: Any, clean: Callable[[str], str]) -> Any:  # noqa: ANN401 - as above
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult  # noqa: PLC0415 - loaded by now

    class Exporter(SpanExporter):
        """Exports spans without secrets, and logs once that they cannot be exported."""

        def __init__(self) -> None:
            self._failed = False

        def export(self, spans: Sequence["ReadableSpan"]) -> SpanExportResult:
            try:
                result = inner.export([_without_secrets(span, clean) for span in spans])
            except Exception:  # noqa: BLE001 - the edge of the exporter's thread: no span is worth its end
                result = SpanExportResult.FAILURE
            failed = result is not SpanExportResult.SUCCESS
            if failed and not self._failed:
                logger.warning("spans cannot be exported, and are dropped; jobs go on. Look at OTEL_EXPORTER_OTLP_*")
            elif self._failed and not failed:
                logger.info("spans are exported again")
            self._failed = failed
            return SpanExportResult(result)

        def shutdown(self) -> None:
            inner.shutdown()

    return Exporter()


def _without_secrets(span: "ReadableSpan", clean: Callable[[str], str]) -> "ReadableSpan":
    """The span without secrets. Spans of the MCP SDK also lose messages of exceptions, which may be content."""
    from opentelemetry.sdk.trace import Event, ReadableSpan  # noqa: PLC0415 - loaded by now
    from opentelemetry.trace import Status  # noqa: PLC0415

    scope = span.instrumentation_scope
    quiet = scope is not None and scope.name == _MCP_SCOPE
    status = Status(span.status.status_code, None if quiet else _clean(span.status.description, clean))
    events = [
        Event(event.name, _cleaned({} if quiet else event.attributes or {}, clean), event.timestamp)
        for event in span.events
    ]
    return ReadableSpan(
        name=clean(span.name),
        context=span.context,
        parent=span.parent,
        resource=span.resource,
        attributes=_cleaned(span.attributes or {}, clean),
        events=events,
        links=span.links,
        kind=span.kind,
        status=status,
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=scope,
    )


def _cleaned(attributes: Mapping[str, Any], clean: Callable[[str], str]) -> dict[str, Any]:
    return {name: _clean(value, clean) for name, value in attributes.items()}


def _clean(value: Any, clean: Callable[[str], str]) -> Any:  # noqa: ANN401 - an attribute's value
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        parts = cast("Sequence[Any]", value)  # type: ignore[redundant-cast]  # pyright has narrowed it to less
        return [_clean(part, clean) for part in parts]
    return value
