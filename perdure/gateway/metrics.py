"""The metrics of a gateway, for Prometheus. No tenant and no session is in them: the page needs no token."""

from importlib.metadata import version

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from perdure.contracts.names import GatewayMetric, Metric
from perdure.gateway.audit import NO_ROUTE
from perdure.store.errors import RefusalCause


class HttpMetrics:
    """Requests by route: the pattern and not the path, so that there are as many as routes."""

    def __init__(self, registry: CollectorRegistry | None = None, *, build_id: str = "") -> None:
        self.registry = registry or CollectorRegistry()
        ProcessCollector(registry=self.registry)
        build = Gauge(Metric.BUILD_INFO, "1; the labels say what runs", ("version", "build_id"), registry=self.registry)
        build.labels(version("perdure"), build_id).set(1)
        names = ("method", "route", "status")
        self._requests = Counter(GatewayMetric.REQUESTS, "Answered requests", names, registry=self.registry)
        self._seconds = Histogram(
            GatewayMetric.SECONDS, "Seconds until the answer's end", ("route",), registry=self.registry
        )
        self.codec_failures = Counter(
            Metric.CODEC_FAILURES, "Payloads that could not be decrypted", ("key_id",), registry=self.registry
        )
        self._store_refusals = Counter(
            Metric.STORE_REFUSALS, "Requests that the store refused", ("cause",), registry=self.registry
        )
        for cause in RefusalCause:
            self._store_refusals.labels(cause)
        self.streams = Gauge(GatewayMetric.STREAMS, "Open event streams", registry=self.registry)

        self._token_reads = Counter(
            GatewayMetric.FILE_READS, "Readings of a changed or broken file", ("outcome",), registry=self.registry
        )
        for outcome in ("changed", "failed"):
            self._token_reads.labels(outcome)  # a first reading is an increase only if there was a zero before

    def note_tokens(self, outcome: str) -> None:
        """Count a reading of the file of tokens, ``changed`` or ``failed``."""
        self._token_reads.labels(outcome).inc()

    def note_store_refusal(self, cause: RefusalCause) -> None:
        """Count a request that could not be answered because the store refused."""
        self._store_refusals.labels(cause).inc()

    def note(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count an answered request; ``route`` is empty if none took it, and ``method`` is as the logs name it."""
        self._requests.labels(method, route or NO_ROUTE, str(status)).inc()
        self._seconds.labels(route or NO_ROUTE).observe(seconds)

    def page(self) -> bytes:
        """All of them, in Prometheus' text format."""
        return generate_latest(self.registry)
