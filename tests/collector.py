"""A collector of OpenTelemetry's spans over OTLP/HTTP, for tests: a real server that reads what is exported."""

import gzip
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage

from tests.house import eventually


@dataclass(frozen=True)
class Span:
    """A span as it was received."""

    trace: str
    id: str
    parent: str
    name: str
    kind: str
    attributes: Mapping[str, Any]
    events: tuple[tuple[str, Mapping[str, Any]], ...]
    links: tuple[str, ...]
    is_error: bool
    description: str
    began: int
    ended: int
    service: str
    scope: str
    schema: str

    @property
    def seconds(self) -> float:
        """How long it took."""
        return (self.ended - self.began) / 1e9


class Collector:
    """What a collector has received, in order; a span that came twice stands there twice."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.bodies: list[bytes] = []
        self.status = 200
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    @contextmanager
    def running(self) -> Iterator["Collector"]:
        """Serve until the block ends."""
        thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()

    def named(self, name: str) -> list[Span]:
        """The spans whose names begin so."""
        return [span for span in self.spans if span.name.startswith(name)]

    async def wait_for(self, *names: str) -> list[Span]:
        """Wait until there is a span of each name; all there are then."""

        async def there() -> bool:
            return all(self.named(name) for name in names)

        await eventually(there)
        return list(self.spans)

    def take(self, body: bytes) -> None:
        """Read an export."""
        self.bodies.append(body)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            about = _attributes(resource.resource.attributes)
            for scope in resource.scope_spans:
                where = (str(about["service.name"]), scope.scope.name, scope.schema_url)
                self.spans += [_read(span, *where) for span in scope.spans]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                assert self.path == "/v1/traces"
                if collector.status == 200:
                    collector.take(body)
                reply = ExportTraceServiceResponse().SerializeToString()
                self.send_response(collector.status)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", str(len(reply)))
                self.end_headers()
                self.wfile.write(reply)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
                del format, args

        return Handler


def _read(span: SpanMessage, service: str, scope: str, schema: str) -> Span:
    return Span(
        trace=span.trace_id.hex(),
        id=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        name=span.name,
        kind=SpanMessage.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_").lower(),
        attributes=_attributes(span.attributes),
        events=tuple((event.name, _attributes(event.attributes)) for event in span.events),
        links=tuple(link.span_id.hex() for link in span.links),
        is_error=span.status.code == 2,
        description=span.status.message,
        began=span.start_time_unix_nano,
        ended=span.end_time_unix_nano,
        service=service,
        scope=scope,
        schema=schema,
    )


def _attributes(given: Any) -> dict[str, Any]:
    return {each.key: _value(each.value) for each in given}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(part) for part in value.array_value.values]
    return getattr(value, kind) if kind else None
